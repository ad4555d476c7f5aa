"""Training state of a rank where tensor parallelism repeats weights, counted by hand; sums of their gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.engine import job_of, moe

import tspsim
from tspsim.model import Architecture, load_model
from tspsim.parallel import Job, build_mesh, peak_memory, scheme_of, write_program
from tspsim.program import Collective

#: Bytes a parameter of ADAMW_UNFUSED: weights, gradients, state.
WEIGHTS, GRADIENTS, STATE = 2, 2, 12


def state(job: Job) -> tuple[float, float, float]:
    parts = peak_memory(job, scheme_of(job.plan).residency)
    return parts["weights"], parts["gradients"], parts["optimizer_state"]


def all_parts(elements: float, dp: int = 1) -> object:
    return pytest.approx((WEIGHTS * elements, GRADIENTS * elements, STATE * elements / dp), rel=1e-9)


def sums_over(job: Job, axis: str, name: str) -> list[float]:
    """Bytes of a step's sums over an axis."""
    program = write_program(scheme_of(job.plan), job, {"pp": 0})
    sums = [each.instruction for each in program.unrolled() if isinstance(each.instruction, Collective)]
    return [one.size_bytes for one in sums if one.axis == axis and one.name == name]


def sums_over_tp(job: Job) -> list[float]:
    return sums_over(job, "tp", "sum whole weights over tp")


def deepseek(tp: int, **more: Any) -> tuple[Job, float, float]:
    """A job of DeepSeek-V3 with the elements on a rank, and those on every rank whose gradients are partial."""
    job = job_of(load_model("deepseek-v3"), pass_="training", tp=tp, ep=64, dp=64 // tp, **more)
    layers, dense, h, heads, vocab = 61, 3, 7168, 128, 129280
    down = h * (1536 + 512 + 64)
    norms = 2 * h + 1536 + 512
    attention = 1536 * heads * 192 + 512 * heads * 256 + heads * 128 * h
    router, expert = h * 256, 3 * h * 2048
    split = layers * (attention + norms) + dense * 3 * h * 18432 + (layers - dense) * (expert + 256) + 2 * h * vocab + h
    whole = layers * down + (layers - dense) * router
    routed = (layers - dense) * 256 * expert / 64
    return job, split / tp + whole + routed, whole + layers * norms + h


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_latents_and_routers_of_deepseek_v3_are_on_every_rank(tp: int) -> None:
    job, elements, _ = deepseek(tp, sequence_regions=tp > 1)
    assert state(job) == all_parts(elements)


def test_gradients_of_whole_weights_are_summed_over_ranks_with_a_part_of_the_tokens() -> None:
    """Once a step; ranks of ZeRO 2 sum their part."""
    for zero, shares in ((0, 1), (1, 1), (2, 8)):
        job, _, whole = deepseek(8, sequence_regions=True, zero=zero)
        assert sums_over_tp(job) == [pytest.approx(GRADIENTS * whole / shares, rel=1e-9)]
    assert sums_over_tp(deepseek(1)[0]) == []
    assert sums_over_tp(job_of(moe(), pass_="training", tp=2)) == []  # every rank has all tokens


def test_norms_see_a_part_of_the_tokens_or_of_the_heads() -> None:
    """Megatron-Core's ``_allreduce_layernorm_grads``: all norms under sequence parallelism, those of Q and K always.

    Qwen3-8B has 36 layers with two norms over 4,096 and two over 128, and a last one; all heads together are divided.
    """
    layers, h, d = 36, 4096, 128
    model = load_model("qwen3-8b")
    regions = job_of(model, pass_="training", tp=4, sequence_regions=True)
    assert sums_over_tp(regions) == [GRADIENTS * (layers * (2 * h + 2 * d) + h)]
    assert sums_over_tp(job_of(model, pass_="training", tp=4)) == [GRADIENTS * layers * 2 * d]
    assert sums_over_tp(job_of(model, pass_="training", tp=1)) == []
    assert sums_over_tp(job_of(replace(model, qk_norm_wide=True), pass_="training", tp=4)) == []
    assert sums_over_tp(job_of(load_model("llama-3.1-8b"), pass_="training", tp=4)) == []


def test_biases_behind_a_sum_see_a_part_of_the_tokens() -> None:
    """GPT-3: gain and offset of two norms a layer and of the last, and biases of attention's output and the MLP's."""
    model = load_model("gpt-3-175b")
    job = job_of(model, pass_="training", tp=8, sequence_regions=True)
    assert sums_over_tp(job) == [GRADIENTS * model.hidden * (model.layers * (2 * 2 + 2) + 2)]


@pytest.mark.parametrize(("tp", "copies"), [(4, 1), (8, 2), (16, 4)])
def test_copies_of_a_head_of_keys_and_values_sum_its_gradient(tp: int, copies: int) -> None:
    """Each copy has the part of its own query heads. Qwen3-235B has 4 heads of 128 and 94 layers of 4,096; copies are
    neighbours on ``tp``."""
    model = load_model("qwen3-235b-a22b")
    bare = job_of(model, pass_="training", tp=tp, ep=tp, sequence_regions=True)
    job = replace(bare, plan=bare.plan.owned(model, training=True))
    sums = sums_over(job, "kv copies", "sum repeated heads over kv copies")
    assert sums == ([pytest.approx(GRADIENTS * 94 * 2 * 4096 * 128)] if copies > 1 else [])
    assert bare.plan.owned(model, training=False) is bare.plan
    if copies > 1:
        mesh = build_mesh(job.plan, tp, tp)
        assert mesh.groups("kv copies").tolist() == np.arange(tp).reshape(-1, copies).tolist()


def test_a_step_sums_what_its_ranks_have_in_part() -> None:
    """From the scenario to the answer: the sum stands in the timeline and takes its time."""
    asked = {
        "name": "copies", "cluster": {"device": "h100", "nodes": 2, "fabric": "rails-400g"},
        "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": 4096},
        "plans": [{"name": "TP16", "tp": 16, "sequence_regions": True}],
    }  # fmt: skip
    lines = tspsim.simulate(tspsim.load(asked)).timeline("TP16")
    sums = lines[lines["name"] == "sum repeated heads over kv copies"]
    assert sums["bytes"].tolist() == [GRADIENTS * 32 * 2 * 4096 * 128]
    assert (sums["end_s"] > sums["start_s"]).all()


