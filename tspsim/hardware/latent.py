"""Time of latent attention (MLA; DeepSeek-AI 2024, arXiv:2405.04434, §2.1).

**Decode** (:func:`decode_seconds`) is Flash-Decoding over one shared head. A key is a latent of l elements and a rotary
part of r, and the value is the latent: every query row multiplies 2·l + r elements of a token, which is read once. A
context is cut into s parts; the model takes the cheapest s:

    rows    = heads · queries of a sequence;  a block takes ``block_rows`` of them
    T       = batch · ceil(rows / block_rows) · s blocks;  W = T / compute units
    math    = 2 · max(rows of a block, least rows) · (2·l + r) · units / (peak · efficiency)         a key
    pull    = (l + r) · bytes_kv / (bytes/s of a unit)                                                a key
    block   = context/s · (math⁴ + pull⁴)^(1/4) + latency;   compute = waves(W) · block
    memory  = batch · context · (l + r) · bytes_kv / (HBM · hbm_efficiency), cheaper in L2
    query   = batch · rows · ((l + r) · bytes_q + l · 2) / (HBM · query_efficiency)
    time    = launch + query + min over s of { (compute^p + memory^p)^(1/p) + [s > 1] · (split + partial outputs) }

**Prefill** (:func:`prefill_of_segments`) is FlashAttention's causal grid (:mod:`.prefill`) with keys wider than values.
A library with ``form`` ``absorbed`` runs all heads over the latents instead, with the widths ABSORBED.

**Absorb products** (:func:`absorb_seconds`) are one product a head: the form of :mod:`.gemm` with heads as the batch.

Times are at least FLOPs / peak and compulsory bytes / HBM. The time of every candidate is non-decreasing in batch,
context, heads and queries; hence so is the cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import gemm
from .limits import DeviceLimits, Parameter, ceil, cost_of_p_norm, maximum, minimum
from .prefill import BLOCK_COLUMNS, walked_blocks

PREFILL_PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(9.0, 0.5, 80.0, "start of the kernel (and of those timed with it)"),
    "efficiency": Parameter(0.6, 0.02, 1.0, "share of the dense peak of the inner loop"),
    "step_us": Parameter(0.06, 0.0001, 2.0, "latency of one step of 128 keys"),
    "block_us": Parameter(1.0, 0.005, 40.0, "start and end of one block"),
    "hbm_efficiency": Parameter(0.7, 0.05, 1.0, "share of the HBM bandwidth"),
    "overlap_power": Parameter(2.0, 1.0, 20.0, "p: 1 adds compute and memory, ∞ hides the shorter one"),
    "imbalance": Parameter(0.5, 0.01, 1.0, "tail of a causal grid, as a share of its longest block"),
    "crowding": Parameter(0.05, 0.001, 0.6, "share of the rate lost when every unit is busy"),
    "throttle": Parameter(0.05, 0.0001, 0.6, "share of the rate lost in long calls to power and clocks"),
    "masked_keys": Parameter(32.0, 0.01, 30000.0, "masked keys that a block computes anyway"),
    "prologue": Parameter(0.6, 0.02, 20.0, "HBM share of other traffic: rope, quantising, cache write"),
    "sequence_us": Parameter(0.01, 0.0001, 2.0, "every sequence of the batch"),
}
DECODE_PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(8.0, 0.3, 40.0, "start of the kernel (and of those timed with it)"),
    "hbm_efficiency": Parameter(0.85, 0.7, 1.0, "share of the HBM bandwidth; who streams less waits for its units"),
    "cache_share": Parameter(0.5, 0.001, 4.0, "part of L2 in which a recently written context is found"),
    "cache_cost": Parameter(0.4, 0.02, 1.0, "cost of a byte found in L2, against HBM"),
    "load_gb_per_s": Parameter(60.0, 2.0, 1000.0, "bytes/s one compute unit can pull"),
    "efficiency": Parameter(0.6, 0.01, 1.0, "share of the peak"),
    "least_rows": Parameter(32.0, 1.0, 128.0, "least query rows computed"),
    "latency_us": Parameter(2.0, 0.001, 20.0, "start and end of a block"),
    "wave_blend": Parameter(0.5, 0.001, 1.0, "0: whole waves, 1: blended waves"),
    "overlap_power": Parameter(3.0, 1.0, 20.0, "p: 1 adds compute and memory, ∞ hides the shorter one"),
    "query_efficiency": Parameter(0.5, 0.02, 8.0, "HBM share of reading queries and writing outputs"),
    "sequence_us": Parameter(0.01, 0.0001, 2.0, "every sequence of the batch (its cache write)"),
    "split_us": Parameter(1.2, 0.001, 40.0, "combining the parts of a split context"),
    "partial_cost": Parameter(1.0, 0.02, 20.0, "bytes of the parts' outputs, written and read, against HBM"),
}
#: Widths of key and value in an absorbed kernel, for a latent of 512 and a rotary key of 64 (DeepSeek-V2 and -V3, Kimi
#: K2).
ABSORBED = (576.0, 512.0)
#: Numbers of parts of a context. They are close together, because kernels over latents balance a few long sequences
#: over all units.
SPLITS = np.array(
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 24.0, 28.0, 32.0, 37.0, 42.0,
     48.0, 56.0, 64.0, 74.0, 96.0, 128.0, 148.0]
)  # fmt: skip
#: Least keys of a part.
LEAST_PART = 64.0


def decode_seconds(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    batch: Any,
    context: Any,
    heads: Any,
    latent_dim: Any,
    rope_dim: Any,
    queries: Any,
    bytes_q: float,
    bytes_kv: float,
    *,
    block_rows: float = 64.0,
) -> Any:
    """Seconds of one call, without a range: a float, or an array of shape (rows,)."""
    p = parameters
    s = SPLITS.reshape(-1, 1) if np.ndim(batch) else SPLITS
    rows = heads * queries
    wide = latent_dim + rope_dim
    work = 2.0 * (latent_dim + wide)
    bandwidth = limits.hbm
    blocks = batch * ceil(rows / block_rows) * s
    filled = maximum(minimum(rows, block_rows), p["least_rows"])
    math = filled * work * limits.peak_units / (limits.peak * p["efficiency"])
    pull = wide * bytes_kv / (p["load_gb_per_s"] * 1e9)
    part = maximum(minimum(context, LEAST_PART), context / s)
    block = part * cost_of_p_norm(math, pull, 4.0) + p["latency_us"] * 1e-6
    wave = blocks / limits.compute_units
    waves = maximum(1.0, (1.0 - p["wave_blend"]) * ceil(wave) + p["wave_blend"] * wave)
    size = batch * context * wide * bytes_kv
    hit = minimum(1.0, p["cache_share"] * limits.l2 / size)
    memory = size * (1.0 - hit * (1.0 - p["cache_cost"])) / (bandwidth * p["hbm_efficiency"])
    partial = s * batch * rows * (latent_dim * 8.0 * p["partial_cost"] / bandwidth)
    merged = (s > 1.0) * (p["split_us"] * 1e-6 + partial)
    time = np.minimum.reduce(cost_of_p_norm(waves * block, memory, p["overlap_power"]) + merged)
    moved = batch * rows * (wide * bytes_q + latent_dim * 2.0)
    time = time + p["launch_us"] * 1e-6 + moved / (bandwidth * p["query_efficiency"])
    time = time + batch * (p["sequence_us"] * 1e-6)
    flops = batch * rows * context * work
    return maximum(time, maximum(flops / limits.peak, (size + moved) / bandwidth))


def prefill_of_segments(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    batch: Any,
    heads: Any,
    key_dim: Any,
    value_dim: Any,
    bytes_q: float,
    bytes_kv: float,
    *,
    form: str = "expanded",
    block_rows: float = 128.0,
) -> Callable[[Any, Any], Any]:
    """Seconds of one causal call, without a range, as a function of ``q_len`` and ``kv_len``, as in :mod:`.prefill`.

    Parameters
    ----------
    key_dim, value_dim
        Widths of a head's key and value in the expanded form.
    form
        ``expanded``: keys and values per head; ``absorbed``: all heads over the latents.
    block_rows
        Queries a block; in the absorbed form, query rows of all heads together.
    """
    p = parameters
    absorbed = form == "absorbed"
    key, value = ABSORBED if absorbed else (key_dim, value_dim)
    grid = batch * (1.0 if absorbed else heads)
    walk = walked_blocks(grid, heads if absorbed else 1.0, block_rows, 1.0, p["masked_keys"])
    units, width = limits.compute_units, key + value
    block = p["block_us"] * 1e-6

    def call(q_len: Any, kv_len: Any) -> Any:
        blocks, keys, _, longest, pairs, queries, context = walk(q_len, kv_len)
        flops = 2.0 * pairs * batch * heads * width
        heat = flops / (limits.peak * 1e-2)
        rate = limits.peak * p["efficiency"] * (1.0 - p["crowding"] * minimum(1.0, blocks / units))
        rate = rate * (1.0 - p["throttle"] * heat / (1.0 + heat)) / limits.peak_units
        step = 2.0 * block_rows * BLOCK_COLUMNS * width / rate + p["step_us"] * 1e-6
        last = longest / BLOCK_COLUMNS * step + block
        work = keys / BLOCK_COLUMNS * step + blocks * block
        tail = p["imbalance"] * last * maximum(0.0, 1.0 - units / blocks)
        compute = maximum(last, work / units + tail)

        moved = batch * queries * heads * (key * bytes_q + value * 2.0)
        moved = moved + batch * context * (ABSORBED[0] if absorbed else heads * width) * bytes_q
        memory = moved / (limits.hbm * p["hbm_efficiency"])
        beside = batch * queries * (heads * key * (2.0 + bytes_q) + ABSORBED[0] * (2.0 + bytes_kv))
        time = p["launch_us"] * 1e-6 + cost_of_p_norm(compute, memory, p["overlap_power"])
        time = time + beside / (limits.hbm * p["prologue"]) + batch * (p["sequence_us"] * 1e-6)
        return maximum(time, maximum(flops / limits.peak, moved / limits.hbm))

    return call


def absorb_seconds(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    tokens: Any,
    heads: Any,
    n: Any,
    k: Any,
    bytes_a: float,
    bytes_b: float,
    **switches: Any,
) -> Any:
    """Seconds of one call of ``heads`` products [tokens, k]·[k, n]: a float, or an array of shape (rows,)."""
    return gemm.seconds(limits, parameters, tokens, n, k, heads, bytes_a, bytes_b, **switches)
