"""Laws of every device of the catalog, every family of kernels, type and engine, over a wide grid of drawn shapes.

Isolated kernels: never above the peak, never faster for more of anything, twice as much takes at most twice as long
but for heat and caches, and a mask never makes attention slower. Inside a step: a narrower type is never slower but for
what is stated, and two devices differ by no more than their facts and starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.hardware import Device, load_device
from tspsim.hardware.families import FAMILIES
from tspsim.operators import (
    AbsorbProduct,
    Attention,
    ChoiceKernels,
    Computes,
    DecodeAttention,
    DeltaScan,
    FusedMoE,
    Gemm,
    GroupedGemm,
    Indexer,
    LatentDecode,
    LatentPrefill,
    MemoryBound,
    Operator,
    ShortConvolution,
    SparseAttention,
    element_bytes,
)

DEVICES = tuple(catalog.names("devices"))
ENGINES = ("", "vllm", "sglang", "trtllm", "atom")
TYPES = ("bf16", "fp8", "fp8_block", "mxfp8", "mxfp4", "nvfp4", "int8")
ROWS = 14
EXACT = 1.0 + 1e-9
#: Further time of a call that is twice as large: clocks fall in long calls, and tails of grids are fits.
HEAT = 1.25
#: Families with a further cost of bytes beyond the caches.
CACHED = ("memory_bound", "gdn", "kda", "mamba2")
device = cache(load_device)
Shape = dict[str, Any]


class Draw:
    """Sizes drawn evenly in logarithms, with both ends, and choices."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(20)

    def size(self, low: float, high: float) -> Any:
        drawn = np.round(2.0 ** self.random.uniform(np.log2(low), np.log2(high), ROWS))
        drawn[:2] = low, high
        return drawn

    def one_of(self, *values: float) -> Any:
        return self.random.choice(np.array(values, dtype=float), ROWS)


def drawn() -> dict[str, tuple[Shape, tuple[str, ...]]]:
    """Family → calls, and the columns that grow."""
    draw, same = Draw(), np.ones(ROWS)
    heads = draw.one_of(1, 2, 8, 32)
    grouped = {"heads": heads * draw.one_of(1, 4, 7, 8), "kv_heads": heads}
    width = {"head_dim": draw.one_of(64, 80, 128, 192, 256)}
    queries = draw.size(1, 131072)
    prefill = {"q_len": queries, "kv_len": queries + draw.one_of(0, 0, 1) * draw.size(1, 131072)}
    batch, context = draw.size(1, 1024), draw.size(1, 1e6)
    k = draw.size(64, 131072)
    products = {"m": draw.size(1, 131072), "n": draw.size(16, 131072), "k": k, "batch": draw.one_of(1, 1, 2, 64)}
    several = products | {"batch": draw.one_of(2, 3, 16, 128)}
    experts, tokens = draw.one_of(8, 32, 256), draw.size(1, 131072)
    pairs = tokens * 4.0
    scans = {"sequences": draw.one_of(1, 4, 64), "longest": draw.size(1, 65536)}
    scans["tokens"] = scans["sequences"] * scans["longest"]
    states = scans | {
        "k_heads": 16.0 * same,
        "k_dim": 128.0 * same,
        "v_heads": draw.one_of(16, 32),
        "v_dim": 128.0 * same,
    }
    scored = draw.size(1, 32768)
    rows, columns = draw.size(1, 1e6), draw.size(64, 32768)
    of_products, of_prompts = ("m", "n", "k", "batch"), ("batch", "q_len", "kv_len", "heads")
    attended = scored * 2048.0
    selected = {
        "queries": scored, "prompts": np.minimum(scored, 3.0), "pairs": attended, "entries": attended,
        "heads": draw.one_of(8, 64, 128), "key_dim": 576.0 * same, "value_dim": 512.0 * same,
        "entry_bytes": draw.one_of(656, 1152),
    }  # fmt: skip
    all_scored = scored * context
    indexed = {
        "queries": scored, "pairs": all_scored, "entries": all_scored, "choice": all_scored, "longest": context,
        "heads": draw.one_of(32, 64), "head_dim": 128.0 * same,
    }  # fmt: skip
    latent = {"batch": batch, "context": context, "heads": draw.one_of(8, 16, 128), "queries": draw.one_of(1, 1, 4)}
    calls: dict[str, tuple[Shape, tuple[str, ...]]] = {
        "gemm": (products, of_products),
        "grouped_gemm": (several, of_products),
        "grouped_gemm_backward": (several, of_products),
        "attention_forward": ({"batch": draw.one_of(1, 2, 64), **prefill, **grouped, **width}, of_prompts),
        "attention_decode": (
            {"batch": batch, "context": context, **grouped, **width, "queries": draw.one_of(1, 1, 4)},
            ("batch", "context", "heads", "queries"),
        ),
        "latent_prefill": (
            {"batch": draw.one_of(1, 2, 64), **prefill, "heads": draw.one_of(8, 16, 128), "key_dim": 192.0 * same,
             "value_dim": 128.0 * same}, of_prompts,
        ),
        "latent_decode": (
            latent | {"latent_dim": 512.0 * same, "rope_dim": 64.0 * same}, ("batch", "context", "heads", "queries"),
        ),
        "absorb": ({"tokens": tokens, "heads": draw.one_of(8, 128), "n": 512.0 * same, "k": 128.0 * same},
                   ("tokens", "heads", "n", "k")),
        "memory_bound": ({"size_bytes": rows * columns * 4.0, "rows": rows, "columns": columns}, ("rows",)),
        "fused_moe": (
            {"tokens": tokens, "hidden": draw.one_of(2880, 7168), "expert_ffn": draw.size(128, 16384),
             "experts": experts, "topk": 4.0 * same, "pairs": pairs, "touched": np.minimum(experts, pairs),
             "gated": same, "elsewhere": same}, ("hidden", "expert_ffn", "tokens"),
        ),
        "sparse_attention": (selected, ("heads", "pairs")),
        "indexer": (indexed, ("heads", "pairs")),
    }  # fmt: skip
    calls["attention_backward"] = calls["attention_forward"]
    for name in FAMILIES:
        if name.startswith("compressed"):
            calls[name] = calls[name.replace("compressed_attention", "sparse_attention").replace("compressed_", "")]
        elif "convolution" in name:
            calls[name] = scans | {"channels": draw.one_of(1024, 8192)}, ("channels",)
        elif name.startswith(("gdn", "kda")):
            calls[name] = states, ("v_heads",)
    return calls


