"""A note that an answer under ``ideal`` is a ceiling, with the step of the same plan under the usual software.

``ideal`` is a device's best library and no overhead. A training step without a stated stack gets the note and, where
one more simulation is cheap, the time of its best plan under plain PyTorch.
"""

from __future__ import annotations

from dataclasses import replace

from ..base.errors import TspsimError
from ..base.units import percent
from ..scenario import Scenario
from ..step.result import Result
from ..step.simulation import simulate
from ..steps import STEPS
from .axes import choose

#: The stack of the ceiling, and the one that most people run.
CEILING, USUAL = "ideal", "fsdp2"
#: The longest timeline of a best plan, in spans, whose step is simulated once more.
FEW_SPANS = 20_000


def is_ceiling(scenario: Scenario) -> bool:
    """Whether a scenario asks for training steps without the software that runs them."""
    trains = scenario.traffic is None and scenario.loop is None and STEPS.get(scenario.workload.pass_).trains
    return trains and scenario.workload.stack == CEILING


def searched_under_the_ceiling(scenario: Scenario) -> tuple[str, ...]:
    """A note that the rates of a search without a stack are a ceiling; empty where a stack is stated."""
    if not is_ceiling(scenario):
        return ()
    return (
        f"No stack is stated, and `{CEILING}` is a ceiling: nothing but the device's best kernels. "
        f"`--set workload.stack={USUAL}` searches for plain PyTorch as most people run it.",
    )


def beside_the_ceiling(scenario: Scenario, result: Result) -> Result:
    """The answer with a note on its best plan that it is a ceiling; unchanged where a stack is stated, or nothing
    trains.

    Parameters
    ----------
    scenario
        The question, its plans stated.
    result
        Its answer.
    """
    best = result.best
    if best is None or not is_ceiling(scenario):
        return result
    usual = _under_the_usual(scenario, result)
    usually = f"`stack: {USUAL}`, plain PyTorch as most people run it, " + (
        f"takes {percent(usual / best.step_time_s - 1.0)} longer for this plan" if usual else "says what that takes"
    )
    note = f"no stack is stated, and `{CEILING}` is a ceiling: nothing but the device's best kernels; {usually}"
    plans = tuple(replace(plan, notes=(*plan.notes, note)) if plan is best else plan for plan in result.plans)
    return replace(result, plans=plans)


def _under_the_usual(scenario: Scenario, result: Result) -> float | None:
    """Seconds of the best plan's step under the usual stack; None where that is not cheap, or the plan cannot run."""
    best = result.best
    if best is None or best.timeline is None or len(best.timeline) > FEW_SPANS:
        return None
    workload = scenario.workload.model_copy(update={"stack": USUAL})
    try:
        usual = simulate(choose(scenario.model_copy(update={"workload": workload}), [best.name]))
    except TspsimError:
        return None
    return usual.plans[0].step_time_s if usual.plans[0].ran else None
