"""From isolated kernels to operators inside a step: clocks, what stands apart, and how calls settle.

The numbers are those of a device file's ``sustained``. Only what the matrix units decide runs at their clock;
waiting for HBM takes as long at any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .limits import Estimate

if TYPE_CHECKING:
    from .specification import Sustained

#: How suddenly calls settle with their length: own attention kernels of 13 ms run at 97 % of the rate of those of
#: 6 ms, those of 15 ms at 88 %.
SETTLING_POWER = 8.0


def at_clock(isolated: Estimate, matrix_share: Any, rate: float) -> Estimate:
    """An isolated kernel where the matrix units run at ``rate`` of what it was measured at."""
    factor = 1.0 + matrix_share * (1.0 / rate - 1.0)
    return Estimate(isolated.seconds * factor, isolated.low * factor, isolated.high * factor)


def with_parts(product: Estimate, parts: int, sustained: Sustained) -> Estimate:
    """A product at its clock: the start of its further parts, and the clock's own range."""
    seconds, low, high = product
    if sustained.spread is not None:
        clock = math.log(sustained.spread.value)
        low = seconds * math.exp(-math.hypot(math.log(seconds / low), clock))
        high = seconds * math.exp(math.hypot(math.log(high / seconds), clock))
    further = (parts - 1) * sustained.grouped.value if sustained.grouped else 0.0
    return Estimate(seconds + further, low + further, high + further)


def burst(sustained: Sustained) -> float:
    """Rate of a short step on a cool device against the isolated kernels."""
    return sustained.burst.value if sustained.burst else 1.0


def rate(sustained: Sustained, family: str, clocks: str, *, measured_sustained: bool) -> float:
    """Rate of matrix kernels at ``clocks`` over that at which a family's rows were measured."""
    long_step = sustained.rate_of(family)
    return (long_step if clocks == "sustained" else burst(sustained)) / (long_step if measured_sustained else 1.0)


def cool_gain(call_s: float, sustained: Sustained) -> float:
    """Rate of the matrix units in a call of ``call_s`` seconds that a benchmark repeats, over a long step's."""
    if sustained.settle is None:
        return 1.0
    cool = burst(sustained) / sustained.gemm.value - 1.0
    return float(1.0 + cool / (1.0 + (call_s / sustained.settle.value) ** SETTLING_POWER))
