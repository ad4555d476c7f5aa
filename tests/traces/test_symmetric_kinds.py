"""What stands in one kernel on one side of a comparison stands in one kind on both."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tspsim
from tspsim.operators import MemoryBound
from tspsim.step.question import Question, look_up
from tspsim.traces.simulated import Operation, RankTimeline, Simulated


def question(stack: str) -> Question:
    asked: dict[str, Any] = {
        "name": "kinds",
        "cluster": {"device": "h800", "nodes": 1},
        "workload": {"model": "deepseek-v2-lite", "pass": "training", "precision": "fp8_block", "stack": stack,
                     "sequence": 2048, "sequences_per_replica": 2},
        "plans": [{"name": "EP8", "ep": 8, "zero": 1, "expert_dispatch": "ranks", "recomputation": "cheap",
                   "micro_batch": 1}],
    }  # fmt: skip
    return look_up(tspsim.load(asked))


def lane_of(stack: str) -> RankTimeline:
    asked = question(stack)
    return Simulated(asked, asked.plans[0]).lane(0)


def operations(stack: str) -> tuple[Operation, ...]:
    return lane_of(stack).operations


@pytest.fixture(scope="module")
def deepseek() -> tuple[Operation, ...]:
    return operations("hai-llm")


def test_gradients_that_products_add_are_in_the_products(deepseek: tuple[Operation, ...]) -> None:
    """DeepSeek's kernels of dW are named ``acc``; nanotron adds in kernels of their own. No time is lost."""
    assert not [item for item in deepseek if item.name == "add to gradient"]
    assert [item for item in operations("nanotron") if item.name == "add to gradient"]
    lane = lane_of("hai-llm")
    taken: Counter[int] = Counter()
    for item in lane.operations:
        taken[item.instruction] += item.seconds  # type: ignore[assignment]
    for instruction, seconds in taken.items():
        assert seconds == pytest.approx(lane.steps[instruction].seconds)


def test_casts_of_products_in_eight_bits_stand_beside_them(deepseek: tuple[Operation, ...]) -> None:
    """What one price has of both is two rows, whose times add up to the instruction's; a router in bf16 has no cast."""
    ideal = lane_of("ideal")
    casts = Counter(item.name for item in ideal.operations if item.kind == "quantize")
    products = Counter(item.name for item in ideal.operations if item.kind == "gemm")
    assert casts["cast for output projection"] == products["output projection"] > 0
    assert not casts["cast for router"]
    taken: Counter[int] = Counter()
    for item in ideal.operations:
        taken[item.instruction] += item.seconds  # type: ignore[assignment]
    assert all(seconds == pytest.approx(ideal.steps[number].seconds) for number, seconds in taken.items())
    # DeepSeek's are operators of their own, and nothing is cast twice.
    own = Counter(item.name for item in deepseek if item.kind == "quantize")
    assert not [name for name in own if name.startswith("cast for ") and name != "cast for backward"]
    assert own["weights across"] == own["gradients across"] == own["inputs across"] > 0


def test_latents_are_normed_forward_again_and_back(deepseek: tuple[Operation, ...]) -> None:
    latents = [item for item in deepseek if item.name.startswith("norm of latent") and item.layer == 5]
    assert [(item.name, item.phase) for item in latents[:3]] == [
        ("norm of latent", "forward"), ("norm of latent", "backward"), ("norm of latent backward", "backward"),
    ]  # fmt: skip


def test_an_activation_made_again_in_its_backward_s_kernel_reads_nothing_more(deepseek: tuple[Operation, ...]) -> None:
    def sizes(rows: tuple[Operation, ...]) -> set[float]:
        return {
            item.operator.size_bytes
            for item in rows
            if isinstance(item.operator, MemoryBound)
            and item.name == "experts' activation"
            and item.phase == "backward"
        }

    (own,), (other,) = sizes(deepseek), sizes(operations("ideal"))
    assert own == pytest.approx(other / 3)
