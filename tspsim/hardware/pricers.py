"""Who prices what: a table from an operator's class to the function that says what one costs inside a step.

:mod:`tspsim.hardware.prices` registers those of this package. Other packages register theirs, for their own operators
or in place of these, in a module that they name under the entry point group :data:`ENTRY_POINTS`::

    @pricer(MyKernel)
    def price(device: Device, kernel: MyKernel) -> Estimate:
        return device.memory_bound(kernel.hbm_bytes)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tspsim.base.errors import TspsimError
from tspsim.base.registry import installed, load
from tspsim.operators import Operator

from ..base.memo import remembered
from .limits import Estimate

if TYPE_CHECKING:
    from .specification import InSteps

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