CALLS = drawn()


def grown(shape: Shape, column: str, more: Callable[[Any], Any]) -> Shape:
    """The calls with more of one column, and of what cannot stay behind it."""
    larger = shape | {column: more(shape[column])}
    if column == "heads" and "kv_heads" in shape:
        larger["heads"] = shape["heads"] + shape["kv_heads"]
        if more(1.0) == 2.0 and more(2.0) == 4.0:
            larger |= {"heads": 2.0 * shape["heads"], "kv_heads": 2.0 * shape["kv_heads"]}
    if column == "q_len":
        larger["kv_len"] = np.maximum(shape["kv_len"], larger["q_len"])
    if column == "rows":
        larger["size_bytes"] = larger["rows"] * shape["columns"] * 4.0
    if column == "tokens" and "pairs" in shape:
        larger["pairs"] = 4.0 * larger["tokens"]
        larger["touched"] = np.minimum(shape["experts"], larger["pairs"])
    return larger


def flops(family: str, s: Shape) -> Any:
    """Operations that no kernel can leave out."""
    if "gemm" in family:
        return 2.0 * s["m"] * s["n"] * s["k"] * s["batch"] * (2.0 if "backward" in family else 1.0)
    if family in ("attention_forward", "attention_backward"):
        pairs = s["q_len"] * s["kv_len"] - s["causal"] * s["q_len"] ** 2 / 2.0
        return (4.0 if family == "attention_forward" else 10.0) * pairs * s["batch"] * s["heads"] * s["head_dim"]
    if family == "attention_decode":
        return 4.0 * s["batch"] * s["context"] * s["heads"] * s["head_dim"] * s["queries"]
    if family == "latent_decode":
        return 2.0 * s["batch"] * s["context"] * s["heads"] * (2.0 * 512.0 + 64.0) * s["queries"]
    if family == "fused_moe":
        return 6.0 * s["pairs"] * s["hidden"] * s["expert_ffn"]
    if family == "absorb":
        return 2.0 * s["tokens"] * s["heads"] * s["n"] * s["k"]
    return 0.0 * next(iter(s.values()))


def kernels(name: str, family: str) -> Iterator[tuple[Device, Any, str | None]]:
    """Every kernel that steps of any engine can ask a device for, once; with the second type."""
    found = set()
    plain_types = family in ("gemm", "grouped_gemm", "grouped_gemm_backward", "fused_moe")
    seconds = {"fused_moe": (None, "mxfp4", "int4")}.get(family, ("bf16", "fp8") if "attention" in family or
                                                         "latent" in family else (None,))  # fmt: skip
    for engine in ENGINES:
        on = device(name).with_engine(engine)
        for dtype in TYPES if plain_types else ("fp8",) if "indexer" in family else ("bf16",):
            for second in seconds:
                kept = dtype if family == "fused_moe" and second is None else second
                try:
                    kernel = on.kernel(family, dtype, None, kept)
                    on.limits(dtype)
                except InputError:
                    continue
                key = kernel.library, dtype, kept, tuple(kernel.parameters.values())
                if key not in found:
                    found.add(key)
                    yield on, kernel, kept


