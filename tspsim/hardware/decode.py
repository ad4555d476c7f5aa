"""Time of decode attention: one query token a sequence, or a few in verify steps, reads the whole context.

Keys and values are read once, so bandwidth decides. A kernel cuts the context into s parts to fill the device
(Flash-Decoding, Dao et al. 2023); the model takes the cheapest s, as a library's heuristic does. For one s:

    rows    = heads / kv_heads · queries       that share a key;  a block takes 64 of them
    T       = batch · kv_heads · ceil(rows / 64) · s   blocks;  W = T / compute units
    part    = context / s;  bytes of a part = 2 · part · head_dim · bytes_kv
    block   = max(bytes of a part / (bytes/s of a unit), math of a part) + latency · (head_dim)
    compute = max(1, (1 − blend) · ceil(W) + blend · W) · block
    memory  = 2 · batch · kv_heads · context · head_dim · bytes_kv / (HBM · hbm_efficiency), cheaper in L2;
              times 1 / unsplit when batch and heads alone give FULL blocks a unit
    time    = launch + (compute^p + memory^p)^(1/p) + sequence · batch · queries · heads · head_dim + [s > 1] · split

The time of every candidate is non-decreasing in batch, context, heads, queries and width; hence so is the cheapest.
Every measured row has one query a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .limits import DeviceLimits, Parameter, between, ceil, cost_of_p_norm, maximum, minimum

PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(8.0, 0.3, 40.0, "start of the kernel (and of those timed with it)"),
    "hbm_efficiency": Parameter(0.9, 0.2, 1.0, "share of the HBM bandwidth"),
    "cache_share": Parameter(0.5, 0.001, 4.0, "part of L2 in which a recently written context is found"),
    "cache_cost": Parameter(0.4, 0.02, 1.0, "cost of a byte found in L2, against HBM"),
    "load_gb_per_s": Parameter(60.0, 2.0, 1000.0, "bytes/s one compute unit can pull"),
    "efficiency": Parameter(0.25, 0.01, 1.0, "share of the peak; at least 16 query rows are computed"),
    "latency_us": Parameter(0.8, 0.001, 20.0, "start and end of a block"),
    "width_us": Parameter(0.8, 0.001, 20.0, "the same, a 128 of head_dim"),
    "wave_blend": Parameter(0.5, 0.001, 1.0, "0: whole waves, 1: blended waves"),
    "overlap_power": Parameter(3.0, 1.0, 20.0, "p: 1 adds compute and memory, ∞ hides the shorter one"),
    "sequence_us": Parameter(0.01, 0.0001, 1.0, "every 4096 elements of a query token (rope, cache write, output)"),
    "split_us": Parameter(1.2, 0.001, 40.0, "combining the parts of a split context"),
    "unsplit": Parameter(
        1.0, 0.2, 1.0, "share of that bandwidth by the kernel that does not split, from FULL blocks a unit"
    ),
    "width_64": Parameter(0.95, 0.3, 1.6, "bandwidth at head_dim 64 against 128"),
    "width_192": Parameter(1.0, 0.3, 1.6, "bandwidth at head_dim 192 against 128"),
    "width_256": Parameter(1.0, 0.3, 1.6, "bandwidth at head_dim 256 against 128"),
    "width_512": Parameter(1.0, 0.3, 1.6, "bandwidth at head_dim 512 against 128"),
}
SPLITS = np.array([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0])
#: Blocks a compute unit above which FlashAttention-2 does not split contexts: 0.8 of the two that fit at once.
FULL = 1.6
_WIDTHS = (64.0, 128.0, 192.0, 256.0, 512.0)


def seconds(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    batch: Any,
    context: Any,
    heads: Any,
    kv_heads: Any,
    head_dim: Any,
    bytes_q: float,
    bytes_kv: float,
    *,
    queries: Any = 1.0,
) -> Any:
    """Seconds of one call, without a range: a float, or an array of shape (rows,)."""
    p = parameters
    s = SPLITS.reshape(-1, 1) if np.ndim(batch) else SPLITS
    factors = (p["width_64"], 1.0, p["width_192"], p["width_256"], p["width_512"])
    width = between(head_dim, _WIDTHS, factors)
    group = heads / kv_heads * queries
    row_bytes = 2.0 * head_dim * bytes_kv
    part = maximum(minimum(context, 64.0), context / s)
    blocks = batch * kv_heads * ceil(group / 64.0) * s
    math = 4.0 * maximum(group, 16.0) * head_dim * limits.peak_units / (limits.peak * p["efficiency"])
    pull = row_bytes / (p["load_gb_per_s"] * 1e9 * width)
    latency = p["latency_us"] * 1e-6 + p["width_us"] * 1e-6 / 128.0 * head_dim
    block = part * maximum(math, pull) + latency
    wave = blocks / limits.compute_units
    waves = maximum(1.0, (1.0 - p["wave_blend"]) * ceil(wave) + p["wave_blend"] * wave)
    # If the heads of a batch fill the device, a library may use its kernel that does not split contexts.
    whole = batch * kv_heads * ceil(group / 64.0) >= FULL * limits.compute_units
    achieved = p["hbm_efficiency"] * width * (1.0 - whole * (1.0 - p["unsplit"]))
    size = batch * kv_heads * context * row_bytes
    hit = minimum(1.0, p["cache_share"] * limits.l2 / size)
    memory = size * (1.0 - hit * (1.0 - p["cache_cost"])) / (limits.hbm * minimum(1.0, achieved))
    time = cost_of_p_norm(waves * block, memory, p["overlap_power"]) + (s > 1.0) * (p["split_us"] * 1e-6)
    time = np.minimum.reduce(time) + p["launch_us"] * 1e-6
    time = time + p["sequence_us"] * 1e-6 / 4096.0 * batch * heads * head_dim * queries
    flops = 4.0 * batch * heads * context * head_dim * queries
    return maximum(time, maximum(flops / limits.peak, size / limits.hbm))
