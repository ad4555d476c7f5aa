"""Kernels that clamp gate and up of experts before a fused activation, and what a padded exchange launches."""

from __future__ import annotations

import pytest

from tspsim.model.layer import gradients
from tspsim.operators import Gemm, GroupedGemm, MemoryBound, Role
from tspsim.parallel import load_stack

ROWS, WIDTH, HIDDEN = 512, 2880, 2880
FORWARD = GroupedGemm(ROWS, 2 * WIDTH, HIDDEN, "bf16", batch=4, role=Role.EXPERTS_GATE_UP)
_, GRADIENT = gradients(FORWARD)


def moved_bytes(stack: str, product: Gemm, *, biased: bool = True) -> float:
    kernels = load_stack(stack).stack().run([product], biased=biased)
    return sum(kernel.hbm_bytes for kernel in kernels if isinstance(kernel, MemoryBound))


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-core@graphs", "megatron-core@yarn"])
def test_clamps_and_their_join_are_kernels_beside_the_products(stack: str) -> None:
    """Bytes of an element, in bf16 with masks of one: a clamp and a join; in a backward three comparisons for two
    halves, one conjunction, a choice and the join."""
    forward, backward = (2 + 2) + (2 + 2), (3 * (2 + 1) + (1 + 1 + 1)) / 2 + (1 + 2 + 2) + (2 + 2)
    assert moved_bytes(stack, FORWARD) == pytest.approx(forward * 4 * ROWS * 2 * WIDTH)
    assert moved_bytes(stack, GRADIENT) == pytest.approx(backward * 4 * ROWS * 2 * WIDTH)


@pytest.mark.parametrize("stack", ["megatron-core@whole-graphs", "megatron-core@whole-graphs-yarn"])
def test_whole_graphs_run_beside_fused_clamps(stack: str) -> None:
    assert moved_bytes(stack, FORWARD) == 0.0


def test_models_whose_experts_have_no_biases_clamp_nothing() -> None:
    assert moved_bytes("megatron-core", FORWARD, biased=False) == 0.0


@pytest.mark.parametrize("version", ["padded", "unfused-padded", "unfused-router-padded"])
def test_experts_filled_to_their_capacity_exchange_no_counts(version: str) -> None:
    plain, padded = load_stack("megatron-core").stack(), load_stack(f"megatron-core@{version}").stack()
    assert plain.expert_exchange_s(library=False) == pytest.approx(8 * plain.kernel_s)
    assert padded.expert_exchange_s(library=False) == pytest.approx(2 * plain.kernel_s)
