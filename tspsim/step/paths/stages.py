"""Lower bounds of a plan's stages: kernels, their waits, and their losses to transfers.

Three bounds of a plan on its mesh, each tighter and more expensive than the one before: layers spread evenly over the
stages (:meth:`StageBounds.even_s`), with the bubble of the last stage (:meth:`StageBounds.rough_s`), and the longest
path through all tasks (:meth:`StageBounds.outline`, and with all of one plan :meth:`StageBounds.step_s`).

Kernels slow down by a factor f while their device moves data. Of the time M in which it must move data (the work of the
busiest link), only the gaps G between kernels are free of that, so

    step ≥ compute + G + (M − G)·(1 − 1/f),     and     step ≥ M.

M includes the exchanges between replicas, of the division of state that exchanges least among those asked about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...base.quick import replace
from ...engine.steady import SIMULATED_ITERATIONS
from ...parallel import Job, scheme_of
from ...parallel.placement import Chunk
from ...parallel.step import write_program
from ...program.instructions import Mesh
from ...steps import Task
from .effort import LAYER_S, STAGE_S, TASK_S
from .groups import Floats, RankGroups
from .kernels import MIDDLE, KernelTimes, kinds_of, mixed
from .parts import TaskParts
from .replicas import Division, ReplicaExchanges
from .tasks import ROUNDS, Stage, TaskPart, around_last, longest_path
from .walk import Layers


@dataclass(frozen=True)
class StageWork:
    """The work of one stage: its kernels, unavoidable gaps between them, and seconds that its transfers occupy each
    link near it."""

    kernels_s: float
    gaps_s: float
    moved_s: Floats

    def least_s(self, slowdown: float, divided_s: Floats | None = None) -> float:
        """Lower bound of the stage's seconds; ``divided_s`` moves too, of several divisions the cheapest."""
        moved = self.moved_s if divided_s is None else self.moved_s + divided_s
        if not moved.shape[-1]:
            return self.kernels_s + self.gaps_s
        busiest_s = float(moved.max(axis=-1).min())
        lost_s = max(0.0, busiest_s - self.gaps_s) * (1.0 - 1.0 / slowdown)
        return max(busiest_s, self.kernels_s + self.gaps_s + lost_s)


@dataclass(frozen=True)
class Outline:
    """The longest path through a plan's tasks, and the work of some stages with their numbers of layers."""

    path_s: float
    works: tuple[tuple[StageWork, int], ...] = ()

    def least_s(self, slowdown: float, of_a_layer_s: Floats | None = None) -> float:
        """Lower bound of a step; ``of_a_layer_s``: link seconds of exchanges between replicas, per layer."""
        exchanges_s = [None if of_a_layer_s is None else of_a_layer_s * layers for _, layers in self.works]
        works = [
            work.least_s(slowdown, of_layers_s) for (work, _), of_layers_s in zip(self.works, exchanges_s, strict=True)
        ]
        return max([self.path_s, *works])


