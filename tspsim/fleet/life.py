"""Accounts of every job, kept during the simulation."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

#: Causes of slow work, relative to running alone on neighbouring nodes, in the order of accounting.
SLOWER = ("placement", "neighbours", "power")
#: Causes of lost GPU-hours of jobs, in the order of a waterfall.
OF_JOBS = ("failed", "restarting", "redone", "checkpointing", *SLOWER, "exposed_communication")
#: Causes of GPU-hours without a job.
OF_NODES = ("empty", "fragmented", "queue_blocked", "spare", "failed")
#: All causes, in the order of the answer.
LOSSES = ("empty", "fragmented", "queue_blocked", "spare", *OF_JOBS)


@dataclass(slots=True)
class Life:
    """The account of one job. Seconds are wall-clock; ``gpu_s`` are seconds times GPUs.

    Attributes
    ----------
    started_s, ended_s
        Time of its first start, and of its end; None before.
    ran_s
        Seconds on nodes.
    lost_s
        Lost seconds of ``ran_s``, by :data:`OF_JOBS`.
    gpu_s
        GPU-seconds on nodes.
    worked_s, advanced_s
        Seconds at work, and the seconds that the same work takes alone.
    nodes
        Its last number of nodes; 0 before.
    """

    started_s: float | None = None
    ended_s: float | None = None
    restarts: int = 0
    ran_s: float = 0.0
    gpu_s: float = 0.0
    worked_s: float = 0.0
    advanced_s: float = 0.0
    left: float = 1.0
    nodes: int = 0
    lost_s: dict[str, float] = field(default_factory=dict)

    def lose(self, part: str, seconds: float) -> None:
        if seconds:
            self.lost_s[part] = self.lost_s.get(part, 0.0) + seconds

    @property
    def slowdown(self) -> float:
        """Time at work over the time of the same work alone, at least 1."""
        slower_s = sum(self.lost_s.get(why, 0.0) for why in SLOWER)
        return self.worked_s / (self.worked_s - slower_s) if slower_s else 1.0

    @property
    def productive_s(self) -> float:
        """Seconds of lasting work, with waits for communication."""
        return self.ran_s - sum(seconds for part, seconds in self.lost_s.items() if part != "exposed_communication")


@dataclass
class Series:
    """The fleet over time: one row per instant of change, valid until the next."""

    at_s: array[float] = field(default_factory=lambda: array("d"))
    #: GPUs that jobs hold.
    allocated: array[float] = field(default_factory=lambda: array("d"))
    #: Waiting jobs, and nodes that are down.
    waiting: array[float] = field(default_factory=lambda: array("d"))
    down: array[float] = field(default_factory=lambda: array("d"))
    #: Watts of the machines, without the building.
    watts: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class Spells:
    """Intervals of jobs on nodes, in order of their ends."""

    job: array[int] = field(default_factory=lambda: array("q"))
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    nodes: list[tuple[int, ...]] = field(default_factory=list)
    #: Why it ended: done, failed, stopped, or cut off at the end of the simulation.
    why: list[str] = field(default_factory=list)
