"""Attention over latents: limits that no device or library may break, and figures known in advance."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.hardware import Device, load_device
from tspsim.hardware.families import FAMILIES
from tspsim.hardware.kernels import peak_of
from tspsim.operators import AbsorbProduct, Attention, DecodeAttention, LatentDecode, LatentPrefill, element_bytes

DEVICES = (
    "a100-40gb", "a100-80gb", "b200", "b300", "gb200", "gb300", "h100", "h200", "mi300x", "mi325x", "mi350x",
    "mi355x",
)  # fmt: skip
MEASURED = ("b200", "b300", "gb200", "gb300", "h100", "h200")
ABSORBED = "SGLang 0.5.14 flash_attention"
#: Rounding of the last bits only.
EXACT = 1.0 - 1e-12

devices = st.sampled_from(DEVICES)
caches = st.sampled_from(("bf16", "fp8"))
fast = settings(max_examples=50, deadline=None)


@cache
def device(name: str) -> Device:
    return load_device(name)


@fast
@given(
    devices, st.integers(1, 1024), st.integers(1, 500_000), st.integers(1, 128), st.integers(1, 16), caches,
    st.sampled_from(("batch", "context", "heads", "queries")), st.integers(1, 4000),
)  # fmt: skip
def test_decoding_over_latents_meets_no_roofline_and_more_of_anything_is_never_faster(
    name: str, batch: int, context: int, heads: int, queries: int, kv: str, grown: str, by: int
) -> None:
    d = device(name)
    sizes = {"batch": batch, "context": context, "heads": heads, "queries": queries}
    estimate = d.latent_decode(**sizes, kv_dtype=kv)
    moved = batch * context * 576.0 * element_bytes(kv)
    assert estimate.seconds >= moved / d.hbm_bytes_per_s * EXACT
    flops = 2.0 * batch * context * heads * queries * (2 * 512 + 64)
    assert estimate.seconds >= flops / peak_of(d.spec, "bf16") * EXACT
    assert 0.0 < estimate.low < estimate.seconds < estimate.high
    more = d.latent_decode(**sizes | {grown: sizes[grown] + by}, kv_dtype=kv)
    assert more.seconds >= estimate.seconds * EXACT


@fast
@given(
    devices, st.integers(1, 64), st.integers(1, 40_000), st.integers(0, 200_000), st.integers(1, 128), caches,
    st.sampled_from((None, ABSORBED)), st.sampled_from(("q", "kv", "batch", "heads", "both")), st.integers(256, 40_000),
)  # fmt: skip
def test_prompts_over_latents_meet_no_roofline_and_more_of_anything_is_never_faster(
    name: str, batch: int, q: int, before: int, heads: int, kv_dtype: str, library: str | None, grown: str, by: int
) -> None:
    d = device(name)
    kv = q + before

    def seconds(batch: int, q: int, kv: int, heads: int) -> float:
        return float(d.latent_prefill(batch, q, kv, heads, kv_dtype=kv_dtype, library=library).seconds)

    alone = seconds(batch, q, kv, heads)
    pairs = q * kv - q * q / 2.0
    assert alone >= 2.0 * pairs * batch * heads * 320.0 / peak_of(d.spec, "bf16") * EXACT
    assert alone >= batch * q * heads * 320.0 * 2.0 / d.hbm_bytes_per_s * EXACT
    larger = {
        "q": (batch, q + by, max(kv, q + by), heads),
        "kv": (batch, q, kv + by, heads),
        "batch": (batch + 1, q, kv, heads),
        "heads": (batch, q, kv, heads + 1),
        "both": (batch, q + by, kv + by, heads),
    }[grown]
    assert seconds(*larger) >= alone * EXACT


@fast
@given(devices, st.integers(1, 8192), st.integers(1, 128), st.booleans(), st.integers(256, 4096))
def test_absorb_products_meet_no_roofline_and_more_tokens_or_heads_are_never_faster(
    name: str, tokens: int, heads: int, entering: bool, by: int
) -> None:
    d = device(name)
    n, k = (512, 128) if entering else (128, 512)
    product = AbsorbProduct(tokens, heads, n, k)
    alone = d.absorb(tokens, heads, n, k).seconds
    assert alone >= product.flops / peak_of(d.spec, "bf16") * EXACT
    assert alone >= product.hbm_bytes / d.hbm_bytes_per_s * EXACT
    assert d.absorb(tokens + by, heads, n, k).seconds >= alone * EXACT
    assert d.absorb(tokens, heads + 1, n, k).seconds >= alone * EXACT


@fast
@given(devices, st.integers(1, 256), st.integers(1, 300_000), st.integers(1, 8), st.integers(1, 32), st.integers(1, 15))
def test_verifying_reads_the_context_once_and_one_more_query_is_never_faster(
    name: str, batch: int, context: int, kv_heads: int, group: int, queries: int
) -> None:
    d = device(name)

    def seconds(queries: int) -> float:
        return d.time(DecodeAttention(((context, batch),), kv_heads * group, kv_heads, 128, queries=queries)).seconds

    one, some, more = seconds(1), seconds(queries), seconds(queries + 1)
    assert some * EXACT <= more
    assert one * EXACT <= some
    latents = [d.time(LatentDecode(((context, batch),), group, queries=n)).seconds for n in (queries, queries + 1)]
    assert latents[0] * EXACT <= latents[1]


@pytest.mark.parametrize("name", ["h200", "b200"])
def test_four_queries_a_sequence_cost_far_less_than_four_steps_where_bytes_decide(name: str) -> None:
    d = device(name)
    for attention in (
        lambda n: DecodeAttention(((65536, 16),), 8, 1, 128, queries=n),
        lambda n: LatentDecode(((65536, 16),), 16, queries=n),
    ):
        assert d.time(attention(4)).seconds < 1.5 * d.time(attention(1)).seconds


def test_one_query_a_sequence_is_what_a_call_without_queries_costs() -> None:
    d = device("h100")
    assert d.decode_attention(7, 3000, 32, 8, 128, queries=1) == d.decode_attention(7, 3000, 32, 8, 128)
    family = FAMILIES["attention_decode"]
    kernel, limits = d.kernel("attention_decode", "bf16"), d.limits("bf16")
    shape = {"batch": 7.0, "context": 3000.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0}
    ask = (limits, kernel.parameters, kernel.switches)
    assert family.seconds(*ask, shape, "bf16", "bf16") == family.seconds(*ask, shape | {"queries": 1.0}, "bf16", "bf16")


def test_arrays_are_asked_as_numbers_are() -> None:
    d = device("b200")
    batch, context = np.array([1.0, 64.0, 512.0]), np.array([100.0, 5000.0, 4096.0])
    table = d.latent_decode(batch, context, 16, kv_dtype="fp8")
    assert table.seconds.shape == (3,)
    each = [d.latent_decode(b, c, 16, kv_dtype="fp8").seconds for b, c in zip(batch, context, strict=True)]
    assert table.seconds == pytest.approx(each, rel=1e-12)
    assert d.latent_prefill(batch, 256, 256, 16).seconds.shape == (3,)
    assert d.absorb(batch, 16, 512, 128).seconds.shape == (3,)


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_a_library_that_runs_prompts_absorbed_pays_for_wider_keys(name: str) -> None:
    """3.4 times the FLOPs: keys of 576 and values of 512 in place of 192 and 128."""
    d = device(name)
    absorbed = d.kernel("latent_prefill", "bf16", ABSORBED, "bf16")
    assert absorbed.switches["form"] == "absorbed"
    expanded = d.kernel("latent_prefill", "bf16", None, "bf16")
    assert expanded.switches["form"] == "expanded"
    ratio = d.latent_prefill(4, 8192, 8192, 64, library=ABSORBED).seconds / d.latent_prefill(4, 8192, 8192, 64).seconds
    assert 2.0 < ratio < 4.0


def test_kimi_k2_at_256ki_replicated_and_in_shards_on_eight_mi300x() -> None:
    """8·262,144 latents of 576 bytes are 1.2 GB: 0.23 ms at all of 5.3 TB/s, about 0.3 as kernels stream. An eighth of
    every context with all 64 heads reads an eighth of it."""
    d = device("mi300x")
    replicated = d.time(LatentDecode(((262_144, 8),), 8, kv_dtype="fp8"))
    assert 0.26e-3 < replicated.seconds < 0.40e-3
    assert replicated.low < 0.32e-3 < replicated.high
    sharded = d.time(LatentDecode(((32_768, 8),), 64, kv_dtype="fp8"))
    assert sharded.seconds < 0.3 * replicated.seconds
    assert "h200" in d.kernel("latent_decode", "bf16", None, "fp8").basis


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_every_device_of_the_tables_has_its_own_fits(name: str, kv: str) -> None:
    d = device(name)
    for family in ("latent_prefill", "latent_decode"):
        assert d.kernel(family, "bf16", None, kv).basis.startswith("fitted")
    assert d.kernel("absorb", "bf16").basis.startswith("fitted")


def test_a_cached_prefix_in_fp8_is_read_in_half_the_bytes() -> None:
    d = device("mi300x")
    wide = d.time(Attention(((16, 500_000),), 8, 8, 128))
    narrow = d.time(Attention(((16, 500_000),), 8, 8, 128, kv_dtype="fp8"))
    least = 2.0 * 500_000 * 8 * 128 / d.hbm_bytes_per_s
    assert least * EXACT <= narrow.seconds <= wide.seconds


def test_pieces_of_a_batch_in_one_call_cost_no_less_than_the_longest_alone() -> None:
    d = device("b200")
    both = d.time(LatentPrefill(((4096, 4096), (1024, 9000)), 16, 192, 128)).seconds
    for piece in ((4096, 4096), (1024, 9000)):
        assert both >= d.time(LatentPrefill((piece,), 16, 192, 128)).seconds * EXACT
