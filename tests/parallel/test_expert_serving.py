"""What experts of serving steps cost in wide groups: a rank's kernels by every dispatch, bytes on their way, and what
was published of 96 GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import log2
from typing import Any

import pytest

import tspsim
from tspsim.hardware import Device, load_device
from tspsim.model import load_model
from tspsim.model.routed import RoutedShard
from tspsim.operators import FusedMoE, element_bytes
from tspsim.parallel import load_stack, scheme_of, write_program
from tspsim.parallel.dispatch import DISPATCHES, SCALED_FP8
from tspsim.program import Collective, Compute
from tspsim.scenario import load
from tspsim.step.simulation import scheduled
from tspsim.studies.query import Library

LIBRARY = Library()
RANKS = (8, 16, 32, 64)
PREFILL = {"pass": "prefill", "sequence": 2048, "sequences_per_replica": 8}
STEPS: tuple[Mapping[str, Any], ...] = (
    PREFILL,
    {"pass": "decode", "batch": 64, "context": 2048},
    {"pass": "decode", "batch": 1, "context": 2048},
)


def asked(
    model: str, device: str, dispatch: str, ranks: int, step: Mapping[str, Any], weights: str = "fp8_block", **plan: Any
) -> dict[str, Any]:
    routing = {"routing": {"local_rate": 0.5}} if dispatch == "predicted" else {}
    return {
        "name": "s",
        "cluster": {"device": device, "nodes": ranks // 8, "fabric": "rails-400g"},
        "workload": {"model": model, "stack": "sglang", "precision": {"weights": weights}, **step, **routing},
        "plans": [{"name": "P", "dp": ranks, "ep": ranks, "expert_dispatch": dispatch, **plan}],
    }


def layer(*question: Any, **more: Any) -> tuple[FusedMoE, float, list[Collective]]:
    """A rank's experts of one layer, their seconds, and what the ranks exchange."""
    found = LIBRARY.look_up(load(asked(*question, **more)))
    job = scheduled(found, found.plans[0])
    program = [each.instruction for each in write_program(scheme_of(job.plan), job, {}).unrolled()]
    kernels = [what for each in program if isinstance(each, Compute) for what in each.operators]
    experts = next(what for what in kernels if isinstance(what, FusedMoE))
    return experts, found.device.time(experts).seconds, [each for each in program if isinstance(each, Collective)]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("dispatch", DISPATCHES.names())
@pytest.mark.parametrize(("model", "device"), [("deepseek-v3", "h200"), ("qwen3-235b-a22b", "mi355x")])
def test_more_ranks_at_equal_work_slow_no_ranks_experts_unless_all_tokens_come(
    dispatch: str, model: str, device: str
) -> None:
    """Every rank has as many tokens and pairs, and fewer experts. What may grow is the rows that come: a token goes
    once to each rank of its experts, and those are more; it is read and summed here at no less than a third of the HBM
    bandwidth, and sorted, at most 2 us for twice the tokens. Where a dispatch gathers, all tokens come, and kernels
    sort and clear the others' choices."""
    for step in STEPS:
        found = [layer(model, device, dispatch, ranks, step)[:2] for ranks in RANKS]
        assert len({round(experts.rows, 6) for experts, _ in found}) == 1
        hbm = LIBRARY.look_up(load(asked(model, device, dispatch, 8, step))).device.limits("bf16").hbm
        for (fewer, before_s), (more, after_s) in pairwise(found):
            if DISPATCHES.get(dispatch).gathers:
                assert more.tokens == 2 * fewer.tokens
                assert not more.sent
                continue
            row_bytes = more.hidden * (element_bytes(more.dtype) + 4.0)
            arrived_s = 3.0 * max(0, more.tokens - fewer.tokens) * row_bytes / hbm
            sorted_s = 2e-6 * max(0.0, log2((1 + more.tokens) / (1 + fewer.tokens)))
            assert after_s <= before_s + arrived_s + sorted_s, (step, more)
        if not DISPATCHES.get(dispatch).gathers:
            assert found[-1][1] <= 1.03 * found[0][1]


def test_gathering_is_what_costs_more_in_a_wide_group() -> None:
    """The group's tokens, which every rank's kernels once had whatever the dispatch: 124.6 ms instead of 16."""
    sent = [layer("deepseek-v3", "h200", "links", ranks, PREFILL)[1] for ranks in (8, 64)]
    gathered = [layer("deepseek-v3", "h200", "gather", ranks, PREFILL)[1] for ranks in (8, 64)]
    assert sent[1] < 1.03 * sent[0] < gathered[0] < gathered[1]
    assert gathered[1] > 4.0 * gathered[0]


@pytest.mark.parametrize("dispatch", ["ranks", "links"])
def test_tokens_travel_in_the_products_type_where_it_has_scales_of_its_own(dispatch: str) -> None:
    """DeepEP's normal kernels: fp8 with scales for 128 elements there, bf16 back. One scale a tensor, or bf16: as they
    are, both ways."""
    sizes = {}
    for weights in ("bf16", "fp8", "fp8_block"):
        exchanges = layer("qwen3-235b-a22b", "h200", dispatch, 16, PREFILL, weights)[2]
        of = {each.name: each.size_bytes for each in exchanges}
        sizes[weights] = of["dispatch"], of["combine"]
    assert sizes["fp8"] == sizes["bf16"]
    assert sizes["fp8_block"][0] == pytest.approx(sizes["bf16"][0] * SCALED_FP8 / 2.0)
    assert sizes["fp8_block"][1] == sizes["bf16"][1] == sizes["bf16"][0]


