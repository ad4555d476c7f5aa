"""Plans simulated by processes: questions out, answers back in the order they were asked."""

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
    """An executor that simulates plans of one scenario, each with its replica's share of the batch.

    Parameters
    ----------
    executor
        Who answers.
    library
        Look-ups that remember.
    """

    def __init__(self, executor: Executor, library: Library) -> None:
        self.executor, self.library = executor, library

    def simulate(self, scenario: Scenario, candidates: Sequence[Candidate]) -> list[PlanResult | None]:
        """Answers in the order of the candidates.

        Raises
        ------
        Interrupted
            Ctrl-C; with the answers so far.
        TspsimError
            A simulation met a bug, or workers die again and again.
        """
        return self.ask([scenario_of(scenario, candidate) for candidate in candidates])

    def ask(self, scenarios: Sequence[Scenario]) -> list[PlanResult | None]:
        """The same for scenarios of one plan each."""
        questions = [Query(self.library.key(self.library.look_up(asked)), asked) for asked in scenarios]
        found: dict[str, PlanResult] = {}
        try:
            for answered in answers(iter(questions), self.executor, answer):
                for told in answered:
                    if told.bug:
                        name = next(q.scenario.plans[0].name for q in questions if q.key == told.key)
                        raise TspsimError(f"bug: plan '{name}': {told.bug}; please report")
                    found[told.key] = plan_result(json.loads(told.text))
        except KeyboardInterrupt:
            raise SimulationsInterrupted([found.get(question.key) for question in questions]) from None
        return [found.get(question.key) for question in questions]


def scenario_of(scenario: Scenario, candidate: Candidate) -> Scenario:
    """The scenario with one plan, and as many sequences a replica as make the batch."""
    workload = scenario.workload.with_sequences(candidate.job.work.sequences)
    plan = PlanKeys.model_validate(candidate.keys)
    return scenario.model_copy(update={"workload": workload, "plans": (plan,), "offers": ()})
