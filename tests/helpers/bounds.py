"""What every simulated answer owes to its ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.engine import question

import tspsim
from tspsim.hardware import Costs
from tspsim.parallel import build_mesh
from tspsim.step.bound import Bounds, bounds
from tspsim.step.paths import LowerBound
from tspsim.step.question import Question, look_up
from tspsim.step.result import PlanResult, Result
from tspsim.step.simulation import run_plan


def check_below(ceilings: Bounds, result: Result) -> None:
    """No plan is faster than its bound, as a whole or by its block, and both know the same memory."""
    check_plans_below(ceilings, result.plans)


def check_plans_below(ceilings: Bounds, plans: Sequence[PlanResult]) -> None:
    for plan, simulated in zip(ceilings.plans, plans, strict=True):
        assert plan.name == simulated.name and plan.memory == simulated.memory
        if simulated.ran:
            assert simulated.tokens_per_s <= plan.tokens_per_s, plan.name
            assert simulated.block_forward_tokens_per_s <= plan.block_tokens_per_s, plan.name


def run_below_bounds(asked: Question) -> list[PlanResult]:
    """Every plan of a question, each below its ceilings; schedules it leaves open are chosen once for both."""
    results = [run_plan(asked, plan) for plan in asked.plans]
    check_plans_below(bounds(asked), results)
    return results


def simulated_below_bounds(path: str, *plans: dict[str, Any], **work: Any) -> list[PlanResult]:
    """Plans of a model file, simulated: each below its ceilings, and folded as every rank."""
    named = [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)]
    asked = look_up(tspsim.load(question(path, named, **work)))
    results = run_below_bounds(asked)
    for plan, found in zip(asked.plans, results, strict=True):
        assert found.ran and found.mfu <= 1.0
        full = run_plan(asked, plan, every_rank=True)
        assert found.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    return results


def check_step(scenario: dict[str, Any]) -> PlanResult:
    """A plan on eight GPUs: folded as every rank, not faster than its ceilings, nor than any bound of its step."""
    asked = look_up(tspsim.load(scenario))
    (folded,) = run_below_bounds(asked)
    assert folded.step_time_s == pytest.approx(run_plan(asked, asked.plans[0], every_rank=True).step_time_s, rel=1e-12)
    job, device = asked.job(asked.plans[0]), asked.device
    mesh = build_mesh(job.plan, 8, 8)
    bound = LowerBound(asked.cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    least_s = [bound.floor_s(job), bound.compute_s(job), bound.rough_s(job, mesh), bound.step_s(job, mesh)]
    assert 0 < max(least_s) <= folded.step_time_s
    return folded
