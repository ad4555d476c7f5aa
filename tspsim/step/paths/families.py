"""Lower bounds of a family: all plans that run the same kernels, whatever the schedule, without a mesh.

Families are many, so there are three bounds, each tighter and more expensive than the one before: products at the best
rate of any (:meth:`FamilyBounds.first_s`), attention at the best rate of any shape (:meth:`FamilyBounds.floor_s`),
every kernel at its own time (:meth:`FamilyBounds.compute_s`). All spread kernels evenly over the stages and take the
smallest bubble of the possible pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np

from ...base.quick import replace
from ...operators import Operator, Role
from ...parallel import Job, Plan, method_of, scheme_of
from ...parallel.choices import legal, schedules_of, with_defaults
from ...parallel.pipeline import PipelineOrder
from ...parallel.placement import Chunk
from ...parallel.recomputed import KEPT
from .kernels import KernelSeconds, KernelTimes, mixed, on_one_stage, signature

#: Roles of the kernels that expert parallelism needs beside products.
OF_ROWS = (Role.EXPERT_CAST, Role.EXPERT_ROWS, Role.EXPERT_SUM, Role.EXPERTS_ACTIVATION, Role.ADAPTER)
#: Chunks per stage of a pipeline, and its order.
Shape = tuple[int, PipelineOrder]


class FamilyBounds:
    """Bounds of families with sequences of equal length."""

    def __init__(self, kernels: KernelTimes) -> None:
        self.kernels = kernels
        self._floors: dict[Hashable, KernelSeconds] = {}
        self._least: dict[Hashable, KernelSeconds] = {}

    def first_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """A bound below :meth:`floor_s`, equal for all ways to dispatch tokens to experts.

        Experts' products run at the best rate of any product on an even share of tokens; moving rows costs nothing.
        """
        plan, experts = family.plan, family.model.experts
        if experts is None or plan.ep == 1:
            return self.floor_s(family, pipelines)
        family = family.with_recomputation(KEPT).with_least_recomputation
        family = replace(family, plan=_default_dispatch(family))
        share = (1.0 - family.work.routing.dropped(experts.count)) / family.expert_loads.busiest_rank_load
        routed = self._routed(family, lambda operator: share * self.kernels.best_s(operator), "first")
        return in_pipeline(family, self._unrouted(family, self.kernels.least_operator_s, "first") + routed, pipelines)

    def floor_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """Kernels of a step without recomputation, attention at the best rate of any shape, since shapes depend on how
        shards exchange."""
        kernels = self.kernels
        family = family.with_recomputation(KEPT).with_least_recomputation
        if _over_ranks(family):
            unrouted = self._unrouted(family, kernels.least_operator_s, "first")
            return in_pipeline(family, unrouted + self._routed(family, kernels.operator_s, ""), pipelines)
        key, plan = _floor_key(family), family.plan
        if key not in self._floors:
            exchange = method_of(plan).floor_like or plan.exchange
            whole = with_defaults(replace(plan, degrees={**plan.degrees, "pp": 1}, vpp=1, exchange=exchange, zero=0))
            least = partial(kernels.summed, seconds=kernels.least_operator_s)
            self._floors[key] = kernels.least_of_schedules(replace(family, plan=whole), least)
        return in_pipeline(family, self._floors[key], pipelines)

    def compute_s(self, family: Job, pipelines: Sequence[Shape] = ()) -> float:
        """Kernels of a step, of the schedule that has least. Sequence regions divide the norms, and pieces of a product
        may be slightly faster than the whole."""
        kernels = self.kernels
        family = family.with_least_recomputation
        if _over_ranks(family):
            unrouted = self._unrouted(family, kernels.operator_s, "all")
            return in_pipeline(family, unrouted + self._routed(family, kernels.operator_s, ""), pipelines)
        whole = replace(family, plan=replace(family.plan, degrees={**family.plan.degrees, "pp": 1}, vpp=1, zero=0))
        key = signature(whole)
        if key not in self._least:
            self._least[key] = kernels.least_of_schedules(whole, kernels.of_model)
        return in_pipeline(family, self._least[key], pipelines)

    def schedule_s(self, job: Job, pipelines: Sequence[Shape] = ()) -> float:
        """Kernels of a step under one schedule; 0 if experts are spread over ranks."""
        if _over_ranks(job):
            return 0.0
        return in_pipeline(job, self.kernels.of_model(job), pipelines)

    def _unrouted(self, family: Job, seconds: Callable[[Operator], float], how: str) -> KernelSeconds:
        """Kernels of a micro-batch through the whole model without those of experts and their rows (which depend on the
        dispatch), of the schedule that has least."""
        plan = replace(_default_dispatch(family), degrees={**family.plan.degrees, "pp": 1}, vpp=1, zero=0)
        if how == "first":
            plan = with_defaults(replace(plan, exchange=method_of(plan).floor_like or plan.exchange))
        alike = replace(family, plan=plan)
        key = ("unrouted", how, *(_floor_key(alike, of_experts=False) if how == "first" else (signature(alike),)))
        if key not in self._floors:
            rest = partial(
                self.kernels.summed, seconds=lambda operator: 0.0 if _of_experts(operator) else seconds(operator)
            )
            self._floors[key] = self.kernels.least_of_schedules(alike, rest)
        return self._floors[key]

    def _routed(self, family: Job, seconds: Callable[[Operator], float], how: str) -> KernelSeconds:
        """Kernels of experts and their rows in all layers with experts; no schedule changes them."""
        key = ("routed", how, *_floor_key(family), family.plan.recomputation)
        if key not in self._floors:
            whole = on_one_stage(family)
            job = next(job for job in schedules_of(whole, self.kernels.cluster.layout.mesh) if legal(job))
            blocks = job.model.blocks
            first = next(index for index, block in enumerate(blocks) if block.experts)
            chunk, times = Chunk(first, 1, False, False), sum(block.experts for block in blocks)
            routed = partial(self.kernels.of_pieces, job, [(chunk, 1)])
            of_experts_s = routed(lambda operator: seconds(operator) if _of_experts(operator) else 0.0)
            # The bound of one layer is that of the fastest kind, which may have no experts.
            alone = 0.0 if mixed(job) else 1.0
            self._floors[key] = of_experts_s * np.array([0.0, times, alone, alone])
        return self._floors[key]


def in_pipeline(family: Job, kernels: KernelSeconds, pipelines: Sequence[Shape]) -> float:
    """The larger of two bounds: micro-batches spread evenly over the stages; and the last stage, which the first
    micro-batch reaches through a chunk of every other stage, in the pipeline with the smallest wait."""
    outside_s, layers_s, layer_s, forward_s = kernels.tolist()
    pp, layers, count = family.plan.pp, family.model.layers, family.micro_batches
    bubbles = [0.0] if pp == 1 or not pipelines else []
    for vpp, order in pipelines if pp > 1 else ():
        turn_s = forward_s if order.splits_backward else layer_s
        bubbles.append(0.0 if order.both_ways else (pp - 1) * (layers // (pp * vpp)) * turn_s)
    last_s = count * (layers // pp) * layer_s + min(bubbles)
    least_s: float = max(count * (outside_s + layers_s) / pp, last_s)
    return least_s


def _over_ranks(job: Job) -> bool:
    """Whether experts are spread over ranks, which leaves several ways to dispatch tokens."""
    return job.model.experts is not None and job.plan.ep > 1


def _default_dispatch(job: Job) -> Plan:
    """The plan with the default dispatch of tokens to experts."""
    assert job.model.experts is not None
    usual = {name: getattr(Plan, name) for name in ("expert_dispatch", "expert_pieces", "expert_balance")}
    whole = None if job.model.experts.count % job.plan.ep == 0 else 0
    return replace(job.plan, **usual, expert_shards=whole)


def _of_experts(operator: Operator) -> bool:
    return operator.role.routed or operator.role in OF_ROWS


def _floor_key(family: Job, *, of_experts: bool = True) -> tuple[Hashable, ...]:
    """Key of the facts that decide a family's kernels when attention runs at its best rate; without ``of_experts``,
    less how experts are spread over ranks."""
    plan = family.plan
    scheme, method = scheme_of(plan), method_of(plan)
    divided = tuple(plan.degree(axis) for axis in scheme.axes if axis != scheme.token_axis or not scheme.usual)
    ways = (plan.ep, plan.expert_dispatch, plan.expert_pieces, plan.expert_shards, plan.expert_balance)
    experts = ways if of_experts else plan.sequence_regions
    exchange = (method.floor_like or method.name) or plan.exchange
    return family.tokens, scheme.name, divided, experts, plan.activation_store, exchange