@pytest.mark.in_turn(6)
@pytest.mark.parametrize("name", DEVICES)
def test_isolated_calls_keep_the_laws(name: str) -> None:
    for family, (shape, columns) in CALLS.items():
        causes = ({"causal": 1.0}, {"causal": 0.0}) if family in ("attention_forward", "attention_backward") else ({},)
        for on, kernel, second in kernels(name, family):
            times = []
            for further in causes:
                calls = shape | further
                what = name, family, kernel.dtype, second, kernel.library, further

                def seconds(calls: Shape, on: Device = on, kernel: Any = kernel, second: Any = second) -> Any:
                    return on.isolated(kernel, second, **calls).seconds

                once = seconds(calls)
                times.append(once)
                assert np.all(np.isfinite(once) & (once > 0.0)), what
                assert np.all(once * EXACT >= flops(family, calls) / on.limits(kernel.dtype).peak), what
                for column in columns:
                    one_more, twice = (seconds(grown(calls, column, more)) for more in (_plus_one, _twice))
                    assert np.all(one_more * EXACT >= once) and np.all(twice * EXACT >= once), (what, column)
                    if column in ("q_len", "kv_len", "queries"):  # the work grows by its square, or with the context
                        continue
                    spilled = 1.0 + kernel.parameters.get("large_cost", 0.0) * family.startswith(CACHED)
                    assert np.all(twice <= 2.0 * max(HEAT, spilled) * once), (what, column, (twice / once).max())
            if len(times) == 2:
                assert np.all(times[0] <= times[1] * EXACT), (name, family, kernel.library, "a mask")


def _plus_one(size: Any) -> Any:
    return size + 1.0


def _twice(size: Any) -> Any:
    return 2.0 * size


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cache_of_the_operands_type_is_read_by_the_kernel_measured_with_it(engine: str) -> None:
    """Whether the type of the cache is stated or not, as it is where it equals the operands'."""
    for name in DEVICES:
        on = device(name).with_engine(engine)
        for family in ("attention_forward", "attention_decode", "latent_prefill", "sparse_attention"):
            unstated, stated = on.kernel(family, "bf16"), on.kernel(family, "bf16", None, "bf16")
            assert unstated.parameters == stated.parameters, (name, family)


# --- inside a step ----------------------------------------------------------------------------------------------------

Make = Callable[[str], Operator]
#: Kind → an operator of drawn sizes, by the type of its product, or of its cache.
KINDS: dict[str, Callable[[SimpleNamespace, str], Operator]] = {
    "gemm": lambda s, t: Gemm(s.m, s.n, s.k, t, quantised=True),
    "grouped": lambda s, t: GroupedGemm(s.few, s.wide, s.deep, t, s.batch, quantised=True),
    "gradient": lambda s, t: Gemm(s.m, s.wide, s.deep, t, cast_apart=True, computes=Computes.WEIGHT_GRADIENT),
    "prefill": lambda s, t: Attention(s.prompts, s.kv * s.group, s.kv, s.head_dim, kv_dtype=t),
    "backward": lambda s, t: Attention(s.prompts, s.kv * s.group, s.kv, 128, direction="backward"),
    "decode": lambda s, t: DecodeAttention(s.cached, s.kv * s.group, s.kv, s.head_dim, kv_dtype=t),
    "latent prefill": lambda s, t: LatentPrefill(s.prompts, s.heads, 192, 128, kv_dtype=t),
    "latent decode": lambda s, t: LatentDecode(s.cached, s.heads, kv_dtype=t),
    "absorb": lambda s, t: AbsorbProduct(s.tokens, s.heads, 512, 128),
    "memory": lambda s, t: MemoryBound("copy", 4.0 * s.tokens * 4096, s.tokens),
    "choice": lambda s, t: ChoiceKernels(s.tokens, s.experts, 3, 3, 1),
    "experts": lambda s, t: FusedMoE(s.tokens, s.deep, 2048, s.experts, s.topk, t, sent=s.sent),
    "indexer": lambda s, t: Indexer(s.scored, 64, 128, 2048),
    "chosen": lambda s, t: SparseAttention(s.scored, s.heads, 576, 512, 2048, kv_dtype=t),
    "scan": lambda s, t: DeltaScan(s.scanned, "gdn", 16, 128, 32, 128),
    "convolution": lambda s, t: ShortConvolution(s.scanned, "gdn", 4096),
}


