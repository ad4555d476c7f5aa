"""What an answer under ``ideal`` is a ceiling of: the same plan under the software that most people run.

``ideal`` takes a device's best library and nothing beside it. Who states no stack of a training step is told so, and,
where one more simulation is cheap, what plain PyTorch makes of the best plan.
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

#: The stack that nobody runs, and the one that most people run.
CEILING, USUAL = "ideal", "fsdp2"
#: Spans of a timeline up to which a step is simulated once more, counted on the best plan's.
FEW_SPANS = 20_000


def beside_the_ceiling(scenario: Scenario, result: Result) -> Result:
    """The answer, its best plan with a note that it is a ceiling; as it was where a stack was stated, or where nothing
    trains.

    Parameters
    ----------
    scenario
        What was asked, its plans stated.
    result
        The answer to it.
    """
    best = result.best
    trains = scenario.traffic is None and scenario.loop is None and STEPS.get(scenario.workload.pass_).trains
    if best is None or not trains or scenario.workload.stack != CEILING:
        return result
    usual = _under_the_usual(scenario, result)
    found = f"`stack: {USUAL}`, plain PyTorch as most people run it, " + (
        f"takes {percent(usual / best.step_time_s - 1.0)} longer for this plan" if usual else "says what that takes"
    )
    note = f"no stack is stated, and `{CEILING}` is a ceiling: nothing but the device's best kernels; {found}"
    plans = tuple(replace(plan, notes=(*plan.notes, note)) if plan is best else plan for plan in result.plans)
    return replace(result, plans=plans)


def _under_the_usual(scenario: Scenario, result: Result) -> float | None:
    """Seconds of the best plan's step under the usual software; None where that is not cheap, or it cannot run."""
    best = result.best
    if best is None or best.timeline is None or len(best.timeline) > FEW_SPANS:
        return None
    workload = scenario.workload.model_copy(update={"stack": USUAL})
    try:
        told = simulate(choose(scenario.model_copy(update={"workload": workload}), [best.name]))
    except TspsimError:
        return None
    return told.plans[0].step_time_s if told.plans[0].ran else None
