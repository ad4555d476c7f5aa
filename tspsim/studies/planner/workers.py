"""Plans simulated by processes: answers come in the order of the questions."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...base.errors import TspsimError
from ...scenario import PlanSpec as PlanKeys
from ...scenario import Scenario
from ...step.result import PlanResult
from ..executors import Executor, answers
from ..query import Library, Query
from ..table import plan_result
from ..worker import answer
from .branch import SimulationsInterrupted
from .candidate import Candidate


class Simulators:
    """Simulates plans of one scenario with an executor, each with its replica's share of the batch.

    Parameters
    ----------
    executor
        The executor.
    library
        Memoizing look-ups.
    """

    def __init__(self, executor: Executor, library: Library) -> None:
        self.executor, self.library = executor, library

    def simulate(self, scenario: Scenario, candidates: Sequence[Candidate]) -> list[PlanResult | None]:
        """Answers in the order of the candidates.

        Raises
        ------
        Interrupted
            Ctrl-C, with the answers so far.
        TspsimError
            A simulation has a bug, or workers die repeatedly.
        """
        return self.ask([scenario_of(scenario, candidate) for candidate in candidates])

    def ask(self, scenarios: Sequence[Scenario]) -> list[PlanResult | None]:
        """Answers for scenarios of one plan each."""
        questions = [Query(self.library.key(self.library.look_up(scenario)), scenario) for scenario in scenarios]
        results: dict[str, PlanResult] = {}
        try:
            for answered in answers(iter(questions), self.executor, answer):
                for reply in answered:
                    if reply.bug:
                        name = next(q.question.plans[0].name for q in questions if q.key == reply.key)
                        raise TspsimError(f"bug: plan '{name}': {reply.bug}; please report")
                    results[reply.key] = plan_result(json.loads(reply.text))
        except KeyboardInterrupt:
            raise SimulationsInterrupted([results.get(question.key) for question in questions]) from None
        return [results.get(question.key) for question in questions]


def scenario_of(scenario: Scenario, candidate: Candidate) -> Scenario:
    """The scenario with one plan, and the sequences per replica that make up the batch."""
    workload = scenario.workload.with_sequences(candidate.job.work.sequences)
    plan = PlanKeys.model_validate(candidate.keys)
    return scenario.model_copy(update={"workload": workload, "plans": (plan,), "offers": ()})
