"""Seconds of kernels alone: of an operator, of one micro-batch's task, of a whole model under any schedule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...base.quick import replace
from ...network import Cluster
from ...operators import Gemm, Operator
from ...parallel import SWITCHES, Job, choices_of, scheme_axes, scheme_of, switches_of
from ...parallel.choices import legal, schedules_of
from ...parallel.pipeline import Chunk
from ...parallel.recomputed import KEPT
from ...parallel.step import Writer
from ...program import Compute, Instruction, Program
from ...steps import FORWARD, Task
from .effort import SUM_S, WRITE_S, WRITTEN_S, Effort

#: Index of a micro-batch that is neither the first nor the last.
MIDDLE = -1
#: Upper bound of what even the longest call loses at its start and end, as a factor.
BEST_RATE = 1.01
#: Dimensions of a product that is as fast as any, and by how much any other may be faster.
LARGE, BEST_PRODUCT = 16_384, 1.1
#: Seconds of one micro-batch's kernels through a whole model, shape (4,): outside the layers, in all layers, in one
#: layer, and in one layer's forward; if layers differ, of the fastest.
KernelSeconds = NDArray[np.float64]
#: The value for a family without a legal schedule.
NO_SCHEDULE = np.full(4, math.inf)


def mixed(job: Job) -> bool:
    """Whether a model has layers of several kinds, so that one layer does not represent all."""
    return len(job.model.distinct) > 1


class KernelTimes:
    """Seconds of kernels, each priced once.

    Parameters
    ----------
    cluster
        Where plans run.
    cost
        Seconds of an operator.
    peak_flops_per_s
        Upper bound of any kernel's rate.
    effort
        Counts the work done.
    """

    def __init__(
        self,
        cluster: Cluster,
        cost: Callable[[Operator], float],
        peak_flops_per_s: float,
        *,
        effort: Effort | None = None,
    ) -> None:
        self.cluster, self.cost, self.peak = cluster, cost, peak_flops_per_s
        self.effort = effort or Effort()
        self._seconds: dict[Operator, float] = {}
        self._rates: dict[Operator, float] = {}
        self._best: dict[str, float] = {}
        self._compute: dict[Hashable, KernelSeconds] = {}
        self._outside: dict[Hashable, float] = {}
        self._heads: dict[Hashable, float] = {}
        self._written: dict[Hashable, list[tuple[list[Operator], int]]] = {}

    def operator_s(self, operator: Operator) -> float:
        taken_s = self._seconds.get(operator)
        if taken_s is None:
            taken_s = self._seconds[operator] = self.cost(operator)
        return taken_s

    def kernel_s(self, kernel: Compute) -> float:
        return sum(self.operator_s(operator) for operator in kernel.operators)

    def least_operator_s(self, operator: Operator) -> float:
        """A kernel's time; at the best rate of any shape if the way to cut the tokens changes its shape."""
        peak_calls = operator.peak_calls
        if not peak_calls:
            return self.operator_s(operator)
        if peak_calls[0] not in self._rates:
            rates = (product.flops / self.operator_s(product) for product in peak_calls)
            self._rates[peak_calls[0]] = max(rates) * BEST_RATE
        return operator.flops / min(self.peak, self._rates[peak_calls[0]])

    def best_s(self, operator: Operator) -> float:
        """Seconds of an expert's product at the best rate of any product; 0 for kernels that move rows."""
        if not operator.role.routed or not isinstance(operator, Gemm):
            return 0.0
        if operator.dtype not in self._best:
            large = replace(operator, m=LARGE, n=LARGE, k=LARGE, batch=1)
            self._best[operator.dtype] = large.flops / self.cost(large) * BEST_PRODUCT
        # Rows are rounded up to whole ones: one of them may be due to that.
        return (operator.m - 1) / operator.m * operator.flops / self._best[operator.dtype]

    def of_model(self, job: Job) -> KernelSeconds:
        """Kernels of one micro-batch, by where they stand."""
        job = job.with_least_recomputation
        key = signature(job)
        if key not in self._compute:
            self._compute[key] = self.summed(on_one_stage(job), self.operator_s)
        return self._compute[key]

    def outside_s(self, job: Job) -> float:
        """Seconds of one micro-batch's kernels outside layers: embedding and head."""
        job = job.with_least_recomputation
        key = signature(job)
        if key in self._compute:
            return float(self._compute[key][0])
        if key not in self._outside:
            alone = on_one_stage(job)
            pieces = [(replace(alone.chunks(0)[0], layers=0), 1)]
            self._outside[key] = float(self.of_pieces(alone, pieces, self.operator_s)[0])
        return self._outside[key]

    def head_s(self, job: Job) -> float:
        """Seconds of one micro-batch's kernels of the head."""
        job = job.with_least_recomputation
        key = signature(job)
        if key not in self._heads:
            pieces = [(Chunk(job.model.layers, 0, has_embedding=False, has_head=True), 1)]
            self._heads[key] = float(self.of_pieces(on_one_stage(job), pieces, self.operator_s)[0])
        return self._heads[key]

    def summed(self, job: Job, seconds: Callable[[Operator], float]) -> KernelSeconds:
        """Kernels of one micro-batch through a whole model on one stage; of each kind of layer, one is written."""
        chunk = job.chunks(0)[0]
        if not mixed(job):
            return self.of_pieces(job, [(chunk, 1)], seconds)
        kinds = [(Chunk(first, 1, False, False), count) for first, count in kinds_of(job)]
        return self.of_pieces(job, [(replace(chunk, layers=0), 1), *kinds], seconds)

    def of_pieces(
        self, job: Job, pieces: Sequence[tuple[Chunk, int]], seconds: Callable[[Operator], float]
    ) -> KernelSeconds:
        """Kernels of chunks, each ``count`` times."""
        self.effort.add(SUM_S)
        outside_s = layers_s = 0.0
        both_s, forward_s = [0.0] * len(pieces), [0.0] * len(pieces)
        for kind in job.step.kinds(job.order):
            for number, (piece, count) in enumerate(pieces):
                for operators, times in self._operators(job, piece, kind):
                    body_s = sum([seconds(operator) for operator in operators])
                    if times != piece.layers:
                        outside_s += count * times * body_s
                        continue
                    layers_s += count * times * body_s
                    both_s[number] += body_s
                    forward_s[number] += body_s if kind == FORWARD else 0.0
        of_layers = slice(len(pieces) > 1, None)
        return np.array([outside_s, layers_s, min(both_s[of_layers]), min(forward_s[of_layers])])

    def _operators(self, job: Job, piece: Chunk, kind: str) -> list[tuple[list[Operator], int]]:
        """Kernels of one micro-batch's task on a chunk of layers, in pieces with how often each runs.

        Recomputation runs before a backward, so forwards with and without it share an entry.
        """
        alike = job.with_recomputation(KEPT) if kind == FORWARD else job
        key = (signature(alike), piece, kind)
        if key not in self._written:
            self._written[key] = [
                ([operator for step in filling(body) for operator in step.operators], times)
                for body, times in self.write(alike, 0, piece, Task(kind, MIDDLE, 0)).bodies()
            ]
        return self._written[key]

    def write(self, job: Job, stage: int, chunk: Chunk, visit: Task) -> Program:
        """The program of one visit."""
        writer = Writer(scheme_of(job.plan), job, {"pp": stage})
        writer.visit(visit, chunk)
        return self.counted(writer.builder.program())

    def counted(self, program: Program) -> Program:
        """Count a written program as effort, and return it."""
        written = sum(len(body) for body, _ in program.bodies())
        self.effort.add(WRITE_S + written * WRITTEN_S)
        return program

    def least_of_schedules(self, family: Job, seconds: Callable[[Job], KernelSeconds]) -> KernelSeconds:
        """The least kernels over all schedules. Switches of attention and of the MLP are varied apart, since the
        kernels of one do not depend on the other."""
        least: KernelSeconds | None = None
        every = (job for job in schedules_of(family, self.cluster.layout.mesh) if legal(job))
        for _, jobs in itertools.groupby(every, _stated):
            first, *others = jobs
            base = best = seconds(first)
            of_attention = {name for choice in choices_of(first.plan) for name in choice.first}
            of_mlp = [name for name in switches_of(first.plan) if name not in of_attention]
            for fixed in (of_mlp, sorted(of_attention)):
                alike = [job for job in others if _switches(job, fixed) == _switches(first, fixed)]
                saved = np.zeros(len(base))
                for job in alike:
                    saved = np.minimum(saved, seconds(job) - base)
                best = best + saved
            least = best if least is None else np.minimum(least, best)
        return NO_SCHEDULE if least is None else least


def filling(body: Iterable[Instruction]) -> Iterator[Compute]:
    """Kernels that fill the device, one after the other; those of few blocks run beside them."""
    for step in body:
        if isinstance(step, Compute) and not step.few:
            yield step


def on_one_stage(job: Job) -> Job:
    """The job without pipeline and without sharded state."""
    whole = replace(job.plan, degrees={**job.plan.degrees, "pp": 1}, vpp=1, stage_layers=(), accumulation=1, zero=0)
    return replace(job, plan=whole)


def kinds_of(job: Job) -> list[tuple[int, int]]:
    """(index of the first layer, number of layers) of every kind of layer."""
    blocks = job.model.blocks
    return [(blocks.index(block), blocks.count(block)) for block in dict.fromkeys(blocks)]


def signature(job: Job) -> Hashable:
    """Key of the facts of a plan that decide one task's instructions, except placement and number of layers."""
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
    """Values of a plan's switches."""
    return tuple(job.plan.value(name) for name in names)


def _stated(job: Job) -> tuple[Hashable, ...]:
    """Values of all switches that are not chosen for the machine."""
    chosen = switches_of(job.plan)
    return _switches(job, [name for name in SWITCHES if name not in chosen])
