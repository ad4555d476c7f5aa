"""Time of a draft model's passes after a step: k passes, the first together with the prompts of the step.

Each is a step of that model alone without host time (:mod:`tspsim.parallel.drafting`), so the tables of that model's
steps contain it. With n sequences and p prompts that end

    D = first pass (n sequences and all chunks of prompts) + (k − 1) · pass of n + p sequences
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ..parallel import Job, Plan
from ..parallel.decode import draft_pool
from ..parallel.drafting import drafter_of
from ..step.question import Question
from ..steps import Speculation
from .programs import StepPrograms
from .work import StepWork


class TabulatedSteps(Protocol):
    """Tables of a plan's steps (:class:`.costs.ProgramCosts`)."""

    @property
    def programs(self) -> StepPrograms: ...

    def seconds(self, works: Sequence[StepWork]) -> float: ...


class ModelDrafts:
    """Passes of a draft model in the steps of one plan.

    Parameters
    ----------
    costs_of
        Gives the tables of a plan's steps (:func:`.costs.costs_of`).
    """

    def __init__(
        self, question: Question, plan: Plan, speculation: Speculation, costs_of: Callable[..., TabulatedSteps]
    ) -> None:
        own = drafting_itself(plan)
        job = drafter_of(StepPrograms(question, own, speculation).decoding((1,)))
        assert job is not None
        #: The first pass of a sequence.
        self.job: Job = job
        seen = hiding_nothing(question)
        alone = replace(seen, model=job.model, work=replace(seen.work, formats=job.work.formats))
        tree = speculation.tree
        query_len = [1, *tree[:-1]] if tree else [1] * speculation.tokens

        def tables_of(query_len: int) -> TabulatedSteps:
            drafts = replace(speculation, tokens=query_len - 1, model=None, tree=()) if query_len > 1 else None
            return costs_of(alone, job.plan, speculation=drafts)

        self._passes = [(query_len, tables_of(query_len)) for query_len in query_len]

    def seconds(self, work: StepWork) -> float:
        """D after a step with some work."""
        first, *later = self._passes
        taken_s = passed_s(first[1], asking(work, first[0]))
        behind = going_on(work)
        if not behind.sequences:
            return taken_s
        seconds_by_length: dict[int, float] = {}
        for query_len, costs in later:
            if query_len not in seconds_by_length:
                seconds_by_length[query_len] = passed_s(costs, asking(behind, query_len))
            taken_s += seconds_by_length[query_len]
        return taken_s


def passed_s(costs: TabulatedSteps, work: StepWork) -> float:
    """Seconds of a step without host time, where none is hidden."""
    if not work.tokens:
        return 0.0
    return costs.seconds([work]) - costs.programs.host_s(work.sequences + len(work.chunks), 0.0)


def asking(work: StepWork, query_len: int) -> StepWork:
    """The work with another query length of every decoding sequence."""
    return StepWork.counted(
        work.chunks, query_len, work.sequences, work.context_tokens, work.longest, lambda: work.contexts
    )


def going_on(work: StepWork) -> StepWork:
    """The sequences that a step drafts for: decoding ones, and prompts that end."""
    ended = [chunk.query_tokens + chunk.context_tokens - 1 for chunk in work.chunks if chunk.ends]
    return StepWork.counted(
        (),
        1,
        work.sequences + len(ended),
        work.context_tokens + sum(ended),
        max([work.longest, *ended]),
        lambda: (*work.contexts, *ended),
    )


def drafting_itself(plan: Plan) -> Plan:
    """The plan with a drafter on the same GPUs."""
    own = {option.name for option in draft_pool.OPTIONS}
    return replace(plan, options={name: value for name, value in plan.options.items() if name not in own})


def hiding_nothing(question: Question) -> Question:
    """The question of an engine whose host hides nothing behind the device."""
    stack = question.work.stack
    engine = replace(stack.engine, hidden=0.0)
    return replace(question, work=replace(question.work, stack=replace(stack, engine=engine)))
