"""What column-split products keep of gathered inputs: what is kept in memory is what is not gathered again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.engine import architecture, job_of, latent, moe, programs_of

from tspsim.model import Architecture
from tspsim.operators import Computes, Gemm, Role
from tspsim.parallel import Adapters, Job, load_stack, scheme_of
from tspsim.parallel.column_inputs import COLUMN_INPUTS
from tspsim.parallel.interleave import flat
from tspsim.parallel.stack import IDEAL, Stack
from tspsim.parallel.state.memory import kept_activations
from tspsim.program import Collective, Compute, Instruction

TOKENS, HIDDEN, SHARDS, LAYERS = 1024, 512, 4, 2
KINDS = [kind.name for kind in COLUMN_INPUTS.values()]
MEGATRON = load_stack("megatron-core").stack()


def trained(stack: Stack | str = IDEAL, model: Architecture | None = None, **plan: Any) -> Job:
    """A step of one micro-batch under sequence regions; a name is a kind of inputs under the default stack."""
    plan = {"tp": SHARDS, "sequence_regions": True, "recomputation": "none", "sequence": TOKENS, **plan}
    job = job_of(model or architecture(HIDDEN), pass_="training", **plan)
    runs = replace(IDEAL, column_inputs=stack) if isinstance(stack, str) else stack
    return replace(job, work=replace(job.work, stack=runs))


def written(job: Job) -> list[Instruction]:
    return flat(programs_of(job)[0])


def moves(job: Job) -> Counter[str]:
    """Collectives over tp in a layer."""
    kinds = Counter(
        move.kind
        for move in written(job)
        if isinstance(move, Collective) and move.axis == "tp" and move.layer >= 0 and move.part != "gradients"
    )
    return Counter({kind: count // LAYERS for kind, count in kinds.items()})


def again(job: Job) -> list[Collective]:
    """Gathers of inputs for their weights' gradient, in layers."""
    found = [move for move in written(job) if isinstance(move, Collective) and move.name.startswith("gather again")]
    return [move for move in found if move.layer >= 0]


def kept(job: Job) -> float:
    """Bytes that the first layer keeps."""
    return kept_activations(job, scheme_of(job.plan).residency.compute_shards(job), job.model.blocks[0])


def test_six_gathers_and_four_scatters_a_layer_as_megatron_has() -> None:
    """Korthikanti et al. 2022, §4.2.2: g and its conjugate four times each way, and Y gathered twice more."""
    assert moves(trained(MEGATRON)) == {"all_gather": 6, "reduce_scatter": 4}
    assert moves(trained("sharded")) == {"all_gather": 6, "reduce_scatter": 4}
    assert moves(trained(load_stack("torchtitan").stack())) == {"all_gather": 4, "reduce_scatter": 4}
    assert moves(trained("sharded", sequence_regions=False)) == {"all_reduce": 4}
    assert moves(trained("sharded", recomputation="full")) == {"all_gather": 8, "reduce_scatter": 6}


@pytest.mark.parametrize("model", [architecture(HIDDEN), latent(HIDDEN), moe(HIDDEN, shared_width=256)], ids=str)
@pytest.mark.parametrize("recomputation", ["none", "selective"])
def test_memory_keeps_what_is_not_gathered_again(model: Architecture, recomputation: str) -> None:
    """No free lunch: bytes that another kind keeps more are those that it need not receive."""
    jobs = [trained(name, model, recomputation=recomputation) for name in ("sharded", "gathered")]
    received = sum(move.size_bytes for move in again(jobs[0])) * (SHARDS - 1) / SHARDS / LAYERS
    assert received > 0.0 and not again(jobs[1])
    assert kept(jobs[1]) - kept(jobs[0]) == pytest.approx(received)


def test_norms_that_are_computed_again_are_gathered_again_whatever_is_kept() -> None:
    for name in KINDS:
        job = trained(name, recomputation="cheap")
        lines = written(job)
        for move in again(job):
            made = lines[move.after[0]]
            assert isinstance(made, Compute) and [kernel.role for kernel in made.operators] == [Role.NORM], name
        assert len(again(job)) == 2 * LAYERS
        norms = sum(
            kernel.role is Role.NORM for line in lines if isinstance(line, Compute) for kernel in line.operators
        )
        none = written(trained(name))
        usual = sum(kernel.role is Role.NORM for line in none if isinstance(line, Compute) for kernel in line.operators)
        assert norms == usual + 2 * LAYERS, "each once more"
    assert kept(trained("sharded", recomputation="cheap")) == kept(trained("gathered", recomputation="cheap"))


