"""Weights and gradients that stay whole between micro-batches though replicas divide them: gradients of stacks that
reduce once, and with PyTorch's FSDP in a pipeline also weights (``reduces_once`` and ``keeps_whole`` of a stack)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..steps import Task
from .job import Job


def sums_beside(job: Job, task: Task) -> bool:
    """Whether a task's gradients are reduce-scattered right after it: from ZeRO 2 on in every backward, or in the last
    one with a stack that reduces once per step."""
    once = reduces_once(job) and task.micro_batch != job.micro_batches - 1
    return job.plan.zero >= 2 and not once


def accumulates_whole(job: Job) -> bool:
    """Whether whole gradients are kept until the last micro-batch, though replicas divide their sums."""
    return job.plan.zero >= 2 and reduces_once(job) and job.micro_batches > 1


#: Name in a stack's ``keeps_whole`` → whether it applies to a job.
KEPT_WHOLE: Mapping[str, Callable[[Job], bool]] = {
    "pipelines": lambda job: job.plan.pp > 1,
    "experts": lambda job: job.model.experts is not None,
}


def keeps_whole(job: Job) -> bool:
    """Whether weights that ZeRO 3 divides stay gathered from a step's first micro-batch to its last backward."""
    return job.training and any(KEPT_WHOLE[case](job) for case in job.work.stack.keeps_whole)


def reduces_once(job: Job) -> bool:
    """Whether gradients are summed after the last micro-batch alone."""
    return job.work.stack.reduces_once or keeps_whole(job)


def accumulates_gradients(job: Job) -> bool:
    """Whether a micro-batch's gradients are added to kept ones: always if the framework sums into buffers of its own;
    if it keeps them until the last micro-batch, only with several micro-batches (PyTorch's FSDP2, ``_fsdp_param.py``:
    ``accumulate_unsharded_grad_if_needed``)."""
    stack = job.work.stack
    sums_what_it_kept = stack.reduces_once or bool(stack.keeps_whole)
    return not sums_what_it_kept or accumulates_whole(job)
