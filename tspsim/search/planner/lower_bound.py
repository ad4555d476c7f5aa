"""A time that a plan's step cannot undercut in the simulator, from one layer's program and closed forms.

A step is a graph of tasks: what a stage does for one micro-batch follows what it did before and what the neighbouring
stage sends. The bound is the longest path through it, where the time of a task is that of its rank alone
(:mod:`tspsim.search.planner.walk`): kernels at the device's fitted cost, transfers that nothing can hide at the cost
they have on free links. With equal stages it is the closed form of the schedule, (m + p − 1)·(F + B) for m
micro-batches on p stages of 1F1B and (m + (p − 1)/v)·(F + B) with v chunks a stage (Narayanan et al. 2021, §2.2), and
what follows the last task: gradients that no backward hides, their norm, the optimizer.

Kernels slow by a factor f while data moves through their device. Of the time M in which it must move (the busiest
link's work), only what falls in the gaps G between kernels is free of that, so also

    step ≥ compute + G + (M − G)·(1 − 1/f),     and     step ≥ M.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...network import Cluster, ExpertExchange, Traffic, collective, point_to_point
from ...operators import Attention, Operator
from ...parallel import Job, Mesh, scheme_of
from ...parallel.pipeline import BACKWARD, FORWARD, WEIGHTS, Chunk
from ...parallel.pipeline import Task as Visit
from ...parallel.step import Writer
from ...program import Collective, Compute, Instruction, Launch, Program, Repeat
from .walk import NEVER, RECEIVE, SEND, Layers, Step, Task, Walk, walk

Floats = NDArray[np.float64]
#: Sums of many floats in another order than the engine's may differ in the last digits.
ROUNDING = 1.0 - 1e-9
#: Number of a micro-batch that is neither the first nor the last.
MIDDLE = -1


@dataclass(frozen=True)
class _Visits(Job):
    """A job whose stages do only the visits named: a step in little."""

    visits: tuple[Visit, ...] = ()

    def tasks(self, stage: int) -> list[Visit]:
        return list(self.visits)


@dataclass(frozen=True)
class Part:
    """A task with its walks, and the seconds that its layers, and the rest of it, occupy each link near the rank."""

    task: Task
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
    """What one stage does in a step."""

    forward: tuple[Part, ...]
    backward: tuple[Part, ...]
    weights: tuple[Part, ...]
    first: Part
    last: Part


class LowerBound:
    """Bounds of plans of one model on one cluster; what plans have in common is computed once.

    Parameters
    ----------
    cluster
        Where the plans run.
    cost
        Seconds of an operator.
    peak_flops_per_s
        No kernel is faster.
    slowdown
        Factor on a kernel's time while its device moves data, at least 1.
    mixed
        The model's layers are not all alike.
    """

    def __init__(
        self,
        cluster: Cluster,
        cost: Callable[[Operator], float],
        peak_flops_per_s: float,
        slowdown: float,
        *,
        mixed: bool = False,
    ) -> None:
        self.cluster, self.cost, self.peak, self.slowdown = cluster, cost, peak_flops_per_s, slowdown
        self._seconds: dict[Operator, float] = {}
        self._floors: dict[Hashable, float] = {}
        self._moves: dict[Hashable, tuple[float, Floats]] = {}
        self._parts: dict[Hashable, Part] = {}
        self._mixed = mixed
        self._compute: dict[Hashable, float] = {}

    def floor_s(self, job: Job) -> float:
        """Kernels of a step alone, attention at the device's peak: it depends on tokens, not on how shards meet."""
        plan, work = job.plan, job.work
        key = (job.tokens, plan.tp, plan.tsp, plan.degree("ep"), plan.recomputation)
        if key not in self._floors:
            # The exchange that splits nothing has the fewest kernels.
            whole = replace(plan, degrees={**plan.degrees, "pp": 1}, vpp=1, exchange="all_gather", zero=0)
            alone = replace(job, plan=whole)
            programs = [_write(alone, 0, alone.chunks(0)[0], Visit(kind, MIDDLE, 0)) for kind in self._kinds(job)]
            self._floors[key] = sum(
                times * (operator.flops / self.peak if isinstance(operator, Attention) else self._operator_s(operator))
                for program in programs
                for step, times in _kernels(program)
                for operator in step.operators
            )
        return work.sequences // job.sequences * self._floors[key] / plan.pp * ROUNDING

    def compute_s(self, job: Job) -> float:
        """The kernels of a step alone, spread evenly over the stages; needs no mesh."""
        return job.micro_batches * self._model_s(job) / job.plan.pp * ROUNDING

    def instructions(self, job: Job, mesh: Mesh) -> int:
        """About how many a simulation runs: those of every stage's layers, and where shards meet block by block those
        of every shard, whose kernels differ."""
        parts = self._layer_parts(job, mesh)
        steps = sum(len(item.steps) for part in parts for item in part.task.items if isinstance(item, Layers))
        shards = job.plan.token_shards if job.plan.sp > 1 and job.plan.exchange == "ring" else 1
        return steps * job.model.layers * job.micro_batches * shards

    def _model_s(self, job: Job) -> float:
        """Kernels of one micro-batch through the whole model."""
        key = _signature(job)
        if key not in self._compute:
            whole = replace(job.plan, degrees={**job.plan.degrees, "pp": 1}, vpp=1, stage_layers=(), zero=0)
            alone = replace(job, plan=whole)
            chunk = alone.chunks(0)[0]
            programs = [_write(alone, 0, chunk, Visit(kind, MIDDLE, 0)) for kind in self._kinds(job)]
            self._compute[key] = sum(
                times * self._kernel_s(step) for program in programs for step, times in _kernels(program)
            )
        return self._compute[key]

    @staticmethod
    def _kinds(job: Job) -> tuple[str, ...]:
        if not job.training:
            return (FORWARD,)
        return (FORWARD, BACKWARD, WEIGHTS) if job.plan.schedule == "zb-h1" else (FORWARD, BACKWARD)

    def _kernel_s(self, kernel: Compute) -> float:
        return sum(self._operator_s(operator) for operator in kernel.operators)

    def _operator_s(self, operator: Operator) -> float:
        if operator not in self._seconds:
            self._seconds[operator] = self.cost(operator)
        return self._seconds[operator]

    def even_s(self, job: Job, mesh: Mesh) -> float:
        """Layers with what their kernels surely wait for, spread evenly over the stages, without a bubble."""
        return self._evenly_s(job, mesh)[0] * ROUNDING

    def rough_s(self, job: Job, mesh: Mesh) -> float:
        """:meth:`even_s`, or the last stage: the first micro-batch comes through a chunk of every other stage first,
        and its gradients go back through them."""
        plan, layers = job.plan, job.model.layers
        even_s, layer_s, turn_s = self._evenly_s(job, mesh)
        bubble_s = (plan.pp - 1) * (layers // (plan.pp * plan.vpp)) * turn_s
        return max(even_s, job.micro_batches * (layers // plan.pp) * layer_s + bubble_s) * ROUNDING

    def _evenly_s(self, job: Job, mesh: Mesh) -> tuple[float, float, float]:
        """A step without bubble; one layer between two others, forward and back; the same without weights put off."""
        parts = self._layer_parts(job, mesh)
        times_s = [part.busy.end_s for part in parts]
        layers = job.model.layers
        # Embedding and head: kernels of the whole model that are in no layer.
        outside_s = max(0.0, self._model_s(job) - layers * sum(part.busy.compute_s for part in parts))
        even_s = job.micro_batches * (layers * sum(times_s) + outside_s) / job.plan.pp
        return even_s, sum(times_s), sum(times_s[:2])

    def _layer_parts(self, job: Job, mesh: Mesh) -> list[Part]:
        """One layer between two others, in every kind of task."""
        chunk = Chunk(1, 1, has_embedding=False, has_head=False)
        groups, alone = _Groups(mesh, 0, self.cluster), replace(job, plan=replace(job.plan, zero=0))
        return [self._part(alone, groups, 0, (chunk,), Visit(kind, MIDDLE, 0)) for kind in self._kinds(job)]

    def outline_s(self, job: Job, mesh: Mesh) -> float:
        """A step without what replicas say to each other: alike for all ZeRO stages, and quicker to find."""
        alone = replace(job, plan=replace(job.plan, zero=0))
        return self._longest_s(alone, mesh, whole=False)

    def step_s(self, job: Job, mesh: Mesh) -> float:
        """Seconds that the simulated step takes at least."""
        return self._longest_s(job, mesh, whole=True)

    def _longest_s(self, job: Job, mesh: Mesh, *, whole: bool) -> float:
        groups = [_Groups(mesh, stage, self.cluster) for stage in range(job.plan.pp)]
        stages = [self._stage(job, groups[stage], stage, whole) for stage in range(job.plan.pp)]
        step_s, first_s = longest_path(job, stages, self._message_s(job, groups))
        return ROUNDING * max(step_s, self._interfered_s(stages[0], job.micro_batches, max(0.0, step_s - first_s)))

    def _interfered_s(self, stage: Stage, count: int, idle_s: float) -> float:
        """Kernels, the gaps between them that are sure, and what kernels lose to transfers that fall into no gap."""
        parts = (*stage.forward, *stage.backward, *stage.weights)
        kernels_s = count * sum(part.busy.compute_s for part in parts)
        gaps_s = count * sum(part.busy.gaps_s for part in parts) + idle_s
        moved = np.sum([part.moved_s for part in parts], axis=0) * count
        # The first and the last task stand in for one of the others; kernels are the same but for the optimizer's.
        moved = np.maximum(moved, moved + stage.first.moved_s - stage.forward[0].moved_s)
        replaced = (stage.weights or stage.backward)[:1]
        if replaced:
            moved = np.maximum(moved, moved + stage.last.moved_s - replaced[0].moved_s)
            kernels_s += stage.last.busy.compute_s - replaced[0].busy.compute_s
        busiest_s = float(moved.max(initial=0.0))
        return max(busiest_s, kernels_s + gaps_s + max(0.0, busiest_s - gaps_s) * (1.0 - 1.0 / self.slowdown))

    def _stage(self, job: Job, groups: _Groups, stage: int, whole: bool) -> Stage:
        """Its tasks; ``whole``: with what is special about the first and the last one."""
        chunks, final = job.chunks(stage), job.micro_batches - 1

        def middle(kind: str) -> tuple[Part, ...]:
            every = range(len(chunks))
            return tuple(self._part(job, groups, stage, chunks, Visit(kind, MIDDLE, chunk)) for chunk in every)

        forward = middle(FORWARD)
        first = self._part(job, groups, stage, chunks, Visit(FORWARD, 0, 0)) if whole else forward[0]
        if not job.training:
            return Stage(forward, (), (), first, forward[-1])
        backward = middle(BACKWARD)
        weights = middle(WEIGHTS) if job.plan.schedule == "zb-h1" else ()
        last = (weights or backward)[0]
        if whole:
            last = self._finish(job, groups, stage, Visit(WEIGHTS if weights else BACKWARD, final, 0))
        return Stage(forward, backward, weights, first, last)

    def _message_s(self, job: Job, groups: Sequence[_Groups]) -> float:
        """Seconds of a message between stages, at least."""
        if job.plan.pp == 1:
            return 0.0
        size = round(Writer(scheme_of(job.plan), job, 0, 0).message_bytes)
        ranks = [group.rank for group in groups]
        return min(self._message(a, b, size, groups[0])[0] for a, b in itertools.pairwise(ranks))

    def _part(self, job: Job, groups: _Groups, stage: int, chunks: Sequence[Chunk], visit: Visit) -> Part:
        """One visit as a task, walked."""
        chunk = chunks[visit.chunk]
        met = job.plan.zero if visit.micro_batch != MIDDLE or job.plan.zero >= 2 else 0
        place = (groups.pattern, groups.replicas if met or visit.micro_batch != MIDDLE else ())
        ends = (visit.micro_batch == 0, visit.micro_batch == job.micro_batches - 1)
        tables = (chunk.has_embedding, chunk.has_head, chunk.first_layer if self._mixed else 0)
        shape = (_signature(job), job.plan.pp > 1, visit.kind, ends, tables, met, place)
        key = (*shape, chunk.layers)
        known = self._parts.get(key)
        if known is None:
            if self._mixed:
                known = self._compile(_write(job, stage, chunk, visit), groups)
            else:  # layers are alike: the task is written with one, which then runs as often as there are layers
                if shape not in self._parts:
                    self._parts[shape] = self._compile(_write(job, stage, replace(chunk, layers=1), visit), groups)
                known = self._parts[shape].with_layers(chunk.layers)
            self._parts[key] = known
        return known

    def _finish(self, job: Job, groups: _Groups, stage: int, visit: Visit) -> Part:
        """The last visit of a step, with what follows it."""
        facts = {name: getattr(job, name) for name in Job.__dataclass_fields__}
        program = Writer(scheme_of(job.plan), _Visits(**facts, visits=(visit,)), 0, stage).write()
        return self._compile(program, groups)

    def _compile(self, program: Program, groups: _Groups) -> Part:
        outside_s, layers_s = np.zeros(groups.near), np.zeros(groups.near)
        items: list[Step | Layers] = []
        for item in program.items:
            if isinstance(item, Repeat):
                steps = tuple([self._step(step, groups, layers_s, item.times) for step in item.body])
                items.append(Layers(steps, item.times))
            else:
                items.append(self._step(item, groups, outside_s, 1))
        return Part(Task(tuple(items)), outside_s, layers_s)

    def _step(self, instruction: Instruction, groups: _Groups, moved_s: Floats, times: int) -> Step:
        after, stream = instruction.after, instruction.stream
        if isinstance(instruction, Compute):
            return Step(stream, self._kernel_s(instruction), after, True)
        if isinstance(instruction, Launch):
            return Step(stream, instruction.host_s, after, False)
        ranks = groups.along(instruction.axis)
        if isinstance(instruction, Collective):
            tokens = instruction.tokens
            key = (instruction.kind, instruction.size_bytes, instruction.root, instruction.algorithm, tokens, ranks)
            if key not in self._moves:
                traffic = collective(
                    self.cluster,
                    ranks,
                    instruction.kind,
                    instruction.size_bytes,
                    root=instruction.root,
                    algorithm=instruction.algorithm,
                    exchange=ExpertExchange(**tokens._asdict()) if tokens else None,
                )
                self._moves[key] = traffic.latency_s + traffic.fluid_s, groups.occupied_s(traffic)
            seconds, occupied = self._moves[key]
            moved_s += times * occupied
            return Step(stream, seconds, after, False)
        if not instruction.wrap or instruction.to is None or instruction.source is None:
            # A message between stages: when it comes and how long it takes is the pipeline's business.
            return Step(stream, 0.0, after, False, SEND if instruction.to is not None else RECEIVE)
        size = len(ranks)
        pairs = (ranks[0], ranks[instruction.to % size]), (ranks[instruction.source % size], ranks[0])
        seconds = 0.0
        for sender, receiver in pairs:
            alone_s, occupied = self._message(sender, receiver, instruction.size_bytes, groups)
            seconds = max(seconds, alone_s)
            moved_s += times * occupied
        return Step(stream, seconds, after, False)

    def _message(self, sender: int, receiver: int, size_bytes: int, groups: _Groups) -> tuple[float, Floats]:
        key = (sender, receiver, size_bytes, groups.node)
        if key not in self._moves:
            traffic = point_to_point(self.cluster, sender, receiver, size_bytes)
            self._moves[key] = traffic.latency_s + traffic.fluid_s, groups.occupied_s(traffic)
        return self._moves[key]


class _Groups:
    """The groups of one rank: the first on every axis of its pipeline stage."""

    def __init__(self, mesh: Mesh, stage: int, cluster: Cluster) -> None:
        self.mesh, self.cluster = mesh, cluster
        self.origin = [stage if axis == "pp" else 0 for axis in mesh.axes]
        self.rank = int(mesh.ranks[tuple(self.origin)])
        self.node = self.rank // cluster.gpus_per_node
        self._along: dict[str, tuple[int, ...]] = {}
        layout = cluster.layout
        self._blocks = [(self.node * layout.node_links, layout.node_links)]
        if cluster.fabric is not None:
            self._blocks.append((layout.host_start + self.node * 2 * layout.gpus, 2 * layout.gpus))
            self._blocks.append((layout.nic_start + self.node * 2 * layout.nics, 2 * layout.nics))
        self.near = sum(length for _, length in self._blocks)

    def along(self, axis: str) -> tuple[int, ...]:
        """Ranks of its group along an axis, itself first."""
        if axis not in self._along:
            dimensions = [self.mesh.axes.index(part) for part in self.mesh.parts(axis)]
            index = tuple(
                slice(None) if dimension in dimensions else place for dimension, place in enumerate(self.origin)
            )
            line = self.mesh.ranks[index]
            line = line.transpose([sorted(dimensions).index(dimension) for dimension in dimensions]).reshape(-1)
            # GPUs of a node are alike, so that a group within one is that of its first GPU moved on.
            inside = not self.cluster.factors and not np.any(line // self.cluster.gpus_per_node != self.node)
            self._along[axis] = tuple((line - self.rank if inside else line).tolist())
        return self._along[axis]

    @cached_property
    def pattern(self) -> Hashable:
        """Where the groups within a replica stand; equal ones move data alike."""
        axes = [axis for axis in ("tp", "tsp", "sp", "ep") if axis in self.mesh.sizes]
        return tuple((axis, self.along(axis)) for axis in axes if len(self.along(axis)) > 1)

    @property
    def replicas(self) -> Hashable:
        return self.along("dp+sp")

    def occupied_s(self, traffic: Traffic) -> Floats:
        """Seconds that each link of the rank's node and its NICs is occupied by a transfer."""
        occupied = np.zeros(self.near)
        if not traffic.links or traffic.fluid_s <= 0.0:
            return occupied
        links = np.array(traffic.links)
        busy_s = np.array(traffic.link_bytes) / self.cluster.bandwidth_bytes_per_s[links]
        busy_s *= traffic.fluid_s / busy_s.max()
        start = 0
        for first, length in self._blocks:
            near = (links >= first) & (links < first + length)
            np.add.at(occupied, start + links[near] - first, busy_s[near])
            start += length
        return occupied


def _write(job: Job, stage: int, chunk: Chunk, visit: Visit) -> Program:
    """The program of one visit alone."""
    writer = Writer(scheme_of(job.plan), job, 0, stage)
    {FORWARD: writer.forward, BACKWARD: writer.backward, WEIGHTS: writer.weights}[visit.kind](chunk, visit)
    return writer.script.program()


def _kernels(program: Program) -> Iterator[tuple[Compute, int]]:
    """The compute instructions of a program, and how often each runs."""
    for item in program.items:
        body, times = (item.body, item.times) if isinstance(item, Repeat) else ((item,), 1)
        for step in body:
            if isinstance(step, Compute):
                yield step, times


def _signature(job: Job) -> Hashable:
    """What of a plan decides one task's instructions, the placement and the number of layers aside."""
    plan = job.plan
    degrees = tuple(plan.degree(axis) for axis in ("tsp", "tp", "sp", "ep"))
    switches = (plan.partition, plan.exchange, plan.sequence_regions, plan.overlap, plan.overlap_chunks)
    ways = (plan.recomputation, job.sequences, plan.schedule == "zb-h1", tuple(plan.algorithms.items()))
    return (job.work.sequence, degrees, switches, ways)


def longest_path(job: Job, stages: Sequence[Stage], message_s: float) -> tuple[float, float]:
    """Through all tasks of a step; returns its end, and that of the first stage's kernels."""
    depth, width = job.plan.pp, job.plan.vpp
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
            # Chunks of the whole model in order: this one, and the one whose result it waits for.
            place = chunk * depth + stage
            source = place - 1 if kind == FORWARD else place + 1 if kind == BACKWARD else -1
            arrival_s = NEVER
            if 0 <= source < depth * width:
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
            ready[kind, micro_batch, place] = max(before_s + part.busy.sent_s, arrival_s + part.arriving.sent_s)
            if not number:
                free_s[stage] = max(free_s[stage], part.first.end_s)
            if number == len(order) - 1:
                step_s = max(step_s, before_s + part.busy.last_s, arrival_s + part.arriving.last_s)
            neighbour = stage + (1 if kind == FORWARD else -1)
            waiting.append(neighbour % depth)
        else:
            position[stage] = len(order)
    return max(step_s, *free_s), free_s[0]
