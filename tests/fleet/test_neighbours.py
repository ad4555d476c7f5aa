"""Jobs that share links: rates by the rule beside their real steps on one engine, and where nothing is shared."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.fleet import FleetAnswer, load
from tspsim.fleet.neighbours import Loads, rates


def neighbours(placement: str, **changes: Any) -> FleetAnswer:
    asked = load("fleet-neighbours-fat-tree").to_dict() | {"placement": {"kind": placement}} | changes
    answer = tspsim.simulate(asked, every_job_step=True)
    assert isinstance(answer, FleetAnswer)
    return answer


@pytest.mark.parametrize("placement", ["spread", "random"])
def test_rates_are_those_of_real_steps_on_one_engine(placement: str) -> None:
    told = neighbours(placement).to_json()["fleet"]
    (met,) = told["neighbours"]["checked"]
    assert met["rates"] == pytest.approx(met["every_job_step"], rel=0.03)
    assert all(rate < 1.0 for rate in met["rates"])
    # They are of one length: the whole of both runs is that much longer.
    assert [job["slowdown"] for job in told["jobs"]] == pytest.approx([1.0 / rate for rate in met["rates"]])
    assert told["lost_gpu_hours"]["neighbours"] > 0.0


def test_packed_jobs_keep_to_themselves() -> None:
    facts = neighbours("packed").facts
    assert [job.slowdown for job in facts.jobs] == [1.0, 1.0] and facts.lost_gpu_hours["neighbours"] == 0.0


def test_switches_that_carry_all_that_nodes_send_are_never_shared() -> None:
    cluster = {"device": "h100", "nodes": 32, "fabric": "fat-tree-400g"}
    told = neighbours("random", cluster=cluster).to_json()["fleet"]
    assert "neighbours" not in told and [job["slowdown"] for job in told["jobs"]] == [1.0, 1.0]


def test_the_rule_by_hand() -> None:
    """Two jobs that each take a whole link for a tenth of their step, exposed: a tenth of the time both move, at half
    speed, so that the tenth takes 1/0.95 of its time."""
    alone = Loads(1.0, 0.1, {7: 0.1}, {7: 0.1})
    assert rates([alone, alone]) == pytest.approx([1.0 / (1.0 + 0.1 * (1.0 / 0.95 - 1.0))] * 2)
    # Half of the link each is no burden; more than all of it is shared whatever the bursts are.
    half = Loads(1.0, 0.1, {7: 0.05}, {7: 0.1})
    assert rates([half, half]) == [1.0, 1.0]
    full = Loads(1.0, 0.0, {7: 0.8}, {7: 0.8})
    assert rates([full, full]) <= [0.625, 0.625]
    assert rates([alone, Loads(1.0, 0.1, {8: 0.1}, {8: 0.1})]) == [1.0, 1.0]
