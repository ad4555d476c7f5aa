"""Timed tasks from the programs of a stage: kernels at their cost, transfers at their cost on idle links."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ...base.quick import replace
from ...network import Cluster, collective, host_copy, point_to_point
from ...parallel import Job, scheme_of
from ...parallel.interleave import flat
from ...parallel.pipeline import Chunk
from ...parallel.stage_messages import GRADIENTS, message_bytes
from ...parallel.step import write_program
from ...program import Collective, Compute, Copy, Instruction, Launch, Program, Repeat, SendReceive
from ...steps import BACKWARD, FORWARD, WEIGHTS, Task
from .effort import TIMED_S, WRITTEN_S
from .groups import Floats, RankGroups
from .kernels import MIDDLE, KernelTimes, mixed, signature
from .tasks import Pair, Stage, TaskPart, role_of
from .walk import RECEIVE, SEND, Layers, TimedInstruction, TimedTask


@dataclass(frozen=True)
class _Visits(Job):
    """A job whose stages do only the given visits."""

    visits: tuple[Task, ...] = ()

    def tasks(self, stage: int) -> list[Task]:
        return list(self.visits)


class TaskParts:
    """Tasks of plans, each written and timed once."""

    def __init__(self, cluster: Cluster, kernels: KernelTimes) -> None:
        self.cluster, self.kernels = cluster, kernels
        self._moves: dict[Hashable, tuple[float, Floats]] = {}
        self._parts: dict[Hashable, TaskPart] = {}
        self._programs: dict[Hashable, Program] = {}
        self._pairs: dict[Hashable, Pair] = {}

    def stage(self, job: Job, groups: RankGroups, stage: int, whole: bool) -> Stage:
        """The tasks of a stage; ``whole``: with what is special about the first and the last task."""
        chunks, final = job.chunks(stage), job.micro_batches - 1

        def middle(kind: str) -> tuple[TaskPart, ...]:
            every = range(len(chunks))
            return tuple(self.part(job, groups, stage, chunks, Task(kind, MIDDLE, chunk)) for chunk in every)

        forward = middle(FORWARD)
        # With micro-batches from both ends, half of the stages start and end with the downward direction.
        own = int(job.placement.both_ways and 2 * stage >= job.plan.pp)
        first = self.part(job, groups, stage, chunks, Task(FORWARD, 0, own)) if whole else forward[own]
        kinds = job.step.kinds(job.order)
        if BACKWARD not in kinds:
            return Stage(forward, (), (), first, forward[-1], own, len(forward) - 1)
        backward = middle(BACKWARD)
        weights = middle(WEIGHTS) if WEIGHTS in kinds else ()
        last = (weights or backward)[own]
        if whole:
            last = self._finish(job, groups, stage, Task(WEIGHTS if weights else BACKWARD, final, own))
        return Stage(forward, backward, weights, first, last, own, own)

    def message_s(self, job: Job, groups: Sequence[RankGroups]) -> float:
        """Least seconds of a message between stages."""
        if job.plan.pp == 1:
            return 0.0
        size = round(message_bytes(replace(job, replica=0) if job.unequal else job))
        ranks = [group.rank for group in groups]
        return min(self._message(a, b, size, groups[0])[0] for a, b in itertools.pairwise(ranks))

    def part(self, job: Job, groups: RankGroups, stage: int, chunks: Sequence[Chunk], visit: Task) -> TaskPart:
        """One visit as a task."""
        unlike, chunk = mixed(job), chunks[visit.chunk]
        met = job.plan.zero if visit.micro_batch != MIDDLE or job.plan.zero >= 2 else 0
        replicas = (groups.replicas, job.plan.shard_group) if met or visit.micro_batch != MIDDLE else ()
        place = (groups.pattern, replicas)
        ends = (visit.micro_batch == 0, visit.micro_batch == job.micro_batches - 1)
        # If layers differ, chunks are equal if they have the same kinds in the same order.
        layers = tuple(job.model.kinds(chunk.first_layer, chunk.layers)) if unlike else ()
        tables = (chunk.has_embedding, chunk.has_head, layers)
        task = (signature(job), job.plan.pp > 1, visit.kind, ends, tables, met)
        shape = (*task, place)
        key = (*shape, chunk.layers)
        part = self._parts.get(key)
        if part is None:
            if unlike or job.plan.recomputed is not None or job.plan.copies:
                part = self.compile(self.kernels.write(job, stage, chunk, visit), groups)
            else:  # layers are alike: the task is written with one, which then runs as often as there are layers
                if shape not in self._parts:
                    # Groups elsewhere move the same bytes over other links.
                    alike = (*task, replicas, job.plan.rail_axes)
                    if alike not in self._programs:
                        self._programs[alike] = self.kernels.write(job, stage, replace(chunk, layers=1), visit)
                    self._parts[shape] = self.compile(self._programs[alike], groups)
                part = self._parts[shape].with_layers(chunk.layers)
            self._parts[key] = part
        return part

    def paired(self, job: Job, groups: RankGroups, stage: int, alone: Stage) -> Stage:
        """A stage with its interleaved tasks: every pair of its chunks that meet."""
        tasks, chunks = job.tasks(stage), job.chunks(stage)
        met = {(task.chunk, tasks[place + 1].chunk) for place, task in enumerate(tasks) if task.beside}
        pairs = {pair: self.pair(job, groups, stage, [chunks[index] for index in pair]) for pair in sorted(met)}
        return replace(alone, pairs=pairs)

    def pair(self, job: Job, groups: RankGroups, stage: int, chunks: Sequence[Chunk]) -> Pair:
        """The first chunk's forward interleaved with the second chunk's backward, in the middle of a step."""
        parts: list[Hashable] = []
        for chunk in chunks:
            layers = tuple(job.model.kinds(chunk.first_layer, chunk.layers)) if mixed(job) else chunk.layers
            parts += [chunk.has_embedding, chunk.has_head, layers]
        replicas = (groups.replicas, job.plan.shard_group, job.plan.zero) if job.plan.zero >= 2 else ()
        again = job.plan.recomputed, chunks[0].first_layer if job.plan.recomputed is not None else 0
        key = ("pair", signature(job), job.plan.pp > 1, groups.pattern, replicas, again, *parts)
        if key not in self._pairs:
            visits = [Task(kind, MIDDLE, 0) for kind in (FORWARD, BACKWARD)]
            alone = [flat(self.kernels.write(job, stage, *visited)) for visited in zip(chunks, visits, strict=True)]
            nothing, steps = np.zeros(groups.near), list[TimedInstruction]()
            for instruction in job.interleaving.merge(alone):
                timed = self._step(instruction, groups, nothing, 1)
                kind = BACKWARD if timed.role and instruction.name.startswith(GRADIENTS) else FORWARD
                steps.append(timed._replace(role=role_of(timed.role, kind)) if timed.role else timed)
            self.kernels.effort.add(len(steps) * (TIMED_S + WRITTEN_S))
            self._pairs[key] = Pair(TimedTask(tuple(steps)))
        return self._pairs[key]

    def _finish(self, job: Job, groups: RankGroups, stage: int, visit: Task) -> TaskPart:
        """The last visit of a step, with what follows it."""
        facts = {name: getattr(job, name) for name in Job.__dataclass_fields__}
        program = write_program(scheme_of(job.plan), _Visits(**facts, visits=(visit,)), {"pp": stage})
        return self.compile(self.kernels.counted(program), groups)

    def compile(self, program: Program, groups: RankGroups) -> TaskPart:
        """Time a program, with the transfers of a rank's groups."""
        outside_s, layers_s = np.zeros(groups.near), np.zeros(groups.near)
        items: list[TimedInstruction | Layers] = []
        for item in program.items:
            if isinstance(item, Repeat):
                # A draft's layers, behind the model's, do not scale with the model's layers.
                moved_s = outside_s if any(isinstance(before, Layers) for before in items) else layers_s
                steps = tuple([self._step(step, groups, moved_s, item.times) for step in item.body])
                items.append(Layers(steps, item.times))
            else:
                items.append(self._step(item, groups, outside_s, 1))
        timed = sum(len(item.steps) if isinstance(item, Layers) else 1 for item in items)
        self.kernels.effort.add(timed * TIMED_S)
        return TaskPart(TimedTask(tuple(items)), outside_s, layers_s)

    def occupied_s(self, program: Program, groups: RankGroups) -> Floats:
        """Seconds that the collectives of a program occupy each link near a rank."""
        occupied = np.zeros(groups.near)
        for step, times in program.counted():
            if isinstance(step, Collective):
                occupied += times * self._collective(step, groups)[1]
        return occupied

    def _step(self, instruction: Instruction, groups: RankGroups, moved_s: Floats, times: int) -> TimedInstruction:
        after, stream = instruction.after, instruction.stream
        if isinstance(instruction, Compute):
            return TimedInstruction(stream, self.kernels.kernel_s(instruction), after, not instruction.few)
        if isinstance(instruction, Launch):
            return TimedInstruction(stream, instruction.host_s, after, False)
        if isinstance(instruction, Copy):
            # A lower bound: its duration depends on what else its link carries.
            size, direction = instruction.size_bytes, instruction.direction
            alone_s = instruction.seconds or host_copy(self.cluster, groups.rank, size, direction).alone_s
            return TimedInstruction(stream, alone_s, after, False)
        if isinstance(instruction, Collective):
            seconds, occupied = self._collective(instruction, groups)
            moved_s += times * occupied
            return TimedInstruction(stream, seconds, after, False)
        assert isinstance(instruction, SendReceive)
        if not instruction.wrap or instruction.to is None or instruction.source is None:
            # A message between stages: the path through all tasks adds when it arrives and how long it takes.
            return TimedInstruction(stream, 0.0, after, False, SEND if instruction.to is not None else RECEIVE)
        ranks = groups.along(instruction.axis)
        size = len(ranks)
        pairs = (ranks[0], ranks[instruction.to % size]), (ranks[instruction.source % size], ranks[0])
        seconds = 0.0
        for sender, receiver in pairs:
            alone_s, occupied = self._message(sender, receiver, instruction.size_bytes, groups, instruction.axis)
            seconds = max(seconds, alone_s)
            moved_s += times * occupied
        return TimedInstruction(stream, seconds, after, False)

    def _collective(self, instruction: Collective, groups: RankGroups) -> tuple[float, Floats]:
        """Seconds of a collective alone, and seconds that it occupies each link near the rank."""
        ranks, tokens = groups.along(instruction.axis), instruction.tokens
        how = instruction.root, instruction.algorithm, tokens, instruction.slices
        key = (instruction.kind, instruction.size_bytes, *how, ranks)
        if key not in self._moves:
            traffic = collective(
                self.cluster,
                ranks,
                instruction.kind,
                instruction.size_bytes * instruction.slices,
                root=instruction.root,
                algorithm=instruction.algorithm,
                exchange=tokens,
            ).slice_of(instruction.slices)
            self._moves[key] = traffic.latency_s + traffic.fluid_s, groups.occupied_s(traffic, instruction.axis)
        return self._moves[key]

    def _message(
        self, sender: int, receiver: int, size_bytes: int, groups: RankGroups, axis: str = ""
    ) -> tuple[float, Floats]:
        key = (sender, receiver, size_bytes, groups.node, axis)
        if key not in self._moves:
            traffic = point_to_point(self.cluster, sender, receiver, size_bytes)
            self._moves[key] = traffic.latency_s + traffic.fluid_s, groups.occupied_s(traffic, axis)
        return self._moves[key]
