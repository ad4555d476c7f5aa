"""A few layers of a job, which show what a steady block takes."""

from __future__ import annotations

from ..base.quick import replace
from .job import Job
from .lengths import OFFLOAD_FROM

#: Layers that show a steady block: the first fills the pipeline of exchanges, the others repeat.
BLOCKS = 4


def one_forward(job: Job) -> Job:
    """The forward of a few layers and one micro-batch or pass, with a pipeline's stages as replicas beside each
    other."""
    if job.unequal and job.plan.pp > 1:  # dealt as they are: stages stay, with as many layers each
        return _on_every_stage(job)
    alone = job.plan.in_one_stage(job.plan.dp * job.plan.pp)
    gone = -(-BLOCKS * job.plan.offload_weights // max(job.chunk_sizes))
    alone = replace(alone, offload_weights=gone) if gone else alone
    return Job(job.model.repeating_layers(BLOCKS), alone, job.work.one_forward(job.sequences))


def _on_every_stage(job: Job) -> Job:
    """The forward of a few layers on every stage."""
    plan = replace(job.plan, stage_layers=(), zero=0, recomputed=None, activation_store=None, offload_layers=0)
    options = {name: value for name, value in plan.options.items() if name != OFFLOAD_FROM}
    plan = replace(plan, offload_weights=0, options=options)
    return Job(job.model.repeating_layers(BLOCKS * plan.pp), plan, job.work.one_forward(job.sequences))
