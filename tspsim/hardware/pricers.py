"""Who prices what: a table from an operator's class to the function that says what one costs inside a step.

:mod:`tspsim.hardware.prices` registers those of this package. Other packages register theirs, for their own operators
or in place of these, in a module that they name under the entry point group :data:`ENTRY_POINTS`::

    @pricer(MyKernel)
    def price(device: Device, kernel: MyKernel) -> Estimate:
        return device.memory_bound(kernel.hbm_bytes)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tspsim.errors import TspsimError
from tspsim.operators import Operator
from tspsim.registry import installed, load

from .._memory import remembered
from .limits import Estimate

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
    found = PRICERS.get(type(operator))
    if found is None:
        cls = type(operator)
        raise TspsimError(
            f"no pricer for operators of class {cls.__module__}.{cls.__qualname__}: register one with "
            f"tspsim.hardware.pricer, in a module named under the entry point group {ENTRY_POINTS}"
        )
    estimate = found(device, operator)
    measured = getattr(getattr(device, "spec", None), "in_steps", ())
    return _in_steps(estimate, measured, operator.family) if measured else estimate


def _in_steps(estimate: Estimate, measured: Any, family: str) -> Estimate:
    """The same as steps that were measured whole have it."""
    for entry in measured:
        if entry.operator == family:
            seconds = 1e-6 * entry.start_us + entry.factor * estimate.seconds
            return estimate._replace(seconds=seconds, low=entry.low * seconds, high=entry.high * seconds)
    return estimate


@remembered(1)
def load_entry_points() -> None:
    for entry in installed(ENTRY_POINTS):
        load(entry)
