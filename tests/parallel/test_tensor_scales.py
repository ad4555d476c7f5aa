"""Where products in eight bits get their tensors' scales: reads before casts, and what ranks agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.engine import architecture, job_of, moe, programs_of

import tspsim
from tspsim.base.errors import TspsimError
from tspsim.hardware import load_device
from tspsim.operators import Computes, Gemm, MemoryBound, Operator, Role
from tspsim.parallel import Job, load_stack
from tspsim.parallel.interleave import flat
from tspsim.parallel.stack import IDEAL
from tspsim.parallel.tensor_scales import TENSOR_SCALES
from tspsim.program import Collective, Compute, Instruction

TOKENS, HIDDEN, LAYERS = 1024, 512, 2
KINDS = [kind.name for kind in TENSOR_SCALES.values()]


def trained(scales: str, **plan: Any) -> Job:
    """A step of one micro-batch in fp8."""
    plan = {"recomputation": "none", "sequence": TOKENS, **plan}
    precision = plan.pop("precision", "fp8")
    job = job_of(plan.pop("model", None) or architecture(HIDDEN), pass_="training", **plan)
    return replace(job, work=replace(job.work, precision=precision, stack=replace(IDEAL, tensor_scales=scales)))


def written(job: Job, rank: int = 0) -> list[Instruction]:
    return flat(programs_of(job)[rank])


def agreements(job: Job) -> list[Collective]:
    return [each for each in written(job) if isinstance(each, Collective) and each.name == "agree on scales"]


def operators(job: Job) -> list[Operator]:
    return [operator for each in written(job) if isinstance(each, Compute) for operator in each.operators]


def reads(job: Job) -> list[Operator]:
    return [each for each in operators(job) if each.name == "largest number"]


def asked(stack: str, **plan: Any) -> dict[str, Any]:
    """A step on eight H100."""
    work = {"model": "tsp-8b", "pass": "training", "sequence": "8Ki", "global_batch": 16}
    work |= {"precision": "fp8", "stack": stack}
    return {"name": "scales", "cluster": {"node": "hgx-h100-8"}, "workload": work, "plans": [{"name": "P0", **plan}]}


def test_ranks_agree_behind_every_forward_and_backward_of_a_chunk() -> None:
    (forward, backward) = agreements(trained("delayed-reduced", tp=2, dp=2))
    assert forward.axis == backward.axis and set(forward.axis.split("+")) == {"tp", "dp"}


def test_chunks_of_a_pipeline_agree_by_themselves() -> None:
    """Two chunks a rank, four micro-batches."""
    steps = tspsim.simulate(asked("megatron-core@delayed-reduced", pp=2, vpp=2, dp=4))
    table = steps.timeline("P0")
    # The ranks of both stages are in the table.
    assert (table["name"] == "agree on scales").sum() == 2 * 2 * 2 * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp8", "bf16", "fp8_block", "mxfp8"])
def test_only_one_scale_a_tensor_is_agreed_on_or_read_for(kind: str, precision: str) -> None:
    job = trained(kind, tp=2, dp=2, precision=precision)
    scaled = precision == "fp8"
    assert bool(agreements(job)) == (scaled and kind == "delayed-reduced")
    assert bool(reads(job)) == (scaled and kind == "current")


def test_one_rank_agrees_with_nobody() -> None:
    assert agreements(trained("delayed-reduced")) == []


def test_current_scaling_reads_what_it_casts_once() -> None:
    current, delayed = (operators(trained(kind)) for kind in ("current", "delayed"))
    products = [each for each in current if isinstance(each, Gemm) and each.dtype == "fp8"]
    # Norms find the largest number of their output as they write it; their consumers' casts are then kernels.
    wide = [each for each in products if each.computes is not Computes.WEIGHT_GRADIENT and not each.quantised]
    read = [each for each in current if isinstance(each, MemoryBound) and each.role is Role.SCALE]
    assert 0 < len(read) < len(wide)
    sizes = sorted(2.0 * each.batch * each.m * each.k for each in wide)
    assert all(each.size_bytes in sizes for each in read)
    assert sum(isinstance(each, Gemm) for each in current) == sum(isinstance(each, Gemm) for each in delayed)
    forward = [
        [each for each in which if isinstance(each, Gemm) and each.computes is Computes.OUTPUT and each.quantised]
        for which in (current, delayed)
    ]
    assert not forward[0] and forward[1]


def test_casts_and_reads_are_as_dear_as_transformer_engine_measures() -> None:
    """NVIDIA/TransformerEngine@8f2e635, docs/examples/gemm_profiling: a layer of hidden 4,096 with 15,872 tokens on
    H200 NVL, forward and both gradients: bf16 32.0 ms, fp8 16.8 with operands quantised, 18.98 with delayed scaling,
    20.29 with current, each operand of each product cast. The catalog's H200 is the faster card, so that products are
    compared by ratios; both have the same memory."""
    tokens, shapes = 15872, ((12288, 4096), (4096, 4096), (16384, 4096), (4096, 16384))
    device = load_device("h200")

    def spent(dtype: str, *, quantised: bool) -> float:
        return sum(
            device.time(each).seconds
            for n, k in shapes
            for each in (
                Gemm(tokens, n, k, dtype, quantised=quantised),
                Gemm(tokens, k, n, dtype, quantised=quantised, computes=Computes.INPUT_GRADIENT),
                Gemm(k, n, tokens, dtype, quantised=quantised, computes=Computes.WEIGHT_GRADIENT),
            )
        )

    wide, ready, delayed = spent("bf16", quantised=False), spent("fp8", quantised=True), spent("fp8", quantised=False)
    assert wide / ready == pytest.approx(32.0 / 16.8, rel=0.05)
    assert wide / delayed == pytest.approx(32.0 / 18.98, rel=0.05)
    operands = [size for n, k in shapes for size in (tokens * n, tokens * n, tokens * k, tokens * k, n * k, n * k)]
    read = sum(device.time(MemoryBound("copy", 2.0 * size)).seconds for size in operands)
    assert read == pytest.approx(20.29e-3 - 18.98e-3, rel=0.1)


PLANS: list[dict[str, Any]] = [
    {"tp": 2, "dp": 4},
    {"tp": 2, "sequence_regions": True, "dp": 4},
    {"dp": 8, "zero": 3},
    {"tp": 2, "pp": 2, "vpp": 2, "dp": 2},
    {"sp": 2, "exchange": "ring", "dp": 4, "zero": 1},
    {"sp": 2, "exchange": "ulysses", "dp": 4, "zero": 1},
    {"tsp": 8},
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_is_read_or_agreed_on_is_not_free(plan: dict[str, Any]) -> None:
    """A kind only adds, on every plan that trains, and what it adds has an end."""
    times = {}
    for kind in KINDS:
        (found,) = tspsim.simulate(
            asked("megatron-core" if kind == "current" else f"megatron-core@{kind}", **plan)
        ).plans
        assert found.ran, found.notes
        times[kind] = found.step_time_s
    # Ranks of tsp hold the same weights; only tp and replicas agree.
    assert times["delayed"] <= times["delayed-reduced"] < 1.1 * times["delayed"]
    assert (times["delayed"] < times["delayed-reduced"]) == ("tsp" not in plan)
    assert times["delayed"] < times["current"] < 1.1 * times["delayed"]


def test_ranks_of_experts_agree_too() -> None:
    experts = trained("delayed-reduced", model=moe(HIDDEN, layers=LAYERS, count=8, topk=2, width=256), ep=4, dp=4)
    assert agreements(experts)


def test_a_stack_names_a_registered_kind() -> None:
    assert load_stack("megatron-core").stack().tensor_scales == "current"
    assert load_stack("megatron-core@flash-attention-2").stack().tensor_scales == "delayed-reduced"
    assert load_stack("primus").stack().tensor_scales == "delayed" == IDEAL.tensor_scales
    with pytest.raises(TspsimError, match="loud"):
        TENSOR_SCALES.get("loud")
