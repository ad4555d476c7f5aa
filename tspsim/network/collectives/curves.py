"""Collectives inside a node, as measured: one curve a family of algorithms, three regimes of a library's protocols.

    t_p = base_p + s·hop_p + V/(B·e_p) + S/(n·own)          p = LL, LL128, Simple; LL has no own chunk to pass over
    t_1 additionally + growth·log2(1 + S/4 KiB)
    t   = (t_1^−12 + t_2^−12 + t_3^−12)^(−1/12)

n ranks, S bytes as nccl-tests counts them, V = S·(n−1)/n (an all-reduce twice that) passed on by a GPU whose links
carry B bytes/s together, s = n − 1 steps (an all-reduce twice that). A tuner takes the cheapest protocol; the power 12
rounds the corners as measured. The bandwidth term of the last regime is what contention stretches; the rest is latency.
docs/collective-models.md has the study, its rows and its errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..specs import Curve

SHARPNESS = 12.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A curve for one kind and number of ranks.

    ``floor_s`` is the seconds a byte of S takes on the slowest link at its full bandwidth; ``stretch`` (≥ 1) how much
    slower the slowest link is than its specification.
    """

    curve: Curve
    kind: str
    ranks: int
    bandwidth_bytes_per_s: float
    floor_s: float
    stretch: float = 1.0

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """(latency, fluid part) in seconds of a collective of ``size_bytes``."""
        curve, n = self.curve, self.ranks
        times = 2.0 if self.kind == "all_reduce" else 1.0
        passed = times * size_bytes * (n - 1) / n
        steps = times * (n - 1)
        own = size_bytes / n / curve.own if curve.own else 0.0
        parts = [
            base + steps * hop + passed / (self.bandwidth_bytes_per_s * efficiency)
            for base, hop, efficiency in zip(curve.base, curve.hop, curve.efficiency, strict=True)
        ]
        parts[0] += curve.growth * math.log2(1.0 + size_bytes / 4096.0)
        smallest = min(parts[0], parts[1] + own, parts[2] + own)
        ratios = (parts[0] / smallest, (parts[1] + own) / smallest, (parts[2] + own) / smallest)
        total = smallest * sum(ratio**-SHARPNESS for ratio in ratios) ** (-1.0 / SHARPNESS)
        last = passed / (self.bandwidth_bytes_per_s * curve.efficiency[-1]) + own
        fluid = max(min(last, total) * self.stretch, size_bytes * self.floor_s)
        return max(0.0, total - min(last, total)), fluid