def operators() -> dict[str, list[Make]]:
    """Kind → operators of many sizes, by type."""
    random = np.random.default_rng(4)

    def size(low: float, high: float) -> int:
        drawn: float = 2.0 ** random.uniform(np.log2(low), np.log2(high))
        return round(drawn)

    def one_of(*values: int) -> int:
        return values[int(random.integers(len(values)))]

    made: dict[str, list[Make]] = {kind: [] for kind in KINDS}
    for _ in range(16):
        q = size(1, 65536)
        sizes = SimpleNamespace(
            m=size(1, 131072), n=size(16, 131072), k=size(64, 131072), batch=one_of(2, 16, 64), few=size(1, 16384),
            wide=one_of(1536, 4096, 28672), deep=one_of(2048, 7168), prompts=((q, q + one_of(0, 1) * size(1, 65536)),),
            kv=one_of(1, 2, 8), group=one_of(1, 4, 8), head_dim=one_of(64, 128, 256), heads=one_of(8, 16, 128),
            cached=((size(1, 500_000), size(1, 512)),), scored=((size(1, 8192), size(1, 500_000), 1),),
            tokens=size(1, 32768), experts=one_of(8, 32, 256), topk=one_of(1, 4, 8), sent=bool(one_of(0, 1)),
            scanned=((size(1, 65536), one_of(1, 4, 64)),),
        )  # fmt: skip
        for kind, make in KINDS.items():
            made[kind].append(partial(make, sizes))
    return made


OPERATORS = operators()
PRODUCTS = ("gemm", "grouped", "gradient")
TYPES_OF = {
    **dict.fromkeys((*PRODUCTS, "experts"), ("bf16", "fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4")),
    **dict.fromkeys(("prefill", "decode", "latent prefill", "latent decode", "chosen"), ("bf16", "fp8")),
}


@cache
def times(name: str, kind: str, dtype: str) -> Any:
    """Of every operator of a kind; None if the device has no such type."""
    on = device(name)
    if kind in (*PRODUCTS, "experts") and dtype not in on.peak_flops_per_s:
        return None
    try:
        return np.array([on.time(make(dtype)).seconds for make in OPERATORS[kind]])
    except InputError:
        return None


#: Seconds by which starts of kernels of two libraries differ.
START_S = 12e-6
#: Further time of a narrower type that tables have: kernels that convert what they read, by kind. Products take the
#: wider kernel where it is faster.
CONVERSION = {"prefill": 1.9, "decode": 1.6, "latent prefill": 1.75, "latent decode": 1.5, "chosen": 5.7}


@pytest.mark.in_turn(6)
@pytest.mark.parametrize("name", DEVICES)
def test_a_narrower_type_is_never_slower_but_for_what_is_converted(name: str) -> None:
    for kind in (*PRODUCTS, *CONVERSION):
        priced = [(element_bytes(t), times(name, kind, t)) for t in TYPES_OF[kind]]
        known = [(width, seconds) for width, seconds in priced if seconds is not None]
        for width, seconds in known:
            for wider, others in known:
                if wider > 1.2 * width:
                    factor, start_s = (CONVERSION[kind], START_S) if kind in CONVERSION else (EXACT, 0.0)
                    over = (seconds - start_s) / others
                    assert np.all(over <= factor), (kind, width, wider, over.max())


