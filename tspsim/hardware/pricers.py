"""Time of an operator inside a step: the table from its class to its pricer, and the clock of a step.

:mod:`tspsim.hardware.prices` registers the pricers of this package. Other packages register theirs, for their operators
or in place of these, in a module that they name under the entry point group :data:`ENTRY_POINTS`::

    @pricer(MyKernel)
    def price(device: Device, kernel: MyKernel) -> Estimate:
        return device.memory_bound(kernel.hbm_bytes)

The numbers of a device file's ``sustained`` turn isolated kernels into operators of a step: clocks, launches of further
products, and how calls settle. Only the share of a kernel that the matrix units decide depends on their clock.
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

#: Bound of a product: arithmetic, bytes of its weights (``bytes``), or bytes of its activation rows (``rows``).
Bound = Literal["bytes", "rows", "arithmetic"]
Priced = TypeVar("Priced", bound=Operator)
#: (device, operator) → time; the device's type is Any, because :class:`~tspsim.hardware.Device` imports this module.
Pricer = Callable[[Any, Priced], Estimate]
#: A function that a table keeps for classes of operators.
Kept = TypeVar("Kept", bound=Callable[..., Any])

#: Modules that register pricers when they are imported.
ENTRY_POINTS = "tspsim.pricers"
PRICERS: dict[type[Operator], Pricer[Any]] = {}


def registers(table: dict[type[Operator], Kept], classes: tuple[type[Operator], ...]) -> Callable[[Kept], Kept]:
    """Decorator that enters a function in a table for these classes, without their subclasses."""

    def register(function: Kept) -> Kept:
        table.update(dict.fromkeys(classes, function))
        return function

    return register


def pricer(*classes: type[Priced]) -> Callable[[Pricer[Priced]], Pricer[Priced]]:
    """Decorator that registers a function as the pricer of these classes, without their subclasses."""
    return registers(PRICERS, classes)


def price(device: Any, operator: Operator) -> Estimate:
    """Time of an operator inside a step.

    Raises
    ------
    TspsimError
        No pricer is registered for its class.
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
    seconds = entry.of(estimate.seconds)
    return estimate._replace(seconds=seconds, low=entry.low * seconds, high=entry.high * seconds)


def in_steps(device: Any, operator: Operator) -> InSteps | None:
    """Correction of an operator by profiles of whole steps on the device; None: none. Those of a stack's own kernels
    count on the device of that stack (:meth:`tspsim.hardware.Device.under`)."""
    measured = getattr(getattr(device, "spec", None), "in_steps", ())
    if not measured:
        return None
    own = [
        entry
        for entry in measured
        if entry.operator == operator.family and entry.stack is None and entry.dtype in (None, operator.dtype)
    ]
    return next((entry for entry in own if entry.bound is None or entry.bound == bound_of(device, operator)), None)


def bound_of(device: Any, operator: Operator) -> Bound:
    """Bound of an operator at the device's peak and bandwidth: ``arithmetic``, or bytes, mostly of weights (``bytes``,
    as in decode) or of activation rows (``rows``, as in a router)."""
    peaks = device.peak_flops_per_s
    # Types that the device widens before multiplication run on its 16-bit units.
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

#: Power of the transition from cool to settled clocks with a call's length. Measured: attention kernels of 13 ms run at
#: 97 % of the rate of those of 6 ms, those of 15 ms at 88 %.
SETTLING_POWER = 8.0


def at_clock(isolated: Estimate, matrix_share: Any, rate: float) -> Estimate:
    """Time of an isolated kernel with the matrix units at ``rate`` times the clock at which it was measured."""
    factor = 1.0 + matrix_share * (1.0 / rate - 1.0)
    return Estimate(isolated.seconds * factor, isolated.low * factor, isolated.high * factor)


def with_parts(product: Estimate, parts: int, sustained: Sustained) -> Estimate:
    """A grouped product with the launches of its ``parts`` − 1 further products, and with the range of the clock."""
    seconds, low, high = product
    if sustained.spread is not None:
        clock = math.log(sustained.spread.value)
        low = seconds * math.exp(-math.hypot(math.log(seconds / low), clock))
        high = seconds * math.exp(math.hypot(math.log(high / seconds), clock))
    further = (parts - 1) * sustained.grouped.value if sustained.grouped else 0.0
    return Estimate(seconds + further, low + further, high + further)


def burst(sustained: Sustained) -> float:
    """Rate of a short step on a cool device over that of isolated kernels."""
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
