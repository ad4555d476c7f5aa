"""The few numbers of a device that the kernel models read, and what the models share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True)
class Machine:
    """A device as one kernel sees it.

    Attributes
    ----------
    peak
        Dense FLOP/s of the kernel's operand type.
    hbm
        HBM bandwidth, bytes/s.
    compute_units
        Streaming multiprocessors (NVIDIA) or compute units (AMD).
    l2
        Bytes of the last cache that all compute units share.
    """

    peak: float
    hbm: float
    compute_units: float
    l2: float


class Estimate(NamedTuple):
    """Seconds, and the range that 90 % of measurements are expected in; floats, or arrays of one shape."""

    seconds: Any
    low: Any
    high: Any


class Parameter(NamedTuple):
    """One fitted number of a kernel model: where a fit starts, its bounds, and what it means."""

    default: float
    low: float
    high: float
    meaning: str


def cost_of_p_norm(a: Any, b: Any, p: float) -> Any:
    """(aᵖ + bᵖ)^(1/p), scaled by the larger term so that no power under- or overflows."""
    large = np.maximum(a, b)
    return large * (1.0 + (np.minimum(a, b) / large) ** p) ** (1.0 / p)
