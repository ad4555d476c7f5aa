"""What a serving engine adds to its kernels: captured sizes, padding, launches, its host's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.hardware import load_device
from tspsim.model import load_model
from tspsim.model.attention.base import NO_CONTEXT, attended, decoded, prefilled
from tspsim.model.layer import LayerShard
from tspsim.operators import FusedMoE, Gemm, MemoryBound
from tspsim.parallel import Captured, ServingEngine, load_stack
from tspsim.parallel.serving_engine import NONE, Prior, Saving
from tspsim.program import Collective, Compute, Launch
from tspsim.scenario import load
from tspsim.step import metrics
from tspsim.step.question import look_up
from tspsim.step.result import PlanResult

ENGINES = ("vllm", "sglang", "trtllm", "atom")


SHIPPED = {name: load_stack(name).stack().engine for name in ENGINES}
B200 = load_device("b200")


def engine(name: str) -> ServingEngine:
    return SHIPPED[name]


def vllm_sizes(most: int) -> list[int]:
    """As vllm/config/vllm.py writes them."""
    return [*[i for i in (1, 2, 4) if i <= most], *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)]


def sglang_sizes(most: int) -> list[int]:
    """As sglang's server_args.py writes them."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, most + 1, 32)]
    return [size for size in sizes if size <= most]


def sglang_sizes_with_drafts(most: int) -> list[int]:
    sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, most + 1, 16)]
    return [size for size in sizes if size <= most]


def trtllm_sizes(most: int) -> list[int]:
    """As TensorRT-LLM's llm_args.py writes them, with padding; beyond 1024 as published runs list them."""
    sizes = [1, 2, 4, *range(8, 129, 8)]
    while sizes[-1] + 64 <= min(most, 1024):
        sizes.append(sizes[-1] + 64)
    sizes += range(2048, most + 1, 1024)
    sizes = [size for size in sizes if size <= most]
    return sizes if sizes[-1] == most else [*sizes, most]


def atom_sizes(most: int) -> list[int]:
    """As ATOM's config.py writes them."""
    return [size for size in (1, 2, 4, 8, *range(16, 513, 16)) if size <= most]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("vllm", vllm_sizes), ("sglang", sglang_sizes), ("trtllm", trtllm_sizes), ("atom", atom_sizes)],
)
def test_captured_sizes_are_those_that_the_engines_code_makes(name: str, sizes: Callable[[int], list[int]]) -> None:
    assert list(engine(name).graphs.tokens(1, None)) == sizes(8192 if name == "trtllm" else 512)


@pytest.mark.parametrize("slots", [1, 4, 17, 100, 128, 129, 300])
def test_sequences_that_may_run_bound_the_largest_graph(slots: int) -> None:
    assert list(engine("vllm").graphs.tokens(1, slots)) == vllm_sizes(min(2 * slots, 512))
    assert list(engine("trtllm").graphs.tokens(1, slots)) == trtllm_sizes(min(slots, 512))


