"""Kernels that a stack runs around products in eight bits and norms, by the bytes that they move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tspsim.hardware import load_device
from tspsim.hardware.pricers import price
from tspsim.hardware.prices import cast_of
from tspsim.model.layer import gradients
from tspsim.operators import Computes, Gemm, MemoryBound, Operator, Role
from tspsim.parallel.stack import Stack

M, N, K = 4096, 2048, 7168
PRODUCT = Gemm(M, N, K, "fp8_block", role=Role.DOWN)


def moved(operators: Sequence[Operator]) -> dict[str, float]:
    return {item.name: item.hbm_bytes for item in operators if isinstance(item, MemoryBound)}


def test_every_operand_is_written_as_its_product_reads_it() -> None:
    """Report, section 3.5.2: along tokens forward; read back and written across for the weights' gradient. Weights are
    turned once, for the inputs'. One byte an element in eight bits, two before."""
    stack = Stack("apart", casts_apart=True)
    back, weights = gradients(PRODUCT)
    assert moved(tuple(stack.run([PRODUCT]))) == {"cast": 3.0 * M * K}
    assert moved(tuple(stack.run([back]))) == {
        "weights across": 2.0 * N * K, "cast": 3.0 * M * N, "gradients across": 3.0 * M * N,
    }  # fmt: skip
    assert moved(tuple(stack.run([weights]))) == {"inputs across": 2.0 * M * K}
    device = load_device("h800")
    for product in (PRODUCT, back, weights):
        alone = [item for item in stack.run([product]) if isinstance(item, Gemm)]
        assert cast_of(device, alone[0]).seconds == 0.0 < cast_of(device, product).seconds or product is weights
        assert price(device, alone[0]).seconds <= price(device, product).seconds


def test_rows_that_came_in_eight_bits_are_not_cast_again() -> None:
    stack = Stack("apart", casts_apart=True)
    back = replace(gradients(PRODUCT)[0], quantised=True)
    assert moved(tuple(stack.run([replace(PRODUCT, quantised=True)]))) == {}
    assert moved(tuple(stack.run([back]))) == {"weights across": 2.0 * N * K, "gradients across": 2.0 * M * N}
    # In one kernel the gradient that came so is still written across.
    device = load_device("h800")
    assert 0.0 < cast_of(device, back).seconds < cast_of(device, replace(back, quantised=False)).seconds


def test_what_attention_gives_waits_in_twelve_bits() -> None:
    """Report, section 3.3.3: a type of its own for what enters the product behind attention."""
    stack = Stack("apart", casts_apart=True)
    product = Gemm(M, N, K, "fp8_block", role=Role.OUTPUT)
    kept = 1.5 + 4 / 128
    assert moved(tuple(stack.run([product]))) == {"cast for backward": (2.0 + kept) * M * K, "cast": 3.0 * M * K}
    weights = gradients(product)[1]
    assert moved(tuple(stack.run([weights]))) == {"cast back": (2.0 + kept) * M * K, "inputs across": 3.0 * M * K}


def test_a_router_and_other_stacks_stay_as_they_are() -> None:
    router = Gemm(M, 256, K, "bf16", role=Role.ROUTER)
    assert tuple(Stack("apart", casts_apart=True).run([router])) == (router,)
    assert tuple(Stack("plain").run([PRODUCT])) == (PRODUCT,)


def test_norms_move_the_tensors_that_are_counted() -> None:
    stack = Stack("counted", norm_tensors=(6.0, 2.0, 8.0))
    assert not stack.fuses
    size = 4.0 * M * K * 2
    norm = MemoryBound("add_rmsnorm", size, M, role=Role.NORM)
    back = MemoryBound("add_rmsnorm", size, M, role=Role.NORM, computes=Computes.INPUT_GRADIENT)
    latent = MemoryBound("rmsnorm", size, M, role=Role.NORM)
    assert [item.hbm_bytes / size for item in stack.run([norm, back, latent])] == pytest.approx([1.5, 2.0, 1.0])
