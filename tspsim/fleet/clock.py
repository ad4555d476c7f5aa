"""The fleet on a clock: jobs are submitted, wait, get nodes, run and leave.

SimPy keeps the time. What waits repeatedly is a process (arrivals, failures, repairs). The end of a job is an event
with a callback, since a process would cost a generator per wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import simpy

from ..base.errors import TspsimError
from .dispatcher import JobDispatcher
from .jobs import FleetJob
from .life import Life, Spells
from .nodes import Nodes
from .occupancy import Occupancy
from .placements import Placement
from .running_job import RunningJob
from .schedulers import JobScheduler
from .waiting import Waiting

#: Priority after everything else at an instant.
LATE = 2


class Fleet:
    """Nodes and jobs on one clock.

    Parameters
    ----------
    jobs
        Jobs by number, in order of submission.
    restart_s
        Seconds from nodes to the first step of a restarted job; reading its checkpoint is added.
    horizon_s
        End of the simulation; None: when all jobs are done.
    """

    def __init__(
        self,
        jobs: Sequence[FleetJob],
        nodes: Nodes,
        scheduler: JobScheduler,
        placement: Placement,
        *,
        random: np.random.Generator,
        restart_s: float = 0.0,
        horizon_s: float | None = None,
    ) -> None:
        self.env = simpy.Environment()
        self.jobs, self.nodes = list(jobs), nodes
        self.placement, self.random = placement, random
        self.restart_s, self.horizon_s = restart_s, horizon_s
        self.dispatcher = JobDispatcher(nodes, Waiting(scheduler.rank), self._launch, self._halt)
        self.lives = [Life() for _ in jobs]
        self.occupancy, self.spells = Occupancy(nodes, self.dispatcher.queue), Spells()
        self.ended_s = 0.0
        #: Numbers of jobs that ran at the end of the simulation.
        self.cut_off: set[int] = set()
        self._schedule = scheduler.open()
        self._policy = scheduler
        self._due = False
        self._stop = self.env.event()
        self._unfinished = len(jobs)
        self._unsubmitted = len(jobs)
        #: Jobs that hang because a node of theirs failed.
        self.hung: list[RunningJob] = []
        #: Entry → number of its jobs that are not done.
        self._open: dict[int, int] = {}
        for job in jobs:
            self._open[job.entry] = self._open.get(job.entry, 0) + 1
        self._dependent: dict[int, list[FleetJob]] = {}
        #: Called with the fleet after an instant in which running jobs changed.
        self.listeners: list[Callable[[Fleet], None]] = []
        #: Processes that may bring nodes back: a fleet that waits for them is not stuck.
        self.repairs = 0
        #: Numbers of jobs that wait for another entry, and of those still to come.
        self._held: set[int] = set()
        self._to_come = range(len(jobs))
        #: Numbers of jobs that were withdrawn before they ran.
        self.withdrawn: set[int] = set()

    def run(self) -> None:
        """Runs until all jobs are done, or to the horizon.

        Raises
        ------
        TspsimError
            The scheduler never starts some waiting jobs.
        """
        if not self._unfinished:
            return
        self.occupancy.record(self.env.now)
        self.env.process(self._submit(tuple(self.jobs)))
        if self.horizon_s is not None:
            self._at(self.horizon_s, lambda _: self._stop.succeed())
        self.env.run(until=self._stop)
        self.occupancy.account(self.env.now)
        for run in list(self.dispatcher.running.values()):
            assert isinstance(run, RunningJob)
            self.cut_off.add(run.job.number)
            self._leave(run, "cut off")
        self.ended_s = self.env.now

    def _at(self, when_s: float, call: Callable[[simpy.Event], object], priority: int = 1) -> simpy.Event:
        """Schedules a callback."""
        event = self.env.event()
        event._ok, event._value = True, None
        event.callbacks.append(cast("Any", call))
        self.env.schedule(event, priority=cast("Any", priority), delay=max(0.0, when_s - self.env.now))
        return event

    def changed(self) -> None:
        """Calls the scheduler at the end of this instant."""
        if not self._due:
            self._due = True
            self._at(self.env.now, self._dispatch, LATE)

    # Events.

    def _submit(self, jobs: Sequence[FleetJob]) -> Generator[simpy.Event, Any, None]:
        for job in jobs:
            if job.submit_s > self.env.now:
                yield self.env.timeout(job.submit_s - self.env.now)
            self.occupancy.account(self.env.now)
            self._unsubmitted -= 1
            self._to_come = self._to_come[1:]
            if job.after is not None and self._open.get(job.after, 0):
                self._dependent.setdefault(job.after, []).append(job)
                self._held.add(job.number)
                continue
            self.dispatcher.queue.add(job)
            self.changed()

    def hold(self) -> None:
        """Announces further jobs: the fleet is not done before :meth:`release`."""
        self._unfinished += 1
        self._unsubmitted += 1

    def release(self) -> None:
        """Reverses :meth:`hold`."""
        self._unsubmitted -= 1
        self._finish()

    def add(self, job: FleetJob) -> FleetJob:
        """Submits one more job now, and returns it with its number."""
        self.occupancy.account(self.env.now)
        job = replace(job, number=len(self.jobs))
        self.jobs.append(job)
        self.lives.append(Life())
        self._unfinished += 1
        self._open[job.entry] = self._open.get(job.entry, 0) + 1
        self.dispatcher.queue.add(job)
        self.changed()
        return job

    def retire(self, job: FleetJob) -> None:
        """Withdraws a waiting job, or ends a running one as done."""
        self.occupancy.account(self.env.now)
        run = self.dispatcher.running.get(job.number)
        if isinstance(run, RunningJob):
            self._leave(run, "done")
        else:
            self.dispatcher.queue.remove(job)
        life = self.lives[job.number]
        if life.started_s is None:
            self.withdrawn.add(job.number)
        else:
            life.ended_s = self.env.now
        self._finish_of(job)
        self.changed()

    def _finish_of(self, job: FleetJob) -> None:
        """Counts a finished job, and releases jobs that wait for its entry."""
        self._open[job.entry] -= 1
        if not self._open[job.entry]:
            for waiting in self._dependent.pop(job.entry, ()):
                self._held.discard(waiting.number)
                self.dispatcher.queue.add(waiting)
        self._finish()

    def _finish(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            # After one more call of the scheduler, so that the last row is an empty fleet.
            self.changed()
            self._at(self.env.now, lambda _: None if self._stop.triggered else self._stop.succeed(), LATE + 1)

    def _dispatch(self, _event: simpy.Event) -> None:
        self._due = False
        dispatcher = self.dispatcher
        self.occupancy.account(self.env.now)
        dispatcher.now_s = self.env.now
        self._schedule(dispatcher)
        if (
            dispatcher.queue
            and not dispatcher.running
            and not self._unsubmitted
            and not self.repairs
            and not self.nodes.down
        ):
            problem = (
                f"{len(dispatcher.queue)} jobs wait for ever, {dispatcher.queue[0].name} first, and all nodes are empty"
            )
            raise TspsimError(f"{problem}: the scheduler '{self._policy.name}' does not start them")
        for listener in self.listeners:
            listener(self)
        self.occupancy.record(self.env.now)

    def _launch(self, job: FleetJob, size: int) -> RunningJob:
        now, life = self.env.now, self.lives[job.number]
        if job.gpus:
            node = self.placement.choose_part(self.nodes, job.gpus, self.random)
            self.nodes.take_part(node, job.gpus)
            taken: tuple[int, ...] = (node,)
        else:
            count = job.sizes[size]
            taken = tuple(self.placement.choose(self.nodes, count, self.random))
            if len(taken) != count:
                problem = f"job {job.name} was given {len(taken)} nodes of {count}"
                raise TspsimError(f"{problem}: the placement '{self.placement.name}' is wrong")
            self.nodes.take(taken)
        self.occupancy.hold(job, job.gpus_at(len(taken), self.nodes.gpus))
        begins_again = life.started_s is not None
        limit_s = job.limit_s if size == 0 else job.limit_s * job.work_s[size] / job.work_s[0]
        run = RunningJob(job, taken, now, now + limit_s * life.left, size, life)
        if begins_again:
            run.ready_s = run.since_s = now + self.restart_s + run.pace.read_s
            run.expected_s += run.ready_s - now
            life.restarts += 1
        else:
            life.started_s = now
            run.ready_s = run.since_s = now + run.pace.start_s
        self._plan_end(run)
        return run

    def _plan_end(self, run: RunningJob) -> None:
        """Schedules the job's end at its current rate."""
        if run.rate <= 0.0:
            run.end = None
            return
        run.end = self._at(max(run.since_s, self.env.now) + run.left_s / run.rate, lambda event: self._done(run, event))

    def set_speed(self, run: RunningJob, why: str, share: float) -> None:
        """Sets one of a job's speeds from now on; the lost work is charged to ``why``."""
        if share == run.speeds.get(why, 1.0):
            return
        run.advance(self.env.now)
        run.slow(why, share)
        if not run.hung:
            self._plan_end(run)

    def _done(self, run: RunningJob, event: simpy.Event) -> None:
        if run.end is not event or run.hung:
            return
        self.occupancy.account(self.env.now)
        self._leave(run, "done")
        job = run.job
        self.lives[job.number].ended_s = self.env.now
        self._finish_of(job)
        self.changed()

    def _leave(self, run: RunningJob, why: str) -> None:
        """A job gives its nodes back."""
        now, job = self.env.now, run.job
        run.end = None
        if run.hung:
            self.hung.remove(run)
        gpus = job.gpus_at(len(run.nodes), self.nodes.gpus)
        run.close(now, gpus, why)
        self.dispatcher.left(run)
        self.occupancy.hold(job, -gpus)
        if job.gpus:
            self.nodes.give_part(run.nodes[0], job.gpus)
        else:
            self.nodes.give(run.nodes)
        self.spells.job.append(job.number)
        self.spells.start_s.append(run.began_s)
        self.spells.end_s.append(now)
        self.spells.nodes.append(run.nodes)
        self.spells.why.append(why)

    def hang(self, run: RunningJob, notice_s: float, why: str) -> None:
        """Stops a job's work; after ``notice_s`` it gives its nodes back and waits again."""
        run.advance(self.env.now)
        run.hung_s, run.end = self.env.now, None
        self.hung.append(run)

        def noticed(_event: simpy.Event) -> None:
            if self.dispatcher.running.get(run.job.number) is run:
                self.occupancy.account(self.env.now)
                self._leave(run, why)
                self.dispatcher.queue.add(run.job)
                self.changed()

        self._at(self.env.now + notice_s, noticed)

    def state_of(self, job: FleetJob) -> str:
        """State of a job after the run."""
        if self.lives[job.number].ended_s is not None:
            return "done"
        if job.number in self.withdrawn:
            return "withdrawn"
        if job.number in self.cut_off:
            return "running"
        if job.number in self._to_come:
            return "to come"
        return "held" if job.number in self._held else "waiting"

    def account(self) -> None:
        """Accounts for the time since the last change, before another one."""
        self.occupancy.account(self.env.now)

    def _halt(self, running: RunningJob) -> None:
        """Preempts a job; it waits again."""
        assert isinstance(running, RunningJob)
        self._leave(running, "stopped")
        self.dispatcher.queue.add(running.job)
