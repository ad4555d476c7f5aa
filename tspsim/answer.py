"""One question and its answer: a single step, with ``traffic`` the requests that a service answers, with ``loop`` an
iteration of reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import simulation
from .bound import Bounds
from .parallel import Plan
from .question import Question, look_up
from .result import PlanResult, Result
from .scenario import Scenario, load

Progress = Callable[[str, float], None]


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    every_rank: bool = False,
    every_step: bool = False,
    every_kernel: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Answer a scenario: every plan in its order.

    Parameters
    ----------
    scenario
        What :func:`tspsim.load` returns, or what it takes.
    every_rank
        Of a single step: run every rank instead of one a class of equal ranks; same answer, more timeline.
    every_step, every_kernel
        Of traffic: take every step by itself, and compare drawn steps with their whole programs; same answer, and how
        far it may be trusted.
    progress
        Called with a plan's name and the share of plans done before it.

    Raises
    ------
    InputError
        The scenario is wrong: a degree that divides nothing, an unknown name, ….
    """
    asked = scenario if isinstance(scenario, Scenario) else load(scenario)
    if asked.loop is not None:
        from .loop.answer import answer as iterations

        return iterations(look_up(asked), progress=progress)
    if asked.traffic is None:
        return simulation.simulate(asked, every_rank=every_rank, progress=progress)
    from .serving.answer import answer

    return answer(look_up(asked), every_step=every_step, every_kernel=every_kernel, progress=progress)


def run_plan(question: Question, plan: Plan) -> PlanResult:
    """One plan of a question that was looked up."""
    if question.scenario.loop is not None:
        from .loop.iteration import run_plan as iterate

        return iterate(question, plan)
    if question.scenario.traffic is None:
        return simulation.run_plan(question, plan)
    from .serving.answer import serve_plan

    return serve_plan(question, plan)


def bounds(scenario: Scenario) -> Bounds:
    """The ceilings of a step, or of iterations of a loop; raises InputError."""
    if scenario.loop is None:
        from .bound import bounds

        return bounds(scenario)
    from .loop.bound import bounds as of_iterations

    return of_iterations(look_up(scenario))
