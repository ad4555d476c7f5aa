"""Why a measured step takes longer or shorter than the simulated one: kernels, transfers, host, or schedule.

Three runs of the same program: as predicted; with the measured times of kernels put in; with those of transfers too.
What the first replacement changes is the kernels' share, what the second changes the transfers'. What then remains
between the program and the measurement is told apart by whether the device worked: longer idle is the host's, longer
work (less overlap than the program has) the schedule's. The four add up to the whole difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .simulated import RankTimeline, replay


@dataclass(frozen=True)
class Causes:
    """Seconds by which each makes the measured step longer than the simulated one (negative: shorter)."""

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
        Measured seconds of instructions of the lane.
    measured_busy_s
        How long any kernel of the measured step was at work.
    """
    first, _ = replay(lane, {})
    second, _ = replay(lane, kernels)
    third, busy = replay(lane, {**kernels, **transfers})
    rest = measured_s - simulated_s - (third - first)
    # Idle of the program that is left in its own end, such as the host's time between steps.
    idle = simulated_s + third - first - busy
    host = (measured_s - measured_busy_s) - idle
    return Causes(second - first, third - second, host, rest - host)
