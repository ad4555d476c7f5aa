"""What no device, type or shape may break: the roofline, and time that never falls when work grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.hardware import Device, load_device
from tspsim.hardware.families import FAMILIES
from tspsim.hardware.kernels import peak_of
from tspsim.hardware.specification import DeviceSpec
from tspsim.operators import (
    Attention,
    DecodeAttention,
    DeltaScan,
    Gemm,
    Indexer,
    LatentDecode,
    MemoryBound,
    Operator,
    SparseAttention,
    element_bytes,
)

DEVICES = (
    "a100-40gb", "a100-80gb", "b200", "b300", "gb200", "gb300", "h100", "h200", "mi300x", "mi325x", "mi350x",
    "mi355x", "mi455x", "rubin",
)  # fmt: skip
#: Those that nobody measured.
ANNOUNCED = ("mi455x", "rubin")
#: Rounding of the last bits only.
EXACT = 1.0 - 1e-12
TILE = 256

devices = st.sampled_from(DEVICES)
dtypes = st.sampled_from(("bf16", "fp16", "fp8", "fp8_block", "mxfp8", "mxfp6", "int8", "mxfp4", "nvfp4"))
sizes = st.one_of(st.integers(1, 2048), st.integers(1, 300_000))
growth = st.one_of(st.integers(TILE, 4 * TILE), st.integers(TILE, 100_000))
head_dims = st.sampled_from((64, 80, 128, 192, 256, 512))
directions = st.sampled_from(("forward", "backward"))
fast = settings(max_examples=50, deadline=None)


@cache
def device(name: str) -> Device:
    return load_device(name)


@fast
@given(devices, dtypes, sizes, sizes, sizes, st.integers(1, 64))
def test_a_product_is_never_faster_than_peak_or_hbm(name: str, dtype: str, m: int, n: int, k: int, batch: int) -> None:
    d = device(name)
    assume(dtype in d.peak_flops_per_s)
    estimate = d.gemm(m, n, k, dtype, batch)
    size = element_bytes(dtype)
    assert estimate.seconds >= 2.0 * m * n * k * batch / peak_of(d.spec, dtype) * EXACT
    assert estimate.seconds >= batch * ((m * k + n * k) * size + 2.0 * m * n) / d.hbm_bytes_per_s * EXACT
    assert 0.0 < estimate.low < estimate.seconds < estimate.high


@fast
@given(devices, dtypes, sizes, sizes, sizes, st.integers(1, 8), st.sampled_from("mnkb"), growth)
def test_a_larger_product_is_never_faster(
    name: str, dtype: str, m: int, n: int, k: int, batch: int, grown: str, by: int
) -> None:
    d = device(name)
    assume(dtype in d.peak_flops_per_s)
    more = {"m": m, "n": n, "k": k, "b": batch}
    more[grown] += by
    larger = d.gemm(more["m"], more["n"], more["k"], dtype, more["b"]).seconds
    assert larger >= d.gemm(m, n, k, dtype, batch).seconds * EXACT


@fast
@given(
    devices, st.integers(1, 8), st.integers(1, 40_000), st.integers(0, 200_000), st.integers(1, 8),
    st.integers(1, 16), head_dims, st.booleans(), directions, st.sampled_from(("bf16", "fp8")),
)  # fmt: skip
def test_attention_is_never_faster_than_peak_or_hbm(
    name: str, batch: int, q: int, before: int, kv_heads: int, group: int, head_dim: int, causal: bool,
    direction: str, dtype: str,
) -> None:  # fmt: skip
    d = device(name)
    assume(dtype in d.peak_flops_per_s)
    kv, heads = q + before, kv_heads * group
    estimate = d.attention(batch, q, kv, heads, kv_heads, head_dim, dtype, causal, direction)
    pairs = q * kv - (q * q / 2.0 if causal else 0.0)
    factor = 4.0 if direction == "forward" else 10.0
    assert estimate.seconds >= factor * pairs * batch * heads * head_dim / peak_of(d.spec, dtype) * EXACT
    moved = batch * head_dim * (2.0 * q * heads + 2.0 * kv * kv_heads) * element_bytes(dtype)
    assert estimate.seconds >= moved / d.hbm_bytes_per_s * EXACT
    assert 0.0 < estimate.low < estimate.seconds < estimate.high


@fast
@given(
    devices, st.integers(1, 8), st.integers(1, 40_000), st.integers(0, 200_000), st.integers(1, 8),
    st.integers(1, 16), head_dims, st.booleans(), directions,
    st.sampled_from(("q", "kv", "batch", "heads", "both")), growth,
)  # fmt: skip
def test_more_attention_is_never_faster(
    name: str, batch: int, q: int, before: int, kv_heads: int, group: int, head_dim: int, causal: bool,
    direction: str, grown: str, by: int,
) -> None:  # fmt: skip
    d = device(name)

    def seconds(batch: int, q: int, kv: int, group: int) -> float:
        heads = kv_heads * group
        return float(d.attention(batch, q, kv, heads, kv_heads, head_dim, "bf16", causal, direction).seconds)

    kv = q + before
    larger = {
        "q": (batch, q + by, max(kv, q + by), group),
        "kv": (batch, q, kv + by, group),
        "batch": (batch + 1, q, kv, group),
        "heads": (batch, q, kv, group + 1),
        "both": (batch, q + by, kv + by, group),
    }[grown]
    assert seconds(*larger) >= seconds(batch, q, kv, group) * EXACT


@fast
@given(
    devices, st.integers(1, 512), st.integers(1, 500_000), st.integers(1, 8), st.integers(1, 32), head_dims,
    st.sampled_from(("bf16", "fp8")), st.sampled_from(("batch", "context", "heads")), growth,
)  # fmt: skip
def test_decoding_reads_its_context_at_most_at_hbm_speed_and_more_context_is_never_faster(
    name: str,
    batch: int,
    context: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    kv_dtype: str,
    grown: str,
    by: int,
) -> None:
    d = device(name)
    heads = kv_heads * group
    estimate = d.decode_attention(batch, context, heads, kv_heads, head_dim, kv_dtype)
    moved = 2.0 * batch * context * kv_heads * head_dim * element_bytes(kv_dtype)
    assert estimate.seconds >= moved / d.hbm_bytes_per_s * EXACT
    larger = {"batch": (batch + 1, context, heads), "context": (batch, context + by, heads)}.get(
        grown, (batch, context, heads + kv_heads)
    )
    assert d.decode_attention(*larger, kv_heads, head_dim, kv_dtype).seconds >= estimate.seconds * EXACT


contexts = st.one_of(st.integers(1, 64), st.integers(1, 20_000), st.integers(1, 500_000))


@st.composite
def behind_caches(draw: st.DrawFn) -> tuple[Callable[[tuple[tuple[int, int, int], ...]], Operator], int]:
    """An operator of one kind of attention over rows (queries, context before them, sequences), and its queries."""
    queries, heads = draw(st.integers(1, 16)), draw(st.sampled_from((8, 16, 32, 128)))
    kv = draw(st.sampled_from(("bf16", "fp8")))
    kinds: dict[str, Callable[[tuple[tuple[int, int, int], ...]], Operator]] = {
        "grouped": lambda rows: DecodeAttention(
            tuple((c + q, n) for q, c, n in rows), heads, 4, 128, kv_dtype=kv, queries=queries
        ),
        "latent": lambda rows: LatentDecode(tuple((c + q, n) for q, c, n in rows), heads, kv_dtype=kv, queries=queries),
        "indexer": lambda rows: Indexer(rows, 64, 128, 2048),
        "compressed indexer": lambda rows: Indexer(rows, 64, 128, 512, 4),
        "chosen": lambda rows: SparseAttention(rows, heads, 576, 512, 2048, kv_dtype=kv),
        "compressed": lambda rows: SparseAttention(rows, heads, 512, 512, 512, 4, 128, 584.0, kv_dtype="fp8"),
        "delta rule": lambda rows: DeltaScan(tuple((q, n) for q, _, n in rows), "gdn", 8, 128, 16, 128),
        "channel-wise delta rule": lambda rows: DeltaScan(tuple((q, n) for q, _, n in rows), "kda", 16, 128, 16, 128),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))], queries


@settings(max_examples=160, deadline=None)
@given(
    st.sampled_from(DEVICES[2:]), behind_caches(),
    st.lists(st.tuples(contexts, st.integers(1, 40)), min_size=1, max_size=6), contexts, contexts, st.data(),
)  # fmt: skip
def test_one_sequence_more_and_a_longer_context_are_never_faster_whatever_the_others(
    name: str,
    attending: tuple[Callable[[tuple[tuple[int, int, int], ...]], Operator], int],
    held: list[tuple[int, int]],
    further: int,
    by: int,
    data: st.DataObject,
) -> None:
    """Sequences of unequal contexts in one call, as a batch of an engine has them."""
    d, (operator, queries) = device(name), attending
    rows = tuple((queries, context, sequences) for context, sequences in held)
    grown = data.draw(st.integers(0, len(rows) - 1))
    longer = tuple((q, c + by * (i == grown), n) for i, (q, c, n) in enumerate(rows))
    seconds = d.time(operator(rows)).seconds
    assert d.time(operator((*rows, (queries, further, 1)))).seconds >= seconds * EXACT
    assert d.time(operator(longer)).seconds >= seconds * EXACT


@fast
@given(
    devices, st.floats(1.0, 1e11),
    st.sampled_from(("copy", "add", "rmsnorm", "add_rmsnorm", "swiglu", "rope")),
    st.integers(0, 10**6), st.floats(1.0, 10.0),
)  # fmt: skip
def test_moving_bytes_is_never_faster_than_hbm_and_more_bytes_never_faster(
    name: str, size_bytes: float, op: str, rows: int, factor: float
) -> None:
    d = device(name)
    seconds = d.memory_bound(size_bytes, op, rows).seconds
    assert seconds >= size_bytes / d.hbm_bytes_per_s * EXACT
    assert d.memory_bound(size_bytes * factor, op, rows).seconds >= seconds * EXACT
    # The same rows, only more of them.
    assert d.memory_bound(size_bytes * 3, op, rows * 3).seconds >= seconds * EXACT


@fast
@given(
    devices, st.integers(1, 100_000), st.integers(64, 8192), st.integers(64, 4096), st.integers(1, 512),
    st.integers(1, 16), st.sampled_from(("bf16", "fp8", "mxfp4")), st.integers(TILE, 10_000),
)  # fmt: skip
def test_experts_cost_at_least_their_products_and_their_weights_and_more_tokens_are_never_faster(
    name: str, tokens: int, hidden: int, ffn: int, experts: int, topk: int, dtype: str, by: int
) -> None:
    d = device(name)
    assume(dtype in d.peak_flops_per_s)
    seconds = d.fused_moe(tokens, hidden, ffn, experts, topk, dtype).seconds
    assert seconds >= 6.0 * tokens * topk * hidden * ffn / peak_of(d.spec, dtype) * EXACT
    weights = min(topk, experts) * 3.0 * hidden * ffn * element_bytes(dtype)
    assert seconds >= weights / d.hbm_bytes_per_s * EXACT
    assert d.fused_moe(tokens + by, hidden, ffn, experts, topk, dtype).seconds >= seconds * EXACT
    assert d.fused_moe(tokens, hidden, ffn + TILE, experts, topk, dtype).seconds >= seconds * EXACT


SHAPES: dict[str, dict[str, float]] = {
    "gemm": {"m": 300.0, "n": 5000.0, "k": 3000.0, "batch": 2.0},
    "attention_forward": {
        "batch": 2.0, "q_len": 900.0, "kv_len": 3000.0, "heads": 16.0, "kv_heads": 4.0, "head_dim": 128.0,
        "causal": 1.0,
    },
    "attention_decode": {"batch": 7.0, "context": 3000.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0},
    "latent_prefill": {
        "batch": 2.0, "q_len": 900.0, "kv_len": 3000.0, "heads": 16.0, "key_dim": 192.0, "value_dim": 128.0,
    },
    "latent_decode": {
        "batch": 7.0, "context": 3000.0, "heads": 16.0, "latent_dim": 512.0, "rope_dim": 64.0, "queries": 2.0,
    },
    "absorb": {"tokens": 70.0, "heads": 16.0, "n": 512.0, "k": 128.0},
    "memory_bound": {"size_bytes": 3e7, "rows": 2000.0, "columns": 4096.0},
    "fused_moe": {"tokens": 500.0, "hidden": 4096.0, "expert_ffn": 1536.0, "experts": 64.0, "topk": 6.0,
                  "pairs": 3000.0, "touched": 64.0, "gated": 1.0},
}  # fmt: skip
SHAPES["attention_backward"] = SHAPES["attention_forward"]
SHAPES["indexer"] = SHAPES["compressed_indexer"] = {
    "queries": 60.0, "pairs": 60.0 * 9000.0, "entries": 60.0 * 9000.0, "heads": 64.0, "head_dim": 128.0,
    "choice": 60.0 * 9000.0, "longest": 9000.0,
}  # fmt: skip
SHAPES["sparse_attention"] = SHAPES["compressed_attention"] = {
    "queries": 60.0, "prompts": 3.0, "pairs": 60.0 * 2048.0, "entries": 60.0 * 2048.0, "heads": 16.0, "key_dim": 576.0,
    "value_dim": 512.0, "entry_bytes": 656.0,
}  # fmt: skip
_SEQUENCES = {"sequences": 6.0, "tokens": 6000.0, "longest": 2000.0}
SHAPES |= {
    name: _SEQUENCES | {"k_heads": 16.0, "k_dim": 128.0, "v_heads": 32.0, "v_dim": 128.0}
    for name in FAMILIES if name.endswith(("_scan", "_step")) and "convolution" not in name
}  # fmt: skip
SHAPES |= {name: _SEQUENCES | {"channels": 8192.0} for name in FAMILIES if "convolution" in name}
#: Indexers score in fp8.
TYPES = {"indexer": "fp8", "compressed_indexer": "fp8"}
SHAPES["grouped_gemm"] = SHAPES["grouped_gemm_backward"] = SHAPES["gemm"]


@fast
@given(
    devices, st.sampled_from(sorted(FAMILIES)), st.floats(0.02, 40.0),
    st.sampled_from(("peak", "hbm")), st.floats(1.01, 4.0),
)  # fmt: skip
def test_a_device_with_more_peak_or_bandwidth_is_never_slower(
    name: str, family: str, scale: float, what: str, factor: float
) -> None:
    d = device(name)
    dtype = TYPES.get(family, "bf16")
    assume(dtype in d.peak_flops_per_s)
    kernel = d.kernel(family, dtype)
    limits = d.limits(dtype)
    first = next(iter(SHAPES[family]))
    shape: dict[str, Any] = SHAPES[family] | {first: max(1.0, round(SHAPES[family][first] * scale))}

    def seconds(m: Any) -> float:
        return float(FAMILIES[family].seconds(m, kernel.parameters, kernel.switches, shape, dtype, dtype))

    more = replace(limits, **{what: getattr(limits, what) * factor})
    assert seconds(more) <= seconds(limits) / EXACT


def better(spec: DeviceSpec, resource: str, factor: float) -> DeviceSpec:
    """The device with more of one thing that its file states."""

    def more(number: Any) -> Any:
        return number.model_copy(update={"value": type(number.value)(number.value * factor)})

    stated = getattr(spec, resource)
    changed = {dtype: more(peak) for dtype, peak in stated.items()} if resource == "peak" else more(stated)
    return spec.model_copy(update={resource: changed})


def shapes_of(family: str, rows: int = 40) -> dict[str, Any]:
    """Calls of every size, from one row to more than fill any device."""
    random = np.random.default_rng(0)
    ends = {
        "m": (1, 32768), "n": (64, 32768), "k": (64, 32768), "batch": (1, 64), "q_len": (16, 32768),
        "context": (16, 2e5), "tokens": (1, 32768), "expert_ffn": (128, 16384), "size_bytes": (1e3, 4e9),
        "rows": (1, 65536), "columns": (64, 16384),
    }  # fmt: skip
    shape: dict[str, Any] = {
        name: np.round(2.0 ** random.uniform(*np.log2(ends[name]), rows)) if name in ends else np.full(rows, value)
        for name, value in SHAPES[family].items()
    }
    if "kv_len" in shape:
        shape |= {"kv_len": shape["q_len"] * random.integers(1, 4, rows), "causal": random.integers(0, 2, rows) * 1.0}
    return shape


ALL_SHAPES = {family: shapes_of(family) for family in FAMILIES}
#: Operators of a step: products of all heights, plain and grouped, attention, and what moves bytes.
STEP: tuple[Operator, ...] = (
    *(Gemm(m, n, 4096, "bf16", batch) for m in (16, 700, 8192) for n in (512, 12288) for batch in (1, 8)),
    *(Attention(((length, length),), 32, 8, 128, direction=way) for length in (512, 32768)
      for way in ("forward", "backward")),
    *(MemoryBound("rmsnorm", 4.0 * rows * 4096, rows) for rows in (100, 100_000)),
)  # fmt: skip


RESOURCES = ("peak", "hbm_bandwidth", "compute_units", "clock", "memory", "visible_memory", "l2")


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("name", DEVICES)
def test_a_file_with_more_of_anything_is_never_slower(name: str, resource: str) -> None:
    """Whether kernels are the device's own or borrowed, and whatever anchors them."""
    base = device(name)
    # A little more and twice as much, in turn over devices and resources.
    for factor in ((1.06, 2.0)[(DEVICES.index(name) + RESOURCES.index(resource)) % 2],):
        spec = better(base.spec, resource, factor)
        for clocks in ("sustained", "burst"):
            before, after = (Device(each, base.relatives, clocks) for each in (base.spec, spec))
            slower = [op.shape for op in STEP if after.time(op).seconds > before.time(op).seconds / EXACT]
            assert not slower, (factor, clocks, slower)
        for family, shape in ALL_SHAPES.items():
            for dtype in ("bf16", *sorted({"fp8", "mxfp4"} & set(base.peak_flops_per_s))):
                try:
                    old = base.estimate(family, dtype, None, None, **shape).seconds
                except InputError:  # nobody measured this family in this type
                    continue
                new = Device(spec, base.relatives).estimate(family, dtype, None, None, **shape).seconds
                assert np.all(new <= old / EXACT), (factor, family, dtype)