@pytest.mark.parametrize("drafts", [1, 2, 3, 7])
def test_with_drafts_sizes_are_multiples_of_the_queries_of_a_sequence(drafts: int) -> None:
    queries = drafts + 1
    rounded = sorted({-(-size // queries) * queries for size in vllm_sizes(512)})
    assert list(engine("vllm").graphs.tokens(queries, None)) == [size for size in rounded if size <= 512]
    assert list(engine("sglang").graphs.tokens(queries, None)) == [queries * n for n in sglang_sizes_with_drafts(512)]


@given(st.sampled_from(ENGINES), st.integers(1, 700), st.integers(1, 8))
def test_a_batch_is_padded_to_the_next_captured_size_and_never_to_less(name: str, sequences: int, queries: int) -> None:
    its = engine(name)
    padded = its.padded(sequences, queries)
    assert padded >= sequences * queries and padded % queries == 0
    assert padded == sequences * queries or padded in its.graphs.tokens(queries, None)
    assert its.padded(sequences + 1, queries) >= padded


def test_only_decodes_alike_run_as_one_graph_and_other_passes_in_pieces_if_the_engine_has_them() -> None:
    decodes, verified = [(1, 4096, 5), (1, 100, 2)], [(4, 4096, 5)]
    mixed, long = [(100, 0, 1), (1, 4096, 5)], [(8192, 0, 1)]
    for name in ENGINES:
        its = engine(name)
        assert its.captured(decodes) is its.captured(verified) is Captured.WHOLE
        assert its.captured(long) is its.captured([(1, 9, 8193)]) is Captured.NOTHING
    assert engine("vllm").captured(mixed) is Captured.PIECES
    assert engine("sglang").captured(mixed) is Captured.NOTHING
    assert ServingEngine().captured(decodes) is Captured.NOTHING


def test_padding_is_rows_of_sequences_like_those_that_are_there() -> None:
    assert engine("vllm").filled([(1, 4096, 5)]) == ((1, 4096, 5), (1, 1, 3))
    assert engine("vllm").filled([(4, 4096, 9)]) == ((4, 4096, 9), (4, 1, 1))
    assert engine("vllm").filled([(1, 4096, 8)]) == ((1, 4096, 8),)
    assert ServingEngine().filled([(1, 4096, 5)]) == ((1, 4096, 5),)


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        (((100, 0, 1), (1, 7, 1)), 3),
        (((17, 0, 1),), 7),
        (((33, 9, 2),), 6),
        (((7, 9, 1),), 1),
        (((1, 512, 1), (4, 3000, 8)), 7),
        (((3, 512, 1), (4, 3000, 8)), 5),
    ],
    ids=str,
)
def test_passes_in_pieces_are_padded_whatever_their_rows_and_no_attention_takes_that(
    rows: tuple[tuple[int, int, int], ...], more: int
) -> None:
    """vLLM, v1/worker/gpu_model_runner.py, execute_model: every pass runs with the tokens of its graph, and attention
    is padded where that is a full one (``pad_attn``)."""
    its, decoding = engine("vllm"), max((q for q, _, _ in rows if q <= 4), default=1)
    filled = its.filled(rows, decoding)
    assert filled == (*rows, (1, NO_CONTEXT, more)) and its.captured(filled, decoding) is Captured.PIECES
    assert decoded(filled) == decoded(rows) and prefilled(filled) == prefilled(rows) and attended(filled) == rows
    assert its.filled(filled, decoding) == filled


def test_without_padding_only_captured_sizes_run_as_a_graph() -> None:
    its = engine("trtllm")
    exact = replace(its, graphs=replace(its.graphs, pads=False))
    assert exact.captured([(1, 9, 8)]) is Captured.WHOLE and exact.captured([(1, 9, 9)]) is Captured.NOTHING
    assert exact.padded(9) == 9


@given(
    m=st.integers(1, 8192), n=st.integers(64, 28672), k=st.integers(64, 28672),
    dtype=st.sampled_from(("bf16", "fp8", "nvfp4")), saved_us=st.floats(0.0, 1000.0),
)  # fmt: skip
def test_a_graph_saves_no_more_than_a_products_start_and_never_beats_the_roofline(
    m: int, n: int, k: int, dtype: str, saved_us: float
) -> None:
    device, product = B200, Gemm(m, n, k, dtype)
    alone_s = float(device.time(product).seconds)
    saved = Prior(*(3 * (1e-6 * saved_us,)))
    inside_s = Saving(ServingEngine(saved=saved), device).seconds(product, alone_s)
    least_s = max(product.flops / device.peak_of(dtype), product.hbm_bytes / device.hbm_bytes_per_s)
    assert min(alone_s, least_s) <= inside_s <= alone_s
    start_s = 1e-6 * device.product_without_cast("gemm", dtype).parameters["launch_us"]
    assert alone_s - inside_s <= min(1e-6 * saved_us, start_s) * (1.0 + 1e-9) + 1e-18


def test_a_graph_saves_what_its_type_states_else_what_all_do() -> None:
    vllm = engine("vllm")
    its = replace(vllm, saved_types={"fp8_block": Prior(*(3 * (0.5e-6,)))})
    for dtype, saved_s in (("fp8", vllm.saved.value), ("fp8_block", 0.5e-6)):
        product = Gemm(8, 8192, 8192, dtype)
        alone_s = float(B200.time(product).seconds)
        assert alone_s - Saving(its, B200).seconds(product, alone_s) == pytest.approx(saved_s)


def test_kernels_that_others_stand_for_have_a_pace_of_their_own_and_small_ones_a_least_time() -> None:
    stack = load_stack("sglang").stack()
    scaled, plain, small = Gemm(8, 8192, 8192, "fp8_block"), Gemm(8, 8192, 8192), MemoryBound("copy", 1e3, 1)
    _, scaled_pace, *_, plain_pace, rest = stack.engine.paces
    assert scaled_pace.value > plain_pace.value > rest.value == 1.0
    for name, paces in (("b200", (1.0, 1.0)), ("mi300x", (scaled_pace.value, plain_pace.value))):
        device = load_device(name)
        cost = stack.cost(lambda operator: 1e-3, device)
        assert (cost(scaled), cost(plain)) == pytest.approx(tuple(1e-3 * pace for pace in paces))
        assert stack.cost(lambda operator: 1e-6, device)(small) == (rest.least if name == "mi300x" else 1e-6)


def test_queries_and_keys_are_normalised_by_kernels_of_their_own_under_sglang_on_amd() -> None:
    """Copies of Q and K, their norms and the rotation: five kernels of at least 4.5 us in the measured decode step. A
    norm of 128 columns costs its row: 0.2 us and unit on an H200, and so do both measured ones of a prefill."""
    cost = load_stack("sglang").stack().cost(lambda operator: 1e-6, load_device("mi300x"))
    rope, normed = (LayerShard(load_model(name), 1).rope(32) for name in ("llama-3.1-8b", "qwen3-8b"))
    assert (cost(rope), cost(normed)) == (4.5e-6, 22.5e-6)
    large = load_stack("sglang").stack().cost(lambda operator: 1e-4, load_device("mi300x"))
    assert (large(rope), large(normed)) == pytest.approx((1.75e-4, 7.5e-4))
    device, rotation = load_device("mi300x"), LayerShard(load_model("qwen3-8b"), 1).rope(15360)
    rows = [15360 * heads for heads in (32, 8)]
    norms = [device.memory_bound(4.0 * 128 * count, "rmsnorm", count).seconds for count in rows]
    assert norms == pytest.approx([391e-6, 100e-6], rel=0.05)
    fused_s = device.time(rotation).seconds
    assert (sum(norms) + fused_s) / fused_s == pytest.approx(7.5, rel=0.05)
    for name, device, time_s in (("sglang", "b200", 1e-6), ("vllm", "mi300x", 4.5e-6)):
        assert load_stack(name).stack().cost(lambda operator: 1e-6, load_device(device))(normed) == time_s


def test_routed_experts_have_a_pace_where_a_search_found_better_kernels() -> None:
    stack = load_stack("vllm").stack()
    dtypes = ("fp8_block", "mxfp4", "bf16")
    experts = [FusedMoE(64, 7168, 256, 256, 8, dtype) for dtype in dtypes]
    plain, copy = Gemm(64, 7168, 7168), MemoryBound("norm", 1e8, 100)
    for name, paces in (("mi300x", (1.8, 1.8, 1.3, 1.3)), ("mi355x", (2.0, 1.3, 2.0, 1.0)), ("b200", (1.0,) * 4)):
        cost = stack.cost(lambda operator: 1.0, load_device(name))
        assert tuple(cost(each) for each in (*experts, plain)) == paces, name
        # What widening costs is the device's, under SGLang too.
        assert (
            load_stack("sglang")
            .stack()
            .cost(lambda operator: 1.0, load_device(name))(FusedMoE(64, 7168, 256, 256, 8, "bf16", "mxfp4"))
            == 1.0
        )
        assert cost(FusedMoE(64, 7168, 256, 256, 8, "bf16", "mxfp4")) == {"mi300x": 1.0, "mi355x": 1.3}.get(name, 1.0)
        assert cost(copy) == 1.0
        least_s = stack.cost(lambda operator: 1e-6, load_device(name))(copy)
        assert least_s == (4.5e-6 if name == "mi300x" else 1e-6)


def test_a_pace_of_bytes_counts_as_far_as_they_bound_a_product() -> None:
    """A mixed step of gpt-oss-20b under vLLM: 8,192 rows take 1.04 times the measured kernels (traces-steps.md)."""
    device = load_device("mi300x")
    cost = load_stack("vllm").stack().cost(lambda operator: float(device.time(operator).seconds), device)
    products = [Gemm(rows, 2880, 4096) for rows in (32, 128, 512, 2048, 8192)]
    factors = [cost(each) / float(device.time(each).seconds) for each in products]
    assert factors[0] == pytest.approx(1.3) and 1.0 < factors[-1] < 1.06
    assert factors == sorted(factors, reverse=True)
    assert [cost(each) for each in products] == sorted(cost(each) for each in products)  # more rows are never faster
    assert device.bound_by_bytes(products[0]) == 1.0
    one = products[-1]
    reads_s, multiplies_s = one.hbm_bytes / 5.3e12, one.flops / 1307.4e12
    assert device.bound_by_bytes(one) == pytest.approx(reads_s / multiplies_s)


def test_experts_are_chosen_by_several_kernels_where_one_does_not_take_their_number() -> None:
    plain = load_stack("sglang@0.5.6-plain").stack()
    names = ("deepseek-r1", "glm-4.7", "gpt-oss-120b", "qwen3-next-80b-a3b")
    deepseek, glm, oss, gated = (load_model(name).experts for name in names)
    engine, experts = plain.engine, FusedMoE(64, 7168, 256, 256, 8, "fp8_block")
    assert engine.selection is not None
    assert [engine.selected(each) for each in (deepseek, glm, oss, gated, None)] == [0, 11, 0, 4, 0]
    longer_s = engine.between_s(10, 10, 8, glm) - engine.between_s(10, 10, 8, deepseek)
    assert longer_s == pytest.approx(10 * 11 * engine.selection.kernel_time.value)
    assert [engine.on("mi300x").selected(each) for each in (glm, gated)] == [0, 4]  # AITER's one takes any number
    # and the host launches them, and casts, where no graph does
    assert plain.compute_s([experts], experts=glm) == pytest.approx((8 + 1 + 11) * plain.kernel_s)
    assert load_stack("sglang").stack().compute_s([experts], experts=glm) == load_stack("sglang").stack().kernel_s


def test_what_is_quantised_before_a_product_is_no_part_of_it() -> None:
    trtllm = engine("trtllm")
    output, wide = Gemm(4096, 8192, 8192, "fp8"), Gemm(4096, 8192, 8192, "nvfp4")
    assert trtllm.finding(output) == replace(output, quantised=True) and trtllm.finding(wide) == wide
    assert engine("vllm").finding(output) == output
    quantised_s, alone_s = (float(B200.time(each).seconds) for each in (trtllm.finding(output), output))
    assert quantised_s < alone_s


def test_a_graph_saves_nothing_of_other_kernels() -> None:
    assert Saving(engine("vllm"), B200).seconds(MemoryBound("copy", 1e6, 8), 5e-6) == 5e-6


def served(stack: str, pass_: str = "decode", **workload: Any) -> PlanResult:
    question = {
        "name": "served",
        "cluster": workload.pop("cluster", "hgx-b200-8"),
        "workload": {"model": "llama-3.1-8b", "pass": pass_, "precision": "fp8", "stack": stack, **workload},
        "plans": [{"name": "P", "tp": 8}],
    }
    result = tspsim.simulate(question).plan("P")
    assert result.ran, result.error
    return result


def program_of(stack: str, pass_: str, **workload: Any) -> list[Any]:
    from tspsim.parallel import scheme_of, write_program

    asked = {
        "name": "program",
        "cluster": "hgx-b200-8",
        "workload": {"model": "llama-3.1-8b", "pass": pass_, "stack": stack, **workload},
        "plans": [{"name": "P", "tp": 8}],
    }
    question = look_up(tspsim.load(asked))
    job = question.job(question.plans[0])
    return [each.instruction for each in write_program(scheme_of(job.plan), job).unrolled()]


def test_only_what_no_graph_holds_is_launched() -> None:
    """A captured decode has no launch, a prefill one for every kernel and collective (waits launch nothing), a mixed
    pass in pieces one for every attention."""
    whole = program_of("vllm", "decode", batch=8, context=1024)
    assert not any(isinstance(each, Launch) for each in whole)
    eager = program_of("vllm", "prefill", sequence=4096)
    launched = [each for each in eager if isinstance(each, Launch)]
    assert len(launched) == sum(isinstance(each, Collective) or bool(getattr(each, "operators", ())) for each in eager)
    kernels = sum(len(each.operators) for each in eager if isinstance(each, Compute))
    collectives = sum(isinstance(each, Collective) for each in eager)
    assert sum(each.host_s for each in launched) == pytest.approx(kernels * 20e-6 + collectives * 16e-6)
    pieces = program_of("vllm", "mixed", sequence=64, batch=4, context=1024)
    assert sum(each.host_s > 0.0 for each in pieces if isinstance(each, Launch)) == 32


def test_a_padded_batch_takes_the_time_of_the_captured_size_or_a_little_less() -> None:
    told = {batch: served("vllm", batch=batch, context=2048) for batch in (17, 23, 24, 25)}
    times = {batch: plan.step_time_s for batch, plan in told.items()}
    assert times[17] < times[23] < times[24] < times[25]
    # All but attention over seven contexts, logits of seven sequences, and the host's time of them.
    products = {batch: plan.compute_by_kind_s["gemm"] for batch, plan in told.items()}
    assert products[17] == pytest.approx(products[24], rel=1e-3) and products[25] > 1.005 * products[24]


def test_a_prefill_of_few_tokens_takes_the_hosts_time_and_more_on_slower_hosts() -> None:
    eager = served("vllm", "prefill", sequence=640)
    launched = [each for each in program_of("vllm", "prefill", sequence=640) if isinstance(each, Launch)]
    host_s = sum(each.host_s for each in launched) + 260e-6
    assert host_s < eager.step_time_s < 1.1 * host_s
    grace = {"device": "gb200", "nodes": 1}
    slow = tspsim.simulate({
        "name": "grace", "cluster": grace,
        "workload": {"model": "llama-3.1-8b", "pass": "prefill", "sequence": 640, "precision": "fp8", "stack": "vllm"},
        "plans": [{"name": "P", "tp": 8}],
    }).plan("P")  # fmt: skip
    assert slow.breakdown_s["host"] > 0.4 * slow.step_time_s
    assert slow.step_time_s == pytest.approx(2.1 * eager.step_time_s, rel=0.1)


def test_the_host_between_the_passes_of_drafts_is_waited_for_where_an_engine_says_so() -> None:
    def between_s(stack: str, drafts: int) -> float:
        drafted = {"tokens": drafts, "draft": "mtp", "accepted": 1.0 + 0.5 * drafts}
        work = {"model": "deepseek-v3", "pass": "verify", "batch": 4, "context": 1024, "speculation": drafted}
        cluster, plans = "hgx-b200-8", [{"name": "P", "tp": 8}]
        asked = load({"name": "drafted", "cluster": cluster, "workload": {**work, "stack": stack}, "plans": plans})
        question = look_up(asked)
        return metrics.host_of_a_pass_s(question.job(question.plans[0]))

    assert between_s("sglang@0.5.8-plain", 3) - between_s("sglang@0.5.8-plain", 0) == pytest.approx(6e-3)
    assert between_s("sglang", 3) == between_s("sglang", 0)


def test_a_steps_own_time_of_the_host_is_between_its_passes() -> None:
    few, many = (served("vllm", batch=batch, context=1024) for batch in (8, 64))
    assert few.breakdown_s["idle"] == pytest.approx(250e-6 + 8 * 10e-6)
    assert many.breakdown_s["idle"] == pytest.approx(250e-6 + 64 * 10e-6)


def test_hidden_time_of_the_host_bounds_the_step_from_below(tmp_path: Path) -> None:
    stated = {"name": "mine", "engine": {"step": said("50 ms"), "hidden": said(0.8)}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(stated), encoding="utf-8")
    assert served(str(file), batch=8, context=1024).step_time_s == pytest.approx(50e-3, rel=1e-6)


def said(value: object) -> dict[str, object]:
    return {"value": value, "source": "the test"}


def test_the_front_end_is_part_of_the_time_to_the_first_token() -> None:
    told = served("vllm", "prefill", sequence=8192)
    front_end_s = load_stack("vllm").stack().engine.front_end.value
    assert told.inference["time_to_first_token_s"] == pytest.approx(told.step_time_s + front_end_s)


def test_serving_steps_use_their_engines_all_reduces_unless_the_scenario_names_a_library() -> None:
    def all_reduces_s(stack: str, **cluster: Any) -> float:
        where = {"cluster": {"device": "h100", "nodes": 1, **cluster}} if cluster else {"cluster": "hgx-h100-8"}
        told = served(stack, batch=8, context=1024, **where)
        return told.breakdown_s["exposed_communication"]["all_reduce"]

    own, engines, stated = all_reduces_s("ideal"), all_reduces_s("vllm"), all_reduces_s("vllm", library="NCCL 2.29.2")
    assert engines < 0.5 * own
    assert stated > 2.0 * engines


def test_a_version_changes_what_it_states_and_is_told_by_its_name() -> None:
    new, old = load_stack("vllm"), load_stack("vllm@0.19")
    assert (new.stack().engine.memory.share, old.stack().engine.memory.share) == (0.92, 0.90)
    assert old.stack().engine.graphs == new.stack().engine.graphs and old.name == "vllm@0.19"
    with pytest.raises(UnknownNameError, match=r"version of vllm '0\.18'.*0\.19"):
        load_stack("vllm@0.18")
    with pytest.raises(InputError, match=r"workload\.stack"):
        look_up(tspsim.load({
            "name": "x", "cluster": "hgx-h100-8", "plans": [{"name": "P", "tp": 8}],
            "workload": {"model": "llama-3.1-8b", "pass": "decode", "batch": 1, "context": 9, "stack": "vllm@7"},
        }))  # fmt: skip


def test_a_range_must_hold_its_value(tmp_path: Path) -> None:
    stated = {"name": "mine", "kernel": {"value": "20 us", "range": ["30 us", "40 us"], "source": "the test"}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(stated), encoding="utf-8")
    with pytest.raises(InputError, match="must lie in its range"):
        load_stack(str(file))


@pytest.mark.parametrize("name", ENGINES)
def test_every_number_of_an_engine_has_a_source_and_every_prior_a_range(name: str) -> None:
    spec = load_stack(name)
    rows = spec.provenance()
    assert {"stack " + name + ": " + key for key in ("graphs", "memory", "step", "sequence", "front end", "block")} <= {
        row.what for row in rows
    }
    assert all(len(row.source) > 10 for row in rows)
    priors = [row for row in rows if row.source.startswith(("prior", "assumed")) and "spread" not in row.what]
    assert priors and all(" to " in str(row.value) for row in priors)


def test_small_kernels_and_waits_come_on_top_of_every_pass() -> None:
    """2·L·log2(T)·skew + L·layer + (layers with experts)·routed, to the tick; a device may wait otherwise."""
    base = load_stack("vllm").stack().engine
    plain = replace(base, layer=NONE, routed=NONE, skew=NONE, skews={})
    more = replace(plain, layer=Prior(2e-6, 0, 0), routed=Prior(5e-6, 0, 0), skew=Prior(1e-6, 0, 0))
    assert plain.between_s(32, 30, 8) == 0.0
    assert more.between_s(32, 30, 8) == pytest.approx(32 * 2e-6 + 30 * 5e-6 + 2 * 32 * 3 * 1e-6)
    elsewhere = replace(more, skews={"h100": Prior(4e-6, 0, 0)})
    assert elsewhere.on("h100").skew.value == 4e-6
    assert elsewhere.on("b200").skew.value == 1e-6
    assert base.on("h200").skew.value > base.on("b200").skew.value


def test_a_step_waits_in_its_collectives_as_its_device_does() -> None:
    """Llama-3.1-8B on eight H100 under vLLM: 2 · 32 · log2(8) waits of 3.5 us more than on eight B200."""
    asked = {
        "name": "waits", "cluster": {"device": "h100", "nodes": 1},
        "workload": {"model": "llama-3.1-8b", "pass": "decode", "batch": 4, "context": 1024, "stack": "vllm"},
        "plans": [{"name": "TP8", "tp": 8}, {"name": "TP1", "tp": 1, "dp": 8}],
    }  # fmt: skip
    question = look_up(load(asked))
    waits = [metrics.host_of_a_pass_s(question.job(plan)) for plan in question.plans]
    assert waits == pytest.approx([2 * 32 * 3 * 3.5e-6, 0.0])
