"""What stands whole between micro-batches of a step though replicas divide it: gradients of a stack that reduces once,
and with PyTorch's FSDP in a pipeline weights as well (``reduces_once`` and ``keeps_whole`` of a stack)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..steps import Task
from .job import Job


def sums_beside(job: Job, task: Task) -> bool:
    """Whether gradients are divided as soon as a task has made them: from ZeRO 2 on in every backward, or with a stack
    that reduces once a step in the last one."""
    once = reduces_once(job) and task.micro_batch != job.micro_batches - 1
    return job.plan.zero >= 2 and not once


def accumulates_whole(job: Job) -> bool:
    """Whether whole gradients wait for the last micro-batch, though replicas divide their sums."""
    return job.plan.zero >= 2 and reduces_once(job) and job.micro_batches > 1


#: What a stack's ``keeps_whole`` names → whether a job has it.
KEPT_WHOLE: Mapping[str, Callable[[Job], bool]] = {
    "pipelines": lambda job: job.plan.pp > 1,
    "experts": lambda job: job.model.experts is not None,
}


def keeps_whole(job: Job) -> bool:
    """Whether weights that ZeRO 3 divides stay gathered from the first micro-batch of a step to its last backward."""
    return job.training and any(KEPT_WHOLE[case](job) for case in job.work.stack.keeps_whole)


def reduces_once(job: Job) -> bool:
    """Whether a stack sums gradients behind the last micro-batch alone."""
    return job.work.stack.reduces_once or keeps_whole(job)


def adds_up(job: Job) -> bool:
    """Whether a micro-batch's gradients are added to kept ones: always where a framework sums into buffers of its own;
    where one sums behind the last micro-batch what it kept until then, only if there are several (PyTorch's FSDP2,
    ``_fsdp_param.py``: ``accumulate_unsharded_grad_if_needed``)."""
    stack = job.work.stack
    sums_what_it_kept = stack.reduces_once or bool(stack.keeps_whole)
    return not sums_what_it_kept or accumulates_whole(job)