def test_twice_the_peak_makes_large_products_nearly_twice_as_fast() -> None:
    d = device("mi300x")
    twice = Device(better(d.spec, "peak", 2.0), d.relatives)
    for one in ("gemm", "attention_forward"):
        large = {"m": 16384.0, "n": 16384.0, "k": 16384.0, "batch": 1.0} if one == "gemm" else SHAPES[one] | {
            "q_len": 32768.0, "kv_len": 32768.0
        }  # fmt: skip
        gain = d.estimate(one, "bf16", None, None, **large).seconds
        gain /= twice.estimate(one, "bf16", None, None, **large).seconds
        assert 1.2 < gain < 2.05  # a little more than the peak: the same work heats twice the peak for half the time


def test_what_a_file_without_measured_facts_borrows_reaches_what_it_achieved() -> None:
    """A device of one's own states what it reaches on the facts of its own file."""
    d = device("mi325x")
    own = d.spec.model_copy(update={"measured_at": None})
    assert own.as_measured is own
    assert Device(own, d.relatives).gemm(8192, 8192, 8192) == d.gemm(8192, 8192, 8192)


@pytest.mark.parametrize("name", sorted({*DEVICES} - {*ANNOUNCED}))
def test_kernels_that_ship_were_measured_at_the_facts_of_their_file(name: str) -> None:
    spec = device(name).spec
    assert spec.measured_at is not None and spec.as_measured == spec


@pytest.mark.parametrize("name", DEVICES)
def test_one_call_and_a_table_are_fast_enough(name: str) -> None:
    import time

    d = device(name)
    m = np.random.default_rng(0).integers(1, 20_000, 20_000)
    d.gemm(m[:10], 4096, 4096)
    start = time.perf_counter()
    d.gemm(m, 4096, 4096)
    # A million rows a minute, with room for a busy machine.
    assert time.perf_counter() - start < len(m) * 60e-6