def llama_405b(heads: float, tp: int) -> float:
    """Elements on a rank of Llama-3.1-405B with so many heads of K and V."""
    layers, h, width, vocab, queries, d = 126, 16384, 53248, 128256, 128, 128
    return layers * ((2 * queries * d + 3 * width + 2) * h / tp + 2 * h * heads * d) + (2 * vocab + 1) * h / tp


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (4, 2), (8, 1), (16, 1), (64, 1)])
def test_a_head_of_keys_and_values_is_whole(tp: int, heads: int) -> None:
    model = load_model("llama-3.1-405b")
    assert state(job_of(model, pass_="training", tp=tp)) == all_parts(llama_405b(heads, tp))
    divided = job_of(model, pass_="training", tp=tp, dp=4, zero=1)
    assert state(divided) == all_parts(llama_405b(heads, tp), dp=4)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_nothing_is_repeated_while_heads_suffice(tp: int) -> None:
    model = load_model("llama-3.1-405b")
    weights, gradients, optimizer = state(job_of(model, pass_="training", tp=tp))
    assert (weights, gradients, optimizer) == tuple(
        size * model.parameters / tp for size in (WEIGHTS, GRADIENTS, STATE)
    )


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-405b"])
def test_folded_ranks_own_an_even_share_of_everything_but_experts(name: str) -> None:
    model: Architecture = load_model(name)
    routed = model.routed_layers * model.routed_parameters_per_layer
    shared = job_of(model, pass_="training", tsp=16)
    assert state(shared) == all_parts((model.parameters - routed) / 16 + routed)
