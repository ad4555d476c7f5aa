"""Collectives inside a node, as measured: one curve a family of algorithms, three regimes of a library's protocols.

    t_p = L·(base_p + s·hop_p) + (V/(B·e_p) + S/(n·own))/W      p = LL, LL128, Simple
    t_1 additionally + L·growth·log2(1 + S/4 KiB); LL has no own chunk to pass over, and its W is one
    t   = (t_1^−12 + t_2^−12 + t_3^−12)^(−1/12)

n ranks, S bytes as nccl-tests counts them, V = S·(n−1)/n (an all-reduce twice that) passed on by a GPU whose links
carry B bytes/s together, s = n − 1 steps (an all-reduce twice that); L and W are the library's factors. A tuner takes
the cheapest protocol; the power 12 rounds the corners as measured. Where it was seen to change to Simple at a size of
its own, that protocol alone counts from there on, and the others win below it by no more than they can. The bandwidth
term of the last regime is what contention stretches; the rest is latency. docs/collective-models.md has the study.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..kinds import CollectiveKind
from .schedule import power_sum

if TYPE_CHECKING:
    from ..calibration import Curve, TransferSpread

SHARPNESS = 12.0


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """A curve for one kind and number of ranks.

    ``latency`` and ``bandwidth`` are the library's factors, ``floor_s`` the seconds a byte of S takes on the slowest
    link at its full bandwidth, and ``stretch`` (≥ 1) how much slower that is than as specified.
    """

    curve: Curve
    kind: CollectiveKind
    ranks: int
    bandwidth_bytes_per_s: float
    latency: float
    bandwidth: float
    floor_s: float
    stretch: float = 1.0

    @property
    def spread(self) -> TransferSpread:
        return self.curve.spread if self.ranks <= self.curve.ranks[1] else self.curve.spread.wider()

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """(latency, fluid part) in seconds of a collective of ``size_bytes``."""
        curve = self.curve
        last = self._moving(2, size_bytes)
        if curve.switch is not None:
            # Beyond the groups that were measured it stays where it was last seen: carried on, a larger group would
            # leave the costly protocol that a smaller one is held to, and be faster.
            ranks = min(self.ranks, curve.ranks[1])
            switch = curve.switch * (ranks / 2.0) ** curve.switch_exponent
            simple = self._starting(2) + self._moving(2, max(size_bytes, switch))
            if size_bytes >= switch:
                return self._parts(simple, last, size_bytes)
        else:
            simple = self._starting(2) + last
        first = self._starting(0) + self._moving(0, size_bytes)
        first += self.latency * curve.growth * math.log2(1.0 + size_bytes / 4096.0)
        second = self._starting(1) + self._moving(1, size_bytes)
        return self._parts(power_sum((first, second, simple), -SHARPNESS), last, size_bytes)

    def _parts(self, total: float, last: float, size_bytes: float) -> tuple[float, float]:
        moving = min(last, total)
        return max(0.0, total - moving), max(moving * self.stretch, size_bytes * self.floor_s)

    def _starting(self, regime: int) -> float:
        steps = float(self.kind.passes) * (self.ranks - 1)
        return self.latency * (self.curve.base[regime] + steps * self.curve.hop[regime])

    def _moving(self, regime: int, size_bytes: float) -> float:
        passed = float(self.kind.passes) * size_bytes * (self.ranks - 1) / self.ranks
        moving = passed / (self.bandwidth_bytes_per_s * self.curve.efficiency[regime])
        if regime == 0:
            return moving
        own = size_bytes / self.ranks / self.curve.own if self.curve.own else 0.0
        return (moving + own) / self.bandwidth
