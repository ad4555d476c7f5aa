"""Time of the fused MoE kernels of one rank's routed experts: both products, and what lies between them.

``tokens`` tokens choose ``topk`` experts each; A = ``pairs`` of the choices fall on D = ``touched`` of this rank's E
experts of ``ffn`` columns. There are two products: [A, hidden] · [hidden, c·ffn] (c = 2 with a gate, else 1) and
[A, ffn] · [ffn, hidden]. For each, with N columns and depth K::

    blocks  = max(D, A/r + ½ min(D, A/r))      tiles of r rows for A rows over D experts, the last one half empty
    wave    = blocks · ceil(N/128) / units
    step    = 2 · 128 · (K + depth) · units / (peak · efficiency)          of one row
    compute = (max(1, wave) · (r + half_rate_rows) + wave · widening) · step
    weights = D · N · K · bytes_w / stream,   stream = HBM · hbm_efficiency
    alone   = max(1, D · ceil(N/128) / units) · 128 · K · bytes_w · units / (stream · unit_load)
    product = (compute² + max(weights, alone)²)^½

    remote  = tokens · topk − A choices of other ranks' experts; 0 if ``elsewhere`` is 0: dispatched tokens have none
    rows    = A + remote_share · remote
    moved   = tokens · hidden · (4 + bytes_a) + rows · (hidden · (bytes_a + 4) + ffn · (2c + bytes_a))
    time    = launch + expert_us · E + sort_us · log2(1 + tokens)
            + min over r of the two products + moved / (HBM · activation_efficiency)

``alone``: few or narrow experts do not occupy all units, and a unit loads at most ``unit_load`` times its share of the
bandwidth. ``widening``: rows whose arithmetic takes as long as widening the weights that they meet, where no matrix
unit reads these (:attr:`tspsim.hardware.specification.DeviceSpec.widening`); few tiles divide K, so that it takes part
of a wave. ``moved``: tokens are quantised and summed, and the rows of both products are written and read between
kernels. Time is at least FLOPs / peak, and weights of the touched experts / HBM bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .limits import DeviceLimits, Parameter, ceil, maximum, minimum

PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(15.0, 0.5, 200.0, "start of the kernels"),
    "efficiency": Parameter(0.5, 0.02, 1.0, "share of the dense peak with tall tiles"),
    "half_rate_rows": Parameter(32.0, 0.5, 400.0, "tile rows at which half of that is reached"),
    "depth": Parameter(100.0, 1.0, 3000.0, "start and end of a tile, in columns of its depth"),
    "hbm_efficiency": Parameter(0.8, 0.1, 1.0, "share of the HBM bandwidth while streaming weights"),
    "unit_load": Parameter(3.0, 0.5, 100.0, "bandwidth one unit can pull, against its share of that of all"),
    "activation_efficiency": Parameter(0.5, 0.03, 4.0, "HBM share of moving tokens to experts and back (L2 helps)"),
    "remote_share": Parameter(0.05, 0.001, 1.0, "rows moved for a choice of another rank's expert"),
    "expert_us": Parameter(0.02, 0.0001, 1.0, "every expert here, whether touched or not"),
    "sort_us": Parameter(1.0, 0.001, 30.0, "routing and sorting, for each doubling of the tokens"),
}
#: Name of ``widening`` among the parameters of a kernel: a fact of a device, which no fit has.
WIDENING = "widening_rows"
#: Columns of C in one tile.
TILE_COLUMNS = 128.0
#: Rows of C in one tile.
ROWS = np.array([8.0, 16.0, 32.0, 64.0, 128.0, 256.0])


def touched_by(pairs: Any, experts: Any, least: Any = 0.0) -> Any:
    """Expected distinct experts of a rank under random choices, E·(1 − (1 − 1/E)^pairs), at least ``least``."""
    random = experts * -np.expm1(pairs * np.log1p(-1.0 / np.maximum(experts, 1.0 + 1e-9)))
    return np.maximum(random, least)


def seconds(
    limits: DeviceLimits,
    parameters: Mapping[str, float],
    tokens: Any,
    hidden: Any,
    expert_ffn: Any,
    experts: Any,
    topk: Any,
    pairs: Any,
    touched: Any,
    gated: Any,
    bytes_a: float,
    bytes_w: float,
    elsewhere: Any = 1.0,
) -> Any:
    """Seconds of one call, without a range: a float, or an array of shape (rows,)."""
    p = parameters
    r = ROWS.reshape(-1, 1) if np.ndim(tokens) else ROWS
    sides = 1.0 + gated
    blocks = np.maximum(touched, pairs / r + 0.5 * np.minimum(touched, pairs / r))
    row = 2.0 * TILE_COLUMNS * limits.peak_units / (limits.peak * p["efficiency"])
    tile, widened = (r + p["half_rate_rows"]) * row, p.get(WIDENING, 0.0) * row
    stream = limits.hbm * p["hbm_efficiency"]
    share = stream * p["unit_load"] / limits.peak_units
    products: Any = 0.0
    for columns, k in ((sides * expert_ffn, hidden), (hidden, expert_ffn)):
        tiles = ceil(columns / TILE_COLUMNS) / limits.compute_units
        wave = blocks * tiles
        compute = (np.maximum(1.0, wave) * tile + wave * widened) * (k + p["depth"])
        alone = maximum(1.0, touched * tiles) * TILE_COLUMNS * k * bytes_w / share
        weights = maximum(touched * columns * k * bytes_w / stream, alone)
        products = products + np.hypot(compute, weights)
    time = np.min(products, axis=0)
    remote = elsewhere * maximum(0.0, tokens * topk - pairs)
    rows = pairs + p["remote_share"] * remote
    moved = tokens * hidden * (4.0 + bytes_a)
    moved = moved + rows * (hidden * (bytes_a + 4.0) + expert_ffn * (2.0 * sides + bytes_a))
    time = time + moved / (limits.hbm * p["activation_efficiency"])
    time = time + 1e-6 * (p["launch_us"] + p["expert_us"] * experts + p["sort_us"] * np.log2(1.0 + tokens))
    matrices = (1.0 + sides) * hidden * expert_ffn
    least = maximum(2.0 * pairs * matrices / limits.peak, minimum(touched, experts) * matrices * bytes_w / limits.hbm)
    return maximum(time, least)
