"""Fair share: the user who has used least goes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from ..dispatcher import JobDispatcher
from ..durations.base import Span
from ..jobs import FleetJob
from .base import JobScheduler
from .easy import backfill_behind


class FairShare(JobScheduler):
    """The user whose jobs have used the fewest GPU-hours goes first; usage counts half after ``half_life``. Jobs of one
    user go in order of submission. Behind the first job that does not fit, others start as in EASY backfill. A started
    job is charged with its expected use, so that a burst is no advantage.

    References
    ----------
    Kay and Lauder 1988, CACM 31(1); Slurm's priority/multifactor plugin (``PriorityDecayHalfLife``, 7 days).
    """

    name = "fair_share"
    starvation_free = True
    half_life: Span = Field(7 * 86_400.0, description="time after which use counts half")

    def open(self) -> Callable[[JobDispatcher], None]:
        used: dict[str, float] = {}
        charged: set[int] = set()
        last_s = 0.0

        def decayed(now_s: float) -> None:
            nonlocal last_s
            factor = 0.5 ** ((now_s - last_s) / self.half_life)
            for user in used:
                used[user] *= factor
            last_s = now_s

        def charge(dispatcher: JobDispatcher, job: FleetJob) -> None:
            if job.number not in charged:
                charged.add(job.number)
                wide = job.gpus_at(job.nodes, dispatcher.nodes.gpus)
                used[job.user] = used.get(job.user, 0.0) + wide * job.limit_s

        def dispatch(dispatcher: JobDispatcher) -> None:
            decayed(dispatcher.now_s)
            while dispatcher.queue:
                first: dict[str, FleetJob] = {}
                for job in dispatcher.queue:
                    first.setdefault(job.user, job)
                job = min(
                    first.values(), key=lambda waiting: (used.get(waiting.user, 0.0), waiting.submit_s, waiting.number)
                )
                if not dispatcher.fits(job):
                    for other in backfill_behind(dispatcher, job):
                        charge(dispatcher, other)
                    return
                dispatcher.start(job)
                charge(dispatcher, job)

        return dispatch

    def rank(self, job: FleetJob) -> tuple[Any, ...]:
        return (job.submit_s,)

    def in_words(self) -> str:
        return f"by fair share of users (half-life {self.half_life / 86_400.0:.3g} days) with EASY backfill"


JobScheduler.registry.register(FairShare)
