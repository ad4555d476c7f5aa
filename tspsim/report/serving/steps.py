"""Typical steps of a plan's runs, and their time by part, from their programs."""

from __future__ import annotations

from collections.abc import Iterator

from tspsim.serving.answer import deployment_of
from tspsim.serving.runs import ServingRun
from tspsim.serving.spread import Typical
from tspsim.serving.work import StepWork
from tspsim.step.question import look_up
from tspsim.step.result import PlanResult, Result

from .view import StepShare


def shares_of(result: Result, plan: PlanResult) -> tuple[StepShare, ...]:
    """A decode step under the least and the most load, and one with prompts; empty without the question or logs.

    Raises
    ------
    TspsimError
        Files of the question are gone.
    """
    runs: list[ServingRun] = [run for run in plan.runs if any(len(log) for log in run.logs)]
    if result.source_scenario is None or not runs:
        return ()
    question = look_up(result.source_scenario)
    deployment = deployment_of(question, next(other for other in question.plans if other.name == plan.name))
    works = dict.fromkeys(typical(runs, deployment.dp_size))
    return tuple(StepShare(in_words(work), deployment.costs.breakdown(work)) for work in works)


def typical(runs: list[ServingRun], dp_size: int) -> Iterator[StepWork]:
    """Typical steps of the runs with the lowest and the highest rate."""
    ordered = sorted(runs, key=lambda run: run.metrics["output_tokens_per_s"])
    ends = ordered[:1] if len(ordered) == 1 else [ordered[0], ordered[-1]]
    typical_steps = [Typical.of(run.waits, run.logs, dp_size) for run in ends]
    for ends_ in typical_steps:
        if ends_.decode is not None:
            yield ends_.decode
    if typical_steps[-1].reading is not None:
        yield typical_steps[-1].reading


def in_words(work: StepWork) -> str:
    """A step as the name of its bar.

    >>> in_words(StepWork((), (1000,) * 8))
    'decodes 8 at 1,000 tokens'
    """
    tokens = sum(chunk.query_tokens for chunk in work.chunks)
    if not tokens:
        return f"decodes {work.sequences:,} at {work.contexts[0]:,} tokens"
    return f"reads {tokens:,} tokens" + (f", decodes {work.sequences:,}" if work.contexts else "")
