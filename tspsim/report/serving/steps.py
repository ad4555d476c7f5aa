"""Typical steps of a plan's runs, and where their time goes as their programs say."""

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
    """A decode step under the least and the most load, and one that reads prompts; empty where the question is not at
    hand or nothing was logged.

    Raises
    ------
    TspsimError
        Files that the question names are gone.
    """
    runs: list[ServingRun] = [run for run in plan.runs if any(len(log) for log in run.logs)]
    if result.asked is None or not runs:
        return ()
    question = look_up(result.asked)
    deployment = deployment_of(question, next(each for each in question.plans if each.name == plan.name))
    works = dict.fromkeys(typical(runs, deployment.lanes))
    return tuple(StepShare(in_words(work), deployment.costs.breakdown(work)) for work in works)


def typical(runs: list[ServingRun], lanes: int) -> Iterator[StepWork]:
    """Of the runs with fewest and with most at once."""
    ordered = sorted(runs, key=lambda run: run.metrics["output_tokens_per_s"])
    ends = ordered[:1] if len(ordered) == 1 else [ordered[0], ordered[-1]]
    found = [Typical.of(run.waits, run.logs, lanes) for run in ends]
    for each in found:
        if each.decode is not None:
            yield each.decode
    if found[-1].reading is not None:
        yield found[-1].reading


def in_words(work: StepWork) -> str:
    """A step as a bar is called.

    >>> in_words(StepWork((), (1000,) * 8))
    'decodes 8 at 1,000 tokens'
    """
    tokens = sum(chunk.query_tokens for chunk in work.chunks)
    if not tokens:
        return f"decodes {work.sequences:,} at {work.contexts[0]:,} tokens"
    return f"reads {tokens:,} tokens" + (f", decodes {work.sequences:,}" if work.contexts else "")
