"""What a fleet draws: sums by hand, a cap, hours of the day."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.fleet import FleetAnswer

MACHINE = {"device": "h100", "nodes": 4, "fabric": "rails-400g"}


def fleet(*jobs: dict[str, Any], **power: Any) -> FleetAnswer:
    answer = tspsim.simulate({"name": "p", "cluster": MACHINE, "jobs": list(jobs), "power": power})
    assert isinstance(answer, FleetAnswer)
    return answer


def test_energy_is_what_busy_and_idle_gpus_draw() -> None:
    jobs = {"name": "a", "nodes": 2, "hours": "3 h"}, {"name": "b", "nodes": 4, "hours": "30 min"}
    answer = fleet(
        *jobs, busy="1000 W", idle=0.25, pue=1.2, electricity=["0.05 USD/kWh"] * 4 + ["0.5 USD/kWh"] * 20, begins=2.5
    )
    told = answer.to_json()["fleet"]["power"]
    # Three hours with half of the cluster idle, then half an hour of all of it.
    kwh = 1.2 * (3.0 * (16 + 0.25 * 16) + 0.5 * 32)
    assert answer.facts.energy_kwh == told["energy_kwh"] == pytest.approx(kwh)
    by_hour = [told["kwh_by_hour_of_day"][hour] for hour in (2, 3, 4, 5, 6)]
    assert by_hour == pytest.approx([1.2 * 10, 1.2 * 20, 1.2 * 20, 1.2 * (0.5 * 20 + 0.5 * 32), 0.0])
    assert told["electricity_usd"] == pytest.approx(0.05 * sum(by_hour[:2]) + 0.5 * sum(by_hour[2:]))
    assert told["peak_w"] == 32_000.0


def test_a_job_waits_that_would_lead_beyond_the_cap() -> None:
    jobs = [{"name": name, "nodes": 2, "hours": "1 h"} for name in "ab"]
    starts = [job.start_s for job in fleet(*jobs, busy="1 kW", idle=0, cap="31 kW").facts.jobs]
    assert starts == [0.0, 3600.0]
    assert [job.start_s for job in fleet(*jobs, busy="1 kW", idle=0, cap="32 kW").facts.jobs] == [0.0, 0.0]
    with pytest.raises(InputError, match="draws idle"):
        fleet(*jobs, busy="1 kW", idle=0.5, cap="15 kW")
    with pytest.raises(InputError, match="alone draws more"):
        fleet(*jobs, busy="1 kW", idle=0, cap="15 kW")


TRAINING = {
    "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": "4Ki"}, "plan": {"tp": 8}, "steps": 10_000,
}  # fmt: skip


def test_clocks_go_down_under_a_cap_before_a_job_waits() -> None:
    """Two jobs on all of four nodes at 1 kW a GPU of 700 W; the cap leaves each GPU 0.8 kW: limited to 500 W."""
    jobs = [{"name": name, "nodes": 2, "hours": "1 h"} for name in "ab"]
    jobs[1] |= {"submit": "30 min"}
    answer = fleet(*jobs, busy="1 kW", idle=0, cap="25.6 kW", lowest="400 W")
    told = answer.to_json()["fleet"]["power"]
    assert told["peak_w"] == pytest.approx(25_600) and told["lowest_limit_w"] == pytest.approx(500.0)
    # Half an hour alone at full clocks, then both; (500 − 100) W of (700 − 100) W to 1/2.5: nothing else is known.
    clock = float(np.interp(500.0, np.linspace(400, 700, 5), [*((np.linspace(400, 700, 5)[:4] - 100) / 600) ** 0.4, 1]))
    assert clock == pytest.approx((400 / 600) ** 0.4, rel=2e-3)
    first, second = answer.facts.jobs
    assert first.end_s == pytest.approx(1800 + 1800 / clock)
    assert second.start_s == 1800.0 and first.end_s is not None and second.end_s is not None
    both_s = first.end_s - 1800
    assert second.end_s == pytest.approx(first.end_s + 3600 - both_s * clock)
    lost = (first.slowdown - 1) * 3600 + (second.slowdown - 1) * 3600
    assert answer.facts.lost_gpu_hours["power"] == pytest.approx(lost / 3600 * 16)
    # Where even the lowest limit is too much a job waits.
    waits = fleet(*jobs, busy="1 kW", idle=0, cap="20 kW", lowest="400 W").facts.jobs
    assert waits[1].start_s == pytest.approx(3600.0)


def test_a_step_under_a_cap_is_the_step_at_that_limit() -> None:
    """A cap that leaves each GPU its lowest limit: the job takes what its own scenario says at that limit."""
    job = {"name": "a", "nodes": 4} | TRAINING
    (answered,) = fleet(job, busy="1 kW", idle=0, cap="22.4 kW", lowest="400 W").facts.jobs
    own = {"name": "own", "cluster": MACHINE | {"power_limit": "400 W"}, "workload": TRAINING["workload"]}
    step = tspsim.simulate(own | {"plans": [{"name": "TP8", "tp": 8}]}).plans[0]
    assert answered.end_s == pytest.approx(10_000 * step.step_time_s, rel=1e-9)
    assert answered.slowdown > 1.05
    limited = tspsim.simulate({"name": "p", "cluster": MACHINE | {"power_limit": "400 W"}, "jobs": [job]})
    assert isinstance(limited, FleetAnswer)
    assert limited.facts.jobs[0].end_s == pytest.approx(answered.end_s, rel=1e-9)


@pytest.mark.parametrize(
    ("power", "told"),
    [
        ({"lowest": "400 W"}, "lowest says how far clocks go down under a cap; state cap"),
        ({"lowest": "90 W", "cap": "30 kW"}, "90 W is not between 100 W and the 700 W of h100"),
        ({"lowest": "900 W", "cap": "30 kW"}, "900 W is not between"),
        ({"electricity": ["0.1 USD/kWh"] * 3}, "3 prices; state one, or 24 by hour of day"),
    ],
)  # fmt: skip
def test_what_is_wrong_of_power_is_told(power: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        fleet({"name": "a", "hours": "1 h"}, **{"busy": "1 kW", **power})


@st.composite
def rigid(draw: st.DrawFn) -> list[dict[str, Any]]:
    row = st.tuples(st.integers(0, 40), st.integers(1, 4), st.integers(1, 90))
    at, jobs = 0, []
    for number, (gap, wide, minutes) in enumerate(draw(st.lists(row, min_size=1, max_size=12))):
        at += gap
        jobs.append({"name": f"j{number}", "nodes": wide, "hours": f"{minutes} min", "submit": f"{at} min"})
    return jobs


@given(rigid(), st.integers(48, 60), st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_a_higher_cap_never_starts_a_job_later_under_first_come(
    jobs: list[dict[str, Any]], cap: int, more: int
) -> None:
    """Where clocks stay as they are; energy is the sum of what is drawn, whatever it is sorted by."""
    low, high = (fleet(*jobs, busy="1500 W", idle=0.2, cap=f"{kw} kW") for kw in (cap, cap + more))
    for before, after in zip(low.facts.jobs, high.facts.jobs, strict=True):
        assert after.end_s is not None and before.end_s is not None and after.end_s <= before.end_s
    for answer in (low, high):
        told, facts = answer.to_json()["fleet"]["power"], answer.facts
        held = sum(job.gpu_hours for job in facts.jobs)
        kwh = 1.5 * (held + 0.2 * (facts.gpu_hours - held))
        assert told["energy_kwh"] == pytest.approx(kwh) == pytest.approx(sum(told["kwh_by_hour_of_day"]))
        assert told["mean_w"] * facts.horizon_s / 3.6e6 == pytest.approx(kwh)
    assert low.to_json()["fleet"]["power"]["peak_w"] <= 1000 * cap


@given(rigid(), st.integers(28, 48))
@settings(max_examples=20, deadline=None)
def test_no_instant_draws_more_than_the_cap_whatever_fails(jobs: list[dict[str, Any]], cap: int) -> None:
    failures = {"components": {"gpu": {"rate": 3000, "repair": "1 h"}}, "checkpoint": {"every": "10 min"}}
    asked = {"name": "p", "cluster": MACHINE, "jobs": jobs, "failures": failures, "horizon": "2 days"}
    answer = tspsim.simulate(asked | {"power": {"busy": "1 kW", "cap": f"{cap} kW", "lowest": "450 W"}})
    assert isinstance(answer, FleetAnswer)
    assert answer.to_json()["fleet"]["power"]["peak_w"] <= 1000 * cap * (1 + 1e-9)


def test_gpus_draw_what_runs_on_them() -> None:
    """A job that states its draw beside one that does not; a node that is down draws nothing, though a job has it."""
    jobs = {"name": "a", "nodes": 2, "hours": "2 h"}, {"name": "b", "nodes": 1, "hours": "1 h", "busy": "600 W"}
    told = fleet(*jobs, busy="1 kW", idle=0.2).to_json()["fleet"]["power"]
    assert told["energy_kwh"] == pytest.approx(2 * 16 * 1.0 + 8 * 0.6 + (2 * 8 + 8) * 0.2)
    assert told["peak_w"] == pytest.approx(16_000 + 4_800 + 1_600)
    # Under a cap the job that draws less leaves room for another.
    rows = ("a", "1 kW"), ("b", "600 W")
    pair = [{"name": name, "nodes": 2, "hours": "1 h", "busy": watts} for name, watts in rows]
    assert [job.start_s for job in fleet(*pair, busy="1 kW", idle=0, cap="25.6 kW").facts.jobs] == [0.0, 0.0]
    assert [job.start_s for job in fleet(*pair, busy="1 kW", idle=0, cap="25.5 kW").facts.jobs] == [0.0, 3600.0]
    with pytest.raises(InputError, match=r"jobs\.b\.busy.*at most power\.busy, 1,000 W"):
        fleet({"name": "b", "hours": "1 h", "busy": "1.1 kW"}, busy="1 kW")
    with pytest.raises(InputError, match="job 'b': busy is of a fleet whose draw is looked at; state power too"):
        tspsim.simulate({"name": "p", "cluster": MACHINE, "jobs": [{"name": "b", "hours": "1 h", "busy": "1 kW"}]})


def test_a_limit_slows_the_jobs_that_draw_more_than_it_leaves() -> None:
    """500 W a GPU are left beside a job that takes 450 W: of 16 GPUs at 1 kW (700 W) and 16 at 450 W that is 550 W."""
    jobs = [{"name": name, "nodes": 2, "hours": "1 h"} for name in "ab"]
    jobs[1] |= {"busy": "450 W"}
    first, second = fleet(*jobs, busy="1 kW", idle=0, cap="20.8 kW", lowest="400 W").facts.jobs
    assert second.slowdown == 1.0 and second.end_s == 3600.0 and second.start_s == 0.0
    # 850 W with server and fabric: a GPU at 550 W of 700 W.
    clock = float(np.interp(550.0, np.linspace(400, 700, 5), [*((np.linspace(400, 700, 5)[:4] - 100) / 600) ** 0.4, 1]))
    assert first.end_s == pytest.approx(3600 + 3600 * (1 - clock))


def test_a_node_that_is_down_draws_nothing_though_a_job_still_has_it() -> None:
    failures = {"components": {"gpu": {"rate": 1e5, "repair": "30 min"}}, "detection": "30 min"}
    asked = {"name": "p", "cluster": MACHINE | {"nodes": 2}, "jobs": [{"name": "a", "nodes": 2, "hours": "9 h"}]}
    answer = tspsim.simulate(asked | {"failures": failures, "horizon": "3 h", "power": {"busy": "1 kW", "idle": 0}})
    assert isinstance(answer, FleetAnswer)
    watts, down = answer.facts.times.watts, answer.facts.times.nodes_down
    held = answer.facts.times.allocated_gpus
    assert ((held == 16) & (down == 1)).any() and ((held == 16) & (down == 2)).any()
    assert watts[held == 16].tolist() == (8_000.0 * (2 - down[held == 16])).tolist()
