"""A job on its nodes: how far its work is, and where its seconds go."""

from __future__ import annotations

from math import floor, inf, prod

import simpy

from .jobs import FleetJob, JobPace
from .life import SLOWER, Life


class RunningJob:
    """A job on its nodes.

    Attributes
    ----------
    began_s, expected_s
        Its begin and its expected end.
    size
        Index of its size.
    life
        Its account, of this run and those before.
    ready_s
        End of its restart, when work begins.
    speeds
        Cause of a slowdown → share of its speed otherwise (:data:`tspsim.fleet.life.SLOWER`).
    rate
        Its speed, alone = 1: the product of ``speeds``.
    since_s
        Time up to which its work is accounted for.
    end
        The event of its end; a new one whenever its rate changes.
    advanced_s
        Work done in this run, in seconds of work alone.
    hung_s
        When a node of it failed, before the failure is noticed; None while it is sound.
    """

    __slots__ = (
        *("job", "nodes", "began_s", "expected_s", "life", "size", "ready_s", "since_s"),
        *("rate", "speeds", "end", "advanced_s", "hung_s"),
    )

    def __init__(
        self, job: FleetJob, nodes: tuple[int, ...], began_s: float, expected_s: float, size: int, life: Life
    ) -> None:
        self.job, self.nodes, self.began_s, self.expected_s = job, nodes, began_s, expected_s
        self.life = life
        self.size, self.ready_s, self.since_s, self.rate = size, began_s, began_s, 1.0
        self.advanced_s = 0.0
        self.speeds: dict[str, float] = {}
        self.end: simpy.Event | None = None
        self.hung_s: float | None = None

    @property
    def hung(self) -> bool:
        return self.hung_s is not None

    @property
    def pace(self) -> JobPace:
        return self.job.paces[self.size]

    @property
    def work_s(self) -> float:
        return self.job.work_s[self.size]

    @property
    def left_s(self) -> float:
        """Seconds of work that are left, alone."""
        return self.life.left * self.work_s

    def slow(self, why: str, share: float) -> None:
        """Sets one of its speeds."""
        self.speeds[why] = share
        self.rate = prod(self.speeds[cause] for cause in SLOWER if cause in self.speeds)

    def advance(self, until_s: float) -> None:
        """Accounts for its work up to a time."""
        if until_s <= self.since_s:
            return
        life, worked_s = self.life, until_s - self.since_s
        advanced_s = worked_s * self.rate
        life.worked_s += worked_s
        life.advanced_s += advanced_s
        self.advanced_s += advanced_s
        life.left = max(0.0, life.left - advanced_s / self.work_s)
        left_s = worked_s
        for why in SLOWER:
            share = self.speeds.get(why, 1.0)
            life.lose(why, left_s * (1.0 - share))
            left_s *= share
        self.since_s = until_s

    def close(self, now: float, gpus: int, why: str) -> None:
        """Splits the seconds of a job that leaves its nodes by cause."""
        life, pace = self.life, self.pace
        ran_s = now - self.began_s
        if not self.hung:
            self.advance(now)
        life.nodes = len(self.nodes)
        life.ran_s += ran_s
        life.gpu_s += ran_s * gpus
        stood_s = now if self.hung_s is None else self.hung_s
        life.lose("restarting", min(self.ready_s, stood_s) - self.began_s)
        life.lose("failed", now - stood_s)
        advanced_s = self.advanced_s
        if why == "done":
            life.left = 0.0
        elif why != "cut off":
            advanced_s -= self._roll_back()
        stalled_s = max(0.0, advanced_s) * pace.stalled
        life.lose("checkpointing", stalled_s)
        life.lose("exposed_communication", (max(0.0, advanced_s) - stalled_s) * pace.exposed)

    def _roll_back(self) -> float:
        """Rolls back to the last checkpoint; returns the lost seconds of work alone."""
        life, pace = self.life, self.pace
        done_s = (1.0 - life.left) * self.work_s
        period_s = pace.every_s + pace.stall_s
        kept_s = 0.0 if period_s == inf else floor(done_s / period_s + 1e-9) * period_s
        lost_s = max(0.0, done_s - kept_s)
        life.left = 1.0 - kept_s / self.work_s
        life.advanced_s -= lost_s
        life.lose("redone", lost_s)
        return lost_s
