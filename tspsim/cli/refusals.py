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
    name, memory = min(plans, key=lambda plan: plan[1].peak_bytes - plan[1].capacity_bytes)
    largest = max(memory.parts, key=lambda part: memory.parts[part])
    gib = 2.0**30
    over = (memory.peak_bytes - memory.capacity_bytes) / gib
    return InfeasibleError(
        f"no plan fits; the nearest, {name}, needs {memory.peak_bytes / gib:.1f} GiB a GPU, "
        f"{over:.1f} GiB more than its {memory.capacity_bytes / gib:.1f}; "
        f"largest part: {largest.replace('_', ' ')}, {memory.parts[largest] / gib:.1f} GiB"
    )
