"""The longest path through the tasks of a step: what every stage does for every micro-batch, and what it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..parallel import Job
from ..steps import BACKWARD, FORWARD
from .walk import NEVER, TimedTask, Walk, walk

Floats = NDArray[np.float64]
#: Micro-batches a stage that are walked: the start of a pipeline takes fewer than two a stage, and so does its end.
ROUNDS = 6


@dataclass(frozen=True)
class Part:
    """A task with its walks, and the seconds that its layers, and the rest of it, occupy each link near the rank."""

    task: TimedTask
    outside_s: Floats
    layers_s: Floats

    @cached_property
    def busy(self) -> Walk:
        """Kernels free and all that it needs here."""
        return walk(self.task)

    @cached_property
    def arriving(self) -> Walk:
        """Kernels free, and what it needs from the neighbouring stage just arrived."""
        return walk(self.task, arrival_s=0.0)

    @cached_property
    def first(self) -> Walk:
        """Kernels free, and nothing issued before."""
        return walk(self.task, from_zero=True)

    @cached_property
    def moved_s(self) -> Floats:
        return self.outside_s + self.layers_s

    def with_layers(self, layers: int) -> Part:
        """The task of as many layers as this one has of one."""
        return Part(self.task.with_layers(layers), self.outside_s, layers * self.layers_s)


@dataclass(frozen=True)
class Stage:
    """What one stage does in a step; ``first`` and ``last`` stand for tasks of its chunks ``own`` and ``last_own``."""

    forward: tuple[Part, ...]
    backward: tuple[Part, ...]
    weights: tuple[Part, ...]
    first: Part
    last: Part
    own: int = 0
    last_own: int = 0

    @property
    def turn_s(self) -> float:
        """One micro-batch in the middle of a step, when nothing has to be waited for."""
        return sum(part.busy.end_s for part in (*self.forward, *self.backward, *self.weights))


def longest_path(job: Job, stages: Sequence[Stage], message_s: float) -> tuple[float, float]:
    """Through all tasks of a step, or a path that is hardly shorter; its end, and that of the first stage's kernels.

    Of many micro-batches :data:`ROUNDS` a stage are walked. The others stand between, in the order of the slowest
    stage: a path that comes to its middle may go on through them, and then on its way, later ones renumbered.
    """
    most = ROUNDS * job.plan.pp
    if job.micro_batches <= most:
        return _walked(job, stages, message_s)
    few = most + job.micro_batches % job.plan.pp
    short = replace(job, work=replace(job.work, sequences=few * job.sequences))
    slowest = max(range(len(stages)), key=lambda stage: stages[stage].turn_s)
    # Where micro-batches come from both ends, each meets one of a stage's chunks.
    left = (job.micro_batches - few) / (2 if job.plan.order.both_ways else 1)
    step_s, first_s = _walked(short, stages, message_s, slowest, left * stages[slowest].turn_s)
    if slowest and not job.training and job.plan.vpp == 1:
        # Nothing comes back to the first stage, which goes through the others at its own pace.
        first_s += left * stages[0].turn_s
    return step_s, first_s


def around_last(job: Job, stages: Sequence[Stage], message_s: float) -> tuple[float, float] | None:
    """Of the last stage, before its first kernel the time in which the first micro-batch comes to it through all the
    others, and after it has sent its last gradients that until the first stage is done with them. None where it does
    not wait so at the beginning; no time at the end where something else comes last there."""
    depth = job.plan.pp
    if depth == 1 or job.plan.order.both_ways:
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
    """Through every task, in the order in which they can run; ``between_s`` goes by in the middle of one stage."""
    depth, width, both_ways = job.plan.pp, job.plan.vpp, job.plan.order.both_ways
    orders = [job.tasks(stage) for stage in range(depth)]
    free_s, step_s = [0.0] * depth, 0.0
    ready: dict[tuple[str, int, int], float] = {}
    position = [0] * depth
    waiting = deque(range(depth))
    while waiting:
        stage = waiting.popleft()
        here, order = stages[stage], orders[stage]
        for number in range(position[stage], len(order)):
            kind, micro_batch, chunk = order[number][:3]
            # Chunks of the whole model in order: this one, and the one whose result it waits for. What goes the other
            # way along the stages has an order of its own, behind that one.
            place, ends, way = chunk * depth + stage, range(depth * width), 1
            if both_ways and chunk:
                place, ends, way = 2 * depth - 1 - stage, range(depth, 2 * depth), -1
            source = place - 1 if kind == FORWARD else place + 1 if kind == BACKWARD else -1
            arrival_s = NEVER
            if source in ends:
                found = ready.get((kind, micro_batch, source))
                if found is None:
                    position[stage] = number
                    break
                arrival_s = found + message_s
            if number == len(order) - 1:
                part = here.last
            elif not number:
                part = here.first
            else:
                part = (here.forward if kind == FORWARD else here.backward if kind == BACKWARD else here.weights)[chunk]
            before_s = free_s[stage]
            free_s[stage] = max(before_s + part.busy.end_s, arrival_s + part.arriving.end_s)
            if stage == slowest and number == len(order) // 2:
                free_s[stage] += between_s
            ready[kind, micro_batch, place] = max(before_s + part.busy.sent_s, arrival_s + part.arriving.sent_s)
            if not number:
                free_s[stage] = max(free_s[stage], part.first.end_s)
            if number == len(order) - 1:
                step_s = max(step_s, before_s + part.busy.last_s, arrival_s + part.arriving.last_s)
            neighbour = stage + (way if kind == FORWARD else -way)
            waiting.append(neighbour % depth)
        else:
            position[stage] = len(order)
    return max(step_s, *free_s), free_s[0]
