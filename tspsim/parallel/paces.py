"""Kernels of a serving engine that take longer on some GPUs than the measured ones there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field, StrictBool, field_validator
from pydantic_core import PydanticCustomError

from tspsim import operators
from tspsim.base.provenance import Provenance
from tspsim.base.units import Seconds, duration
from tspsim.operators import Operator

from ..base.stated import Expected, Stated

#: Name of the products of routed experts in :class:`Pace`.
ROUTED = "routed"


#: Operators by the name of their class.
FAMILIES = frozenset(
    name
    for name, thing in vars(operators).items()
    if isinstance(thing, type) and issubclass(thing, operators.Operator) and name in operators.__all__
)
Factor = Annotated[float, Field(ge=1.0, le=20.0, allow_inf_nan=False)]


def of_families(stated: Stated[dict[str, int]]) -> Stated[dict[str, int]]:
    """Refuse names that are no class of operators."""
    names = {name.split()[0] for name in stated.value}
    if wrong := sorted(names - FAMILIES):
        near = ", ".join(sorted(FAMILIES))
        raise PydanticCustomError(
            "family", "no operator is a {wrong}; they are {near}", {"wrong": wrong[0], "near": near}
        )
    return stated


class Pace(Expected[Factor]):
    """Factor by which kernels take longer on some GPUs than measured ones."""

    devices: tuple[str, ...] = Field(min_length=1, description="names of GPUs")
    kernels: tuple[str, ...] = Field(
        (), description="types, classes of operators, `routed`, or several of them in a text; default: all"
    )
    least: Seconds = Field(0.0, ge=0.0, description="least time of each of these kernels")
    reading: StrictBool = Field(False, description="the factor is of bytes: it counts by how far they bound a kernel")

    @field_validator("kernels")
    @classmethod
    def _known(cls, kernels: tuple[str, ...]) -> tuple[str, ...]:
        allowed = {*operators.DTYPES, *FAMILIES, *operators.MEMORY_BOUND_OPS, ROUTED}
        if wrong := sorted({word for kernel in kernels for word in kernel.split()} - allowed):
            raise PydanticCustomError("kernels", "no kernel is '{wrong}'; known: {known}",
                                      {"wrong": wrong[0], "known": ", ".join(sorted(allowed))})  # fmt: skip
        return kernels

    def provenance(self, what: str) -> Provenance:
        """The row of a report."""
        of = " of " + ", ".join(self.kernels) if self.kernels else ""
        least = f", at least {duration(self.least)}" if self.least else ""
        low, high = self.ends
        part = ", as far as bytes bound them" if self.reading else ""
        value = f"{self.value:g} ({low:g} to {high:g}){part}{least}"
        return Provenance(f"{what}{of} on {', '.join(self.devices)}", value, self.source, "assumed")

    def holds(self, operator: Operator) -> bool:
        """Whether it applies to an operator: one that has all words of one of ``kernels``, of types that of its
        weights too."""
        if not self.kernels:
            return True
        routed = ROUTED if operator.role.routed else ""
        kept = getattr(operator, "weight_dtype", None) or operator.dtype
        words = {operator.dtype, kept, type(operator).__name__, getattr(operator, "op", ""), routed}
        return any(words.issuperset(kernel.split()) for kernel in self.kernels)


def paced(
    paces: Sequence[Pace], but: Callable[[Operator], bool], read: Callable[[Operator], float] = lambda operator: 1.0
) -> Callable[[Operator, float, float], float]:
    """``f(operator, start_s, seconds)`` → seconds of the kernel on the device of the paces, behind a start that was
    measured.

    The first pace that applies counts; for operators that are ``but``, only its ``least_s``; of one of bytes, the part
    of a kernel's time that is ``read``.
    """

    firsts: dict[tuple[object, ...], Pace | None] = {}

    def seconds(operator: Operator, start_s: float, best_s: float) -> float:
        # All that decides which pace holds.
        kept = getattr(operator, "weight_dtype", None)
        key = operator.dtype, kept, type(operator), getattr(operator, "op", ""), operator.role
        if key not in firsts:
            firsts[key] = next((pace for pace in paces if pace.holds(operator)), None)
        first = firsts[key]
        if first is None:
            return start_s + best_s
        if but(operator):
            return max(first.least, start_s + best_s)
        factor = 1.0 + (first.value - 1.0) * read(operator) if first.reading else first.value
        return max(first.least, start_s + factor * best_s)

    return seconds
