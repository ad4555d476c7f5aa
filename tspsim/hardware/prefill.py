"""Time of attention with many queries, softmax(Q·Kᵀ)·V, forward or backward.

The model is FlashAttention's grid (Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608). In the forward a
thread block takes ``block_rows`` queries of a head and walks the keys and values that they see, ``BLOCK_COLUMNS`` at a
time. In the backward a block takes as many keys and walks the queries that see them.

    c       = ceil(q / r) blocks of r = block_rows a head (packed: r counts the query heads of one KV head)
    T       = batch · heads · c blocks;  causal block i walks kv − max(0, i·r − masked_keys) keys
    step    = products · 2 · r · columns · head_dim / (rate a unit) + step latency
    work    = T blocks' steps + T · block latency;   longest = steps of one block over the whole context
    tail    = imbalance · longest · max(0, 1 − units / T)
    masked  = max(longest, work / units + tail)
    waves   = max(1, T / units), blended between whole waves and their share;  full = waves · a block over all keys
    memory  = (Q + out + K + V) / (HBM · hbm_efficiency)
    time    = launch + (compute^p + memory^p)^(1/p) + prologue

There are two products forward and five backward. In the backward q and kv are exchanged, and block i walks q − max(0,
i·r − masked_keys − (kv − q)) queries. ``masked_keys`` are keys under the mask that a block computes anyway: causal
calls of short sequences by Triton and by AITER's grouped backward take as long as full ones. ``rate`` is peak ·
efficiency · (factor of the head width), less a share ``crowding`` when every unit is busy (power). The prologue is rope
and cache write, which serving libraries time together with the kernel: Q, K and V are read and written once more. Time
is at least FLOPs / peak and bytes / HBM. Block sums are exact, so time does not fall when q, kv, batch or heads grow.

Blocks of unequal length are a list schedule. It ends between max(longest, work / units) and work / units + longest
(Graham 1969, SIAM J. Appl. Math. 17, §2), so ``imbalance`` is at most 1. If every block has a unit of its own (T ≤
units), the schedule takes as long as the longest block.

A mask only takes work away, so that masked ≤ full: where calls without a mask were measured, a masked one takes at most
as long, else one without takes at least as long as a masked one. (Of 174 pairs of measured rows 13 break this, most of
them short sequences by AITER and Triton.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import gt, mul
from typing import Any

from .limits import DeviceLimits, Parameter, between, ceil, cost_of_p_norm, floor, maximum, minimum

BLOCK_COLUMNS = 128.0

PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(8.0, 0.5, 80.0, "start of the kernel (and of those timed with it)"),
    "efficiency": Parameter(0.7, 0.02, 1.0, "share of the dense peak of the inner loop, head_dim 128"),
    "step_us": Parameter(0.06, 0.0001, 2.0, "latency of one step of BLOCK_COLUMNS keys"),
    "block_us": Parameter(1.0, 0.005, 40.0, "start and end of one block"),
    "hbm_efficiency": Parameter(0.8, 0.05, 1.0, "share of the HBM bandwidth"),
    "overlap_power": Parameter(2.0, 1.0, 20.0, "p: 1 adds compute and memory, ∞ hides the shorter one"),
    "imbalance": Parameter(0.5, 0.01, 1.0, "tail of a causal grid, as a share of its longest block"),
    "wave_blend": Parameter(0.6, 0.001, 1.0, "0: whole waves, 1: blended waves (without a causal mask)"),
    "crowding": Parameter(0.05, 0.001, 0.6, "share of the rate lost when every unit is busy"),
    "width_64": Parameter(0.75, 0.2, 1.5, "rate at head_dim 64 against 128"),
    "width_192": Parameter(1.0, 0.2, 1.5, "rate at head_dim 192 against 128"),
    "width_256": Parameter(1.0, 0.2, 1.7, "rate at head_dim 256 against 128"),
    "width_512": Parameter(1.0, 0.2, 1.7, "rate at head_dim 512 against 128"),
    "full_mask": Parameter(1.0, 0.7, 1.4, "rate without a causal mask, against with one"),
    "masked_64": Parameter(1.0, 0.3, 1.5, "rate at head_dim 64 with a causal mask, against without one"),
    "grouped": Parameter(1.0, 0.2, 1.0, "rate with fewer key than query heads"),
    "masked_keys": Parameter(32.0, 0.0, 30000.0, "masked keys that a causal block computes anyway"),
    "rope": Parameter(0.0, 0.0, 8.0, "HBM share of reading and writing Q before the kernel; 0: not timed with it"),
    "token_ns": Parameter(0.0, 0.0, 50.0, "every token of the cache write"),
    "cache_write": Parameter(0.0, 0.0, 8.0, "HBM share of reading K, V and writing the cache; 0: not timed with it"),
}
#: The backward is several kernels: row sums of the gradient, the main one, converting dQ.
BACKWARD_PARAMETERS: dict[str, Parameter] = PARAMETERS | {
    "launch_us": Parameter(60.0, 0.5, 200.0, "start of the kernels")
}
_WIDTHS = (64.0, 128.0, 192.0, 256.0, 512.0)
_NARROW = _WIDTHS[:2]


def segments_of(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    batch: Any,
    heads: Any,
    kv_heads: Any,
    head_dim: Any,
    causal: Any,
    bytes_q: float,
    bytes_kv: float,
    *,
    backward: bool = False,
    block_rows: float = 128.0,
    packed: bool = False,
) -> Callable[[Any, Any], Any]:
    """Seconds of one call, without a range, as a function of ``q_len`` and ``kv_len``: floats, arrays of shape (rows,)
    like other columns, or tuples of floats, one for each segment.

    Parameters
    ----------
    backward
        The backward without the forward: five products, and 2.5 times the bytes.
    block_rows
        Queries a block; in the backward, keys.
    packed
        The query heads of one KV head share blocks, for calls of few queries.
    """
    p = parameters
    masked = causal * 1.0
    group = heads / kv_heads if packed else 1.0
    grid = batch * (kv_heads if packed else heads)
    walk = walked_blocks(grid, group, block_rows, masked, p["masked_keys"], backward=backward)
    masked_walk = walked_blocks(grid, group, block_rows, 1.0, p["masked_keys"], backward=backward)
    products = 5.0 if backward else 2.0
    units = limits.compute_units
    rate = limits.peak * p["efficiency"] * _width_factor(p, head_dim)
    rate = rate * (1.0 - (1.0 - p["grouped"]) * (heads > kv_heads))
    full_rate = rate * p["full_mask"]
    rate = rate * between(head_dim, _NARROW, (p["masked_64"], 1.0))
    all_masked, none_masked = (isinstance(masked, float) and masked == every for every in (1.0, 0.0))
    measured_full = p["full_mask"] != PARAMETERS["full_mask"].default
    flops_a_step = products * 2.0 * block_rows * BLOCK_COLUMNS * head_dim
    step_s, block, launch_s = p["step_us"] * 1e-6, p["block_us"] * 1e-6, p["launch_us"] * 1e-6
    crowding, imbalance, blend = p["crowding"], p["imbalance"], p["wave_blend"]
    power, achieved = p["overlap_power"], limits.hbm * p["hbm_efficiency"]
    width = batch * head_dim
    more = 2.5 if backward else 1.0
    element = bytes_q + 2.0

    def step_seconds(rate: Any, wave: Any) -> Any:
        return flops_a_step * limits.peak_units / (rate * (1.0 - crowding * minimum(1.0, wave))) + step_s

    def triangle(blocks: Any, keys: Any, longest: Any) -> Any:
        wave = blocks / units
        step = step_seconds(rate, wave)
        last = longest / BLOCK_COLUMNS * step + block
        work = keys / BLOCK_COLUMNS * step + blocks * block
        return maximum(last, work / units + imbalance * last * maximum(0.0, 1.0 - 1.0 / wave))

    def square(blocks: Any, whole: Any, longest: Any) -> Any:
        wave = blocks / units
        waves = maximum(1.0, (1.0 - blend) * ceil(wave) + blend * wave)
        step = step_seconds(full_rate, wave) / BLOCK_COLUMNS
        # Blocks of unequal segments wait for those of the longest context.
        return maximum(longest * step + block, (whole * step / blocks + block) * waves)

    def call(q_len: Any, kv_len: Any) -> Any:
        blocks, keys, whole, longest, pairs, queries, context = walk(q_len, kv_len)
        if all_masked:
            compute = triangle(blocks, keys, longest)
            if measured_full:
                compute = minimum(compute, square(blocks, whole, longest))
        elif none_masked and measured_full:
            compute = square(blocks, whole, longest)
        else:
            fewer, seen, _, last, *_ = masked_walk(q_len, kv_len, sized=False)
            with_mask, without = triangle(fewer, seen, last), square(blocks, whole, longest)
            if measured_full:
                with_mask = minimum(with_mask, without)
            compute = masked * with_mask + (1.0 - masked) * maximum(with_mask, without)

        compulsory = (queries * heads * element + 2.0 * context * kv_heads * bytes_kv) * width
        compulsory = compulsory * more
        time = launch_s + cost_of_p_norm(compute, compulsory / achieved, power)
        if p["rope"] > 0.0:
            time = time + width * queries * heads * 4.0 / (limits.hbm * p["rope"])
            written = width * queries * kv_heads * 2.0 * (2.0 + bytes_kv)
            time = time + batch * queries * (p["token_ns"] * 1e-9) + written / (limits.hbm * p["cache_write"])
        flops = products * 2.0 * pairs * batch * heads * head_dim
        return maximum(time, maximum(flops / limits.peak, compulsory / limits.hbm))

    return call


def walked_blocks(
    grid: Any, group: Any, block_rows: float, masked: Any, kept: float, *, backward: bool = False
) -> Callable[..., tuple[Any, ...]]:
    """Sums over the segments of a call, as a function of ``q_len`` and ``kv_len``: thread blocks, keys that they walk
    with the mask and without it, keys of the longest walk; where ``sized`` also query-key pairs a head, queries and
    context tokens.

    Parameters
    ----------
    grid, group
        Grids of blocks, one for each head or KV head; query heads that share a block's rows.
    masked, kept
        Whether the mask is causal, 0.0 or 1.0; masked keys that a block walks anyway.
    backward
        Blocks are of keys and walk queries.
    """
    rows = block_rows / group
    by_queries = not backward and isinstance(masked, float) and isinstance(group, float)
    #: The first block that skips keys.
    first = floor(kept / rows) + 1.0

    def walk(q_len: Any, kv_len: Any, *, sized: bool = True) -> tuple[Any, ...]:
        if by_queries and isinstance(q_len, tuple):
            # Segments of a serving step: blocks depend on queries alone.
            seen = q_len
            if masked and any(map(gt, q_len, kv_len)):
                seen = tuple([q if q < kv else kv for q, kv in zip(q_len, kv_len, strict=True)])
            counts = [math.ceil(q * group / block_rows) for q in seen]
            walked = unmasked = float(sum(map(mul, counts, kv_len)))
            if masked:
                # :func:`skipped` without a call for each. No block skips more keys than its segment has.
                some = [count for count in counts if count > first]
                walked -= sum([(count - first) * (rows * (count + first - 1.0) / 2.0 - kept) for count in some])
            walks = grid * float(sum(counts)), grid * walked, grid * unmasked, max(kv_len)
            if not sized:
                return walks
            attended = sum(map(mul, seen, kv_len)) - (masked * sum(map(mul, seen, seen)) / 2.0 if masked else 0.0)
            return *walks, attended, sum(q_len), sum(kv_len)
        blocks: Any = 0.0
        keys: Any = 0.0
        whole: Any = 0.0
        longest: Any = 0.0
        pairs: Any = 0.0
        queries: Any = 0.0
        context: Any = 0.0
        for q, kv in zip(q_len, kv_len, strict=True) if isinstance(q_len, tuple) else ((q_len, kv_len),):
            seen = q - masked * maximum(q - kv, 0.0)
            if backward:
                count, along, unseen = ceil(kv / block_rows), seen, kv - seen
            else:
                count, along, unseen = ceil(seen * group / block_rows), kv, 0.0
            every = count * along
            blocks = blocks + grid * count
            keys = keys + grid * maximum(every - masked * skipped(count, rows, unseen + kept), 0.0)
            whole = whole + grid * every
            longest = maximum(longest, along)
            pairs = pairs + (seen * kv - masked * (seen * seen / 2.0))
            queries = queries + q
            context = context + kv
        return blocks, keys, whole, longest, pairs, queries, context

    return walk


def skipped(count: Any, rows: Any, kept: Any) -> Any:
    """Keys that ``count`` blocks of ``rows`` queries skip under a causal mask: Σ_i max(0, i·rows − kept)."""
    without = minimum(floor(kept / rows), count - 1.0)
    saving = count - 1.0 - without
    return saving * (rows * (count + without) / 2.0 - kept)


def _width_factor(p: Mapping[str, float], head_dim: Any) -> Any:
    """Rate relative to head_dim 128, linear between the measured widths."""
    if isinstance(head_dim, float) and head_dim == _WIDTHS[1]:
        return 1.0
    factors = (p["width_64"], 1.0, p["width_192"], p["width_256"], p["width_512"])
    return between(head_dim, _WIDTHS, factors)
