"""The longest path through the tasks of a step: every stage's task for every micro-batch, with its dependencies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...base.memo import once
from ...base.quick import replace
from ...parallel import Job
from ...parallel.interleave import EXCHANGE
from ...steps import BACKWARD, FORWARD, Task
from .walk import NEVER, RECEIVE, SEND, TimedTask, Walk, in_pieces_s, walk

Floats = NDArray[np.float64]
#: Micro-batches per stage that are walked: filling a pipeline takes fewer than two per stage, draining too.
ROUNDS = 6


@dataclass(frozen=True)
class TaskPart:
    """A task with its walks, and the seconds that its layers, and the rest of it, occupy each link near the rank."""

    task: TimedTask
    outside_s: Floats
    layers_s: Floats

    @once
    def busy(self) -> Walk:
        """The walk from idle kernels, with all inputs present."""
        return walk(self.task)

    @once
    def arriving(self) -> Walk:
        """The walk from idle kernels, at the arrival of the neighbouring stage's input."""
        return walk(self.task, arrivals={RECEIVE: 0.0})

    @once
    def first(self) -> Walk:
        """The walk from idle kernels, with nothing issued before."""
        return walk(self.task, from_zero=True)

    @once
    def apart_s(self) -> float:
        """Seconds of the task if another task runs between its pieces."""
        return in_pieces_s(self.task, EXCHANGE)

    @once
    def moved_s(self) -> Floats:
        return self.outside_s + self.layers_s

    def with_layers(self, layers: int) -> TaskPart:
        """This task of one layer, with ``layers`` layers."""
        return TaskPart(self.task.with_layers(layers), self.outside_s, layers * self.layers_s)


def role_of(role: str, kind: str) -> str:
    """Role of a message of one of two interleaved tasks."""
    return f"{role} {kind}"


@dataclass(frozen=True)
class Pair:
    """An interleaved forward and backward, with its walks; both need input from a neighbouring stage."""

    task: TimedTask

    @once
    def busy(self) -> Walk:
        """The walk from idle kernels, with all inputs present."""
        return self._arriving("")

    @once
    def arriving(self) -> Mapping[str, Walk]:
        """The walks from idle kernels at the arrival of the forward's, or the backward's, input."""
        return {kind: self._arriving(kind) for kind in (FORWARD, BACKWARD)}

    def _arriving(self, late: str) -> Walk:
        arrivals = {role_of(RECEIVE, kind): 0.0 if kind == late else NEVER for kind in (FORWARD, BACKWARD)}
        return walk(self.task, arrivals=arrivals)

    @staticmethod
    def sent_s(path: Walk, kind: str) -> float:
        """Seconds until the output of the forward, or the backward, is ready."""
        return path.ready_s.get(role_of(SEND, kind), path.end_s)


@dataclass(frozen=True)
class Stage:
    """The tasks of one stage in a step.

    ``first`` and ``last`` are the first and last task, of chunks ``own`` and ``last_own``; ``pairs`` are interleaved
    tasks of two chunks.
    """

    forward: tuple[TaskPart, ...]
    backward: tuple[TaskPart, ...]
    weights: tuple[TaskPart, ...]
    first: TaskPart
    last: TaskPart
    own: int = 0
    last_own: int = 0
    pairs: Mapping[tuple[int, int], Pair] = field(default_factory=dict)

    def part(self, task: Task) -> TaskPart:
        """A task in the middle of a step."""
        kinds = {FORWARD: self.forward, BACKWARD: self.backward}
        return kinds.get(task.kind, self.weights)[task.chunk]

    def busy_s(self, tasks: Sequence[Task]) -> float:
        """Seconds of tasks in the middle of a step, in order or interleaved, if nothing has to be waited for."""
        total_s, number = 0.0, 0
        while number < len(tasks):
            task = tasks[number]
            if task.beside:
                total_s += self.pairs[task.chunk, tasks[number + 1].chunk].busy.end_s
                number += 2
            else:
                total_s += self.part(task).busy.end_s
                number += 1
        return total_s

    @property
    def turn_s(self) -> float:
        """Seconds of one micro-batch in the middle of a step, if nothing has to be waited for."""
        return sum(part.busy.end_s for part in (*self.forward, *self.backward, *self.weights))


