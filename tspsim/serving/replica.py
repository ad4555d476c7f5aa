"""One engine on a clock: steps follow each other while there is work, and runs of equal decode steps are one event."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf

import simpy
from simpy.events import EventPriority

from .clock import LAST, LATE, ScheduledEvent, happens_by, reach
from .engine import Engine
from .late_results import LateResults, Results
from .log import StepKind, StepLog
from .policies.base import GroupsInStep
from .rank_scheduler import RankScheduler, StepPlan
from .requests import Request
from .sequence import Sequence
from .work import EachStepCost, Floats, StepCost, StepwiseCost, StepWork

#: Called with a request, the first and last prompt token that a step computes, and the end of the step.
ChunkNotice = Callable[[Request, int, int, float], None]


@dataclass(slots=True)
class EqualSteps:
    """A run of equal steps: their plans, begin and ends, and their figures for the log. The first ``logged`` steps are
    in the log already; at the end of step ``noting`` arrivals are noted (0: never)."""

    plans: list[StepPlan]
    start_s: float
    ends_s: Floats | list[float]
    steps: int
    kind: StepKind
    sequences: int
    chunk_tokens: int
    waiting: int
    logged: int = 0
    noting: int = 0


class Replica:
    """One engine: requests are submitted, steps run one after another, callbacks report results.

    A step begins when the one before has ended and something can run. A run of decode steps that are planned alike is
    one event, up to the earliest of an end, a missing block and a time at which the engine looks for requests. A
    request that arrives in between cuts the run at the end of the current step.

    Parameters
    ----------
    env
        The clock.
    engine
        The scheduler, its options and its cache.
    cost
        Seconds of a step.
    dp_size
        Attention replicas that step together (attention data parallelism), each with its own queues and cache;
        ``cost`` prices a step of one :class:`StepWork` each.
    engines
        Engines of that size that begin every step together, because one replica drafts for all.
    on_first_token, on_end
        Called with the request on its first output, and on its last.
    on_chunk
        Called for every chunk of a prompt when its step begins.
    every_step
        One event per step.

    Attributes
    ----------
    log
        Table of steps.
    """

    def __init__(
        self,
        env: simpy.Environment,
        engine: Engine,
        cost: StepCost,
        *,
        dp_size: int = 1,
        engines: int = 1,
        on_first_token: Callable[[Request], None] | None = None,
        on_end: Callable[[Request], None] | None = None,
        on_chunk: ChunkNotice | None = None,
        every_step: bool = False,
    ) -> None:
        self.env, self.engine, self.cost = env, engine, cost
        self.every_step = every_step
        self.log = StepLog()
        self._policy = engine.policy
        settings = self._policy.settings_of(engine, dp_size)
        groups = [self._policy.group(settings, self._policy.scheduler, dp_size) for _ in range(engines)]
        self._group = groups[0] if engines == 1 else GroupsInStep(groups)
        self.schedulers: tuple[RankScheduler, ...] = self._group.schedulers
        for scheduler in self.schedulers:
            scheduler.log = self.log
        self._wakes = any(type(scheduler).wake_s is not RankScheduler.wake_s for scheduler in self.schedulers)
        self._on_first_token, self._on_end, self._on_chunk = on_first_token, on_end, on_chunk
        self._each_step = cost if isinstance(cost, EachStepCost) else None
        self._stepwise = cost if isinstance(cost, StepwiseCost) else None
        self._run: EqualSteps | None = None
        #: Events of an older generation are void.
        self._generation = 0
        self._idle = True
        late = any(scheduler.late for scheduler in self.schedulers)
        self._late = LateResults(env, self._publish, cost, counts=engine.counts_on_host) if late else None
        self._notices: tuple[Callable[[], None], ...] = ()

    # --- load ------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that are not admitted."""
        if len(self.schedulers) == 1:
            return self.schedulers[0].queued
        return sum([scheduler.queued for scheduler in self.schedulers])

    @property
    def running(self) -> int:
        """Requests that are admitted and have not ended."""
        return sum([scheduler.present for scheduler in self.schedulers]) - self.waiting

    @property
    def tokens_ahead(self) -> int:
        """Tokens still to compute for present requests, prompts and answers."""
        return self.ahead_at(self.env._now)

    @property
    def now_s(self) -> float:
        """Time of the clock."""
        return self.env._now

    def ahead_at(self, time_s: float) -> int:
        """Value of :attr:`tokens_ahead` at a later time, if nothing happens but the steps of the run."""
        steps = self._steps_done(time_s)
        return sum([scheduler.tokens_ahead(steps) for scheduler in self.schedulers])

    def watch(self, notice: Callable[[], None]) -> None:
        """Calls ``notice`` whenever a request arrives or ends, and whenever a run of steps begins or is cut."""
        self._notices += (notice,)

    def _tell(self) -> None:
        for notice in self._notices:
            notice()

    @property
    def used_tokens(self) -> int:
        """Tokens of the caches in use over all attention replicas, the current step included."""
        if self._run is None:
            return sum([scheduler.used_tokens() for scheduler in self.schedulers])
        begun = self._steps_done(self.env.now) + 1
        plans = zip(self.schedulers, self._run.plans, strict=True)
        return sum([scheduler.used_tokens(begun if plan.decodes else 0) for scheduler, plan in plans])

    @property
    def capacity_tokens(self) -> int | None:
        """Tokens that the caches hold; None: no limit."""
        return None if self.engine.kv_tokens is None else self.engine.kv_tokens * len(self.schedulers)

    def remembered(self, request: Request) -> int:
        """Tokens of a prompt cached from other requests, in whichever attention replica it lands."""
        self.catch_up()
        return min([scheduler.remembered(request) for scheduler in self.schedulers])

    def catch_up(self) -> None:
        """Takes the blocks of the begun steps of a run now, so that the cache's contents are those of single steps."""
        if self._run is None:
            return
        begun = self._steps_done(self.env._now) + 1
        if begun > 1:
            for scheduler, plan in zip(self.schedulers, self._run.plans, strict=True):
                scheduler.continue_run(plan, begun)

    def on_forget(self, notice: Callable[[Hashable, int], None]) -> None:
        """Calls ``notice`` on every eviction of a run of blocks, with its content and tokens."""
        for scheduler in self.schedulers:
            scheduler.watch(notice)

    # --- arrivals -------------------------------------------------------------------------------------------

    def submit(self, request: Request, *, computed: int = 0, behind: int = 0) -> None:
        """A request arrives now.

        Parameters
        ----------
        request
            The request.
        computed
            Tokens of its prompt that were transferred, over a link or from a tier; at least one is
            computed.
        behind
            How many of them were in its own cache when the transfer began.

        Raises
        ------
        InputError
            It can never be served: its cache does not fit.
        """
        self._policy.check(self.engine, request)
        scheduler = self.schedulers[0] if len(self.schedulers) == 1 else self._group.assign(request)
        run, now_s = self._run, self.env._now
        if run is not None and run.noting and run.ends_s[run.noting - 1] < now_s:
            self._note(run)
        scheduler.submit(Sequence(request, computed, now_s, behind))
        if self._idle:
            self._idle = False
            self._at(now_s, self._begin, LAST)
        elif run is not None and run.steps > 1:
            self._cut(run, scheduler, now_s)
        if self._notices:
            self._tell()

    def _cut(self, run: EqualSteps, scheduler: RankScheduler, now_s: float) -> None:
        """The run ends where the scheduler looks for arrivals."""
        under_way = bisect_left(run.ends_s, now_s, 0, run.steps) + 1
        steps = scheduler.seen_after(under_way)
        if steps is None:
            return
        if scheduler.notes and under_way < run.steps:
            run.noting = under_way
        if steps < run.steps:
            run.steps = steps
            self._at(float(run.ends_s[steps - 1]), self._settle)

    def _note(self, run: EqualSteps) -> None:
        """A step with arrivals is over and the run continues: its later steps have more waiting requests in the log."""
        steps, run.noting = run.noting, 0
        used = sum([scheduler.used_tokens(steps) for scheduler in self.schedulers])
        run.start_s, run.logged = self._log(run, steps, used, run.sequences), steps
        run.waiting = self.waiting
        for scheduler in self.schedulers:
            scheduler.note()

    def _log(self, run: EqualSteps, steps: int, used: int, staying: int) -> float:
        """Logs the first ``steps`` steps of a run that are not logged yet, with the tokens in use and the sequences
        that stay; returns their end."""
        end_s, more = float(run.ends_s[steps - 1]), steps - run.logged
        self.log.add(run.start_s, end_s, more, run.kind, run.sequences, run.chunk_tokens, run.waiting, used, staying)
        return end_s

    # --- steps ----------------------------------------------------------------------------------------------

    def _at(self, at_s: float, action: Callable[[], None], priority: EventPriority = LATE) -> None:
        self._generation += 1
        generation = self._generation

        def still() -> None:
            if generation == self._generation:
                action()

        ScheduledEvent(self.env, at_s, still, priority)

    def _begin(self) -> None:
        """The idle engine begins: something has arrived or is due."""
        self._next(self.env.now, fresh=True)

    def _next(self, start_s: float, fresh: bool) -> None:
        """Runs steps from now on, until another event comes before the end of one."""
        end_s = self._plan(start_s, fresh)
        while end_s is not None:
            if not reach(self.env, end_s):
                self._at(end_s, self._settle)
                return
            self._finish()
            end_s = self._plan(end_s, fresh=False)

    def _plan(self, start_s: float, fresh: bool) -> float | None:
        """Plans and starts the next step, or the next equal steps; returns their end, or None where nothing runs."""
        schedulers = self.schedulers
        for scheduler in schedulers:
            scheduler.now_s = start_s
            if self._late is not None and self._late.counted_last:
                scheduler.see()
            scheduler.open(fresh)
        plans = self._group.schedule()
        busy = _busy(plans)
        if not busy:
            seen = [scheduler.flush() for scheduler in schedulers]
            if any(seen):
                plans = self._group.schedule()
                busy = _busy(plans)
        if self._notices:
            self._tell()
        if not busy:
            if self._late is not None:
                self._late.next_begins(start_s, reads=False)
            self._run, self._idle = None, True
            wake_s = min([scheduler.wake_s() for scheduler in schedulers])
            if wake_s < inf:
                self._at(wake_s, self._begin, LAST)
            return None
        self._idle = False
        works = [scheduler.work(plan) for scheduler, plan in zip(schedulers, plans, strict=True)]
        chunk_tokens = sequences = waiting = 0
        for scheduler, plan, work in zip(schedulers, plans, works, strict=True):
            waiting += scheduler.queued
            sequences += work.sequences
            for _, tokens in plan.chunks:
                chunk_tokens += tokens
        read = any(work.chunks for work in works)
        if self._late is not None:
            self._late.next_begins(start_s, reads=read)
        if chunk_tokens == 0:
            ends_s = self._decode_ends(start_s, works, self._steps(plans))
            if self._wakes:
                wake_s = min([scheduler.wake_s() for scheduler in schedulers])
                if wake_s < inf:
                    ends_s = ends_s[: bisect_left(ends_s, wake_s) + 1]
            kind = StepKind.DECODE
        else:
            ends_s = [start_s + self.cost.seconds(works)]
            kind = (StepKind.MIXED if sequences else StepKind.PREFILL) if read else StepKind.DECODE
        if self._on_chunk is not None:
            for plan in plans:
                for entry, tokens in plan.chunks:
                    self._on_chunk(entry.request, entry.computed, entry.computed + tokens, float(ends_s[-1]))
        self._run = EqualSteps(plans, start_s, ends_s, len(ends_s), kind, sequences, chunk_tokens, waiting)
        return float(ends_s[-1])

    def _steps(self, plans: list[StepPlan]) -> int:
        """Decode steps from now on that are planned alike."""
        if self.every_step:
            return 1
        if len(plans) == 1:
            return self.schedulers[0].steady() if plans[0].again else 1
        return min([scheduler.steady() for scheduler in self.schedulers]) if all(plan.again for plan in plans) else 1

    def _decode_ends(self, start_s: float, works: list[StepWork], steps: int) -> Floats | list[float]:
        """Ends of the next decode steps."""
        if steps == 1:
            return [start_s + self.cost.seconds(works)]
        if self._each_step is None and self.engine.speculation is None:
            if self._stepwise is None:
                return start_s + self.cost.decode_ends_s(works, steps)
            taken = self._stepwise.decode_each_s(works, steps)
            taken[0] += start_s
            return taken.cumsum()
        advances = [scheduler.decoders.advances(steps) for scheduler in self.schedulers]
        if self._each_step is not None:
            seconds = self._each_step.decode_steps_s(works, advances)
        else:
            cost = self.cost
            later = zip(*advances, strict=True)
            seconds = (cost.seconds([w.later(n) for w, n in zip(works, advance, strict=True)]) for advance in later)
        # Nothing happens before the next event of the clock: steps up to it run for sure.
        horizon_s, ends_s, end_s = self.env.peek(), [], start_s
        for step_s in seconds:
            end_s += step_s
            ends_s.append(end_s)
            if end_s >= horizon_s:
                break
        return ends_s

    def _settle(self) -> None:
        """The run is over, and the next begins."""
        end_s = self._finish()
        now_s = self.env._now
        if not happens_by(self.env, now_s):
            self._next(end_s, fresh=False)
        else:
            ScheduledEvent(self.env, now_s, lambda: self._next(end_s, fresh=False), LAST)

    def _finish(self) -> float:
        """Completes the run and returns its end."""
        run = self._run
        assert run is not None
        if run.noting:
            self._note(run)
        self._run = None
        first: list[Sequence] = []
        ended: list[Sequence] = []
        steps, used, staying = run.steps, 0, 0
        for scheduler, plan in zip(self.schedulers, run.plans, strict=True):
            if steps > 1:
                scheduler.continue_run(plan, steps)
            used += scheduler.used_tokens(steps)
            if not plan.decodes:  # they stand still
                staying -= scheduler.decoders.count
            outs = scheduler.complete(plan, steps)
            staying += scheduler.decoders.count
            first += outs[0]
            ended += outs[1]
        if self._notices:
            self._tell()
        end_s = self._log(run, steps, used, staying)
        if self._late is None:
            self._publish((first, ended), end_s)
        else:
            self._late.ends((first, ended), run.start_s, end_s, reads=run.kind is not StepKind.DECODE)
        return end_s

    def _publish(self, results: Results, at_s: float) -> None:
        """Tells of first tokens and of ended sequences."""
        first, ended = results
        for sequence in first:
            sequence.request.first_token_s = at_s
            if self._on_first_token is not None:
                self._on_first_token(sequence.request)
        for sequence in ended:
            sequence.request.end_s = at_s
            if self._on_end is not None:
                self._on_end(sequence.request)

    def _steps_done(self, time_s: float) -> int:
        """Completed steps of the current run at a time; its last step completes with the run."""
        run = self._run
        if run is None or run.steps == 1:
            return 0
        return min(bisect_right(run.ends_s, time_s), run.steps - 1)


def _busy(plans: list[StepPlan]) -> bool:
    for plan in plans:  # noqa: SIM110 - called before every step: a generator takes three times as long
        if plan.decodes or plan.chunks:
            return True
    return False
