"""Passes of a verify step's drafter, each as a job."""

from __future__ import annotations

from ..base.quick import replace
from .draft import DRAFTS
from .job import Job
from .plan import Plan


def draft_passes(job: Job) -> int:
    """Passes of the drafter after the model's own: one if it makes all drafts at once, for a tree its depth."""
    drafts = job.drafts
    if drafts is None or not (job.draft_layers or (drafts.model and drafts.tokens)):
        return 0
    return 1 if DRAFTS.get(drafts.draft).at_once else len(drafts.tree) or drafts.tokens


def distinct_passes(job: Job) -> int:
    """Passes of the drafter that differ: without a tree, all after the second equal it."""
    passes = draft_passes(job)
    return passes if job.drafts is not None and job.drafts.tree else min(2, passes)


def drafting(job: Job, number: int = 0) -> Job:
    """Pass ``number`` of the drafter: per sequence one query, the drafts of the depth before, or all at once."""
    drafts, queries = job.drafts, 1
    if drafts is not None and DRAFTS.get(drafts.draft).at_once:
        queries = 1 + drafts.tokens
    elif drafts is not None and drafts.tree and number:
        queries = drafts.tree[number - 1]
    work = replace(job.work, load=job.work.load.drafting(number, queries))
    if drafts is None or drafts.model is None:
        return replace(job, work=work)
    own = drafts.model
    kept = own.checkpoint
    if job.work.formats.cache in own.attention_kind.cache_types:
        kept = replace(kept, cache=job.work.formats.cache)
    degrees = {**job.plan.degrees, "ep": 1}
    plan = replace(job.plan, degrees=degrees, stage_layers=(), expert_overlap=Plan.expert_overlap, offload_weights=0)
    return replace(job, model=own, plan=plan, work=replace(work, formats=kept), pass_index=None)


def drafter_of(job: Job) -> Job | None:
    """The first pass of a separate draft model; None: there is none."""
    drafts = job.drafts
    return drafting(job) if drafts is not None and drafts.model is not None and drafts.tokens else None
