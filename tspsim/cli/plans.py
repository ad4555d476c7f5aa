"""How a planner's answer is shown: page, lines for the terminal, the scenario of its best plan, its memo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..scenario import Scenario
    from ..studies.planner import OffersPlanned, Planned, ServingPlanned, TrafficPlanned

Writes = Callable[[Path], None]
#: Writes the page; lines for a terminal of a width; the scenario with the best plan alone; prints the memo.
Shown = tuple[Writes, Callable[[int], "Sequence[RenderableType]"], Callable[[], "Scenario"], Writes]


def shown(answer: Planned | ServingPlanned | TrafficPlanned | OffersPlanned) -> Shown:
    """The four functions that show an answer."""
    from ..base.files import atomic_write
    from ..report import offers_plan, plan, plan_page, searched, serving_plan, traffic_plan
    from ..report.memo import planned
    from ..report.memo.sheet import sheet
    from ..report.printing import write_pdf
    from ..studies.planner import OffersPlanned, Planned, TrafficPlanned

    if isinstance(answer, OffersPlanned):
        offers = answer
        page, lines = partial(offers_plan.write_page, offers), partial(offers_plan.summary, offers)
        return (
            page,
            lines,
            lambda: offers.source_scenario,
            lambda path: write_pdf(sheet(planned.of_offers(offers)), path),
        )
    if isinstance(answer, Planned):
        whole = answer
        page, lines = partial(plan_page.write_page, whole), partial(plan.summary, whole)
        return page, lines, lambda: whole.source_scenario, lambda path: write_pdf(sheet(planned.of_steps(whole)), path)
    view = traffic_plan.view_of(answer) if isinstance(answer, TrafficPlanned) else serving_plan.view_of(answer)
    best = answer.best[0]
    return (
        lambda path: atomic_write(path, searched.page(view)),
        lambda _width: searched.summary(view),
        lambda: best.source_scenario,
        lambda path: write_pdf(sheet(planned.of_searched(view)), path),
    )


def check_emitted(name: str, scenario: Scenario) -> None:
    """Raise InputError unless plans of this scenario can be launched by this engine or framework."""
    from ..base.errors import InputError, UnknownNameError
    from ..steps import STEPS
    from ..studies.launch import LAUNCHERS, TRAINERS

    if name not in LAUNCHERS and name not in TRAINERS:
        raise UnknownNameError("engine or framework to launch", name, (*LAUNCHERS, *TRAINERS), key="--emit")
    if name in LAUNCHERS and scenario.traffic is None:
        raise InputError(f"{name} serves requests; the scenario has no `traffic`", key="--emit")
    if name in TRAINERS and (scenario.traffic is not None or not STEPS.get(scenario.workload.pass_).trains):
        raise InputError(f"{name} trains; the scenario's pass is not `training`", key="--emit")


def has_its_plan(question: Scenario) -> bool:
    """Whether a scenario, or each of its offers, states exactly one plan and asks for no search."""
    from ..studies.purchase.offers import expand

    return all(len(offer.plans) == 1 and offer.searched is None for offer in expand(question))


def emitted(name: str, scenario: Scenario) -> str:
    """The plan of a scenario as a launch; with offers one launch each."""
    from ..serving.answer import deployment_of
    from ..step.question import look_up
    from ..studies.launch import TRAINERS, launch, train
    from ..studies.purchase.offers import expand

    if name in TRAINERS:
        questions = map(look_up, expand(scenario))
        return "\n".join(train(name, question, question.plans[0]) for question in questions)
    questions = map(look_up, expand(scenario))
    return "\n".join(
        launch(name, question.scenario, deployment_of(question, question.plans[0])) for question in questions
    )
