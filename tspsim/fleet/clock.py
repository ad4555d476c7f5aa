"""The fleet on a clock: jobs are submitted, wait, get nodes, run and leave.

SimPy keeps the time. What waits repeatedly is a process (arrivals, failures, repairs). The end of a job is an event
with a callback, since a process would cost a generator per wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from math import floor, inf, prod
from typing import Any, cast

import numpy as np
import simpy

from ..base.errors import TspsimError
from .dispatcher import JobDispatcher, Running
from .jobs import FleetJob, JobPace
from .life import OF_NODES, SLOWER, Life, Series, Spells
from .nodes import Nodes
from .placements import Placement
from .schedulers import JobScheduler
from .waiting import Waiting

#: Priority after everything else at an instant.
LATE = 2


class RunningJob(Running):
    """A job on its nodes.

    Attributes
    ----------
    size
        Index of its size.
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

    __slots__ = ("advanced_s", "end", "hung_s", "rate", "ready_s", "since_s", "size", "speeds")

    def __init__(self, job: FleetJob, nodes: tuple[int, ...], began_s: float, expected_s: float, size: int) -> None:
        super().__init__(job, nodes, began_s, expected_s)
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
        self.series, self.spells = Series(), Spells()
        #: GPU-seconds without a job, by cause.
        self.idle_gpu_s = dict.fromkeys(OF_NODES, 0.0)
        self._idle = "empty"
        self.ended_s = 0.0
        #: Numbers of jobs that ran at the end of the simulation.
        self.cut_off: set[int] = set()
        self._schedule = scheduler.open()
        self._policy = scheduler
        self._due = False
        self._stop = self.env.event()
        self._unfinished = len(jobs)
        self._unsubmitted = len(jobs)
        self._since_s = 0.0
        self._gpus_held = 0
        #: Entry → GPUs of its jobs, if any.
        self.held_by: dict[int, int] = {}
        #: Jobs that hang because a node of theirs failed.
        self.hung: list[RunningJob] = []
        #: Entry → number of its jobs that are not done.
        self._open: dict[int, int] = {}
        for job in jobs:
            self._open[job.entry] = self._open.get(job.entry, 0) + 1
        self._dependent: dict[int, list[FleetJob]] = {}
        #: Current power of the machines; 0 where no power is asked for.
        self.watts: Callable[[], float] = lambda: 0.0
        #: Called with the fleet after an instant in which running jobs changed.
        self.listeners: list[Callable[[Fleet], None]] = []
        #: Processes that may bring nodes back: a fleet that waits for them is not stuck.
        self.repairs = 0
        #: Nodes that are up and kept as spares.
        self.spares: Callable[[], int] = lambda: 0
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
        self._record()
        self.env.process(self._submit(tuple(self.jobs)))
        if self.horizon_s is not None:
            self._at(self.horizon_s, lambda _: self._stop.succeed())
        self.env.run(until=self._stop)
        self._account(self.env.now)
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
            self._account(self.env.now)
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
        self._account(self.env.now)
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
        self._account(self.env.now)
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
        self._account(self.env.now)
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
        self._idle = self._why_idle()
        self._record()

    def _why_idle(self) -> str:
        """The cause of idle GPUs until the next change: nobody waits, no waiting job fits, or a job that fits is held
        back."""
        queue, nodes = self.dispatcher.queue, self.nodes
        if not queue:
            return "empty"
        room = nodes.gpus if nodes.empty_count else max(nodes.parts.values(), default=0)
        fits = np.where(queue.gpus > 0, queue.gpus <= room, queue.nodes <= nodes.empty_count)
        return "queue_blocked" if fits.any() else "fragmented"

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
        self._hold(job, job.gpus_at(len(taken), self.nodes.gpus))
        begins_again = life.started_s is not None
        limit_s = job.limit_s if size == 0 else job.limit_s * job.work_s[size] / job.work_s[0]
        run = RunningJob(job, taken, now, now + limit_s * life.left, size)
        if begins_again:
            run.ready_s = run.since_s = now + self.restart_s + run.pace.read_s
            run.expected_s += run.ready_s - now
            life.restarts += 1
        else:
            life.started_s = now
            run.ready_s = run.since_s = now + run.pace.start_s
        self._plan_end(run)
        return run

    def _hold(self, job: FleetJob, gpus: int) -> None:
        """Counts the GPUs that a job takes, or gives back."""
        self._gpus_held += gpus
        held = self.held_by.pop(job.entry, 0) + gpus
        if held:
            self.held_by[job.entry] = held

    def _plan_end(self, run: RunningJob) -> None:
        """Schedules the job's end at its current rate."""
        if run.rate <= 0.0:
            run.end = None
            return
        left_s = self.lives[run.job.number].left * run.work_s
        run.end = self._at(max(run.since_s, self.env.now) + left_s / run.rate, lambda event: self._done(run, event))

    def set_speed(self, run: RunningJob, why: str, share: float) -> None:
        """Sets one of a job's speeds from now on; the lost work is charged to ``why``."""
        if share == run.speeds.get(why, 1.0):
            return
        self._advance(run, self.env.now)
        run.speeds[why] = share
        run.rate = prod(run.speeds[cause] for cause in SLOWER if cause in run.speeds)
        if not run.hung:
            self._plan_end(run)

    def _advance(self, run: RunningJob, until_s: float) -> None:
        """Accounts for its work up to a time."""
        if until_s <= run.since_s:
            return
        life, worked_s = self.lives[run.job.number], until_s - run.since_s
        advanced_s = worked_s * run.rate
        life.worked_s += worked_s
        life.advanced_s += advanced_s
        run.advanced_s += advanced_s
        life.left = max(0.0, life.left - advanced_s / run.work_s)
        left_s = worked_s
        for why in SLOWER:
            share = run.speeds.get(why, 1.0)
            life.lose(why, left_s * (1.0 - share))
            left_s *= share
        run.since_s = until_s

    def _done(self, run: RunningJob, event: simpy.Event) -> None:
        if run.end is not event or run.hung:
            return
        self._account(self.env.now)
        self._leave(run, "done")
        job = run.job
        self.lives[job.number].ended_s = self.env.now
        self._finish_of(job)
        self.changed()

    def _leave(self, run: RunningJob, why: str) -> None:
        """A job gives its nodes back, and its seconds are split by cause."""
        now, job = self.env.now, run.job
        life, pace = self.lives[job.number], run.pace
        run.end = None
        if run.hung:
            self.hung.remove(run)
        ran_s = now - run.began_s
        gpus = job.gpus_at(len(run.nodes), self.nodes.gpus)
        if not run.hung:
            self._advance(run, now)
        life.nodes = len(run.nodes)
        life.ran_s += ran_s
        life.gpu_s += ran_s * gpus
        stood_s = now if run.hung_s is None else run.hung_s
        life.lose("restarting", min(run.ready_s, stood_s) - run.began_s)
        life.lose("failed", now - stood_s)
        advanced_s = run.advanced_s
        if why == "done":
            life.left = 0.0
        elif why != "cut off":
            advanced_s -= self._roll_back(run)
        stalled_s = max(0.0, advanced_s) * pace.stalled
        life.lose("checkpointing", stalled_s)
        life.lose("exposed_communication", (max(0.0, advanced_s) - stalled_s) * pace.exposed)
        self.dispatcher.left(run)
        self._hold(job, -gpus)
        if job.gpus:
            self.nodes.give_part(run.nodes[0], job.gpus)
        else:
            self.nodes.give(run.nodes)
        self.spells.job.append(job.number)
        self.spells.start_s.append(run.began_s)
        self.spells.end_s.append(now)
        self.spells.nodes.append(run.nodes)
        self.spells.why.append(why)

    def _roll_back(self, run: RunningJob) -> float:
        """Rolls back to the last checkpoint; returns the lost seconds of work alone."""
        life, pace = self.lives[run.job.number], run.pace
        done_s = (1.0 - life.left) * run.work_s
        period_s = pace.every_s + pace.stall_s
        kept_s = 0.0 if period_s == inf else floor(done_s / period_s + 1e-9) * period_s
        lost_s = max(0.0, done_s - kept_s)
        life.left = 1.0 - kept_s / run.work_s
        life.advanced_s -= lost_s
        life.lose("redone", lost_s)
        return lost_s

    def hang(self, run: RunningJob, notice_s: float, why: str) -> None:
        """Stops a job's work; after ``notice_s`` it gives its nodes back and waits again."""
        self._advance(run, self.env.now)
        run.hung_s, run.end = self.env.now, None
        self.hung.append(run)

        def noticed(_event: simpy.Event) -> None:
            if self.dispatcher.running.get(run.job.number) is run:
                self._account(self.env.now)
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

    @property
    def gpus_held(self) -> int:
        """GPUs that jobs hold."""
        return self._gpus_held

    def account(self) -> None:
        """Accounts for the time since the last change, before another one."""
        self._account(self.env.now)

    def _halt(self, running: Running) -> None:
        """Preempts a job; it waits again."""
        assert isinstance(running, RunningJob)
        self._leave(running, "stopped")
        self.dispatcher.queue.add(running.job)

    # Accounting.

    def _account(self, now: float) -> None:
        """Adds GPU-seconds without a job since the last change."""
        for_s = now - self._since_s
        if for_s <= 0.0:
            return
        self._since_s = now
        nodes = self.nodes
        # Whole GPUs, so that rounding leaves nothing over where no node is down.
        free = nodes.empty_count * nodes.gpus + sum(nodes.parts.values())
        spare = self.spares() * nodes.gpus
        down = max(0, nodes.count * nodes.gpus - free - spare - self._gpus_held)
        for part, gpus in ((self._idle, free), ("spare", spare), ("failed", down)):
            self.idle_gpu_s[part] += for_s * gpus

    def _record(self) -> None:
        series = self.series
        if series.at_s and series.at_s[-1] == self.env.now:
            for column in (series.at_s, series.allocated, series.waiting, series.down, series.watts):
                column.pop()
        series.at_s.append(self.env.now)
        series.allocated.append(self._gpus_held)
        series.waiting.append(len(self.dispatcher.queue))
        series.down.append(len(self.nodes.down))
        series.watts.append(self.watts())