class StageBounds:
    """Bounds of plans with sequences of equal length."""

    def __init__(self, kernels: KernelTimes, parts: TaskParts, slowdown: float) -> None:
        self.cluster, self.kernels, self.parts, self.slowdown = kernels.cluster, kernels, parts, slowdown
        self.replicas = ReplicaExchanges(parts)

    def instructions(self, job: Job, mesh: Mesh) -> int:
        """Approximate number of instructions in a simulation: those of every stage's layers, of every shard whose
        program differs; layers recomputed in part count once.

        Without a pipeline micro-batches repeat, and only some are simulated (:mod:`tspsim.engine.steady`).
        """
        plan = job.plan
        shards = plan.token_shards if scheme_of(plan).by_position(plan) else 1
        if job.unequal:
            return (
                shards
                * plan.pp
                * sum(
                    times
                    for replica in range(plan.dp)
                    for _, times in write_program(scheme_of(plan), job, {"dp": replica}).counted()
                )
            )
        steps = sum(
            count * len(item.steps)
            for count, parts in self._layers_of_each_kind(job, mesh)
            for part in parts
            for item in part.task.items
            if isinstance(item, Layers)
        )
        turns = job.micro_batches if plan.pp > 1 else min(job.micro_batches, SIMULATED_ITERATIONS)
        return steps * turns * shards

    def even_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """Layers with their kernels' unavoidable waits, spread evenly over the stages, without a bubble: a bound of all
        pipelines around the schedule within a stage."""
        every, exchanges_s = list(self._layers_of_each_kind(job, mesh)), self._replica_exchanges_s(job, divisions)
        if hides(job):
            return max(self._hidden_s(job, every, any_pipeline=True), self._beside_s(job, every, exchanges_s))
        return self._evenly_s(job, every, exchanges_s)

    def partly_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """Kernels of a plan that recomputes some layers, with their losses, spread evenly over the stages."""
        kernels, plan = self.kernels.of_model(job), job.plan
        again_s = 0.0
        if plan.recomputed is not None and not mixed(job):
            again = [
                sum(what == plan.recomputation for what in plan.recomputed.by_layer(plan.recomputation, layers))
                for layers in job.chunk_sizes
            ]
            all_of_it = self.kernels.of_model(job.with_recomputation(plan.recomputation))
            again_s = max(0.0, float(all_of_it[2] - kernels[2])) * sum(again)
        kernels_s = job.micro_batches * (float(kernels[0] + kernels[1]) + again_s) / plan.pp
        if hides(job):
            return kernels_s
        every = [_work_of(parts, job.micro_batches * times) for times, parts in self._layers_of_each_kind(job, mesh)]
        moved_s = np.sum([work.moved_s for work in every], axis=0) / plan.pp
        exchanges_s = self._replica_exchanges_s(job, divisions)
        return StageWork(kernels_s, 0.0, moved_s).least_s(
            self.slowdown, None if exchanges_s is None else exchanges_s / plan.pp
        )

    def rough_s(self, job: Job, mesh: Mesh, divisions: Sequence[Division] = ()) -> float:
        """The larger of :meth:`even_s` and the last stage: the first micro-batch reaches it through a chunk of every
        other stage, and its gradients return through them."""
        every, exchanges_s = list(self._layers_of_each_kind(job, mesh)), self._replica_exchanges_s(job, divisions)
        if hides(job):
            return max(self._hidden_s(job, every), self._beside_s(job, every, exchanges_s))
        plan, layers = job.plan, job.model.layers
        even_s = self._evenly_s(job, every, exchanges_s)
        if not job.placement.one_way:
            return even_s
        # The kinds of layer on a stage are unknown: the fastest counts. Deferred weight gradients fill the end.
        layer_s = min(sum(part.busy.end_s for part in parts) for _, parts in every)
        waits = slice(1 if plan.order.splits_backward else None)
        turn_s = min(sum(part.busy.end_s for part in parts[waits]) for _, parts in every)
        here, before = sum(job.chunk_sizes[plan.pp - 1 :: plan.pp]), sum(job.chunk_sizes[: plan.pp - 1])
        bubble_s = before * turn_s
        head_s = job.micro_batches * self.kernels.head_s(job) if plan.pp > 1 else 0.0
        last_s = job.micro_batches * here * layer_s + head_s + bubble_s
        if len(every) == 1 and plan.pp > 1:
            work = _work_of(every[0][1], job.micro_batches * here)
            waiting = replace(work, kernels_s=work.kernels_s + head_s, gaps_s=work.gaps_s + bubble_s)
            last_s = max(
                last_s, waiting.least_s(self.slowdown, None if exchanges_s is None else exchanges_s * (here / layers))
            )
        return max(even_s, last_s)

    def outline(self, job: Job, mesh: Mesh) -> Outline:
        """A step without exchanges between replicas: equal for all ZeRO stages, and cheaper to compute."""
        return self._longest(replace(job, plan=replace(job.plan, zero=0)), mesh, whole=False)

    def outline_s(self, outline: Outline, job: Job, divisions: Sequence[Division] = ()) -> float:
        """The step of an outline, with the cheapest of the divisions."""
        exchanges_s = self._replica_exchanges_of_a_layer_s(job, divisions) if outline.works else None
        return outline.least_s(self.slowdown, exchanges_s)

    def step_s(self, job: Job, mesh: Mesh) -> float:
        """The bound with all of one plan."""
        everything = self._longest(job, mesh, whole=True)
        if job.plan.vpp == 1 or not job.training or not job.plan.zero or hides(job):
            return everything.least_s(self.slowdown)
        # The first and the last task represent one chunk's; replicas exchange every chunk's.
        outline, own = self.outline(job, mesh), Division(job.plan.zero, job.plan.shard_group, mesh)
        exchanges_s = self._replica_exchanges_of_a_layer_s(job, (own,))
        if exchanges_s is None:
            return everything.least_s(self.slowdown)
        works = []
        for (work, layers), (alone, _) in zip(everything.works, outline.works, strict=True):
            moved_s = np.maximum(work.moved_s, alone.moved_s + exchanges_s[0] * layers)
            works.append((replace(work, moved_s=moved_s), layers))
        return Outline(everything.path_s, tuple(works)).least_s(self.slowdown)

    def layer_s(self, job: Job, mesh: Mesh) -> float:
        """Seconds of one layer between two others, forward and backward, with its kernels' losses to transfers: the
        mean over layers after the first, as in :func:`tspsim.step.metrics.steady_layer_s`."""
        behind = job.model.blocks[1:]
        firsts = [(1 + behind.index(block), count) for block, count in Counter(behind).items()] or [(1, 1)]
        total_s = 0.0
        for first, count in firsts:
            parts = self._layer_parts(job, mesh, first)
            lost_s = _work_of(parts, 1).least_s(self.slowdown)
            total_s += count * max(sum(part.busy.end_s for part in parts), lost_s)
        return total_s / sum(count for _, count in firsts)

    def _replica_exchanges_s(self, job: Job, divisions: Sequence[Division]) -> Floats | None:
        """Link seconds of exchanges between replicas for all layers, one row per division; None if stages may differ by
        where their groups stand, or if nothing is sharded."""
        near = self.cluster.gpus_per_node
        unlike = near & (near - 1) or self.cluster.factors
        if not divisions or not job.training or job.copies == 1 or (job.plan.pp > 1 and unlike):
            return None
        return self.replicas.of_layers_s(job, divisions)

    def _replica_exchanges_of_a_layer_s(self, job: Job, divisions: Sequence[Division]) -> Floats | None:
        """The same per layer; None if layers differ and a pipeline spreads them, since a stage's are unknown."""
        if mixed(job) and job.plan.pp > 1:
            return None
        exchanges_s = self._replica_exchanges_s(job, divisions)
        return None if exchanges_s is None else exchanges_s / job.model.layers

    def _evenly_s(self, job: Job, every: Sequence[tuple[int, list[TaskPart]]], exchanges_s: Floats | None) -> float:
        count, pp = job.micro_batches, job.plan.pp
        inside_s = sum(times * sum(part.busy.end_s for part in parts) for times, parts in every)
        outside_s = count * self.kernels.outside_s(job)
        works = [_work_of(parts, count * times) for times, parts in every]
        whole = StageWork(
            (sum(work.kernels_s for work in works) + outside_s) / pp,
            sum(work.gaps_s for work in works) / pp,
            np.sum([work.moved_s for work in works], axis=0) / pp,
        )
        lost_s = whole.least_s(self.slowdown, None if exchanges_s is None else exchanges_s / pp)
        return max((count * inside_s + outside_s) / pp, lost_s)

    def _beside_s(self, job: Job, every: Sequence[tuple[int, list[TaskPart]]], exchanges_s: Floats | None) -> float:
        """Transfers beside kernels of other tasks, and the kernels' losses to them, spread evenly over the stages."""
        count, pp = job.micro_batches, job.plan.pp
        works = [_work_of_turns(parts, count * times / pp) for times, parts in every]
        whole = StageWork(
            sum(work.kernels_s for work in works) + count * self.kernels.outside_s(job) / pp,
            sum(work.gaps_s for work in works),
            np.sum([work.moved_s for work in works], axis=0),
        )
        return whole.least_s(self.slowdown, None if exchanges_s is None else exchanges_s / pp)

    def _hidden_s(self, job: Job, every: Sequence[tuple[int, list[TaskPart]]], *, any_pipeline: bool = False) -> float:
        """Kernels with the bubble and the waits inside their pieces, plus waits during which nothing else runs.

        A micro-batch may hide another's waits, but each stage has some that meet none; the pipeline's order says how
        many. With ``any_pipeline`` all may meet.
        """
        count, pp, vpp = job.micro_batches, job.plan.pp, job.plan.vpp
        kernels = self.kernels
        both_s = forward_s = backward_s = 0.0
        fewest_s, least_s = [], []
        for times, (forward, backward) in every:
            ends, between = (forward.busy.end_s, backward.busy.end_s), forward.apart_s + backward.apart_s
            both_s += times * between
            forward_s, backward_s = forward_s + times * ends[0], backward_s + times * ends[1]
            fewest_s.append(max(between, *ends))
            least_s.append(sum(ends))
        apart_s, together_s = forward_s + backward_s, max(both_s, forward_s, backward_s)
        if any_pipeline:
            return count * (together_s + kernels.outside_s(job)) / pp
        met = [sum(task.beside for task in job.tasks(stage)) for stage in range(pp)]
        inside_s = (count * vpp - max(met)) * apart_s + max(met) * together_s
        even_s = (inside_s / vpp + count * kernels.outside_s(job)) / pp
        if pp == 1 or not job.placement.one_way:
            return even_s
        # The last stage: the first micro-batch reaches it through the others, and returns, with nothing beside it.
        chunk, head_s = job.model.layers // (pp * vpp), count * kernels.head_s(job)
        own_s = chunk * ((count * vpp - met[-1]) * min(least_s) + met[-1] * min(fewest_s))
        return max(even_s, own_s + head_s + (pp - 1) * chunk * min(least_s))

    def _layers_of_each_kind(self, job: Job, mesh: Mesh) -> Iterator[tuple[int, list[TaskPart]]]:
        """One layer of each kind between two others, in every kind of task, and the number of such layers."""
        if not mixed(job):
            yield job.model.layers, self._layer_parts(job, mesh)
            return
        for first, count in kinds_of(job):
            yield count, self._layer_parts(job, mesh, first)

    def _layer_parts(self, job: Job, mesh: Mesh, first: int = 1) -> list[TaskPart]:
        """One layer between two others, in every kind of task."""
        self.kernels.effort.add(LAYER_S)
        chunk, job = Chunk(first, 1, has_embedding=False, has_head=False), job.with_least_recomputation
        groups, alone = RankGroups(mesh, 0, self.cluster), replace(job, plan=replace(job.plan, zero=0))
        kinds = job.step.kinds(job.order)
        return [self.parts.part(alone, groups, 0, (chunk,), Task(kind, MIDDLE, 0)) for kind in kinds]

    def _longest(self, job: Job, mesh: Mesh, *, whole: bool) -> Outline:
        groups = [RankGroups(mesh, stage, self.cluster) for stage in range(job.plan.pp)]
        tasks = job.plan.pp * job.plan.vpp * min(job.micro_batches, (ROUNDS + 1) * job.plan.pp)
        self.kernels.effort.add(job.plan.pp * STAGE_S + len(job.step.kinds(job.order)) * tasks * TASK_S)
        stages = [self.parts.stage(job, groups[stage], stage, whole) for stage in range(job.plan.pp)]
        layers = [sum(chunk.layers for chunk in job.chunks(stage)) for stage in range(job.plan.pp)]
        # With micro-batches from both ends, each meets one of a stage's chunks.
        count = job.micro_batches // (2 if job.placement.both_ways else 1)
        message_s = self.parts.message_s(job, groups)
        if hides(job):
            works = [_work_beside(stage, count) for stage in stages]
            least_s = self._hidden_s(job, list(self._layers_of_each_kind(job, mesh)))
            if whole:
                every = enumerate(zip(stages, groups, strict=True))
                paired = [self.parts.paired(job, group, number, stage) for number, (stage, group) in every]
                least_s = max(least_s, longest_path(job, paired, message_s)[0])
            return Outline(least_s, tuple(zip(works, layers, strict=True)))
        step_s, first_s = longest_path(job, stages, message_s)
        works = [_work_of_stage(stages[0], count, max(0.0, step_s - first_s))]
        around = around_last(job, stages, message_s)
        if around is not None:
            works.append(_work_of_last(stages[-1], count, *around))
        return Outline(step_s, tuple(zip(works, (layers[0], layers[-1]), strict=False)))