def weight_products(lines: Sequence[Instruction]) -> list[int]:
    """Instructions with weight gradients of column-split products."""
    return [
        index
        for index, line in enumerate(lines)
        if isinstance(line, Compute)
        for kernel in line.operators
        if isinstance(kernel, Gemm) and kernel.computes is Computes.WEIGHT_GRADIENT
        if kernel.role in (Role.QKV, Role.GATE_UP)
    ]


@pytest.mark.parametrize("keys", [{}, {"overlap": True}, {"vocab": 1000}], ids=str)
def test_the_gather_runs_beside_the_inputs_gradient_and_before_the_weights(keys: dict[str, Any]) -> None:
    """As in LinearWithGradAccumulationAndAsyncCommunication: issued before the input's product, awaited behind it."""
    plan = {key: value for key, value in keys.items() if key != "vocab"}
    lines = written(trained(MEGATRON, architecture(HIDDEN, vocab=keys.get("vocab", 0)), **plan))
    products = weight_products(lines)
    assert len(products) == 2 * LAYERS
    for index in products:
        (gather,) = [wait for wait in lines[index].after if isinstance(lines[wait], Collective)]
        move, before = lines[gather], lines[lines[gather].after[0]]
        assert isinstance(move, Collective) and move.kind == "all_gather"
        assert isinstance(before, Compute) and before.name in ("attention backward", "down projection backward")
        d_input = next(line for line in lines[gather + 1 :] if isinstance(line, Compute))
        assert d_input.name.endswith("input") and gather not in d_input.after


def test_a_sum_runs_beside_the_weights_product_where_the_stack_issues_it_before() -> None:
    for stack, beside in ((IDEAL, False), (MEGATRON, True)):
        for regions in (True, False):
            lines = written(trained(stack, sequence_regions=regions))
            sums = [line for line in lines if isinstance(line, Collective) and line.name == "sum d attention"]
            assert len(sums) == LAYERS
            for move in sums:
                assert lines[move.after[0]].name == f"QKV backward, {'input' if beside else 'weight'}"


def test_adapters_keep_what_they_gathered_and_frozen_products_gather_nothing() -> None:
    adapters = Adapters(16, ("qkv",))
    for name in KINDS:
        assert not again(trained(name, adapters=adapters))
    frozen = trained("sharded", adapters=adapters)
    # QKV's input stays whole beside the adapter; gate and up are frozen alone and keep none.
    plain = replace(frozen, plan=replace(frozen.plan, sequence_regions=False))
    split = 2.0 * HIDDEN * TOKENS * (1.0 - 1.0 / SHARDS)
    assert kept(plain) - kept(frozen) == pytest.approx(2.0 * split), "the layer's input and the stream's middle alone"


def test_deferred_weight_gradients_wait_for_their_gathers() -> None:
    lines = written(trained("sharded", schedule="zb-h1"))
    found = weight_products(lines)
    assert found
    for index in found:
        waits = [lines[wait] for wait in lines[index].after]
        assert any(isinstance(wait, Collective) and wait.name.startswith("gather again") for wait in waits)


def test_shared_experts_beside_an_exchange_keep_what_they_gathered() -> None:
    """Megatron-LM, shared_experts.py: pre_forward_comm gathers apart from the product, which saves all tokens."""
    model = moe(HIDDEN, shared_width=256)
    plan = {"tp": 2, "ep": 4, "dp": 2}
    alone, beside = (trained("sharded", model, **plan, **keys) for keys in ({}, {"expert_overlap": "shared_experts"}))
    assert {move.name for move in again(alone)} - {move.name for move in again(beside)} == {
        "gather again for shared experts' gate and up backward"
    }
    assert kept(beside) - kept(alone) == pytest.approx(2.0 * TOKENS * HIDDEN / 2)


def test_rows_move_in_the_products_type_where_the_stack_quantises_first() -> None:
    """Transformer Engine gathers what it quantised: 1 byte an element of 2, for products in eight bits; sums do not."""

    def sizes(stack: Stack, precision: str) -> dict[str, set[int]]:
        job = trained(stack, architecture(HIDDEN, vocab=1000))
        job = replace(job, work=replace(job.work, precision=precision))
        lines = [line for line in written(job) if isinstance(line, Collective) and line.axis == "tp"]
        return {
            name: {line.size_bytes for line in lines if line.kind == kind and (line.layer >= 0) is inside}
            for name, kind, inside in (
                ("gathers", "all_gather", True), ("sums", "reduce_scatter", True), ("head", "all_gather", False),
            )
        }  # fmt: skip

    wide = {2 * TOKENS * HIDDEN}
    assert sizes(MEGATRON, "bf16")["gathers"] == sizes(IDEAL, "fp8")["gathers"] == wide
    narrow = sizes(MEGATRON, "fp8")
    assert narrow["gathers"] == {TOKENS * HIDDEN} and narrow["sums"] == wide and narrow["head"] == wide
