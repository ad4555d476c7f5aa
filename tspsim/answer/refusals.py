"""The error where no plan can answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..base.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from ..fleet import FleetQuestion
    from ..scenario import Scenario
    from ..step.result import Memory, PlanResult


@contextlib.contextmanager
def placed(question: Scenario | FleetQuestion) -> Iterator[None]:
    """Gives errors of looked-up names the file or option that they come from, as all others have."""
    try:
        yield
    except InputError as error:
        raise error.at(file=question.origin(error.key or "")) from None


def nothing_runs(plans: Sequence[PlanResult]) -> InfeasibleError:
    """The error where every plan is refused: by its memory, or though it fits (dead links cut its ranks off)."""
    fitting = [plan for plan in plans if plan.memory.fits]
    if fitting:
        return InfeasibleError(f"no plan can run; {fitting[0].name}: {fitting[0].error}")
    from ..step.description import too_large

    nearest = min(plans, key=lambda plan: plan.memory.peak_bytes - plan.memory.capacity_bytes)
    if nearest.error != too_large(nearest.memory):
        return InfeasibleError(f"no plan fits; the nearest, {nearest.name}: {nearest.error}")
    return nothing_fits([(nearest.name, nearest.memory)])


def nothing_fits(plans: Sequence[tuple[str, Memory]]) -> InfeasibleError:
    """The error where no plan fits: the nearest plan, what it lacks, and its largest part."""
    from ..step.description import too_large

    name, memory = min(plans, key=lambda plan: plan[1].peak_bytes - plan[1].capacity_bytes)
    return InfeasibleError(f"no plan fits; the nearest, {name}, {too_large(memory)}")
