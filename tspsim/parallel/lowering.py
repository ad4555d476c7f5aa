"""From a scheme's operators to the kernels that run: lanes of the residual stream, adapters beside frozen weights,
casts of what is kept, the stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..operators import Operator
from . import hyper_connections
from .job import Job
from .whole import adds_up

Lowering = Callable[[Sequence[Operator]], tuple[Operator, ...]]


def lowering_of(job: Job) -> Lowering:
    """What the work, and the software it runs on, make of a schedule's operators; the same for every scheme."""
    steps: list[Lowering] = []
    work, store = job.work, job.store
    adapters, stack = work.adapters, work.stack
    if job.model.residual_lanes > 1:
        steps.append(partial(hyper_connections.attach, job.model, job.activation_bytes))
    if adapters is not None:
        steps.append(lambda operators: tuple(adapters.attach(operators)))
    if job.training and store.columns_bytes is not None:
        steps.append(lambda operators: tuple(store.cast(operators)))
    if not stack.fuses:
        accumulates = adds_up(job)
        biased = job.training and job.model.experts is not None and job.model.experts.expert_bias
        steps.append(lambda operators: tuple(stack.run(operators, accumulates=accumulates, biased=biased)))

    def lower(operators: Sequence[Operator]) -> tuple[Operator, ...]:
        lowered = tuple(operators)
        for step in steps:
            lowered = step(lowered)
        return lowered

    return lower