#: Devices of one chip or generation, or of two of which one's kernels are the other's.
PAIRS = (
    ("h100", "h200"), ("h800", "h100"), ("h100-96gb-500w", "h100"), ("a100-40gb", "a100-80gb"), ("b200", "gb200"),
    ("b200", "b300"), ("gb200", "gb300"), ("b300", "gb300"), ("mi300x", "mi325x"), ("mi350x", "mi355x"),
    ("mi355x", "mi455x"), ("b200", "rubin"), ("h200", "b200"),
)  # fmt: skip
#: How far fits of two tables lie from their rows together, by kind; kernels of few or short rows are less certain.
FITS = dict.fromkeys(OPERATORS, 1.3) | {
    "latent prefill": 1.45,
    "experts": 1.55,
    "indexer": 1.55,
    "chosen": 1.85,
    "scan": 1.5,
}
#: Where tables themselves differ by more, or devices run different libraries by default: the factor, and the reason.
TABLES_DIFFER: dict[tuple[str, str, str], tuple[float, str]] = {
    ("b200", "b300", "experts"): (2.1, "fp8: TensorRT-LLM's cutlass and vLLM's FlashInfer have most rows"),
    ("b200", "b300", "indexer"): (2.8, "SGLang's modules of long prompts are priced within 7 % on both"),
    ("gb200", "gb300", "indexer"): (2.8, "the same, within 17 %"),
    ("h100", "h200", "scan"): (2.1, "10.6 and 20.0 ms measured of 8 x 16,384 tokens"),
    ("h100", "h200", "convolution"): (3.4, "1.1 and 4.2 ms measured of the same"),
    ("h200", "b200", "convolution"): (2.0, "H200's rows again"),
    ("h200", "b200", "prefill"): (2.2, "caches in fp8 with heads of 256: FlashAttention 3, FlashInfer"),
    ("h200", "b200", "decode"): (2.2, "FlashAttention 3 and FlashInfer's TRT-LLM kernels"),
    ("h200", "b200", "chosen"): (3.0, "FlashMLA and TRT-LLM's kernels"),
}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_devices_differ_by_no_more_than_their_facts(one: str, other: str) -> None:
    """A ratio of times lies between the least and the largest ratio of peaks, clocks and bandwidths."""
    a, b = device(one), device(other)
    clocks = a.spec.sustained.gemm.value / b.spec.sustained.gemm.value
    parts = {on.name: on.spec.sustained.grouped.value if on.spec.sustained.grouped else 0.0 for on in (a, b)}
    for kind, makes in OPERATORS.items():
        for dtype in TYPES_OF.get(kind, ("bf16",)):
            x, y = times(one, kind, dtype), times(other, kind, dtype)
            if x is None or y is None:
                continue
            operand = dtype if kind in (*PRODUCTS, "experts") else "bf16"
            peaks = b.peak_of(operand) / a.peak_of(operand)
            facts = peaks, peaks / clocks, b.hbm_bytes_per_s / a.hbm_bytes_per_s, 1.0
            allowed = TABLES_DIFFER.get((one, other, kind), (FITS[kind], ""))[0]
            # A grouped product starts its parts one by one where that was measured.
            starts = [START_S + getattr(make(dtype), "batch", 1) * max(parts.values()) for make in makes]
            if kind not in PRODUCTS:
                starts = [START_S] * len(makes)
            wrong = [
                (make(dtype).shape, x[i], y[i])
                for i, make in enumerate(makes)
                if x[i] > max(facts) * allowed * y[i] + starts[i] or x[i] + starts[i] < min(facts) / allowed * y[i]
            ]
            assert not wrong, (kind, dtype, facts, wrong[:2])


@pytest.mark.parametrize("name", DEVICES)
def test_narrower_weights_are_never_slower_and_of_few_rows_neither_than_narrower_operands(name: str) -> None:
    """Weight-only kernels read fewer bytes and multiply in bf16: until arithmetic decides, four bits beat eight, and
    operands of eight bits. The clock of a step takes more of a call that waits less for bytes, and H200's products in
    eight bits are rows of another table."""
    on = device(name)
    for m in (1, 8, 16, 300, 8192):
        for n, k in ((28672, 4096), (4096, 14336), (1024, 8192)):
            kept = [on.time(Gemm(m, n, k, weight_dtype=weights)).seconds for weights in (None, "int8", "int4", "int3")]
            assert all(narrow <= 1.02 * wide + START_S / 40 for wide, narrow in pairwise(kept)), (m, n, k, kept)
            if m <= 16 and "int8" in on.peak_flops_per_s:
                narrow = on.time(Gemm(m, n, k, "int8", quantised=True)).seconds
                assert kept[2] <= 1.15 * narrow + START_S / 4, (m, n, k)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_call_of_unequal_segments_waits_for_the_longest_and_takes_at_most_their_sum(
    name: str, direction: str
) -> None:
    """Two pieces of a zigzag shard: few blocks have a unit each, and the longest decides; a mask makes none slower. The
    clock of a step takes a little less of both, which have more bytes for their arithmetic."""
    on = device(name)
    for heads, length in ((1, 4096), (4, 16384), (8, 131072), (32, 32768)):
        near, far = (length // 16, length // 16), (length // 16, length)
        widths = heads, max(1, heads // 4), 128
        of_mask = []
        for causal in (True, False):
            both, *alone = (
                on.time(Attention(segments, *widths, causal, direction=direction)).seconds
                for segments in ((near, far), (near,), (far,))
            )
            assert max(alone) <= 1.03 * both, (heads, length, causal)
            assert both <= 1.15 * sum(alone), (heads, length, causal)
            of_mask.append(both)
        assert of_mask[0] <= of_mask[1] * EXACT, (heads, length)
