"""Kernels and transfers of a step with the ends of their estimates, and by how much families of them may be shorter or
longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..hardware import Estimate
from ..operators import Operator
from ..parallel.serving_engine import Captured
from ..program import SendReceive
from ..program.layout import StageCall
from ..step.description import TRANSFERS

if TYPE_CHECKING:
    from .programs import StepPrograms

#: Seconds by which kernels may be shorter, and longer.
Ends = tuple[float, float]
#: No kernels of a family, and no time.
NOTHING = 0.0, 0.0, 0.0, 0.0
NONE = Estimate(0.0, 0.0, 0.0)


class Estimates:
    """Seconds of calls under a capture with the estimates behind them.

    Parameters
    ----------
    programs, captured
        What prices the calls.
    """

    def __init__(self, programs: StepPrograms, captured: Captured) -> None:
        self._programs = programs
        device = programs.question.device
        self._last = Estimate(0.0, 0.0, 0.0)

        def best(operator: Operator) -> float:
            self._last = device.time(operator)
            return float(self._last.seconds)

        self._price = programs.question.work.stack.cost(best, device, captured)

    def of(self, calls: Sequence[StageCall]) -> tuple[list[float], list[Estimate]]:
        """Seconds of each call, and its estimate: of a kernel that of the best library."""
        priced = [self._priced(call) for call in calls]
        return [seconds for seconds, _ in priced], [estimate for _, estimate in priced]

    def _priced(self, call: StageCall) -> tuple[float, Estimate]:
        what, stage = call
        if isinstance(what, Operator):
            return self._price(what), self._last
        programs = self._programs
        seconds = programs.transfer_s(what, stage)
        if not seconds:
            return 0.0, NONE
        low, high = programs.transfer_range(what, stage)
        return seconds, Estimate(seconds, low * seconds, high * seconds)


class PricedPart(NamedTuple):
    """Kernels and transfers of a step.

    Attributes
    ----------
    seconds
        Of all, on all stages one after the other.
    families
        Of each family, and of transfers: seconds, mean over stages; and the low end, the middle and the high end of the
        estimates of its different kernels, whose ratios are its errors (:meth:`tspsim.hardware.Costs.errors`).
    """

    seconds: float
    families: dict[str, tuple[float, float, float, float]]

    @classmethod
    def of(
        cls, calls: Sequence[StageCall], estimates: Sequence[Estimate], taken_s: Sequence[float], stages: int
    ) -> PricedPart:
        """The part of these calls, which take so many seconds in all of their runs."""
        families: dict[str, tuple[float, float, float, float]] = {}
        seen = set[Operator]()
        for (what, _), estimate, own_s in zip(calls, estimates, taken_s, strict=True):
            if isinstance(what, Operator):
                family, whole_s = what.kind, own_s / stages
                times = float(what not in seen)
                seen.add(what)
            else:
                # A message takes as long on the receiving stage as on the sending one.
                family, whole_s = TRANSFERS, own_s / stages * (2 if isinstance(what, SendReceive) else 1)
                times = whole_s / estimate.seconds if whole_s else 0.0
            before = families.get(family, NOTHING)
            families[family] = (
                before[0] + whole_s,
                before[1] + times * estimate.low,
                before[2] + times * estimate.seconds,
                before[3] + times * estimate.high,
            )
        return cls(float(sum(taken_s)), families)


def uncertain(parts: Iterable[PricedPart]) -> dict[str, Ends]:
    """By how many seconds each family may be shorter and longer: its seconds times its errors."""
    families: dict[str, tuple[float, float, float, float]] = {}
    for part in parts:
        for family, own in part.families.items():
            families[family] = tuple([a + b for a, b in zip(families.get(family, NOTHING), own, strict=True)])  # type: ignore[assignment]
    return {
        family: (seconds * (1.0 - low / middle), seconds * (high / middle - 1.0)) if middle > 0.0 else (0.0, 0.0)
        for family, (seconds, low, middle, high) in families.items()
    }


class Beside(NamedTuple):
    """Families of kernels beside others.

    Attributes
    ----------
    squares
        Squared seconds by which families that the others lack may be shorter, and longer.
    shared
        Seconds by which each of the others' families may be so, in their order.
    """

    squares: Ends
    shared: tuple[Ends, ...]

    @classmethod
    def of(cls, parts: Iterable[PricedPart], others: Sequence[str]) -> Beside:
        """Of several parts, beside other families."""
        families = uncertain(parts)
        less, more = ([ends[i] ** 2 for family, ends in families.items() if family not in others] for i in (0, 1))
        return cls((sum(less), sum(more)), tuple([families.get(family, (0.0, 0.0)) for family in others]))
