"""Time of C[m, n] = A[m, k] · B[k, n]: tiles in waves over compute units, overlapped with bytes from HBM.

A library covers C with tiles tm × tn, may split k into s parts, and takes its cheapest candidate; so does this model.
Time of one candidate (letters as in the code; :data:`PARAMETERS` explains the parameters):

    k_s     = k / s, rounded up to 64
    T       = batch · ceil(m / tm) · ceil(n / tn) · s              tiles;  W = T / compute units
    rate    = peak · efficiency · (1 − throttle · x / (1 + x))  x = FLOPs / (peak · 100 µs)
    math    = 2 · tm · tn · k_s / (rate a unit)                   of as many units as share the peak
    load    = (min(m, tm) · bytes_A + min(n, tn) · bytes_B) · k_s / (bytes/s a unit can pull)
    step    = k_s / 256 · step latency
    waves   = max(1, (1 − blend) · ceil(W) + blend · W)
    compute = waves · ((math⁴ + load⁴ + step⁴)^(1/4) + store)
    memory  = (A · miss + B + C) / (HBM · hbm_efficiency)          a small A may still sit in the L2 cache
    time    = launch + (compute^p + memory^p)^(1/p) + [s > 1] · (split + partial sums) + quantising A

Time is at least FLOPs / peak and compulsory bytes / HBM. Every candidate's time is non-decreasing in m, n, k and batch
and non-increasing in peak, units and bandwidth; hence so is the cheapest. Tile and wave quantisation: NVIDIA, "Matrix
Multiplication Background User's Guide"; stream-K's partial waves: Osama et al. 2023 (arXiv:2301.03598).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.memo import remembered
from .limits import DeviceLimits, Parameter, cost_of_p_norm, maximum, minimum

#: Fitted parameters of the formula: (default, lowest, highest, meaning).
PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(2.5, 0.3, 30.0, "start of the kernel, and of the quantising kernel where there is one"),
    "efficiency": Parameter(0.75, 0.05, 1.0, "share of the dense peak that the inner loop reaches when cool"),
    "throttle": Parameter(0.08, 0.0001, 0.6, "share of the rate lost in long calls to power and clocks"),
    "step_us": Parameter(0.25, 0.0001, 3.0, "latency of 256 steps of k in one tile"),
    "load_gb_per_s": Parameter(150.0, 5.0, 2000.0, "bytes/s one compute unit can pull through the caches"),
    "hbm_efficiency": Parameter(0.82, 0.1, 1.0, "share of the HBM bandwidth reached by streaming operands"),
    "overlap_power": Parameter(2.5, 1.0, 20.0, "p: 1 adds compute and memory, ∞ hides the shorter one"),
    "wave_blend": Parameter(0.8, 0.0, 1.0, "0: whole waves, 1: waves blend into each other (stream-K, persistent)"),
    "split_us": Parameter(2.5, 0.01, 60.0, "synchronising the parts of a split k"),
    "partial_cost": Parameter(1.0, 0.05, 20.0, "bytes of partial sums of a split k, against HBM"),
    "store": Parameter(1.0, 0.001, 30.0, "writing a tile, in units of its bytes over the load rate"),
    "cache_share": Parameter(0.4, 0.001, 4.0, "part of L2 that keeps a recently written A"),
    "cache_cost": Parameter(0.5, 0.01, 1.0, "cost of a byte of A found in L2, against HBM"),
    "quantise_gb_per_s": Parameter(0.0, 0.0, 8000.0, "bytes/s of quantising A to the operand type; 0: not part of it"),
}

#: Sets of tiles (rows, columns) of a library. ``wide`` starts at 128 rows, for warp-group instructions of block-scaled
#: formats; ``fine`` has the many row counts of AITER's assembly kernels.
TILES: dict[str, tuple[tuple[int, int], ...]] = {
    "all": (
        (16, 64), (32, 64), (32, 128), (64, 64), (64, 128), (128, 64),
        (128, 128), (64, 256), (128, 256), (256, 128), (256, 256),
    ),
    "fine": (
        (16, 64), (32, 64), (48, 64), (64, 64), (80, 64), (96, 64), (112, 64), (128, 64), (160, 64),
        (128, 128), (160, 128), (192, 128), (128, 256), (160, 256), (192, 256), (224, 256),
        (256, 128), (256, 160), (256, 192), (256, 224), (256, 256),
    ),
    "wide": ((128, 64), (128, 128), (128, 256), (256, 128), (256, 256)),
}  # fmt: skip
#: Tiles of a library → those of its kernels that widen weights of few bits: these have tiles of 16 rows, whatever the
#: library's others have (Marlin, arXiv:2408.11743, §3.4).
WIDENING_TILES = {"wide": "all"}
SPLITS: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)


@remembered(64)
def choices(tiles: str, splits: int, columns: bool) -> tuple[np.ndarray[Any, Any], ...]:
    """Arrays of the candidates: tile rows, columns and area, shape (tiles, 1); splits s, 64·s and s > 1, shape
    (splits,). With ``columns`` they have one more axis of length 1, for the rows of a table.
    """
    last = (1,) if columns else ()
    tm, tn = (np.array(side, dtype=float).reshape(-1, 1, *last) for side in zip(*TILES[tiles], strict=True))
    s = np.array([s for s in SPLITS if s <= splits], dtype=float).reshape(-1, *last)
    return tm, tn, tm * tn, s, 64.0 * s, (s > 1.0).astype(float)


def seconds(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    m: Any,
    n: Any,
    k: Any,
    batch: Any,
    bytes_a: float,
    bytes_b: float,
    *,
    tiles: str = "all",
    splits: int = 16,
) -> Any:
    """Seconds of one call, without a range: a float, or an array of shape (rows,). C is written in two bytes.

    ``bytes_a`` and ``bytes_b`` are bytes of an element of A and B. ``tiles`` names the library's set in :data:`TILES`;
    ``splits`` is its largest split of k.
    """
    tm, tn, area, s, step_64, is_split = choices(tiles, splits, not isinstance(m, float) and np.ndim(m) > 0)
    p = parameters
    flops = 2.0 * batch * m * n * k
    heat = flops / (limits.peak * 1e-4)
    rate = limits.peak * p["efficiency"] * (1.0 - p["throttle"] * heat / (1.0 + heat))
    load_rate = p["load_gb_per_s"] * 1e9
    # Math, load and step latency are all proportional to k_s: times for one k first.
    math = area * (2.0 * limits.peak_units / rate)
    load = np.minimum(m, tm) * (bytes_a / load_rate) + np.minimum(n, tn) * (bytes_b / load_rate)
    main = np.ceil(k / step_64) * (64.0 * _fourth_norm(math, load, p["step_us"] * 1e-6 / 256.0))
    store = area * (2.0 * p["store"] / load_rate)
    wave = np.ceil(m / tm) * np.ceil(n / tn) * (batch / limits.compute_units) * s
    waves = np.maximum(1.0, (1.0 - p["wave_blend"]) * np.ceil(wave) + p["wave_blend"] * wave)
    # Memory time does not depend on the tile, so the tile with least compute time is the cheapest of a split.
    compute = np.minimum.reduce(waves * (main + store))

    bandwidth = limits.hbm * p["hbm_efficiency"]
    a_bytes = batch * m * k * bytes_a
    b_bytes = batch * n * k * bytes_b
    c_bytes = batch * m * n * 2.0
    hit = minimum(1.0, p["cache_share"] * limits.l2 / a_bytes)
    memory = (a_bytes * (1.0 - hit * (1.0 - p["cache_cost"])) + b_bytes + c_bytes) / bandwidth
    partial = is_split * (p["split_us"] * 1e-6 + s * (c_bytes * 2.0 * p["partial_cost"] / bandwidth))
    time = np.minimum.reduce(cost_of_p_norm(compute, memory, p["overlap_power"]) + partial)
    time = time + p["launch_us"] * 1e-6
    if p["quantise_gb_per_s"] > 0.0:
        time = time + m * k * batch * (2.0 + bytes_a) / (p["quantise_gb_per_s"] * 1e9)
    return maximum(time, maximum(flops / limits.peak, (a_bytes + b_bytes + c_bytes) / limits.hbm))


def both_gradients(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    m: Any,
    n: Any,
    k: Any,
    batch: Any,
    bytes_a: float,
    bytes_b: float,
    **switches: Any,
) -> Any:
    """Seconds of A's gradient [m, n]·[n, k] and B's [k, m]·[m, n], one after the other."""
    sides = ((m, k, n), (k, n, m))
    return sum(seconds(limits, parameters, *side, batch, bytes_a, bytes_b, **switches) for side in sides)


def _fourth_norm(a: Any, b: Any, c: Any) -> Any:
    """(a⁴ + b⁴ + c⁴)^(1/4), a smooth maximum. Square roots take a tenth of the time of a power."""
    a2, b2, c2 = a * a, b * b, c * c
    return np.sqrt(np.sqrt(a2 * a2 + b2 * b2 + c2 * c2))
