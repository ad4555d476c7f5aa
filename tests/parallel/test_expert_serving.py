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
    ("ranks", "step", "dispatch", "overlap", "published"),
    [
        (32, PREFILL, "ranks", "two_batches", 54_543),
        (32, PREFILL | {"sequence": 1024, "sequences_per_replica": 16}, "ranks", "two_batches", 57_674),
        (64, DECODE, "low_latency", "two_batches", 22_282),
        (64, DECODE, "low_latency", "none", 22_310 / 1.255),
    ],
    ids=["prefill of 2Ki", "of 1Ki", "decode", "without overlap"],
)
def test_deepseek_v3_on_96_h100_as_lmsys_published_it(
    ranks: int, step: Mapping[str, Any], dispatch: str, overlap: str, published: float
) -> None:
    """Tokens/s of a node of 8 H100: "Deploying DeepSeek with PD Disaggregation and Large-Scale Expert Parallelism on 96
    H100 GPUs" (LMSYS, 2025-05-05; lm-sys/lm-sys.github.io 2db4e40). Prompts of 1Ki and 2Ki, 16Ki tokens a GPU, on 4
    nodes; decoding 256 sequences of 2,000 tokens a GPU on 9 nodes, of which this has 8: four experts a rank as well,
    the published ones with 32 copies among them. Nothing is fitted to any of them."""
    question = asked("deepseek-v3", "h100", dispatch, ranks, step, expert_overlap=overlap)
    (found,) = tspsim.simulate(question).plans
    assert found.tokens_per_step / found.step_time_s * 8 / ranks == pytest.approx(published, rel=0.15)


def test_rows_behind_a_normal_exchange_run_grouped_products_and_those_in_kept_places_do_not() -> None:
    """DeepGEMM's contiguous products of 4,096 rows an expert run at 1.0 to 1.4 PFLOP/s on H800 (its README); Triton's
    fused kernels at half of that. AMD's GPUs, other types and other engines have no such kernels."""
    routed = RoutedShard(load_model("deepseek-v3"), 8, 4096, dtype="fp8_block")
    sent, masked = (routed.fused(16_384, 32_768.0, 8.0, sent=True, contiguous=kept) for kept in (True, False))
    hopper, blackwell, amd = map(load_device, ("h100", "b200", "mi300x"))
    engine = load_stack("sglang").stack().engine
    assert engine is not None

    def seconds(device: Device, operator: FusedMoE, libraries: Mapping[str, str] = engine.libraries) -> float:
        return float(device.with_engine(engine.kernels, libraries).time(operator).seconds)

    for device, at_least, peak in ((hopper, 0.6e15, 1.98e15), (blackwell, 1.2e15, 4.5e15)):
        assert at_least < sent.flops / seconds(device, sent) < peak
        assert seconds(device, sent) < 0.8 * seconds(device, masked) == 0.8 * seconds(device, sent, {})
    assert seconds(amd, sent) == seconds(amd, masked)
