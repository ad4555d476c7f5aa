"""Prompts of linear attention whose tokens ranks divide: a state passes on, and nothing that grows."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine import architecture, model_file, programs_of, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.model.parts import LinearAttention
from tspsim.operators import DeltaScan
from tspsim.parallel import Job, build_mesh, scheme_of
from tspsim.program import Compute
from tspsim.step.bound import bounds
from tspsim.step.paths import LowerBound
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan, scheduled

#: Three layers with states of 16 heads of 32 × 64, and one with grouped queries.
HYBRID = architecture(
    1024, layers=4, heads=16, kv_heads=8, head_dim=64, attention="gdn", vocab=32000,
    linear=LinearAttention(8, 32, 16, 64, 4, 4),
)  # fmt: skip
S, AWAY = 4096, Fraction(7, 8)
PLANS = [
    {"name": "zigzag", "sp": 8},
    {"name": "contiguous", "sp": 8, "partition": "contiguous"},
    {"name": "beside tp", "tp": 2, "sp": 4},
    {"name": "tsp", "tsp": 8},
    {"name": "tsp in turn", "tsp": 8, "overlap": False},
    {"name": "tsp as published", "tsp": 8, "tsp_schedule": "published"},
]


def asked(path: str, *plans: Mapping[str, Any], **work: Any) -> dict[str, Any]:
    return question(path, plans, pass_="prefill", **{"sequence": S, **work})


def job(path: str, plan: Mapping[str, Any], **work: Any) -> Job:
    found = look_up(tspsim.load(asked(path, plan, **work)))
    return found.job(found.plans[0])


def test_runs_scanned_apart_and_folded_are_the_whole_scan() -> None:
    """The delta rule S_t = α_t·(I − β_t·k·kᵀ)·S + β_t·k·vᵀ token by token, and A, B of runs."""
    random, tokens, k, v = np.random.default_rng(3), 96, 8, 6
    keys, values = random.normal(size=(tokens, k)), random.normal(size=(tokens, v))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    alpha, beta = random.uniform(0.8, 1.0, tokens), random.uniform(0.0, 1.0, tokens)

    def run(first: int, last: int, state: np.ndarray) -> np.ndarray:
        for t in range(first, last):
            state = alpha[t] * (state - beta[t] * np.outer(keys[t], keys[t] @ state)) + beta[t] * np.outer(
                keys[t], values[t]
            )
        return state

    def summary(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        b = run(first, last, np.zeros((k, v)))
        a = np.eye(k)
        for t in range(first, last):
            a = alpha[t] * (a - beta[t] * np.outer(keys[t], keys[t] @ a))
        return a, b

    state, start = np.zeros((k, v)), random.normal(size=(k, v))
    state = start
    for first in range(0, tokens, 12):
        a, b = summary(first, first + 12)
        state = a @ state + b
    assert np.allclose(state, run(0, tokens, start))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan["name"])
@pytest.mark.parametrize("cached", [0, 2048])
def test_summaries_of_runs_and_tails_of_convolutions_are_gathered(
    plan: dict[str, Any], cached: int, tmp_path: Path
) -> None:
    """(p − 1)/p of: a run 4·heads·k·(k + v) and 2·3·channels; behind cached tokens a state; K and V of the fourth."""
    path = model_file(tmp_path, HYBRID)
    (found,) = tspsim.simulate(asked(path, plan, cached=cached)).plans
    ranks, tp = plan.get("sp", 8), plan.get("tp", 1)
    runs, away = ranks * (1 if plan.get("partition") else 2), Fraction(ranks - 1, ranks)
    maps = runs * 4 * 16 * 32 * (32 + 64) + (4 * 16 * 32 * 64 if cached else 0)
    tails = runs * 2 * 3 * (2 * 8 * 32 + 16 * 64)
    full = (S + cached) * 2 * 2 * 8 * 64
    expected = away * (3 * Fraction(maps + tails, tp) + Fraction(full, tp)) / 4
    expected += 2 * Fraction(tp - 1, tp) * 2 * S // ranks * 1024
    if "tsp" in plan:
        weights = [HYBRID.attention_of(block).matrix_parameters(HYBRID, block) for block in HYBRID.blocks]
        expected += AWAY * 2 * Fraction(sum(weights), 4)
    assert found.communication_bytes_per_layer["attention"] == expected
    (short,) = tspsim.simulate(asked(path, plan, cached=cached, sequence=S // 2)).plans
    assert short.step_time_s < found.step_time_s


def test_every_token_is_scanned_once_and_summarised_once(tmp_path: Path) -> None:
    for plan in PLANS:
        scanned: dict[str, float] = {}
        for program in programs_of(job(model_file(tmp_path, HYBRID), plan)):
            for issued in program.unrolled():
                for operator in issued.instruction.operators if isinstance(issued.instruction, Compute) else ():
                    if isinstance(operator, DeltaScan):
                        tokens = operator.tokens * operator.v_heads / 16 * plan.get("tp", 1)
                        scanned[operator.name] = scanned.get(operator.name, 0) + tokens
        assert scanned == {"delta rule": 3 * S, "summaries of runs": 3 * S}, plan["name"]


def test_folded_equals_every_rank_and_no_step_lies_below_its_bound(tmp_path: Path) -> None:
    stated = asked(model_file(tmp_path, HYBRID), *PLANS, cached=2048)
    ceilings = {each.name: each.tokens_per_s for each in bounds(tspsim.load(stated)).plans}
    found = look_up(tspsim.load(stated))
    device, cluster = found.device, found.cluster
    for plan in found.plans:
        planned = scheduled(found, plan)
        folded, whole = run_plan(found, planned.plan), run_plan(found, planned.plan, every_rank=True)
        assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-12), plan.name
        assert folded.communication_bytes_per_layer == whole.communication_bytes_per_layer
        assert folded.tokens_per_s <= ceilings[plan.name] * (1 + 1e-9), plan.name
        bound = LowerBound(cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
        mesh = build_mesh(planned.plan, cluster.gpus, cluster.gpus_per_node)
        assert bound.step_s(planned, mesh) <= folded.step_time_s * (1 + 1e-9), plan.name
        told = sum(each.bytes for each in scheme_of(planned.plan).received(planned, False))
        assert told <= folded.communication_bytes_per_layer["total"] * (1 + 1e-9)


def test_states_are_not_handed_on_part_by_part(tmp_path: Path) -> None:
    for keys in ({"sp": 8, "exchange": "ring"}, {"tsp": 8, "overlap_by": "blocks"}):
        with pytest.raises(InputError, match="gdn hands a state on"):
            job(model_file(tmp_path, HYBRID), {"name": "P", **keys})
