"""What a step of an inference engine means to who waits for it: time to the first token, time a token, rates a user."""

from __future__ import annotations

from typing import Any

from ..engine.core import Submission
from ..parallel import Job, host_time
from ..parallel.state import capacity
from ..parallel.state.capacity import Capacity
from ..steps import ServingStep


def period_s(job: Job, submission: Submission) -> float:
    """Seconds from one step of a batch to its next.

    With a pipeline as many parts of the batch are under way as it has stages. They follow each other through the stages
    in turn (a closed tandem of equal jobs): each comes back after its own way through all of them, or after as many
    turns of the slowest stage, whichever is longer.
    """
    parts = parts_of(job)
    return turn_s(job, submission.makespan_s, slowest_stage_s(submission) if parts > 1 else 0.0)


def parts_of(job: Job) -> int:
    """Parts of a batch that a pipeline's stages work on at the same time."""
    step = job.step
    assert isinstance(step, ServingStep)
    return step.in_flight(job.work.load, job.plan.pp)


def turn_s(job: Job, makespan_s: float, slowest_s: float) -> float:
    """The same from how long one part takes, and the slowest stage for it."""
    parts = parts_of(job)
    return makespan_s if parts == 1 else max(makespan_s, parts * slowest_s)


def host_s(job: Job, run_s: float, makespan_s: float) -> float:
    """Seconds between the end of a step's programs and the next step: the host's, and a pipeline's wait for its slowest
    stage (``run_s`` is :func:`period_s`, of a step that does not serve its makespan)."""
    return job.work.stack.step_s + host_time.host_s(job) + max(run_s, host_time.hidden_host_s(job)) - makespan_s


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
        said["time_per_output_token_s"] = step_s / load.advance
        said["tokens_per_s_per_user"] = load.advance / step_s
        said["output_tokens_per_s"] = job.plan.dp * load.batch * load.advance / step_s
    kept = *load.kept, *load.decoding()
    longest = max(queries + context for queries, context, _ in kept)
    said["capacity"] = capacity.answer(room, longest, load.streams)
    return said
