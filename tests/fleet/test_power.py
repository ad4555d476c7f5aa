"""What a fleet draws: sums by hand, a cap, hours of the day."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.errors import InputError
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