def hides(job: Job) -> bool:
    """Whether forwards and backwards of different micro-batches are interleaved."""
    return job.interleaves


def _work_of(parts: Sequence[TaskPart], times: float) -> StageWork:
    """The work of tasks, each ``times`` times."""
    return StageWork(
        times * sum(part.busy.compute_s for part in parts),
        times * sum(part.busy.gaps_s for part in parts),
        times * np.sum([part.moved_s for part in parts], axis=0),
    )


def _work_of_stage(stage: Stage, count: int, idle_s: float) -> StageWork:
    """The work of ``count`` micro-batches on one stage that also idles; the first and the last task with their
    extras."""
    work = _work_of((*stage.forward, *stage.backward, *stage.weights), count)
    kernels_s, gaps_s, moved_s = work.kernels_s, work.gaps_s + idle_s, work.moved_s
    for part, path, usual in (
        (stage.first, stage.first.first, stage.forward[stage.own]),
        (stage.last, stage.last.busy, (stage.weights or stage.backward or stage.forward)[stage.last_own]),
    ):
        kernels_s += path.compute_s - usual.busy.compute_s
        gaps_s += max(0.0, path.gaps_s - usual.busy.gaps_s)
        moved_s = moved_s + part.moved_s - usual.moved_s
    return StageWork(kernels_s, gaps_s, moved_s)


