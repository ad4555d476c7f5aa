"""Kernels that a stack runs around products in eight bits and norms, by the bytes that they move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import tspsim
from tspsim.hardware import load_device
from tspsim.hardware.pricers import price
from tspsim.hardware.prices import cast_of
from tspsim.model import load_model
from tspsim.model.layer import LayerShard, gradients
from tspsim.operators import Computes, Gemm, MemoryBound, Operator, Role
from tspsim.parallel.recompute import recomputed_inputs, recomputed_kernels
from tspsim.parallel.stack import Stack
from tspsim.parallel.state.memory import kept_activations
from tspsim.step.question import Question, look_up
from tspsim.step.simulation import scheduled

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


def test_what_is_made_again_is_wide_when_it_is_written_across() -> None:
    """Report, section 3.2.3: norms and activations are computed again; tokens that were sent are kept in eight bits."""
    asked = question("hai-llm")
    again = recomputed_inputs(scheduled(asked, asked.plans[0]))
    assert Role.EXPERTS_DOWN in again and Role.EXPERTS_GATE_UP not in again and Role.OUTPUT not in again
    stack = Stack("apart", casts_apart=True)
    weights = gradients(PRODUCT)[1]
    assert moved(tuple(stack.run([weights], recomputed=again))) == {"inputs across": 3.0 * M * K}
    whole = replace(asked.plans[0], recomputation="none")
    assert not recomputed_inputs(replace(scheduled(asked, asked.plans[0]), plan=whole))


@pytest.mark.parametrize(("model", "projections"), [("deepseek-v3", 2), ("deepseek-v2-lite", 1)])
def test_projections_to_latents_cast_their_input_each(model: str, projections: int) -> None:
    """``wq_a`` and ``wkv_a`` of ``inference/model.py``, whose ``linear`` quantises what it reads. Without latents of
    queries (V2-Lite's ``q_lora_rank`` is null) there is ``wkv_a`` alone."""
    stack, layer = Stack("apart", casts_apart=True), LayerShard(load_model(model), 1, "fp8_block")
    (product,) = layer.down_projections(M)
    for part, size in ((product, 3.0), (gradients(product)[1], 2.0)):
        casts = [item.hbm_bytes for item in stack.run([part]) if isinstance(item, MemoryBound)]
        assert casts == projections * [size * M * product.k]


def test_a_router_and_other_stacks_stay_as_they_are() -> None:
    router = Gemm(M, 256, K, "bf16", role=Role.ROUTER)
    assert tuple(Stack("apart", casts_apart=True).run([router])) == (router,)
    assert tuple(Stack("plain").run([PRODUCT])) == (PRODUCT,)


def test_norms_are_kernels_of_their_own() -> None:
    """Sums and scales around them run as copies; a norm takes what its own kernel does, longer than a copy."""
    stack = Stack("counted", norm_tensors=((3.0, 1.0), (3.0, 4.0)))
    assert not stack.fuses
    size, tensor = 4.0 * M * K * 2, M * K * 2.0
    norm = MemoryBound("add_rmsnorm", size, M, role=Role.NORM)
    back = MemoryBound("add_rmsnorm", size, M, role=Role.NORM, computes=Computes.INPUT_GRADIENT)
    latent = MemoryBound("rmsnorm", size, M, role=Role.NORM)
    ran = tuple(stack.run([norm, back, latent]))
    assert [(item.hbm_bytes / tensor, item.resident) for item in ran] == [
        (1.0, 0), (3.0, 1), (4.0, 0), (3.0, 1), (4.0, 1),
    ]  # fmt: skip
    device = load_device("h800")
    assert all((price(device, item).seconds > price(device, replace(item, resident=0)).seconds) is bool(item.resident)
               for item in ran)  # fmt: skip


@pytest.mark.parametrize("apart", [False, True])
def test_a_norm_made_again_reads_its_input_and_writes_its_output(apart: bool) -> None:
    """The sum before it is kept: two tensors, where the forward reads two, adds them, and writes sum and norm."""
    asked = question("hai-llm" if apart else "ideal")
    job = scheduled(asked, asked.plans[0])
    tensor = 4096.0 * job.model.hidden * 2.0
    norm = MemoryBound("add_rmsnorm", 4.0 * tensor, 4096, role=Role.NORM)
    (again,) = recomputed_kernels(job, norm)
    assert [item.hbm_bytes / tensor for item in job.work.stack.run([again])] == [2.0]


def test_what_waits_in_twelve_bits_takes_as_much_room() -> None:
    """Attention's output, 128 heads of 128 values, serves attention's backward too (§3.3.3) and is kept once."""
    asked = question("hai-llm")
    job = scheduled(asked, asked.plans[0])
    whole = replace(job, work=replace(job.work, stack=replace(job.work.stack, casts_apart=False)))
    block = job.model.blocks[-1]
    less = kept_activations(whole, 1, block) - kept_activations(job, 1, block)
    assert less == pytest.approx(4096 * 128 * 128 * (2.0 - (1.5 + 4 / 128)))


def question(stack: str) -> Question:
    return look_up(tspsim.load("deepseek-v3-2048-h800", [f"workload.stack={stack}"]))
