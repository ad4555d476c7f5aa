"""Jobs that share links: rates by the rule beside their real steps on one engine, and where nothing is shared."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.fleet import FleetAnswer, load
from tspsim.fleet.answer import cluster_of
from tspsim.fleet.bursts import beside
from tspsim.fleet.neighbours import meeting, placed, rates, reduced
from tspsim.fleet.step_graph import BEGIN, BurstFlow, BurstTransfer, StepGraph


def neighbours(placement: str, **changes: Any) -> FleetAnswer:
    asked = load("fleet-neighbours-fat-tree").to_dict() | {"placement": {"kind": placement}} | changes
    answer = tspsim.simulate(asked, every_job_step=True)
    assert isinstance(answer, FleetAnswer)
    return answer


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("placement", ["spread", "random"])
def test_rates_are_those_of_real_steps_on_one_engine(placement: str) -> None:
    told = neighbours(placement).to_json()["fleet"]
    (met,) = told["neighbours"]["checked"]
    assert met["rates"] == pytest.approx(met["every_job_step"], rel=0.03)
    assert all(rate < 1.0 for rate in met["rates"])
    # They are of one length: nearly the whole of both runs is that much longer.
    assert [job["slowdown"] for job in told["jobs"]] == pytest.approx([1.0 / rate for rate in met["rates"]], rel=1e-3)
    assert told["lost_gpu_hours"]["neighbours"] > 0.0


def test_packed_jobs_keep_to_themselves() -> None:
    facts = neighbours("packed").facts
    assert [job.slowdown for job in facts.jobs] == [1.0, 1.0] and facts.lost_gpu_hours["neighbours"] == 0.0


def test_switches_that_carry_all_that_nodes_send_are_never_shared() -> None:
    cluster = {"device": "h100", "nodes": 32, "fabric": "fat-tree-400g"}
    told = neighbours("random", cluster=cluster).to_json()["fleet"]
    assert "neighbours" not in told and [job["slowdown"] for job in told["jobs"]] == [1.0, 1.0]


def test_a_job_alone_is_slower_where_its_nodes_are_further_apart_than_in_its_own_scenario() -> None:
    """Eight nodes of their own stand below one switch; on a cluster with an eighth of the uplinks they share those."""
    question = load("fleet-neighbours-fat-tree")
    plan = {"tp": 8, "cp": 2, "zero": 1}
    job = question.jobs[0].model_copy(update={"plan": plan, "hours": None, "steps": 1000})
    asked = question.to_dict() | {"jobs": [{**question.to_dict()["jobs"][0], "plan": plan, "steps": 1000}]}
    del asked["jobs"][0]["hours"]
    asked["cluster"] |= {"oversubscription": 8}
    answer = tspsim.simulate(asked)
    assert isinstance(answer, FleetAnswer)
    own = answer.plans[0].step_time_s
    question = question.model_copy(update={"jobs": (job,), "cluster": load(asked).cluster})
    cluster = cluster_of(question)
    there_s = reduced(placed(question, (0, 8, tuple(range(8))), cluster), cluster).step_s
    assert there_s > 1.2 * own
    (answered,) = answer.facts.jobs
    assert answered.end_s == pytest.approx(1000 * there_s, rel=1e-9)
    assert answered.slowdown == pytest.approx(there_s / own, rel=1e-9)
    assert answer.facts.lost_gpu_hours["placement"] == pytest.approx(1000 * (there_s - own) * 64 / 3600, rel=1e-9)
    assert "placement" in " ".join(answer.defaults)


def exposed(link: int) -> StepGraph:
    """A step of 0.9 s of kernels and 0.1 s of data that fills a link, one after the other."""
    return StepGraph(1.0, (BurstFlow({link: 1.0}, 1.0),), (BurstTransfer(0, 0.1, ((BEGIN, 0.9),)),), ((0, 0.0),))


def hidden(link: int, moves_s: float) -> StepGraph:
    """A second of kernels, beside which data moves over the whole of a link."""
    flow, transfer = BurstFlow({link: 1.0}, 1.0), BurstTransfer(0, moves_s, ((BEGIN, 0.0),))
    return StepGraph(1.0, (flow,), (transfer,), ((BEGIN, 1.0), (0, 0.0)))


def test_steps_beside_each_other_by_hand() -> None:
    # What begins together shares the link once; from then on nobody is alone there either, for both are alike.
    assert beside([exposed(7), exposed(7)], [0.0, 0.0], 2) == [pytest.approx([1.1, 2.2])] * 2
    # A tenth of a second later each has it to itself.
    assert beside([exposed(7), exposed(7)], [0.0, 0.1], 2) == [pytest.approx([1.0, 2.0]), pytest.approx([1.1, 2.1])]
    # Half of that later both are held up by half of what they meet for, in every step.
    late = beside([exposed(7), exposed(7)], [0.0, 0.05], 4)
    assert [late[0][0], late[0][3], late[1][3]] == pytest.approx([1.05, 4.2, 4.25])
    # Hidden for less than half of the step: two fit; for four fifths they are bound by the link.
    assert rates([hidden(7, 0.4), hidden(7, 0.4)]) == pytest.approx([1.0, 1.0])
    assert rates([hidden(7, 0.8), hidden(7, 0.8)]) == pytest.approx([0.625, 0.625], rel=0.05)
    assert rates([hidden(7, 0.8)]) == [1.0]


def test_jobs_meet_that_can_fill_a_link_together() -> None:
    half = StepGraph(1.0, (BurstFlow({8: 0.5}, 1.0),), (BurstTransfer(0, 0.1, ((BEGIN, 0.9),)),), ((0, 0.0),))
    assert meeting([exposed(7), half, exposed(7), half]) == [[0, 2], [1], [3]]
    assert meeting([exposed(8), half, half]) == [[0, 1, 2]]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", [{"tp": 8, "zero": 3}, {"tp": 4, "pp": 2, "zero": 1}, {"tp": 8, "cp": 2, "zero": 1}])
def test_a_reduced_step_alone_takes_as_long(plan: dict[str, Any]) -> None:
    """Whatever its streams and stages, and however its kernels slow down beside data."""
    question = load("fleet-neighbours-fat-tree")
    job = question.jobs[0].model_copy(update={"plan": plan})
    question = question.model_copy(update={"jobs": (job,)})
    cluster = cluster_of(question)
    step = placed(question, (0, 8, (0, 5, 9, 13, 17, 21, 25, 29)), cluster)
    graph = reduced(step, cluster)
    assert len(graph.transfers) > 20 and graph.slower > 0.1
    assert beside([graph], [3.0], 2)[0] == pytest.approx([3.0 + graph.step_s, 3.0 + 2 * graph.step_s], rel=1e-9)
