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
from tspsim.operators import Computes, Gemm, GroupedGemm, MemoryBound, Operator, Role
from tspsim.parallel.activation_store import ACTIVATION_STORES
from tspsim.parallel.recompute import recomputed_inputs, recomputed_kernels
from tspsim.parallel.stack import Stack
from tspsim.parallel.stack_spec import load_stack
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


def test_an_activation_that_casts_writes_less_and_its_product_finds_it_cast() -> None:
    """Two tensors read in bf16, one written in eight bits with a scale for 128. One made again is whole."""
    stack = Stack("apart", casts_apart=True, casts=("in_activations",))
    tensor = 2.0 * M * K
    forward = MemoryBound("swiglu", 3.0 * tensor, M, name="activation", role=Role.ACTIVATION)
    again = replace(forward, size_bytes=tensor)
    back = replace(forward, size_bytes=5.0 * tensor, name="back", computes=Computes.INPUT_GRADIENT)
    ran = moved(tuple(stack.run([forward, PRODUCT])))
    assert ran == {"activation": pytest.approx(2.0 * tensor + (1.0 + 4.0 / 128.0) * M * K)}
    assert moved(tuple(stack.run([again, back]))) == {"activation": tensor, "back": 5.0 * tensor}
    assert "cast" in moved(tuple(stack.run([replace(PRODUCT, role=Role.OUTPUT)])))


def test_scales_are_turned_by_as_many_blocks_as_there_are_tiles() -> None:
    """DeepSeek's profile: 32 blocks for 4,096 rows of up to 16,384 columns, 64 for more; experts' by all."""
    stack = Stack("apart", casts_apart=True, casts=("turns_scales",))
    for k, blocks in ((512, 32), (7168, 32), (16384, 32), (24576, 64), (32768, 64)):
        (turned,) = (item for item in stack.run([Gemm(M, N, k, "fp8_block")]) if item.name == "scales across")
        assert (turned.hbm_bytes, turned.units) == (2.0 * 4.0 * M * k / 128.0, blocks)
    (turned,) = (item for item in stack.run([GroupedGemm(8 * M, N, K, "fp8_block", 4)]) if item.name == "scales across")
    assert turned.units == 0
    back, weights = gradients(PRODUCT)
    counts = [sum(item.name == "scales across" for item in stack.run([product])) for product in (back, weights)]
    assert counts == [1, 0]


def test_shared_experts_find_cast_what_an_exchange_sends() -> None:
    """Their input is normed and cast again for the backward, cast back and written across; gradients are cast once."""
    stack = Stack("apart", casts_apart=True, casts=("shares_sent",))
    weights = gradients(replace(PRODUCT, role=Role.GATE_UP))[1]
    wide = 3.0 * M * K
    again = moved(tuple(stack.run([weights], recomputed=frozenset({Role.GATE_UP}))))
    assert again == {"cast": wide, "cast back": wide, "inputs across": wide}
    assert moved(tuple(stack.run([weights]))) == {"inputs across": 2.0 * M * K}


def test_casts_of_rows_take_as_long_as_the_stack_states_and_others_as_a_copy() -> None:
    device = load_device("h800")
    for stack, slower in (
        (Stack("plain", casts_apart=True), 1.0),
        (Stack("slow", casts_apart=True, cast_time=1.25), 1.25),
    ):
        (cast,) = (item for item in stack.run([PRODUCT]) if item.name == "cast")
        start = price(device, MemoryBound("copy", 1.0)).seconds
        copied = price(device, MemoryBound("copy", cast.hbm_bytes, M)).seconds - start
        assert price(device, cast).seconds - start == pytest.approx(slower * copied, rel=0.02)
        (turned,) = (item for item in stack.run([gradients(PRODUCT)[1]]) if item.name == "inputs across")
        assert price(device, turned).seconds - start == pytest.approx(copied * 2.0 / 3.0, rel=0.02)
    (back,) = (
        item for item in Stack("few", casts_apart=True, cast_back_units=112).run(
            [gradients(replace(PRODUCT, role=Role.OUTPUT))[1]]
        ) if item.name == "cast back"
    )  # fmt: skip
    assert back.units == 112


def test_published_casts_of_rows_are_met_at_the_median() -> None:
    """H100, groups of 128: kernels of vLLM, Helion, torch.compile, 8,192 × 2,048 (pytorch/helion#3073), and torchao's
    Triton kernel of 32,768 × 4,096 (pytorch/ao#4128). None is the profile's."""
    device = load_device("h100")
    published = ((8192, 2048, 25.60e-6), (8192, 2048, 22.30e-6), (8192, 2048, 26.87e-6), (32768, 4096, 150.86e-6))
    copies = [price(device, MemoryBound("copy", 3.0 * rows * k, rows)).seconds for rows, k, _ in published]
    ratios = sorted(seconds / copy for (*_, seconds), copy in zip(published, copies, strict=True))
    assert (ratios[1] + ratios[2]) / 2.0 == pytest.approx(load_stack("hai-llm").stack().cast_time, rel=0.01)


def test_kept_columns_are_cast_once_there_and_once_back() -> None:
    """A backward's activation made again and its gradients of weights read what was cast back for the first of them."""
    store = ACTIVATION_STORES.get("fp8_products")
    tensor, kept = 2.0 * M * K, 1.0 + 4.0 / 128.0
    forward = MemoryBound("swiglu", 3.0 * tensor, M, name="activation", role=Role.EXPERTS_ACTIVATION)
    again = replace(forward, size_bytes=tensor)
    back = replace(forward, size_bytes=5.0 * tensor, name="back", computes=Computes.INPUT_GRADIENT)
    weights = replace(back, size_bytes=2.0 * tensor, name="d weights")
    assert [(item.name, item.hbm_bytes) for item in store.cast([forward])][1:] == [
        ("cast for backward", pytest.approx(2.0 * M * K * (2.0 + kept)))
    ]
    ran = [(item.name, item.hbm_bytes) for item in store.cast([again, back, weights])]
    assert ran[0] == ("cast back", pytest.approx(2.0 * M * K * (2.0 + kept)))
    assert ran[1:] == [("activation", tensor), ("back", 5.0 * tensor), ("d weights", 2.0 * tensor)]


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
    counted = replace(stack, norm_blocks=(3, 1))
    assert [item.resident for item in counted.run([norm, back, latent])] == [0, 3, 0, 1, 3]
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
