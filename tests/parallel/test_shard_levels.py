"""Weights, gradients and state divided on three levels of links (Frontier)."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.bounds import check_below

import tspsim
from tspsim.base.errors import InputError
from tspsim.step.bound import bounds
from tspsim.step.result import PlanResult

LEVELS = {"zero": 3, "shard_group": 8, "weight_shard": 8}
PACKAGES = {**LEVELS, "weight_shard": 2}


def steps(
    *plans: dict[str, Any], sequences: int = 2, device: str = "h100", fabric: str = "rails-400g", every: bool = False
) -> list[PlanResult]:
    asked = tspsim.load(
        {
            "name": "levels",
            "cluster": {"device": device, "nodes": 2, "fabric": fabric},
            "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": 512,
                         "sequences_per_replica": sequences},
            "plans": [{"name": f"P{index}", **plan} for index, plan in enumerate(plans)],
        }
    )  # fmt: skip
    result = tspsim.simulate(asked)
    check_below(bounds(asked), result)
    if every:
        for folded, full in zip(result.plans, tspsim.simulate(asked, every_rank=True).plans, strict=True):
            assert folded.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    assert all(plan.ran and plan.mfu <= 1.0 for plan in result.plans)
    return list(result.plans)


def carried(plan: PlanResult, kind: str) -> float:
    return sum(link.carried_bytes for link in plan.links if link.kind == kind)


@pytest.mark.parametrize("sequences", [1, 4])
def test_between_nodes_a_rank_moves_its_part_of_gradients_and_weights_once_a_step(sequences: int) -> None:
    """2·(M/g)·(1 − g/N) out and in; ZeRO 3 three times all of it in every micro-batch."""
    levels, packages, third = steps(LEVELS, PACKAGES, {"zero": 3}, sequences=sequences)
    weights = 2 * 8.03e9
    expected = 2 * 16 * 2 * weights / 8 * (1 - 8 / 16)
    assert carried(levels, "nic") == pytest.approx(expected, rel=1e-3)
    assert carried(packages, "nic") == pytest.approx(expected, rel=1e-3)
    assert carried(third, "nic") > 1.2 * sequences * carried(levels, "nic")


def test_each_level_keeps_its_part() -> None:
    packages, group, first, third = steps(PACKAGES, {**LEVELS, "weight_shard": 8}, {"zero": 1}, {"zero": 3})
    whole = {part: first.memory.parts[part] for part in ("weights", "gradients")}
    assert packages.memory.parts["weights"] == pytest.approx(whole["weights"] / 2)
    assert group.memory.parts["weights"] == pytest.approx(whole["weights"] / 8)
    for plan in (packages, group):
        assert plan.memory.parts["gradients"] == pytest.approx(whole["gradients"] / 8)
        assert plan.memory.parts["optimizer_state"] == third.memory.parts["optimizer_state"]


def test_a_thin_fabric_makes_it_faster_than_zero_3_and_it_leaves_more_room_than_hybrid_shards() -> None:
    plans = LEVELS, {"zero": 3, "shard_group": 8}, {"zero": 3}
    levels, hybrid, third = steps(*plans, sequences=4, device="b200", fabric="rails-200g", every=True)
    assert levels.step_time_s < min(hybrid.step_time_s, third.step_time_s)
    assert third.memory.peak_bytes < levels.memory.peak_bytes < hybrid.memory.peak_bytes


def test_stages_and_tensor_parallel_ranks_go_with_it() -> None:
    plans = [{**PACKAGES, "shard_group": 4, "tp": 2}, {**PACKAGES, "shard_group": 4, "pp": 2, "micro_batch": 1}]
    steps(*plans, {**PACKAGES, "weight_wire": "int8"}, every=True)


def test_inside_a_node_gathers_stay_in_their_package() -> None:
    """Two passes of M/2 a layer, and of tables one, instead of 7/8: a switch carries less; links of a mesh more."""
    packages, levels = steps(PACKAGES, LEVELS, sequences=4)
    assert carried(packages, "nvlink") < carried(levels, "nvlink")


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({**LEVELS, "zero": 1}, "training with zero: 3 and shard_group"),
        ({"zero": 3, "weight_shard": 8}, "training with zero: 3 and shard_group"),
        ({**LEVELS, "weight_shard": 3}, "3 does not divide shard_group = 8"),
        ({**LEVELS, "sp": 2}, "not built beside sp"),
        ({**LEVELS, "secondary_shard": 8}, "secondary_shard"),
        ({**LEVELS, "gradient_wire": "int4"}, "gradient_wire: needs secondary_shard"),
        ({"tsp": 8, "weight_shard": 2}, "weight_shard"),
    ],
)
def test_what_does_not_go_with_it_is_refused(plan: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        steps(plan)


def test_experts_are_refused() -> None:
    question = {
        "name": "experts",
        "cluster": {"device": "h100", "nodes": 2, "fabric": "rails-400g"},
        "workload": {"model": "qwen3-30b-a3b", "pass": "training", "sequence": 512},
        "plans": [{"name": "P", **LEVELS}],
    }
    with pytest.raises(InputError, match="not built for models with experts"):
        tspsim.simulate(question)
