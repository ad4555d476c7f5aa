"""How the answer of each planner is shown: its page, its lines for the terminal, and the scenario of its best plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..scenario import Scenario
    from ..studies.planner import Planned, ServingPlanned, TrafficPlanned

#: Writes a page; lines for a terminal of a width; the scenario with the best plan alone.
Shown = tuple[Callable[[Path], None], Callable[[int], "Sequence[RenderableType]"], "Scenario"]


def shown(answer: Planned | ServingPlanned | TrafficPlanned) -> Shown:
    """The three of an answer."""
    from ..report import plan, plan_page, serving_plan, traffic_plan
    from ..studies.planner import Planned, TrafficPlanned

    if isinstance(answer, Planned):
        whole = answer
        return lambda path: plan_page.write_page(whole, path), lambda width: plan.summary(whole, width), whole.asked
    if isinstance(answer, TrafficPlanned):
        requests = answer
        return (
            lambda path: traffic_plan.write_page(requests, path),
            lambda _width: traffic_plan.summary(requests),
            requests.best[0].asked,
        )
    step = answer
    return (
        lambda path: serving_plan.write_page(step, path),
        lambda _width: serving_plan.summary(step),
        step.best[0].asked,
    )


def check_emitted(engine: str, scenario: Scenario) -> None:
    """Raise InputError unless plans of this scenario can be launched by this engine."""
    from ..errors import InputError
    from ..studies.launch import LAUNCHERS

    try:
        LAUNCHERS.get(engine)
    except InputError as error:
        raise error.at(key="--emit") from None
    if scenario.traffic is None:
        raise InputError("launches plans that serve requests; the scenario has no `traffic`", key="--emit")


def emitted(engine: str, asked: Scenario) -> str:
    """The plan of a scenario as an engine's launch."""
    from ..question import look_up
    from ..serving.answer import deployment_of
    from ..studies.launch import launch

    question = look_up(asked)
    return launch(engine, asked, deployment_of(question, question.plans[0]))
