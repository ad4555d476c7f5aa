"""What is said where no plan can answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InfeasibleError

if TYPE_CHECKING:
    from ..result import Memory, PlanResult


def nothing_runs(plans: Sequence[PlanResult]) -> InfeasibleError:
    """Every plan was refused: by its memory, or though it fits (dead links cut its ranks off)."""
    fitting = [plan for plan in plans if plan.memory.fits]
    if fitting:
        return InfeasibleError(f"no plan can run; {fitting[0].name}: {fitting[0].error}")
    return nothing_fits([(plan.name, plan.memory) for plan in plans])


def nothing_fits(plans: Sequence[tuple[str, Memory]]) -> InfeasibleError:
    """Every plan was refused: the nearest one, by how much it misses, and what of it is largest."""
    from ..description import too_large

    name, memory = min(plans, key=lambda plan: plan[1].peak_bytes - plan[1].capacity_bytes)
    return InfeasibleError(f"no plan fits; the nearest, {name}, {too_large(memory)}")
