"""Measured collectives between nodes: latencies of an algorithm's steps under three protocols, and bandwidth.

    t_p = L·base_p + s·hop_p + c·net_hop_p + F/(W·share_p)      p = LL, LL128, Simple; on AMD LL and Simple
    t_1 additionally + L·growth·log2(1 + S/4 KiB); the last additionally + sqrt(ramp·F/W)
    t   = (t_1^−6 + t_2^−6 + t_3^−6)^(−1/6)
    F   = (inside^4 + outside^4)^(1/4), of a ring max(inside, outside)

There are s steps inside nodes and c between them, with hop latencies of the library's tuner. F combines the seconds of
the busiest link inside nodes and of the busiest outside, at the efficiency of the algorithm and the fabric: a ring uses
both at once, trees and two-level algorithms alternate chunk by chunk. L and W are the fabric's factors. Two nodes that
reduce in their switches have only the last regime, with a base latency of their own. The ramp is that of a pipeline: F
in j chunks, s of them under way at once, takes F + j·a + s·F/j, which is 2·sqrt(a·s·F) more than F at the best j.
docs/collective-models.md has the study.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .schedule import Schedule, busiest_s, power_sum

if TYPE_CHECKING:
    from ..calibration import BetweenNodes, FabricFactors, TransferSpread
    from ..cluster import Cluster

#: Power of the smooth minimum of the regimes, and of the smooth maximum of the times inside and outside nodes.
SHARPNESS = 6.0
ROUNDING = 4.0


@dataclass(frozen=True, slots=True)
class Across:
    """Time of one algorithm on one group.

    ``latency_s`` and ``share`` are by regime; ``growth_s`` is of the first, ``ramp_s`` of the last. ``fluid_s`` is the
    seconds a byte at the efficiency reached, ``floor_s`` those on links at their full bandwidth.
    """

    latency_s: tuple[float, ...]
    share: tuple[float, ...]
    growth_s: float
    ramp_s: float
    fluid_s: float
    floor_s: float
    spread: TransferSpread

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Uncontended (latency, fluid part) in seconds of a collective of ``size_bytes``."""
        floor = size_bytes * self.floor_s
        fluid = max(size_bytes * self.fluid_s, floor)
        times = [latency + fluid / share for latency, share in zip(self.latency_s, self.share, strict=True)]
        if len(times) > 1:
            times[0] += self.growth_s * math.log2(1.0 + size_bytes / 4096.0)
        times[-1] += math.sqrt(self.ramp_s * fluid)
        total = power_sum(times, -SHARPNESS)
        moving = max(min(fluid, total), floor)
        return max(0.0, total - moving), moving


def across(cluster: Cluster, regimes: BetweenNodes, factors: FabricFactors | None, schedule: Schedule) -> Across:
    """Measured time of a schedule between nodes; ``factors`` are the fabric's (None: 1)."""
    protocols = cluster.node.collectives.protocols
    latency, bandwidth = (factors.latency, factors.bandwidth) if factors else (1.0, 1.0)
    within = schedule.links < cluster.layout.host_start
    inside, outside = (float(schedule.busy_s[part].max(initial=0.0)) for part in (within, ~within))
    inside += schedule.own_s
    fluid = max(inside, outside) if schedule.family == "ring" else power_sum((inside, outside), ROUNDING)
    spread = factors.spread if factors else regimes.spread
    hops = [protocol.tree if schedule.family == "tree" else protocol.ring for protocol in protocols]
    waits = [schedule.node_steps * steps.hop + schedule.net_steps * steps.net_hop for steps in hops]
    latency_s = tuple([latency * base + wait for base, wait in zip(regimes.base, waits, strict=True)])
    share: tuple[float, ...] = regimes.share
    if schedule.family == "in_switch":
        assert regimes.in_switch is not None
        latency_s, share = (latency * regimes.in_switch + waits[-1],), regimes.share[-1:]
    floor = busiest_s(cluster, schedule)
    return Across(latency_s, share, latency * regimes.growth, regimes.ramp, fluid / bandwidth, floor, spread)
