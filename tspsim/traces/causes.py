"""The causes of the difference between a measured and a simulated step: kernels, transfers, host, or schedule.

The same program runs three times: as predicted, with the measured times of kernels, and with those of transfers too.
The first replacement gives the share of the kernels, the second that of the transfers. The rest is split by the
device's work: more idle time is the host's, more work (less overlap than in the program) the schedule's. The four
causes add up to the whole difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .simulated import RankTimeline, replay


@dataclass(frozen=True)
class Causes:
    """Seconds by which each cause makes the measured step longer than the simulated one (negative: shorter)."""

    kernels_s: float
    collectives_s: float
    host_s: float
    schedule_s: float

    @property
    def total_s(self) -> float:
        return self.kernels_s + self.collectives_s + self.host_s + self.schedule_s

    def to_json(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("kernels_s", "collectives_s", "host_s", "schedule_s")}


def causes_of(
    lane: RankTimeline,
    kernels: Mapping[int, float],
    transfers: Mapping[int, float],
    *,
    simulated_s: float,
    measured_s: float,
    measured_busy_s: float,
) -> Causes:
    """Split ``measured_s - simulated_s``.

    Parameters
    ----------
    kernels, transfers
        Measured seconds of the lane's instructions.
    measured_busy_s
        Time in which at least one kernel of the measured step ran.
    """
    first, _ = replay(lane, {})
    second, _ = replay(lane, kernels)
    third, busy = replay(lane, {**kernels, **transfers})
    rest = measured_s - simulated_s - (third - first)
    # Idle time of the program with the measured times, the host's time between steps included.
    idle = simulated_s + third - first - busy
    host = (measured_s - measured_busy_s) - idle
    return Causes(second - first, third - second, host, rest - host)