def longest_path(job: Job, stages: Sequence[Stage], message_s: float) -> tuple[float, float]:
    """The longest path through all tasks of a step, or one hardly shorter: its end, and that of the first stage's
    kernels.

    Of many micro-batches, :data:`ROUNDS` per stage are walked. The others are inserted in the middle of the slowest
    stage: a path that reaches it can pass through them and then continue, with later micro-batches renumbered.
    """
    most = ROUNDS * job.plan.pp
    if job.micro_batches <= most:
        return _walked(job, stages, message_s)
    few = most + job.micro_batches % job.plan.pp
    short = replace(job, work=replace(job.work, sequences=few * job.sequences))
    if any(stage.pairs for stage in stages):
        # The micro-batches left out, with each pair of chunks as often as it meets.
        more_s = [
            here.busy_s(job.tasks(number)) - here.busy_s(short.tasks(number)) for number, here in enumerate(stages)
        ]
        longest = max(range(len(stages)), key=more_s.__getitem__)
        return _walked(short, stages, message_s, longest, more_s[longest])
    slowest = max(range(len(stages)), key=lambda stage: stages[stage].turn_s)
    # With micro-batches from both ends, each meets one of a stage's chunks.
    left = (job.micro_batches - few) / (2 if job.placement.both_ways else 1)
    step_s, first_s = _walked(short, stages, message_s, slowest, left * stages[slowest].turn_s)
    if slowest and not job.training and job.plan.vpp == 1:
        # Nothing returns to the first stage, which passes through the others at its own pace.
        first_s += left * stages[0].turn_s
    return step_s, first_s


def around_last(job: Job, stages: Sequence[Stage], message_s: float) -> tuple[float, float] | None:
    """Idle seconds of the last stage: until the first micro-batch reaches it, and after it has sent its last gradients
    until the first stage is done with them.

    None if it does not wait at the start; 0 at the end if something else ends the step.
    """
    depth = job.plan.pp
    if depth == 1 or not job.placement.one_way:
        return None
    lead_s = tail_s = 0.0
    for stage in stages[:-1]:
        lead_s += stage.first.arriving.sent_s + message_s
    ends = [job.tasks(stage)[-1] for stage in range(depth)]
    if all(task[:3] == (BACKWARD, job.micro_batches - 1, 0) for task in ends):
        for stage in reversed(stages[1:-1]):
            tail_s += message_s + stage.backward[0].arriving.sent_s
        tail_s += message_s + stages[0].last.arriving.last_s
    return lead_s, tail_s


def _walked(
    job: Job, stages: Sequence[Stage], message_s: float, slowest: int = 0, between_s: float = 0.0
) -> tuple[float, float]:
    """The longest path through every task, in a runnable order; ``between_s`` passes in the middle of ``slowest``."""
    depth, width, placement = job.plan.pp, job.plan.vpp, job.placement
    orders = [job.tasks(stage) for stage in range(depth)]
    free_s, step_s = [0.0] * depth, 0.0
    ready: dict[tuple[str, int, int], float] = {}
    position = [0] * depth
    waiting = deque(range(depth))

    def arrival_s(task: Task, stage: int) -> float:
        """Arrival of a task's input from a neighbour; infinite while unknown."""
        place = placement.place_of(task.chunk, stage, depth)
        source = place - 1 if task.kind == FORWARD else place + 1 if task.kind == BACKWARD else -1
        if source not in placement.met(place, depth, width):
            return NEVER
        sent_s = message_s if placement.stage_of(source, depth) != stage else 0.0
        return ready.get((task.kind, task.micro_batch, source), math.inf) + sent_s

    def done(task: Task, stage: int, at_s: float) -> None:
        place = placement.place_of(task.chunk, stage, depth)
        ready[task.kind, task.micro_batch, place] = at_s
        target = place + (1 if task.kind == FORWARD else -1)
        if target in placement.met(place, depth, width):
            waiting.append(placement.stage_of(target, depth))

    while waiting:
        stage = waiting.popleft()
        here, order = stages[stage], orders[stage]
        middle, number = len(order) // 2, position[stage]
        while number < len(order):
            task, before_s = order[number], free_s[stage]
            together = order[number : number + 1 + task.beside]
            arrivals = [arrival_s(visit, stage) for visit in together]
            if max(arrivals) == math.inf:
                break
            if task.beside:
                pair = here.pairs[task.chunk, together[1].chunk]
                came = zip(together, arrivals, strict=True)
                paths = [(at_s, pair.arriving[visit.kind]) for visit, at_s in came if at_s > NEVER]
                paths.append((before_s, pair.busy))
                free_s[stage] = max(at_s + path.end_s for at_s, path in paths)
                for visit in together:
                    done(visit, stage, max(at_s + pair.sent_s(path, visit.kind) for at_s, path in paths))
                step_s = max(step_s, *(at_s + path.last_s for at_s, path in paths))
            else:
                last, (at_s,) = number == len(order) - 1, arrivals
                part = here.last if last else here.part(task) if number else here.first
                free_s[stage] = max(before_s + part.busy.end_s, at_s + part.arriving.end_s)
                done(task, stage, max(before_s + part.busy.sent_s, at_s + part.arriving.sent_s))
                if not number:
                    free_s[stage] = max(free_s[stage], part.first.end_s)
                if last:
                    step_s = max(step_s, before_s + part.busy.last_s, at_s + part.arriving.last_s)
            if stage == slowest and number <= middle < number + len(together):
                free_s[stage] += between_s
            number += len(together)
        position[stage] = number
    return max(step_s, *free_s), free_s[0]
