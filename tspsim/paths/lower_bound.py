"""A time that a plan's step cannot undercut in the simulator, from one layer's program and closed forms.

A step is a graph of tasks: what a stage does for one micro-batch follows what it did before and what the neighbouring
stage sends. The bound is the longest path through it, where the time of a task is that of its rank alone
(:mod:`tspsim.paths.walk`): kernels at the device's fitted cost, transfers that nothing can hide at the cost
they have on free links. With equal stages it is the closed form of the schedule, (m + p − 1)·(F + B) for m
micro-batches on p stages of 1F1B and (m + (p − 1)/v)·(F + B) with v chunks a stage (Narayanan et al. 2021, §2.2), and
what follows the last task: gradients that no backward hides, their norm, the optimizer.

Kernels slow by a factor f while data moves through their device. Of the time M in which it must move (the busiest
link's work), only what falls in the gaps G between kernels is free of that, so also

    step ≥ compute + G + (M − G)·(1 − 1/f),     and     step ≥ M.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..engine.assignment import counted
from ..engine.steady import SIMULATED_ITERATIONS
from ..mesh import Mesh
from ..network import Cluster, ExpertExchange, collective, host_copy, point_to_point
from ..operators import Gemm, Operator, Role
from ..parallel import SWITCHES, Job, Plan, choices_of, method_of, scheme_axes, scheme_of, switches_of
from ..parallel.choices import legal, schedules_of
from ..parallel.pipeline import Chunk, PipelineOrder
from ..parallel.recomputed import KEPT
from ..parallel.step import Writer, write_program
from ..program import Collective, Compute, Copy, Instruction, Launch, Program, Repeat
from ..steps import BACKWARD, FORWARD, WEIGHTS, Task
from .groups import Floats, Groups
from .packs import Rates, rates_of, replicas_s
from .tasks import Part, Stage, longest_path
from .walk import RECEIVE, SEND, Layers, TimedInstruction, TimedTask

#: Sums of many floats in another order than the engine's may differ in the last digits.
ROUNDING = 1.0 - 1e-9
#: Number of a micro-batch that is neither the first nor the last.
MIDDLE = -1
#: What even the longest call loses at its beginning and end, generously.
BEST_RATE = 1.01
#: A product that is as fast as any, in each dimension, and how much faster than it any other may be, generously.
LARGE, BEST_PRODUCT = 16_384, 1.1
#: What rows of experts need beside products.
OF_ROWS = (Role.EXPERT_ROWS, Role.EXPERT_SUM, Role.EXPERTS_ACTIVATION, Role.ADAPTER)
#: Seconds of one micro-batch's kernels through a whole model, shape (4,): outside its layers, in all of them, in one,
#: and in one's forward; of layers that differ in the quickest.
Kernels = NDArray[np.float64]
#: Those of no schedule at all.
NO_SCHEDULE = np.full(4, math.inf)
#: Chunks a stage of a pipeline, and its order.
Shape = tuple[int, PipelineOrder]


@dataclass(frozen=True)
class _Visits(Job):
    """A job whose stages do only the visits named: a step in little."""

    visits: tuple[Task, ...] = ()

    def tasks(self, stage: int) -> list[Task]:
        return list(self.visits)


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
        self._rates: dict[Operator, float] = {}
        self._best: dict[str, float] = {}
        self._of_lengths: dict[Hashable, Rates] = {}
        self._floors: dict[Hashable, Kernels] = {}
        self._least: dict[Hashable, Kernels] = {}
        self._moves: dict[Hashable, tuple[float, Floats]] = {}
        self._parts: dict[Hashable, Part] = {}
        self._programs: dict[Hashable, Program] = {}
        self._mixed = mixed
        self._compute: dict[Hashable, Kernels] = {}
        self._outside: dict[Hashable, float] = {}
        self._written: dict[Hashable, list[tuple[list[Operator], int]]] = {}

    def first_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """:meth:`floor_s` or less, alike for all ways to experts that a family may have: experts' products at the best
        rate of any product, with an even share of what they get; rows that go to them and back move at no cost."""
        plan, experts = family.plan, family.model.experts
        if family.unequal or experts is None or plan.ep == 1:
            return self.floor_s(family, pipelines)
        family = family.making(KEPT).least_again
        family = replace(family, plan=_usual_way(family))
        share = (1.0 - family.work.routing.dropped(experts.count)) / family.expert_loads.busiest_rank_load
        routed = self._routed(family, lambda operator: share * self._best_s(operator), "first")
        return self._in_pipeline(family, self._unrouted(family, self._least_operator_s, "first") + routed, pipelines)

    def _unrouted(self, family: Job, seconds: Callable[[Operator], float], how: str) -> Kernels:
        """Kernels of a micro-batch through a whole model but for those of experts and their rows, which alone depend on
        the way there; of the schedule that has least."""
        plan = replace(_usual_way(family), degrees={**family.plan.degrees, "pp": 1}, vpp=1, zero=0)
        if how == "first":
            plan = replace(plan, exchange=method_of(plan).floor_like or plan.exchange)
        alike = replace(family, plan=plan)
        key = ("unrouted", how, *(_floor_key(alike) if how == "first" else (_signature(alike),)))
        if key not in self._floors:
            rest = partial(self._summed, seconds=lambda each: 0.0 if _of_experts(each) else seconds(each))
            self._floors[key] = self._least_of_schedules(alike, rest)
        return self._floors[key]

    def _routed(self, family: Job, seconds: Callable[[Operator], float], how: str) -> Kernels:
        """The others, which no schedule changes: those of a layer with experts."""
        key = ("routed", how, *_floor_key(family), family.plan.recomputation)
        if key not in self._floors:
            whole = _on_one_stage(family)
            job = next(job for job in schedules_of(whole, self.cluster.layout.mesh) if legal(job))
            blocks = job.model.blocks
            first = next(index for index, block in enumerate(blocks) if block.experts)
            chunk, times = Chunk(first, 1, False, False), sum(block.experts for block in blocks)
            found = self._of_pieces(job, [(chunk, 1)], lambda each: seconds(each) if _of_experts(each) else 0.0)
            # Of layers of several kinds the quickest counts alone, which may have no experts.
            alone = 0.0 if self._mixed else 1.0
            self._floors[key] = found * np.array([0.0, times, alone, alone])
        return self._floors[key]

    def _best_s(self, operator: Operator) -> float:
        """A product at the best rate of any; nothing for what moves rows."""
        if not operator.role.routed or not isinstance(operator, Gemm):
            return 0.0
        if operator.dtype not in self._best:
            large = replace(operator, m=LARGE, n=LARGE, k=LARGE, batch=1)
            self._best[operator.dtype] = large.flops / self.cost(large) * BEST_PRODUCT
        # Rows are whole: one of them may be there because of that.
        return (operator.m - 1) / operator.m * operator.flops / self._best[operator.dtype]

    def floor_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """Kernels of a step alone where nothing is made again, attention as fast as it is on any shape: that depends on
        tokens, not on how shards meet.

        Parameters
        ----------
        pipelines
            Those that the family may have, of which the one with the least bubble counts; none: not asked.
        """
        if family.unequal:
            return self.dealt_s(family)
        family = family.making(KEPT).least_again
        if _over_ranks(family):
            kernels = self._unrouted(family, self._least_operator_s, "first")
            return self._in_pipeline(family, kernels + self._routed(family, self._operator_s, ""), pipelines)
        key, plan = _floor_key(family), family.plan
        if key not in self._floors:
            exchange = method_of(plan).floor_like or plan.exchange
            whole = replace(plan, degrees={**plan.degrees, "pp": 1}, vpp=1, exchange=exchange, zero=0)
            self._floors[key] = self._least_of_schedules(replace(family, plan=whole), self._least_s)
        return self._in_pipeline(family, self._floors[key], pipelines)

    def _least_s(self, job: Job) -> Kernels:
        """Kernels of one micro-batch through a whole model, attention at its best rate."""
        return self._summed(job, self._least_operator_s)

    def compute_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """The kernels of a step alone, spread evenly over the stages, of the schedule that has the least; needs no
        mesh. Regions divide the norms, and pieces of a product may run a little faster than the whole."""
        if family.unequal:
            return self.dealt_s(family)
        family = family.least_again
        if _over_ranks(family):
            kernels = self._unrouted(family, self._operator_s, "all")
            return self._in_pipeline(family, kernels + self._routed(family, self._operator_s, ""), pipelines)
        whole = replace(family, plan=replace(family.plan, degrees={**family.plan.degrees, "pp": 1}, vpp=1, zero=0))
        key = _signature(whole)
        if key not in self._least:
            self._least[key] = self._least_of_schedules(whole, self._model_kernels_s)
        return self._in_pipeline(family, self._least[key], pipelines)

    def partly_s(self, job: Job) -> float:
        """:meth:`compute_s` of one plan of which some layers are made again, those besides."""
        kernels, plan = self._model_kernels_s(job), job.plan
        again_s = 0.0
        if plan.recomputed is not None and not self._mixed:
            made = [sum(what == plan.recomputation for what in plan.recomputed.what(plan.recomputation, layers))
                    for layers in job.chunk_sizes]
            all_of_it = self._model_kernels_s(job.making(plan.recomputation))
            again_s = max(0.0, float(all_of_it[2] - kernels[2])) * sum(made)
        return job.micro_batches * (float(kernels[0] + kernels[1]) + again_s) / plan.pp * ROUNDING

    def _in_pipeline(self, family: Job, kernels: Kernels, pipelines: Sequence[Shape]) -> float:
        """Micro-batches one after the other, evenly over the stages; or through the last stage, as in
        :meth:`rough_s`, of the pipeline that lets it wait least."""
        outside_s, layers_s, layer_s, forward_s = kernels.tolist()
        pp, layers, count = family.plan.pp, family.model.layers, family.micro_batches
        bubbles = [0.0] if pp == 1 or not pipelines else []
        for vpp, order in pipelines if pp > 1 else ():
            turn_s = forward_s if order.splits_backward else layer_s
            bubbles.append(0.0 if order.both_ways else (pp - 1) * (layers // (pp * vpp)) * turn_s)
        last_s = count * (layers // pp) * layer_s + min(bubbles)
        least_s: float = max(count * (outside_s + layers_s) / pp, last_s)
        return least_s * ROUNDING

    def _least_of_schedules(self, family: Job, seconds: Callable[[Job], Kernels]) -> Kernels:
        """The least kernels of all schedules. What one chooses for attention and for the MLP is asked apart: kernels of
        one do not depend on the other."""
        least: Kernels | None = None
        every = (job for job in schedules_of(family, self.cluster.layout.mesh) if legal(job))
        for _, jobs in itertools.groupby(every, _stated):
            first, *others = jobs
            base = found = seconds(first)
            of_attention = {name for choice in choices_of(first.plan) for name in choice.first}
            of_mlp = [name for name in switches_of(first.plan) if name not in of_attention]
            for fixed in (of_mlp, sorted(of_attention)):
                alike = [job for job in others if _switches(job, fixed) == _switches(first, fixed)]
                saved = np.zeros(len(base))
                for job in alike:
                    saved = np.minimum(saved, seconds(job) - base)
                found = found + saved
            least = found if least is None else np.minimum(least, found)
        return NO_SCHEDULE if least is None else least

    def _outside_s(self, job: Job) -> float:
        """Kernels of one micro-batch that are in no layer: embedding and head."""
        job = job.least_again
        key = _signature(job)
        if key in self._compute:
            return float(self._compute[key][0])
        if key not in self._outside:
            alone = _on_one_stage(job)
            pieces = [(replace(alone.chunks(0)[0], layers=0), 1)]
            self._outside[key] = float(self._of_pieces(alone, pieces, self._operator_s)[0])
        return self._outside[key]

    def _model_kernels_s(self, job: Job) -> Kernels:
        """The same by where they are."""
        job = job.least_again
        key = _signature(job)
        if key not in self._compute:
            self._compute[key] = self._summed(_on_one_stage(job), self._operator_s)
        return self._compute[key]

    def _summed(self, job: Job, seconds: Callable[[Operator], float]) -> Kernels:
        """Kernels of one micro-batch through a whole model on one stage. Of layers of several kinds one of each is
        written."""
        chunk = job.chunks(0)[0]
        if not self._mixed:
            return self._of_pieces(job, [(chunk, 1)], seconds)
        kinds = [(Chunk(first, 1, False, False), count) for first, count in _kinds(job)]
        return self._of_pieces(job, [(replace(chunk, layers=0), 1), *kinds], seconds)

    def _of_pieces(
        self, job: Job, pieces: Sequence[tuple[Chunk, int]], seconds: Callable[[Operator], float]
    ) -> Kernels:
        """Kernels of some chunks, each so many times."""
        outside_s = layers_s = 0.0
        both_s, forward_s = [0.0] * len(pieces), [0.0] * len(pieces)
        for kind in job.step.kinds(job.order):
            for number, (piece, count) in enumerate(pieces):
                for operators, times in self._operators(job, piece, kind):
                    body_s = sum([seconds(each) for each in operators])
                    if times != piece.layers:
                        outside_s += count * times * body_s
                        continue
                    layers_s += count * times * body_s
                    both_s[number] += body_s
                    forward_s[number] += body_s if kind == FORWARD else 0.0
        of_layers = slice(len(pieces) > 1, None)
        return np.array([outside_s, layers_s, min(both_s[of_layers]), min(forward_s[of_layers])])

    def _operators(self, job: Job, piece: Chunk, kind: str) -> list[tuple[list[Operator], int]]:
        """Kernels of one micro-batch's task on a chunk of layers alone, in pieces that run as often, and how often.
        What is made again is so in front of a backward: forwards have the same."""
        alike = job.making(KEPT) if kind == FORWARD else job
        key = (_signature(alike), piece, kind)
        if key not in self._written:
            self._written[key] = [
                ([each for step in body if isinstance(step, Compute) for each in step.operators], times)
                for body, times in _bodies(_write(alike, 0, piece, Task(kind, MIDDLE, 0)))
            ]
        return self._written[key]

    def instructions(self, job: Job, mesh: Mesh) -> int:
        """About how many a simulation runs: those of every stage's layers, of every shard whose program differs; of
        layers that are made again in part as many as of those that are not.

        Micro-batches repeat where there is no pipeline, and are not all run (:mod:`tspsim.engine.steady`).
        """
        if job.unequal:
            shards = job.plan.token_shards if scheme_of(job.plan).by_position(job.plan) else 1
            return shards * job.plan.pp * sum(
                times
                for replica in range(job.plan.dp)
                for _, times in counted(write_program(scheme_of(job.plan), job, {"dp": replica}))
            )
        steps = sum(
            count * len(item.steps)
            for count, parts in self._layers_of_each_kind(job, mesh)
            for part in parts
            for item in part.task.items
            if isinstance(item, Layers)
        )
        plan = job.plan
        shards = plan.token_shards if scheme_of(plan).by_position(plan) else 1
        turns = job.micro_batches if plan.pp > 1 else min(job.micro_batches, SIMULATED_ITERATIONS)
        return steps * turns * shards

    def _kernel_s(self, kernel: Compute) -> float:
        return sum(self._operator_s(operator) for operator in kernel.operators)

    def _operator_s(self, operator: Operator) -> float:
        if operator not in self._seconds:
            self._seconds[operator] = self.cost(operator)
        return self._seconds[operator]

    def _least_operator_s(self, operator: Operator) -> float:
        """A kernel's time; of one whose shape another way to cut the tokens would change what it takes at the best rate
        of any shape."""
        at_best = operator.at_best
        if not at_best:
            return self._operator_s(operator)
        if at_best[0] not in self._rates:
            self._rates[at_best[0]] = max(each.flops / self._operator_s(each) for each in at_best) * BEST_RATE
        return operator.flops / min(self.peak, self._rates[at_best[0]])

    def even_s(self, job: Job, mesh: Mesh) -> float:
        """Layers with what their kernels surely wait for, spread evenly over the stages, without a bubble."""
        if job.unequal:
            return self.dealt_s(job)
        if _hides(job):
            return self._hidden_s(job, mesh)
        return self._evenly_s(job, mesh)[0] * ROUNDING

    def _hidden_s(self, job: Job, mesh: Mesh) -> float:
        """Kernels with the bubble, and besides them what they wait for where nothing runs: a micro-batch may hide all
        of that for another, but each stage has some that meet none."""
        least_s = self._in_pipeline(job, self._model_kernels_s(job), [(job.plan.vpp, job.order)])
        most = max(sum(task.beside for task in job.tasks(stage)) for stage in range(job.plan.pp))
        alone = job.micro_batches * job.plan.vpp - most
        inside_s = 0.0
        for count, (forward, backward) in self._layers_of_each_kind(job, mesh):
            apart_s, busy_s = forward.busy.end_s + backward.busy.end_s, forward.busy.compute_s + backward.busy.compute_s
            together_s = max(busy_s, forward.busy.end_s, backward.busy.end_s)
            inside_s += count * (alone * apart_s + most * together_s)
        outside_s = job.micro_batches * self._outside_s(job)
        return max(least_s, ROUNDING * (inside_s / job.plan.vpp + outside_s) / job.plan.pp)

    def flops_s(self, family: Job) -> float:
        """The model's FLOPs at the device's peak on all GPUs: of unequal sequences, however they are dealt."""
        work, gpus = family.work, self.cluster.gpus
        return work.tokens_of(family.plan.dp) * work.flops_per_token(family.model) / (gpus * self.peak) * ROUNDING

    def dealt_s(self, family: Job) -> float:
        """Of sequences of unequal length the replica that takes longest, as they are dealt."""
        return max(self.flops_s(family), max(replicas_s(family, self._rates_of(family))) * ROUNDING)

    def _rates_of(self, family: Job) -> Rates:
        """Seconds of a token and of attention's FLOPs on a rank of a family."""
        plan = family.plan
        key = (plan.scheme, plan.tp, plan.recomputation, plan.activation_store, plan.sequence_regions)
        if key not in self._of_lengths:

            def summed(job: Job, seconds: Callable[[Operator], float]) -> float:
                every = self._least_of_schedules(job, partial(self._summed, seconds=seconds))
                return float(every[0] + every[1])

            job = family.least_again
            self._of_lengths[key] = rates_of(job, summed, self._least_operator_s, self._operator_s)
        return self._of_lengths[key]

    def unequal_s(self, job: Job, mesh: Mesh) -> float:
        """The path of the rank that takes longest through its own program: of unequal sequences, whose micro-batches
        all differ. Its kernels alone where there are stages, where weights travel every micro-batch, and where nodes
        divide groups unlike each other or links differ."""
        each, scheme = replicas_s(job, self._rates_of(job)), scheme_of(job.plan)
        longest = max(range(len(each)), key=each.__getitem__)
        program = write_program(scheme, job, {"dp": longest})
        computes = [(step, times) for body, times in _bodies(program) for step in body if isinstance(step, Compute)]
        path_s = sum(times * self._kernel_s(step) for step, times in computes)
        near = self.cluster.gpus_per_node
        if not (near & (near - 1) or self.cluster.factors or job.plan.pp > 1 or job.plan.zero > 1):
            path_s = max(path_s, self._compile(program, Groups(mesh, 0, self.cluster)).first.last_s)
        return max(self.dealt_s(job), path_s * ROUNDING)

    def rough_s(self, job: Job, mesh: Mesh) -> float:
        """:meth:`even_s`, or the last stage: the first micro-batch comes through a chunk of every other stage first,
        and its gradients go back through them."""
        if job.unequal:
            return self.dealt_s(job)
        if _hides(job):
            return self._hidden_s(job, mesh)
        plan, layers = job.plan, job.model.layers
        even_s, layer_s, turn_s = self._evenly_s(job, mesh)
        if plan.order.both_ways:
            return even_s * ROUNDING
        bubble_s = (plan.pp - 1) * (layers // (plan.pp * plan.vpp)) * turn_s
        return max(even_s, job.micro_batches * (layers // plan.pp) * layer_s + bubble_s) * ROUNDING

    def _evenly_s(self, job: Job, mesh: Mesh) -> tuple[float, float, float]:
        """A step without bubble; one layer between two others, forward and back; the same without weights put off."""
        every = [(count, parts) for count, parts in self._layers_of_each_kind(job, mesh)]
        inside_s = sum(count * sum(part.busy.end_s for part in parts) for count, parts in every)
        outside_s = self._outside_s(job)
        even_s = job.micro_batches * (inside_s + outside_s) / job.plan.pp
        # Which kinds of layer a stage has is not asked: the quickest.
        layer_s = min(sum(part.busy.end_s for part in parts) for _, parts in every)
        return even_s, layer_s, min(sum(part.busy.end_s for part in parts[:2]) for _, parts in every)

    def _layers_of_each_kind(self, job: Job, mesh: Mesh) -> Iterator[tuple[int, list[Part]]]:
        """One layer of each kind between two others, in every kind of task, and how many there are."""
        if not self._mixed:
            yield job.model.layers, self._layer_parts(job, mesh)
            return
        for first, count in _kinds(job):
            yield count, self._layer_parts(job, mesh, first)

    def _layer_parts(self, job: Job, mesh: Mesh, first: int = 1) -> list[Part]:
        """One layer between two others, in every kind of task."""
        chunk, job = Chunk(first, 1, has_embedding=False, has_head=False), job.least_again
        groups, alone = Groups(mesh, 0, self.cluster), replace(job, plan=replace(job.plan, zero=0))
        kinds = job.step.kinds(job.order)
        return [self._part(alone, groups, 0, (chunk,), Task(kind, MIDDLE, 0)) for kind in kinds]

    def outline_s(self, job: Job, mesh: Mesh) -> float:
        """A step without what replicas say to each other: alike for all ZeRO stages, and quicker to find."""
        alone = replace(job, plan=replace(job.plan, zero=0))
        return self._longest_s(alone, mesh, whole=False)

    def step_s(self, job: Job, mesh: Mesh) -> float:
        """Seconds that the simulated step takes at least."""
        return self._longest_s(job, mesh, whole=True)

    def layer_s(self, job: Job, mesh: Mesh) -> float:
        """One layer between two others, forward and back, with what its kernels lose to what moves beside them."""
        parts = self._layer_parts(job, mesh)
        kernels_s, gaps_s = sum(part.busy.compute_s for part in parts), sum(part.busy.gaps_s for part in parts)
        moved_s = float(np.sum([part.moved_s for part in parts], axis=0).max(initial=0.0))
        hidden_s = max(0.0, moved_s - gaps_s) * (1.0 - 1.0 / self.slowdown)
        return max(sum(part.busy.end_s for part in parts), moved_s, kernels_s + gaps_s + hidden_s)

    def _longest_s(self, job: Job, mesh: Mesh, *, whole: bool) -> float:
        if job.unequal:
            return self.unequal_s(job, mesh)
        groups = [Groups(mesh, stage, self.cluster) for stage in range(job.plan.pp)]
        stages = [self._stage(job, groups[stage], stage, whole) for stage in range(job.plan.pp)]
        if _hides(job):
            count = job.micro_batches // (2 if job.plan.order.both_ways else 1)
            return max(self._hidden_s(job, mesh), ROUNDING * max(self._beside_s(stage, count) for stage in stages))
        step_s, first_s = longest_path(job, stages, self._message_s(job, groups))
        count = job.micro_batches // (2 if job.plan.order.both_ways else 1)
        return ROUNDING * max(step_s, self._interfered_s(stages[0], count, max(0.0, step_s - first_s)))

    def _beside_s(self, stage: Stage, count: int) -> float:
        """Its kernels, and what they lose to transfers all of which run beside them, or these alone."""
        parts = (*stage.forward, *stage.backward, *stage.weights)
        kernels_s = count * sum(part.busy.compute_s for part in parts)
        busiest_s = count * float(np.sum([part.moved_s for part in parts], axis=0).max(initial=0.0))
        return max(busiest_s, kernels_s + busiest_s * (1.0 - 1.0 / self.slowdown))

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

    def _stage(self, job: Job, groups: Groups, stage: int, whole: bool) -> Stage:
        """Its tasks; ``whole``: with what is special about the first and the last one."""
        chunks, final = job.chunks(stage), job.micro_batches - 1

        def middle(kind: str) -> tuple[Part, ...]:
            every = range(len(chunks))
            return tuple(self._part(job, groups, stage, chunks, Task(kind, MIDDLE, chunk)) for chunk in every)

        forward = middle(FORWARD)
        # Where micro-batches come from both ends, half of the stages begin and end with what goes down.
        own = int(job.plan.order.both_ways and 2 * stage >= job.plan.pp)
        first = self._part(job, groups, stage, chunks, Task(FORWARD, 0, own)) if whole else forward[own]
        kinds = job.step.kinds(job.order)
        if BACKWARD not in kinds:
            return Stage(forward, (), (), first, forward[-1])
        backward = middle(BACKWARD)
        weights = middle(WEIGHTS) if WEIGHTS in kinds else ()
        last = (weights or backward)[own]
        if whole:
            last = self._finish(job, groups, stage, Task(WEIGHTS if weights else BACKWARD, final, own))
        return Stage(forward, backward, weights, first, last)

    def _message_s(self, job: Job, groups: Sequence[Groups]) -> float:
        """Seconds of a message between stages, at least."""
        if job.plan.pp == 1:
            return 0.0
        size = round(Writer(scheme_of(job.plan), job, {}).message_bytes)
        ranks = [group.rank for group in groups]
        return min(self._message(a, b, size, groups[0])[0] for a, b in itertools.pairwise(ranks))

    def _part(self, job: Job, groups: Groups, stage: int, chunks: Sequence[Chunk], visit: Task) -> Part:
        """One visit as a task, walked."""
        chunk = chunks[visit.chunk]
        met = job.plan.zero if visit.micro_batch != MIDDLE or job.plan.zero >= 2 else 0
        replicas = (groups.replicas, job.plan.shard_group) if met or visit.micro_batch != MIDDLE else ()
        place = (groups.pattern, replicas)
        ends = (visit.micro_batch == 0, visit.micro_batch == job.micro_batches - 1)
        tables = (chunk.has_embedding, chunk.has_head, chunk.first_layer if self._mixed else 0)
        task = (_signature(job), job.plan.pp > 1, visit.kind, ends, tables, met)
        shape = (*task, place)
        key = (*shape, chunk.layers)
        known = self._parts.get(key)
        if known is None:
            if self._mixed or job.plan.recomputed is not None or job.plan.copies:
                known = self._compile(_write(job, stage, chunk, visit), groups)
            else:  # layers are alike: the task is written with one, which then runs as often as there are layers
                if shape not in self._parts:
                    # Groups elsewhere move the same over other links.
                    alike = (*task, replicas, job.plan.rail_axes)
                    if alike not in self._programs:
                        self._programs[alike] = _write(job, stage, replace(chunk, layers=1), visit)
                    self._parts[shape] = self._compile(self._programs[alike], groups)
                known = self._parts[shape].with_layers(chunk.layers)
            self._parts[key] = known
        return known

    def _finish(self, job: Job, groups: Groups, stage: int, visit: Task) -> Part:
        """The last visit of a step, with what follows it."""
        facts = {name: getattr(job, name) for name in Job.__dataclass_fields__}
        program = write_program(scheme_of(job.plan), _Visits(**facts, visits=(visit,)), {"pp": stage})
        return self._compile(program, groups)

    def _compile(self, program: Program, groups: Groups) -> Part:
        outside_s, layers_s = np.zeros(groups.near), np.zeros(groups.near)
        items: list[TimedInstruction | Layers] = []
        for item in program.items:
            if isinstance(item, Repeat):
                steps = tuple([self._step(step, groups, layers_s, item.times) for step in item.body])
                items.append(Layers(steps, item.times))
            else:
                items.append(self._step(item, groups, outside_s, 1))
        return Part(TimedTask(tuple(items)), outside_s, layers_s)

    def _step(self, instruction: Instruction, groups: Groups, moved_s: Floats, times: int) -> TimedInstruction:
        after, stream = instruction.after, instruction.stream
        if isinstance(instruction, Compute):
            return TimedInstruction(stream, self._kernel_s(instruction), after, True)
        if isinstance(instruction, Launch):
            return TimedInstruction(stream, instruction.host_s, after, False)
        if isinstance(instruction, Copy):
            # How long it lasts depends on what else its link carries: at least as long as alone.
            size, direction = instruction.size_bytes, instruction.direction
            alone_s = instruction.seconds or host_copy(self.cluster, groups.rank, size, direction).alone_s
            return TimedInstruction(stream, alone_s, after, False)
        ranks = groups.along(instruction.axis)
        if isinstance(instruction, Collective):
            tokens = instruction.tokens
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
                    exchange=ExpertExchange(**tokens._asdict()) if tokens else None,
                ).slice_of(instruction.slices)
                self._moves[key] = traffic.latency_s + traffic.fluid_s, groups.occupied_s(traffic)
            seconds, occupied = self._moves[key]
            moved_s += times * occupied
            return TimedInstruction(stream, seconds, after, False)
        if not instruction.wrap or instruction.to is None or instruction.source is None:
            # A message between stages: when it comes and how long it takes is the pipeline's business.
            return TimedInstruction(stream, 0.0, after, False, SEND if instruction.to is not None else RECEIVE)
        size = len(ranks)
        pairs = (ranks[0], ranks[instruction.to % size]), (ranks[instruction.source % size], ranks[0])
        seconds = 0.0
        for sender, receiver in pairs:
            alone_s, occupied = self._message(sender, receiver, instruction.size_bytes, groups)
            seconds = max(seconds, alone_s)
            moved_s += times * occupied
        return TimedInstruction(stream, seconds, after, False)

    def _message(self, sender: int, receiver: int, size_bytes: int, groups: Groups) -> tuple[float, Floats]:
        key = (sender, receiver, size_bytes, groups.node)
        if key not in self._moves:
            traffic = point_to_point(self.cluster, sender, receiver, size_bytes)
            self._moves[key] = traffic.latency_s + traffic.fluid_s, groups.occupied_s(traffic)
        return self._moves[key]


def _over_ranks(job: Job) -> bool:
    """Whether experts are spread over ranks, to which there are several ways."""
    return job.model.experts is not None and job.plan.ep > 1


def _hides(job: Job) -> bool:
    """Whether forwards and backwards of different micro-batches are interleaved."""
    return job.training and job.plan.hiding.micro_batches


def _usual_way(job: Job) -> Plan:
    """The plan with the usual way to its experts."""
    assert job.model.experts is not None
    usual = {name: getattr(Plan, name) for name in ("expert_dispatch", "expert_pieces", "expert_balance")}
    whole = None if job.model.experts.count % job.plan.ep == 0 else 0
    return replace(job.plan, **usual, expert_shards=whole)


def _of_experts(operator: Operator) -> bool:
    return operator.role.routed or operator.role in OF_ROWS


def _floor_key(family: Job) -> tuple[Hashable, ...]:
    """What of a family decides its kernels where attention is as fast as on any shape."""
    plan = family.plan
    scheme, method = scheme_of(plan), method_of(plan)
    divided = tuple(plan.degree(axis) for axis in scheme.axes if axis != scheme.token_axis or not scheme.usual)
    experts = (plan.ep, plan.expert_dispatch, plan.expert_pieces, plan.expert_shards, plan.expert_balance)
    exchange = (method.floor_like or method.name) or plan.exchange
    return family.tokens, scheme.name, divided, experts, plan.activation_store, exchange


def _write(job: Job, stage: int, chunk: Chunk, visit: Task) -> Program:
    """The program of one visit alone."""
    writer = Writer(scheme_of(job.plan), job, {"pp": stage})
    writer.visit(visit, chunk)
    return writer.builder.program()


def _on_one_stage(job: Job) -> Job:
    """The job without pipeline and divided state."""
    whole = replace(job.plan, degrees={**job.plan.degrees, "pp": 1}, vpp=1, stage_layers=(), zero=0)
    return replace(job, plan=whole)


def _bodies(program: Program) -> Iterator[tuple[Sequence[Instruction], int]]:
    """Instructions of a program that run as often, and how often."""
    for item in program.items:
        yield (item.body, item.times) if isinstance(item, Repeat) else ((item,), 1)


def _kinds(job: Job) -> list[tuple[int, int]]:
    """Every kind of layer: where the first one stands, and how many there are."""
    blocks = job.model.blocks
    return [(blocks.index(block), blocks.count(block)) for block in dict.fromkeys(blocks)]


def _signature(job: Job) -> Hashable:
    """What of a plan decides one task's instructions, the placement and the number of layers aside."""
    plan = job.plan
    degrees = tuple(plan.degree(axis) for axis in (*scheme_axes(), "ep"))
    experts = (plan.expert_dispatch, plan.expert_overlap, plan.expert_pieces, plan.expert_shards, plan.expert_balance)
    exchanges = (plan.exchange, *experts)
    switches = (plan.partition, exchanges, plan.sequence_regions, plan.overlap, plan.overlap_chunks)
    kept = (plan.recomputation, plan.recomputed, plan.activation_store, plan.offload_layers, plan.offload_weights)
    others = (*kept, job.sequences, job.order.splits_backward, tuple(plan.algorithms.items()))
    chosen = (*_switches(job, switches_of(plan)), *plan.options.items())
    return (job.work.sequence, degrees, switches, chosen, others)


def _switches(job: Job, names: Sequence[str]) -> tuple[Hashable, ...]:
    """The values of some of a plan's switches."""
    return tuple(job.plan.value(name) for name in names)


def _stated(job: Job) -> tuple[Hashable, ...]:
    """Everything of a plan that is not chosen for a machine."""
    chosen = switches_of(job.plan)
    return _switches(job, [name for name in SWITCHES if name not in chosen])
