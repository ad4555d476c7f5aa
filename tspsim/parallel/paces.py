"""Kernels of a serving engine that take longer on some GPUs than the measured ones there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tspsim.operators import Operator

#: Name of the products of routed experts in :class:`Pace`.
ROUTED = "routed"


@dataclass(frozen=True)
class Pace:
    """Factor by which kernels take longer on some GPUs than the measured ones, since the engine runs others there.

    Attributes
    ----------
    factor
        Time over that of the measured kernels.
    devices
        Names of GPUs.
    kernels
        Types, classes of operators, names of memory-bound operators, :data:`ROUTED`, or several of these in one string,
        all of which an operator must have. Empty: all operators.
    least_s
        Least seconds of each of these kernels.
    """

    factor: float
    devices: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    least_s: float = 0.0

    def holds(self, operator: Operator) -> bool:
        """Whether it applies to an operator."""
        if not self.kernels:
            return True
        routed = ROUTED if operator.role.routed else ""
        words = {operator.dtype, type(operator).__name__, getattr(operator, "op", ""), routed}
        return any(words.issuperset(kernel.split()) for kernel in self.kernels)


def paced(paces: Sequence[Pace], but: Callable[[Operator], bool]) -> Callable[[Operator, float], float]:
    """``f(operator, seconds)`` → seconds of the kernel on the device of the paces.

    The first pace that applies counts; for operators that are ``but``, only its ``least_s``.
    """

    firsts: dict[tuple[object, ...], Pace | None] = {}

    def seconds(operator: Operator, best_s: float) -> float:
        # All that decides which pace holds.
        key = operator.dtype, type(operator), getattr(operator, "op", ""), operator.role
        if key not in firsts:
            firsts[key] = next((pace for pace in paces if pace.holds(operator)), None)
        first = firsts[key]
        if first is None:
            return best_s
        return max(first.least_s, best_s if but(operator) else first.factor * best_s)

    return seconds
