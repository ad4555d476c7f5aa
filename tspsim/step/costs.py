"""What kernels take by the fits of a device, for the engine, and how uncertain the answer is by that."""

from __future__ import annotations

from collections.abc import Mapping

from ..engine.core import Submission
from ..hardware import Device
from ..operators import Operator
from ..parallel.stack import Stack
from .metrics import Breakdown
from .result import Range

#: The factor of all exposed transfers, beside those of kernel families.
TRANSFERS = "transfers"


class Costs:
    """The device's estimates as plain seconds for the engine, remembering how uncertain each family was.

    ``scales`` multiply the time of a kernel family (by :attr:`Operator.kind`), to ask what an error of it would do.
    """

    def __init__(self, device: Device, scales: Mapping[str, float] | None = None) -> None:
        self.device = device
        self.scales = scales or {}
        self._spread: dict[str, list[float]] = {}
        #: Low and high factor of the transfers that :meth:`weigh` has seen, nine times of ten.
        self.transfers = (1.0, 1.0)

    def __call__(self, operator: Operator) -> float:
        estimate = self.device.time(operator)
        spread = self._spread.setdefault(operator.kind, [0.0, 0.0, 0.0])
        for index, value in enumerate((estimate.low, estimate.seconds, estimate.high)):
            spread[index] += value
        return float(estimate.seconds) * self.scales.get(operator.kind, 1.0)

    def errors(self) -> dict[str, tuple[float, float]]:
        """Low and high factor of every family asked so far, nine times of ten."""
        return {family: (low / middle, high / middle) for family, (low, middle, high) in self._spread.items()}

    def weigh(self, submission: Submission) -> None:
        """Remember how uncertain this run's transfers are: the ranges of all, by the time each takes."""
        uses, instances = submission.system.uses(), submission.system.instances
        used = [(instance.traffic, uses[channel] * instance.traffic.alone_s) for instance, channel in instances]
        total = sum([seconds for _, seconds in used])
        if total > 0.0:
            low, high = (sum([getattr(t, end) * seconds for t, seconds in used]) / total for end in ("low", "high"))
            self.transfers = (low, high)

    def range_of(self, tokens: float, makespan_s: float, parts: Breakdown, stack: Stack) -> Range:
        """One common factor a kernel family, one for transfers, one for software; independent, to first order. Of a
        device whose whole runs gave the stack's spread, that spread alone: it has the other errors in it."""
        errors = self.errors()
        factors = {family: errors[family] for family in parts.compute_s} | {TRANSFERS: self.transfers}
        if self.device.name in stack.spread_on:
            low_s, high_s = (makespan_s * factor for factor in stack.spread)
            basis = f"90 %: whole runs under the stack {stack.name} on such devices (residuals)"
            return Range(tokens / high_s, tokens / low_s, basis, factors=factors)
        faster, slower = ((makespan_s * (1.0 - factor)) ** 2 for factor in stack.spread)
        for family, seconds in parts.compute_s.items():
            low, high = errors[family]
            faster += (seconds * (1.0 - low)) ** 2
            slower += (seconds * (high - 1.0)) ** 2
        exposed, (low, high) = sum(parts.exposed_s.values()), self.transfers
        low_s = makespan_s - (faster + (exposed * (1.0 - low)) ** 2) ** 0.5
        high_s = makespan_s + (slower + (exposed * (high - 1.0)) ** 2) ** 0.5
        software = f", one for the stack {stack.name}" if stack.spread != (1.0, 1.0) else ""
        basis = f"90 %: one factor a kernel family{software} and one for exposed transfers (residuals), independent"
        return Range(tokens / high_s, tokens / low_s, basis, factors=factors)