def _work_of_last(stage: Stage, count: int, lead_s: float, tail_s: float) -> StageWork:
    """The work of micro-batches on the last stage: kernels up to its last message, between the time before the first
    input (``lead_s``) and the time in which others process its last output (``tail_s``)."""
    parts = (*stage.forward, *stage.backward, *stage.weights)
    work = _work_of(parts, count)
    kernels_s, moved_s = work.kernels_s, work.moved_s
    if tail_s > 0.0:
        sends = stage.backward[0].busy
        kernels_s -= max(0.0, sends.end_s - sends.sent_s)
    for part, usual in (
        (stage.first, stage.forward[stage.own]),
        (stage.last, (stage.weights or stage.backward or stage.forward)[stage.last_own]),
    ):
        moved_s = moved_s + part.moved_s - usual.moved_s
    return StageWork(kernels_s, work.gaps_s + lead_s + tail_s, moved_s)


def _work_beside(stage: Stage, count: int) -> StageWork:
    """:func:`_work_of_stage` if micro-batches are interleaved."""
    return _work_of_turns((*stage.forward, *stage.backward, *stage.weights), count)


def _work_of_turns(parts: Sequence[TaskPart], times: float) -> StageWork:
    """The work of tasks whose transfers may run beside kernels of another task, except waits inside a task's pieces."""
    gaps_s = times * sum(max(0.0, part.apart_s - part.busy.compute_s) for part in parts)
    return replace(_work_of(parts, times), gaps_s=gaps_s)
