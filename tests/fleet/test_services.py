"""Services whose replicas follow their load: bounds, start-up, latency, and nodes that others have."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.fleet import FleetAnswer
from tspsim.fleet.autoscalers import AUTOSCALERS
from tspsim.fleet.backlog import backlog
from tspsim.fleet.need_keys import Needs
from tspsim.fleet.needs import reached

MACHINE = {"device": "h100", "nodes": 4, "fabric": "rails-400g"}
DAY = [1, 1, 1, 1, 1, 1, 2, 4, 6, 8, 8, 8, 8, 8, 8, 7, 6, 5, 4, 3, 2, 2, 1, 1]
SERVICE: dict[str, Any] = {
    "name": "chat",
    "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
    "traffic": {"arrivals": {"kind": "poisson", "rate": 8}, "prompt": 200, "output": 20, "requests": 20},
    "plan": {"tp": 2},
    "gpus": 2,
    "hours": "24 h",
}


#: Long prompts: few fit the caches, so that what is served behind a queue is soon known.
LONG = SERVICE["traffic"] | {"prompt": "8Ki"}


def service(
    replicas: dict[str, Any], *beside: dict[str, Any], traffic: dict[str, Any] = SERVICE["traffic"], **changes: Any
) -> FleetAnswer:
    load = [share / 8 for share in DAY]
    keys = {"min": 1, "max": 8, "load": load, "autoscaler": {"kind": "target", "rate": 1}, "every": "10 min"}
    jobs = [SERVICE | {"replicas": keys | replicas, "traffic": traffic}, *beside]
    answer = tspsim.simulate({"name": "s", "cluster": MACHINE, "jobs": jobs} | changes)
    assert isinstance(answer, FleetAnswer)
    return answer


def test_replicas_follow_the_load_by_the_rule() -> None:
    answer = service({"start": "0 s", "down_after": "0 s"})
    (told,) = answer.to_json()["fleet"]["services"]
    # 1 request/s a replica, 8 at most: as many as the hour has, but where a tenth less or more is let be.
    assert told["mean_replicas"] == pytest.approx(sum(DAY) / 24) and told["most_replicas"] == 8
    assert told["requests"] == pytest.approx(3600 * sum(DAY)) and told["unserved_share"] == 0.0
    assert sum(job.gpu_hours for job in answer.facts.jobs) == pytest.approx(2 * sum(DAY))
    assert [job.state for job in answer.facts.jobs] == ["done"] * len(answer.facts.jobs)
    assert answer.facts.times.allocated_gpus.max() == 16
    assert told["rates"] == [1.0]
    assert answer.facts.lost_gpu_hours["redone"] == 0.0


@pytest.mark.in_turn(2, group="services")
def test_a_replica_serves_once_it_has_started_and_leaves_when_it_has_not_been_wanted_for_a_while() -> None:
    answer = service({"start": "20 min", "down_after": "30 min"}, traffic=LONG)
    (told,) = answer.to_json()["fleet"]["services"]
    ups, downs = sum(max(0, b - a) for a, b in zip([0, *DAY], DAY, strict=False)), 8 - 1
    assert len(answer.facts.jobs) == ups
    assert answer.facts.lost_gpu_hours["restarting"] == pytest.approx(ups * 2 * 20 / 60)
    # From an hour's begin until a third of it those of the hour before serve; all are held half an hour longer.
    assert told["mean_replicas"] == pytest.approx((sum(DAY) + 0.5 * downs) / 24, rel=0.03)
    assert told["unserved_share"] == pytest.approx(1200 / (3600 * sum(DAY)))


@pytest.mark.in_turn(2, group="services")
def test_replicas_wait_for_nodes_that_others_have_and_go_on_after_a_failure() -> None:
    other = {"name": "other", "nodes": 4, "hours": "9 h"}
    (told,) = service({"min": 2}, other, traffic=LONG).to_json()["fleet"]["services"]
    assert 0.0 < told["unserved_share"] < 0.5
    failing = {"components": {"gpu": {"rate": 3000, "repair": "1 h"}}, "restart": "2 min"}
    answer = service({}, failures=failing, traffic=LONG)
    assert answer.facts.lost_gpu_hours["redone"] < 0.01 and any(job.restarts for job in answer.facts.jobs)
    assert answer.facts.horizon_s == 86_400.0


@given(st.integers(1, 6), st.integers(0, 6), st.floats(0.3, 4.0), st.lists(st.floats(0, 3), min_size=24, max_size=24))
@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_never_fewer_than_min_nor_more_than_max(least: int, more: int, rate: float, load: list[float]) -> None:
    answer = service(
        {
            "min": least,
            "max": least + more,
            "load": load,
            "autoscaler": {"kind": "target", "rate": rate},
            "start": "0 s",
        }
    )
    times = answer.facts.times
    changes = sorted([(float(at), 1) for at in times.spell_start_s] + [(float(at), -1) for at in times.spell_end_s])
    here, before_s = 0, 0.0
    for at_s, change in changes:
        assert at_s == before_s or least <= here <= least + more
        here, before_s = here + change, at_s


@pytest.mark.in_turn(2, group="services")
def test_more_replicas_are_never_slower() -> None:
    """But for the draws of each rate, a percent."""
    counts = (1, 8)
    answers = [service({"max": 8, "start": "0 s", "autoscaler": {"kind": "fixed", "of": count}}) for count in counts]
    told = [answer.to_json()["fleet"]["services"][0] for answer in answers]
    for count, each in zip(counts, told, strict=True):
        assert each["rates"][-1] == pytest.approx(told[0]["rates"][-1] / count)
    for fewer, more in pairwise(told):
        for key in ("ttft_s", "tpot_s"):
            assert all(more[key][part] <= fewer[key][part] * 1.01 for part in fewer[key])


@pytest.mark.parametrize("seed", range(6))
def test_a_flow_of_requests_waits_as_counted_in_small_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    spans = random.integers(2, 9)
    for_s, serving = random.uniform(1, 20, spans), random.choice([0.0, 0.5, 1.0, 3.0], spans)
    rate, capacity, step_s = random.choice([0.0, 1.0, 3.0, 8.0], spans) * random.uniform(0.5, 1.5, spans), 2.0, 1e-3
    told = backlog(for_s, rate, serving, capacity)
    which = np.repeat(np.arange(spans), np.round(for_s / step_s).astype(int))
    queue = np.zeros(len(which) + 1)
    for number, span in enumerate(which):
        queue[number + 1] = max(0.0, queue[number] + (rate[span] - serving[span] * capacity) * step_s)
    came, at_s = np.append(0.0, np.cumsum(rate[which] * step_s)), step_s * np.arange(len(which) + 1)
    served = came - queue
    numbers = np.linspace(0.0, served[-1], 5_001)[1:-1]
    waits = np.interp(numbers, served, at_s) - np.interp(numbers, came, at_s)
    assert told.requests.sum() == pytest.approx(served[-1], abs=0.1) and told.left == pytest.approx(queue[-1], abs=0.1)
    assert told.to_json()["most_requests"] == pytest.approx(queue.max(), abs=0.1)
    if served[-1] > 1.0:
        assert told.to_json()["mean_wait_s"] == pytest.approx(waits.mean(), rel=0.02, abs=0.05)
        assert told.longest_s.max() == pytest.approx(waits.max(), rel=0.02, abs=0.3)
    assert (told.pace <= capacity * (1 + 1e-9)).all()


@pytest.mark.slow
def test_what_an_hour_cannot_serve_waits_for_the_next() -> None:
    """An hour at twice what a replica serves, then hours with a tenth of that: of n requests too many the last waits n
    over the rate at which they are served."""
    fixed = {"min": 1, "max": 1, "start": "0 s", "every": "5 min", "autoscaler": {"kind": "fixed", "of": 1}}
    (quiet,) = service(fixed | {"load": 0.01}, traffic=LONG).to_json()["fleet"]["services"]
    assert quiet["backlog"]["most_requests"] == 0.0 and quiet["ttft_s"]["p50_worst"] < 5.0
    bounded = LONG | {"prompt": "32Ki", "arrivals": {"kind": "poisson", "rate": 3}, "slo": {"ttft": "10 s"}}
    answer = service(fixed | {"load": [1.0] + [0.1] * 23}, traffic=bounded, needs={"services": True})
    (told,) = answer.to_json()["fleet"]["services"]
    queue = told["backlog"]
    served = 3.0 - queue["most_requests"] / 3600.0
    assert 0.5 < served < 3.0 and queue["requests_left"] == 0.0
    assert queue["longest_wait_s"] == pytest.approx(queue["most_requests"] / served, rel=1e-6)
    # The queue is a triangle over time: its area is what all requests wait.
    drained_s = queue["most_requests"] / (served - 0.3)
    waited_s = queue["most_requests"] * (3600.0 + drained_s) / 2.0
    assert queue["mean_wait_s"] == pytest.approx(waited_s / told["requests"], rel=1e-6)
    assert told["ttft_s"]["p50_worst"] > queue["longest_wait_s"] and told["tpot_s"]["p50_worst"] > told["tpot_s"]["p50"]
    # Who waits is late, all others are not.
    assert told["bounds"]["share"] == pytest.approx(1.0 - queue["waiting_share"], abs=0.05)
    assert [each.value for each in reached(Needs(services=True), answer)] == [1.0]


@pytest.mark.parametrize("name", sorted(AUTOSCALERS))
def test_every_autoscaler_wants_no_fewer_for_more_load(name: str) -> None:
    scaler: Any = AUTOSCALERS.get(name)
    rule = scaler(**({"rate": 2.0} if "rate" in scaler.model_fields else {"of": 3}))
    for here in (1, 4, 9):
        wanted = [rule.wanted(rate, here) for rate in (0.0, 0.5, 2.0, 7.9, 8.5, 30.0)]
        assert wanted == sorted(wanted) and all(isinstance(count, int) and count >= 0 for count in wanted)


@pytest.mark.parametrize(
    ("replicas", "told"),
    [
        ({"min": 9}, "min: 9 is more than max: 8"),
        ({"load": [1, 2]}, "load: 2 shares; state one, or 24 by hour of day"),
        ({"autoscaler": {"kind": "targets", "rate": 1}}, "target"),
    ],
)
def test_what_is_wrong_of_replicas_is_told(replicas: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        service(replicas)
