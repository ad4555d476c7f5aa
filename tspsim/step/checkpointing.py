"""Effect of a checkpoint on the steps that write it: the step without it, its wait, its cost.

:mod:`tspsim.parallel.state.state_copies` writes the copies into a step's program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..network import host_bandwidth
from ..parallel import CHECKPOINTS, Job
from ..parallel.state import state_copies
from .question import Question
from .run import StepRun


def without_checkpoint(job: Job) -> Job:
    """The job of a step that writes no checkpoint."""
    return replace(job, plan=replace(job.plan, checkpoint=None, checkpoint_rate=None, checkpoint_every=1))


def held_s(question: Question, job: Job, plain: StepRun) -> float:
    """Seconds from a step's start in which its checkpoint's copies wait for the file of the previous checkpoint.

    In the steady state: a host has room for one checkpoint, so a copy and a file lie between two checkpoints at least.
    """
    way, file_s = CHECKPOINTS.get(job.plan.checkpoint or ""), state_copies.file_s(job)
    copy_s = state_copies.copied_bytes(job) / host_bandwidth(question.cluster.node)
    others_s = (job.plan.checkpoint_every - 1) * plain.makespan_s
    if way.holds_file:
        return 0.0
    if way.holds_copy:
        return max(0.0, file_s - others_s - plain.makespan_s)
    if file_s + copy_s <= others_s + plain.makespan_s:
        return 0.0
    timeline = plain.submission.timeline
    updates = timeline.labelled(lambda label: label.name == "optimizer step", bool)
    behind_s = plain.makespan_s - float(timeline.columns()["start_s"][updates].max(initial=0.0))
    return max(0.0, file_s - others_s - behind_s)


def checkpoint_of(question: Question, job: Job, plain: StepRun, step: StepRun) -> dict[str, float]:
    """Size and cost of a checkpoint: stall and step time without it (s), bytes per GPU and host, seconds of the copies
    alone and of the file system, and the part of the stall that waits for the previous file (s)."""
    copied, stall_s = state_copies.copied_bytes(job), max(0.0, step.makespan_s - plain.makespan_s)
    copy_s = copied / host_bandwidth(question.cluster.node)
    waited_s = job.held_s
    if waited_s and not CHECKPOINTS.get(job.plan.checkpoint or "").holds_copy:
        waited_s = copy_s + state_copies.file_s(job) - job.plan.checkpoint_every * plain.makespan_s
    return {
        "stall_s": stall_s,
        "step_without_s": plain.makespan_s,
        "bytes_per_gpu": copied,
        "bytes_per_host": copied * question.cluster.gpus_per_node,
        "copy_s": copy_s,
        "file_s": state_copies.file_s(job),
        "back_pressure_s": min(waited_s, stall_s),
    }


def spread_over(plain: StepRun, stall_s: float, steps: int) -> StepRun:
    """The mean of ``steps`` steps, one of which stalls."""
    more_s = stall_s / steps
    exposed = dict(plain.parts.exposed_s)
    exposed["copy_out"] = exposed.get("copy_out", 0.0) + more_s
    return replace(plain, makespan_s=plain.makespan_s + more_s, parts=replace(plain.parts, exposed_s=exposed))


def checkpoint_notes(written: Mapping[str, float]) -> Iterator[str]:
    if not written:
        return
    file = f", {written['file_s']:.3g} s to the file system" if written["file_s"] else ""
    yield (
        f"a checkpoint is {written['bytes_per_gpu'] / 1e9:.3g} GB per GPU ({written['bytes_per_host'] / 1e9:.3g} GB of "
        f"every host's memory), {written['copy_s']:.3g} s to the host alone{file}; it holds a step of "
        f"{written['step_without_s']:.3g} s up for {written['stall_s']:.3g} s"
    )
    if written["back_pressure_s"]:
        yield f"{written['back_pressure_s']:.3g} s of that until the file of the checkpoint before is written"
