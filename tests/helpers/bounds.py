"""What every simulated answer owes to its ceilings."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.engine import question

import tspsim
from tspsim.bound import Bounds, bounds
from tspsim.costs import Costs
from tspsim.parallel import build_mesh
from tspsim.paths import LowerBound
from tspsim.question import look_up
from tspsim.result import PlanResult, Result


def check_below(ceilings: Bounds, result: Result) -> None:
    """No plan is faster than its bound, as a whole or by its block, and both know the same memory."""
    for plan, simulated in zip(ceilings.plans, result.plans, strict=True):
        assert plan.name == simulated.name and plan.memory == simulated.memory
        if simulated.ran:
            assert simulated.tokens_per_s <= plan.tokens_per_s, plan.name
            assert simulated.block_forward_tokens_per_s <= plan.block_tokens_per_s, plan.name


def simulated_below_bounds(path: str, *plans: dict[str, Any], **work: Any) -> list[PlanResult]:
    """Plans of a model file, simulated: each below its ceilings, and folded as every rank."""
    named = [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)]
    asked = tspsim.load(question(path, named, **work))
    result, every = tspsim.simulate(asked), tspsim.simulate(asked, every_rank=True)
    check_below(bounds(asked), result)
    for found, full in zip(result.plans, every.plans, strict=True):
        assert found.ran and found.mfu <= 1.0
        assert found.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    return list(result.plans)


def check_step(scenario: dict[str, Any]) -> PlanResult:
    """A plan on eight GPUs: folded as every rank, not faster than its ceilings, nor than any bound of its step."""
    folded, full = tspsim.simulate(scenario), tspsim.simulate(scenario, every_rank=True)
    assert folded.plans[0].step_time_s == pytest.approx(full.plans[0].step_time_s, rel=1e-12)
    check_below(bounds(tspsim.load(scenario)), folded)
    asked = look_up(tspsim.load(scenario))
    job, device = asked.job(asked.plans[0]), asked.device
    mesh = build_mesh(job.plan, 8, 8)
    bound = LowerBound(asked.cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    least_s = [bound.floor_s(job), bound.compute_s(job), bound.rough_s(job, mesh), bound.step_s(job, mesh)]
    assert 0 < max(least_s) <= folded.plans[0].step_time_s
    return folded.plans[0]
