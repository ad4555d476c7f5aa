"""What both expert GEMMs of one mixture-of-experts layer cost on one device (a fused grouped GEMM).

A       = tokens · topk assignments;  D = experts touched when A fall on E at random: E · (1 − (1 −
1/E)^(A·spread)) padded  = D · max(1, A / (D·r) + ½[A > D·r]) · r        rows of whole tiles of r, the
cheapest r is taken compute = padded · 6 · hidden · ffn / (peak · efficiency · r / (r + half_rate_rows)), in
waves weights = D · 3 · hidden · ffn · bytes_w / (HBM · hbm_efficiency) time    = launch + (compute^p +
weights^p)^(1/p) + activations / (HBM · activation_efficiency) + sorting
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .limits import DeviceLimits, Parameter, ceil, cost_of_p_norm, maximum, minimum

PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(12.0, 0.5, 80.0, "start of the kernels"),
    "efficiency": Parameter(0.4, 0.02, 1.0, "share of the dense peak with wide tiles"),
    "half_rate_rows": Parameter(12.0, 0.5, 200.0, "tile rows at which half of that is reached"),
    "hbm_efficiency": Parameter(0.85, 0.1, 1.0, "share of the HBM bandwidth while streaming weights"),
    "overlap_power": Parameter(1.6, 1.0, 20.0, "p: 1 adds compute and memory, ∞ hides the shorter one"),
    "activation_efficiency": Parameter(
        0.8, 0.05, 4.0, "HBM share of moving tokens to experts and back (L2 helps)"
    ),
    "spread": Parameter(1.0, 0.4, 1.5, "how evenly assignments fall on experts (1: at random)"),
    "sort_us": Parameter(1.0, 0.001, 30.0, "routing and sorting, for each doubling of the tokens"),
    "narrow": Parameter(10.0, 0.01, 500.0, "columns of the expert lost in streaming its weights"),
}
#: Columns of the expert in one tile (of both the gate and the up projection).
TILE_COLUMNS = 64.0
ROWS = np.array([16.0, 32.0, 64.0, 128.0, 256.0])


def seconds(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    tokens: Any,
    hidden: Any,
    expert_ffn: Any,
    experts: Any,
    topk: Any,
    bytes_a: float,
    bytes_w: float,
) -> Any:
    """Seconds of one call, before any range: floats, or arrays of shape (rows,)."""
    p = parameters
    r = ROWS.reshape(-1, 1) if np.ndim(tokens) else ROWS
    assigned = tokens * topk
    touched = experts * -np.expm1(assigned * p["spread"] * np.log1p(-1.0 / maximum(experts, 1.0 + 1e-9)))
    touched = maximum(touched, minimum(topk, experts))
    padded = r * maximum(touched, assigned / r + 0.5 * minimum(touched, assigned / r))
    work = 6.0 * hidden * expert_ffn
    tile = (r + p["half_rate_rows"]) * 6.0 * hidden * TILE_COLUMNS * limits.peak_units
    wave = padded / r * ceil(expert_ffn / TILE_COLUMNS) / limits.compute_units
    compute = maximum(1.0, wave) * tile / (limits.peak * p["efficiency"])
    weights = (
        touched * 3.0 * hidden * (expert_ffn + p["narrow"]) * bytes_w / (limits.hbm * p["hbm_efficiency"])
    )
    moved = assigned * (hidden * (bytes_a + 4.0) + expert_ffn * (2.0 + bytes_a))
    time = np.minimum.reduce(cost_of_p_norm(compute, weights, p["overlap_power"]))
    time = time + p["launch_us"] * 1e-6 + moved / (limits.hbm * p["activation_efficiency"])
    time = time + p["sort_us"] * 1e-6 * np.log2(1.0 + tokens)
    needed = minimum(topk, experts) * 3.0 * hidden * expert_ffn * bytes_w
    return maximum(time, maximum(assigned * work / limits.peak, needed / limits.hbm))
