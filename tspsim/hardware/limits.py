"""Limits of a device that kernel models read, estimates, and numeric helpers of the models."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Limits of a device for one kernel."""

    #: Dense FLOP/s of the kernel's operand type.
    peak: float
    #: HBM bandwidth, bytes/s.
    hbm: float
    #: Streaming multiprocessors (NVIDIA) or compute units (AMD).
    compute_units: float
    #: Bytes of the last-level cache that all compute units share.
    l2: float
    #: Compute units of the device on which kernels were measured: one unit's peak is peak / peak_units.
    peak_units: float


class Estimate(NamedTuple):
    """Predicted seconds, and the range that holds 90 % of measured times; floats, or arrays of one shape."""

    seconds: Any
    low: Any
    high: Any

    def widened(self, width: float) -> Estimate:
        """The estimate with its range wider by a half width in log time; squares add."""
        wider = (np.exp(np.hypot(np.log(bound / self.seconds), width)) for bound in (self.low, self.high))
        below, above = wider
        return Estimate(self.seconds, self.seconds / below, self.seconds * above)


class Parameter(NamedTuple):
    """A fitted parameter: start of the fit, bounds, and in a kernel model its meaning."""

    default: float
    low: float
    high: float
    meaning: str = ""


def cost_of_p_norm(a: Any, b: Any, p: float) -> Any:
    """(aᵖ + bᵖ)^(1/p), scaled by the larger term against under- and overflow."""
    large = maximum(a, b)
    return large * (1.0 + (minimum(a, b) / large) ** p) ** (1.0 / p)


# For single floats Python is ten times as fast as NumPy.


def maximum(a: Any, b: Any) -> Any:
    """The larger of two numbers, or arrays element by element."""
    if isinstance(a, float) and isinstance(b, float):
        return a if a > b else b
    return np.maximum(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two numbers, or arrays element by element."""
    if isinstance(a, float) and isinstance(b, float):
        return a if a < b else b
    return np.minimum(a, b)


def ceil(a: Any) -> Any:
    """Rounded up, as a float; a number or an array."""
    return float(math.ceil(a)) if isinstance(a, float) else np.ceil(a)


def floor(a: Any) -> Any:
    """Rounded down, as a float; a number or an array."""
    return float(math.floor(a)) if isinstance(a, float) else np.floor(a)


def between(x: Any, knots: tuple[float, ...], values: tuple[float, ...]) -> Any:
    """Linear interpolation between (knot, value), constant outside; a number or an array."""
    if not isinstance(x, float):
        return np.interp(x, knots, values)
    i = bisect_left(knots, x)
    if i == 0 or i == len(knots):
        return values[min(i, len(knots) - 1)]
    share = (x - knots[i - 1]) / (knots[i] - knots[i - 1])
    return values[i - 1] + share * (values[i] - values[i - 1])
