"""What an operator costs inside a step: a table from its class to the function that prices it.

:mod:`tspsim.hardware.prices` registers those of this package. Other packages register theirs, for their own operators
or in place of these, in a module that they name under the entry point group :data:`ENTRY_POINTS`::

    @pricer(MyKernel)
    def price(device: Device, kernel: MyKernel) -> Estimate:
        return device.memory_bound(kernel.hbm_bytes)

Isolated kernels become operators of a step by the numbers of a device file's ``sustained``: clocks, starts of further
parts, and how calls settle. Only what the matrix units decide runs at their clock; waiting for HBM takes as long at
any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..base.errors import TspsimError
from ..base.memo import remembered
from ..base.registry import installed, load
from ..operators import Operator
from .limits import Estimate

if TYPE_CHECKING:
    from .specification import InSteps, Sustained

#: What a product takes as long as: its arithmetic, the bytes of its weights, or those of its rows.
Bound = Literal["bytes", "rows", "arithmetic"]
Priced = TypeVar("Priced", bound=Operator)
#: Of a :class:`~tspsim.hardware.Device` (which asks this table, and so is unknown to it) and an operator.
Pricer = Callable[[Any, Priced], Estimate]

#: Modules that register pricers when they are imported.
ENTRY_POINTS = "tspsim.pricers"
PRICERS: dict[type[Operator], Pricer[Any]] = {}


def pricer(*classes: type[Priced]) -> Callable[[Pricer[Priced]], Pricer[Priced]]:
    """Register a function as what prices operators of these very classes."""

    def register(function: Pricer[Priced]) -> Pricer[Priced]:
        PRICERS.update(dict.fromkeys(classes, function))
        return function

    return register


def price(device: Any, operator: Operator) -> Estimate:
    """What an operator costs inside a step.

    Raises
    ------
    TspsimError
        Nobody registered a pricer for its class.
    """
    load_entry_points()
    pricer = PRICERS.get(type(operator))
    if pricer is None:
        cls = type(operator)
        raise TspsimError(
            f"no pricer for operators of class {cls.__module__}.{cls.__qualname__}: register one with "
            f"tspsim.hardware.pricer, in a module named under the entry point group {ENTRY_POINTS}"
        )
    estimate = pricer(device, operator)
    entry = in_steps(device, operator)
    if entry is None:
        return estimate
    seconds = 1e-6 * entry.start_us + entry.factor * estimate.seconds
    return estimate._replace(seconds=seconds, low=entry.low * seconds, high=entry.high * seconds)


def in_steps(device: Any, operator: Operator) -> InSteps | None:
    """What steps that were measured whole on a device taught of an operator; None where nothing."""
    measured = getattr(getattr(device, "spec", None), "in_steps", ())
    if not measured:
        return None
    own = [entry for entry in measured if entry.operator == operator.family]
    return next((pricer for pricer in own if pricer.bound is None or pricer.bound == bound_of(device, operator)), None)


def bound_of(device: Any, operator: Operator) -> Bound:
    """Whether the bytes of an operator take longer than its arithmetic at what the device has of both, and whose bytes:
    a router's product streams rows through few tiles, one that decodes streams weights through many."""
    peaks = device.peak_flops_per_s
    # What a device widens before it multiplies runs on its units of 16 bits.
    peak = peaks.get(operator.dtype) or peaks.get("bf16")
    arithmetic = operator.flops / peak if peak else 0.0
    if operator.hbm_bytes / device.hbm_bytes_per_s < arithmetic:
        return "arithmetic"
    return "bytes" if 2.0 * operator.cold_bytes >= operator.hbm_bytes else "rows"


@remembered(1)
def load_entry_points() -> None:
    for entry in installed(ENTRY_POINTS):
        load(entry)


# --- isolated kernels inside a step ---------------------------------------------------------------------------

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
