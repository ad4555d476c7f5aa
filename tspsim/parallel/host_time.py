"""Seconds of a serving step's host: what its engine does beside launching kernels, of a job."""

from __future__ import annotations

from .job import Job
from .plan import DRAFT_REPLICAS


def host_s(job: Job) -> float:
    """Seconds of a serving step's host, beside launches, that its device waits for: once a pass."""
    return sum(job.work.stack.engine.host_s(sequences) + between_s(job) for sequences in _sequences(job))


def between_s(job: Job) -> float:
    """Of them those of a pass whatever is in it: small kernels and waits of the stage's layers, and what the host does
    between verifying drafts and making the next."""
    engine, routed = job.work.stack.engine, job.model.routed_layers
    stages, ranks = job.plan.pp, max(job.whole_ranks, job.plan.ep)
    drafted = engine.drafted.value if job.drafts is not None and job.drafts.tokens else 0.0
    layers = -(-job.model.layers // stages), -(-routed // stages)
    return engine.between_s(*layers, ranks, job.model.experts) + drafted


def hidden_host_s(job: Job) -> float:
    """Seconds of it that run beside the device: the step takes them at least."""
    return sum(map(job.work.stack.engine.hidden_s, _sequences(job)))


def _sequences(job: Job) -> list[int]:
    """Sequences of every pass that the host of a replica sees: where others draft, it verifies theirs too."""
    plan, drafting = job.plan, int(job.plan.options.get(DRAFT_REPLICAS, 0))
    return [-(-batch.sequences * plan.dp // max(1, plan.dp - drafting)) for batch in job.forwards]
