"""What a kernel costs that only reads, does a little arithmetic, and writes: copy, add, norm, activation.

    time = launch + sqrt(row² + (bytes / bandwidth)²),   bandwidth = HBM · share · (1 − fall · x⁴ / (1 + x⁴))

x = bytes / (fall_megabytes · 1e6) describes copies, whose bandwidth falls when the working set outgrows
every cache and open DRAM page; ``row`` is the latency of a kernel that reduces over rows (norms), about one
row's pass, and grows with the rows each unit takes in turn. The bandwidth enters as an integral over the
bytes moved so far, so that time never falls with size, and never is less than bytes / HBM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .machine import Machine, Parameter

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
    machine: Machine, parameters: Mapping[str, float], size_bytes: Any, rows: Any = 0.0, columns: Any = 0.0
) -> Any:
    """Seconds of one call, before any range: floats, or arrays of shape (calls,)."""
    p = parameters
    x = size_bytes / (p["large_megabytes"] * 1e6)
    x4 = np.minimum(x, 1e6) ** 4
    transfer = size_bytes / (machine.hbm * p["hbm_efficiency"]) * (1.0 + p["large_cost"] * x4 / (1.0 + x4))
    if p["row_us"] > 0.0:
        row = p["row_us"] * 1e-6 * (np.maximum(columns, 1.0) / 8192.0) ** p["row_exponent"] * (rows > 0)
        ramp = 1.0 - 0.5 * np.exp(-np.maximum(rows - 1.0, 0.0) / 4.0)
        transfer = np.sqrt(
            (row * ramp) ** 2 + (transfer + rows / machine.compute_units * p["rows_us"] * 1e-6) ** 2
        )
    return np.maximum(p["launch_us"] * 1e-6 + transfer, size_bytes / machine.hbm)
