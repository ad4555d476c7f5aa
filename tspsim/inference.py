"""What a step of an inference engine means to who waits for it: time to the first token, time a token, rates a user."""

from __future__ import annotations

from typing import Any

from .engine.core import Submission
from .parallel import Job, capacity
from .parallel.capacity import Capacity
from .steps import ServingStep


def period_s(job: Job, submission: Submission) -> float:
    """Seconds from one step of a batch to its next.

    With a pipeline as many parts of the batch are under way as it has stages. They follow each other through the stages
    in turn (a closed tandem of equal jobs): each comes back after its own way through all of them, or after as many
    turns of the slowest stage, whichever is longer.
    """
    step = job.step
    assert isinstance(step, ServingStep)
    parts = step.in_flight(job.work.load, job.plan.pp)
    if parts == 1:
        return submission.makespan_s
    return max(submission.makespan_s, parts * slowest_stage_s(submission))


def slowest_stage_s(submission: Submission) -> float:
    """Longest time that a rank is at work: from its first kernel to its last."""
    timeline = submission.timeline
    columns = timeline.columns()
    computing = timeline.labelled(lambda entry: entry.is_compute, bool)
    longest = 0.0
    for simulated in submission.ranks:
        mine = computing & (columns["rank"] == simulated.rank.number)
        if mine.any():
            longest = max(longest, float(columns["end_s"][mine].max() - columns["start_s"][mine].min()))
    return longest


def answer(job: Job, step_s: float, room: Capacity) -> dict[str, Any]:
    """The entry ``inference`` of a plan.

    ``time_to_first_token_s`` of prompts whose end is in the step, ``time_per_output_token_s`` of sequences that decode
    (of drafts accepted on average), and what a user sees of that a second; absent where nobody waits for it.
    """
    load = job.work.load
    said: dict[str, Any] = {}
    if load.prompts:
        said["time_to_first_token_s"] = step_s + job.work.stack.engine.front_end.value
    if load.batch:
        accepted = load.speculation.accepted if load.speculation else 1.0
        said["time_per_output_token_s"] = step_s / accepted
        said["tokens_per_s_per_user"] = accepted / step_s
        said["output_tokens_per_s"] = job.plan.dp * load.batch * accepted / step_s
    said["capacity"] = capacity.answer(room, max(tokens for tokens, _ in capacity.kept_by(job)))
    return said
