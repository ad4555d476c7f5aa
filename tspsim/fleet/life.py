"""What became of every job, added up while it happens."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

#: What jobs at work are slower by than alone on neighbouring nodes, in the order in which it is accounted for.
SLOWER = ("placement", "neighbours", "power")
#: Where GPU-hours go that a job has and that do no lasting work, in the order in which a waterfall shows them.
OF_JOBS = ("failed", "restarting", "redone", "checkpointing", *SLOWER, "exposed_communication")
#: And those that no job has.
OF_NODES = ("empty", "fragmented", "queue_blocked", "spare", "failed")
#: All, in the order of the answer.
LOSSES = ("empty", "fragmented", "queue_blocked", "spare", *OF_JOBS)


@dataclass(slots=True)
class Life:
    """One job so far. Seconds are of its wall clock; ``gpu_s`` are seconds times GPUs.

    Attributes
    ----------
    started_s, ended_s
        Of its first start, and of its end; None before.
    ran_s
        On nodes, in all.
    lost_s
        Of ``ran_s``, by :data:`OF_JOBS`.
    gpu_s
        GPU-seconds that it had.
    worked_s, advanced_s
        On nodes at work, and the seconds that the same work takes alone.
    nodes
        That it had last; 0 before.
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
        """Time at work over the time that the same work takes alone, at least 1."""
        slower_s = sum(self.lost_s.get(why, 0.0) for why in SLOWER)
        return self.worked_s / (self.worked_s - slower_s) if slower_s else 1.0

    @property
    def productive_s(self) -> float:
        """Seconds of work that lasts, waits for communication included."""
        return self.ran_s - sum(seconds for part, seconds in self.lost_s.items() if part != "exposed_communication")


@dataclass
class Series:
    """The fleet over time: a row an instant in which something changed, and what held until the next."""

    at_s: array[float] = field(default_factory=lambda: array("d"))
    #: GPUs that jobs have.
    allocated: array[float] = field(default_factory=lambda: array("d"))
    #: Jobs that wait, and nodes that are down.
    waiting: array[float] = field(default_factory=lambda: array("d"))
    down: array[float] = field(default_factory=lambda: array("d"))
    #: Watts of the machines, without the building.
    watts: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class Spells:
    """Who had which nodes from when to when: a row a spell of a job on nodes, in order of their ends."""

    job: array[int] = field(default_factory=lambda: array("q"))
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    nodes: list[tuple[int, ...]] = field(default_factory=list)
    #: Why it ended: done, failed, stopped, or cut off at the end of the time that was looked at.
    why: list[str] = field(default_factory=list)
