"""Kernels of a serving engine that take longer on some GPUs than those that were measured there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tspsim.operators import Operator

#: What :class:`Pace` calls the products of routed experts.
ROUTED = "routed"


@dataclass(frozen=True)
class Pace:
    """How much longer some kernels take on some GPUs than the measured ones, because the engine runs others there.

    Attributes
    ----------
    factor
        Their time over that of the measured ones.
    devices
        Names of GPUs.
    kernels
        Types, classes of operators, names of those that move bytes, :data:`ROUTED`, or several of them in a text:
        operators that have all of one text's. None: all operators.
    least_s
        Seconds that none of them takes less than.
    """

    factor: float
    devices: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    least_s: float = 0.0

    def holds(self, operator: Operator) -> bool:
        """Whether it is one of the kernels."""
        if not self.kernels:
            return True
        routed = ROUTED if operator.role.routed else ""
        words = {operator.dtype, type(operator).__name__, getattr(operator, "op", ""), routed}
        return any(words.issuperset(kernel.split()) for kernel in self.kernels)


def paced(paces: Sequence[Pace], but: Callable[[Operator], bool]) -> Callable[[Operator, float], float]:
    """``f(operator, seconds)`` → seconds that the kernel takes on the device of the paces.

    Of several paces that hold, the first does; of operators that are ``but`` it has what a kernel takes at least, and
    no more.
    """

    def seconds(operator: Operator, best_s: float) -> float:
        first = next((pace for pace in paces if pace.holds(operator)), None)
        if first is None:
            return best_s
        return max(first.least_s, best_s if but(operator) else first.factor * best_s)

    return seconds