DECODE = {"pass": "decode", "batch": 256, "context": 2000}


@pytest.mark.parametrize(
    ("ranks", "step", "dispatch", "overlap", "published", "off"),
    [
        (32, PREFILL, "ranks", "two_batches", 54_543, 0.15),
        (32, PREFILL | {"sequence": 1024, "sequences_per_replica": 16}, "ranks", "two_batches", 57_674, 0.15),
        (64, DECODE, "low_latency", "two_batches", 22_282, 0.2),
        (64, DECODE, "low_latency", "none", 22_310 / 1.255, 0.2),
    ],
    ids=["prefill of 2Ki", "of 1Ki", "decode", "without overlap"],
)
def test_deepseek_v3_on_96_h100_as_lmsys_published_it(
    ranks: int, step: Mapping[str, Any], dispatch: str, overlap: str, published: float, off: float
) -> None:
    """Tokens/s of a node of 8 H100: "Deploying DeepSeek with PD Disaggregation and Large-Scale Expert Parallelism on 96
    H100 GPUs" (LMSYS, 2025-05-05; lm-sys/lm-sys.github.io 2db4e40). Prompts of 1Ki and 2Ki, 16Ki tokens a GPU, on 4
    nodes; decoding 256 sequences of 2,000 tokens a GPU on 9 nodes, of which this has 8: four experts a rank as well,
    the published ones with 32 copies among them. Nothing is fitted to any of them; its decoding is 13 and 18 % too
    quick with even loads, which copies leave uneven on real tokens."""
    question = asked("deepseek-v3", "h100", dispatch, ranks, step, expert_overlap=overlap)
    (found,) = tspsim.simulate(question).plans
    assert found.tokens_per_step / found.step_time_s * 8 / ranks == pytest.approx(published, rel=off)


@pytest.mark.parametrize(
    ("ranks", "step", "dispatch", "published"),
    [
        (32, PREFILL | {"sequence": 4096, "sequences_per_replica": 4}, "ranks", 62_713),
        (128, {"pass": "decode", "batch": 128, "context": 4096}, "low_latency", 18_598),
    ],
    ids=["prefill", "decode"],
)
def test_deepseek_s_own_profile_on_h800(ranks: int, step: Mapping[str, Any], dispatch: str, published: float) -> None:
    """Tokens/s of a node of DeepSeek's profiles (deepseek-ai/profile-data, with even loads), as the same page has them;
    under SGLang here. Behind low-latency kernels experts ran Triton's fused kernels: 15,850."""
    question = asked("deepseek-v3", "h800", dispatch, ranks, step, expert_overlap="two_batches")
    (found,) = tspsim.simulate(question).plans
    assert found.tokens_per_step / found.step_time_s * 8 / ranks == pytest.approx(published, rel=0.1)


def test_rows_behind_an_exchange_of_deepep_run_grouped_products() -> None:
    """DeepGEMM's contiguous products of 4,096 rows an expert run at 1.0 to 1.4 PFLOP/s on H800 (its README); Triton's
    fused kernels at half of that. AMD's GPUs, other types and other engines have no such kernels, Blackwell no measured
    ones of rows in kept places."""
    routed = RoutedShard(load_model("deepseek-v3"), 8, 4096, dtype="fp8_block")
    sent, masked, fused = (
        routed.fused(16_384, 32_768.0, 8.0, sent=True, layout=layout) for layout in ("contiguous", "masked", "")
    )
    hopper, blackwell, amd = map(load_device, ("h100", "b200", "mi300x"))
    engine = load_stack("sglang").stack().engine
    assert engine is not None

    def seconds(device: Device, operator: FusedMoE, libraries: Mapping[str, str] = engine.libraries) -> float:
        return float(device.with_engine(engine.kernels, libraries).time(operator).seconds)

    for device, at_least, peak in ((hopper, 0.6e15, 1.98e15), (blackwell, 1.2e15, 4.5e15)):
        assert at_least < sent.flops / seconds(device, sent) < peak
        assert seconds(device, sent) < 0.8 * seconds(device, fused) == 0.8 * seconds(device, sent, {})
    # No kernel orders or gathers rows in kept places.
    assert 0.7 * seconds(hopper, sent) < seconds(hopper, masked) < seconds(hopper, sent)
    assert seconds(blackwell, masked) == seconds(blackwell, fused)
    assert seconds(amd, sent) == seconds(amd, masked) == seconds(amd, fused)


@pytest.mark.parametrize(("experts", "rows", "published_us"), [(1, 1024, 81.2), (2, 512, 90.6), (4, 256, 101.4)])
def test_masked_products_take_what_their_readme_has(experts: int, rows: int, published_us: float) -> None:
    """DeepGEMM's masked grouped products on H800, 4096 x 7168 and 7168 x 2048, by the TFLOP/s of its README (February
    2025); here with the activation between them, and at the clock of a step."""
    engine = load_stack("sglang").stack().engine
    assert engine is not None
    device = load_device("h800").with_engine(engine.kernels, engine.libraries)
    routed = RoutedShard(load_model("deepseek-v3"), experts, rows, dtype="fp8_block")
    pairs = float(experts * rows)
    taken_s = device.time(routed.fused(experts * rows, pairs, float(experts), sent=True, layout="masked")).seconds
    assert 1.0 < taken_s * 1e6 / published_us < 1.35
