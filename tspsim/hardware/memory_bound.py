"""What a kernel costs that only reads, does a little arithmetic, and writes: copy, add, norm, activation.

    bytes_s = bytes / (HBM · hbm_efficiency) · (1 + large_cost · x⁴ / (1 + x⁴))    x = bytes / large_megabytes
    time    = launch + sqrt(row² + (bytes_s + rows / units · rows_us)²)

``x`` describes copies, which cost more a byte once the working set outgrows the caches. ``row`` is the
latency of a kernel that reduces over rows (norms), about one row's pass: row_us · (columns /
8192)^row_exponent, half of it for a single row. Never less than bytes / HBM; time does not fall when bytes,
or rows of the same length, grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .limits import DeviceLimits, Parameter, maximum, minimum

PARAMETERS: dict[str, Parameter] = {
    "launch_us": Parameter(1.2, 0.2, 20.0, "start of the kernel"),
    "hbm_efficiency": Parameter(0.75, 0.05, 1.0, "share of the HBM bandwidth"),
    "large_cost": Parameter(0.0, 0.0, 2.0, "further cost a byte of sizes beyond large_megabytes"),
    "large_megabytes": Parameter(200.0, 20.0, 2000.0, "where large sizes begin"),
    "row_us": Parameter(0.0, 0.0, 20.0, "latency of one row's reduction, 8192 columns"),
    "row_exponent": Parameter(0.9, 0.0, 2.0, "growth of that latency with the columns"),
    "rows_us": Parameter(0.0, 0.0, 5.0, "every row that one unit takes in turn"),
}


def seconds(
    limits: DeviceLimits, parameters: Mapping[str, float], size_bytes: Any, rows: Any, columns: Any, *_: float
) -> Any:
    """Seconds of one call, before any range: floats, or arrays of shape (calls,)."""
    p = parameters
    x = size_bytes / (p["large_megabytes"] * 1e6)
    x4 = minimum(x, 1e6) ** 4
    transfer = size_bytes / (limits.hbm * p["hbm_efficiency"]) * (1.0 + p["large_cost"] * x4 / (1.0 + x4))
    if p["row_us"] > 0.0:
        row = p["row_us"] * 1e-6 * (maximum(columns, 1.0) / 8192.0) ** p["row_exponent"] * (rows > 0)
        ramp = 1.0 - 0.5 * np.exp(-maximum(rows - 1.0, 0.0) / 4.0)
        transfer = np.sqrt((row * ramp) ** 2 + (transfer + rows / limits.compute_units * p["rows_us"] * 1e-6) ** 2)
    return maximum(p["launch_us"] * 1e-6 + transfer, size_bytes / limits.hbm)
