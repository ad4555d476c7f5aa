"""The results of learning from a measured step: factors of kernel families, and the corrected steps of other plans."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..hardware import Costs
from ..step.question import Question
from ..step.simulation import run_plan
from .comparison import Laid
from .names import waits
from .table import busy_s


@dataclass(frozen=True)
class Corrected:
    """A plan's step before and after the correction, and its rate after it."""

    name: str
    before_s: float
    after_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Follows:
    """The factors from a step, and the corrected plans of its scenario."""

    factors: dict[str, float]
    plans: tuple[Corrected, ...]


def kernels_found(laid: Laid) -> dict[int, list[int]]:
    """Rows of the trace by their operation, without kernels that only wait. Casts of a product are the product's, whose
    price has them."""
    rows: dict[int, list[int]] = defaultdict(list)
    names = laid.trace.word("name")
    for row, index in enumerate(laid.operation.tolist()):
        if index >= 0 and not waits(names[row]):
            rows[index + laid.lane.operations[index].prepares].append(row)
    return rows


def factors_of(laid: Laid) -> dict[str, float]:
    """Measured over simulated time of every kernel family (:attr:`tspsim.operators.Operator.kind`), over the operators
    with kernels."""
    rows = kernels_found(laid)
    starts, ends = laid.trace.columns["start_s"], laid.trace.end_s
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for index, item in enumerate(laid.lane.operations):
        if item.operator is not None and index in rows and item.seconds > 0.0:
            entry = sums[item.operator.kind]
            entry[0] += busy_s(starts[rows[index]], ends[rows[index]])
            before = laid.lane.operations[index - 1] if index else item
            entry[1] += item.seconds + (before.seconds if before.prepares else 0.0)
    return {family: there / here for family, (there, here) in sorted(sums.items()) if here > 0.0 and there > 0.0}


def what_follows(laid: Laid, question: Question, most: int = 8) -> Follows:
    """The scenario's plans with the measured factors; plans that do not fit are left out."""
    factors = factors_of(laid)
    plans = []
    for plan in question.plans[:most]:
        before = run_plan(question, plan)
        if not before.ran:
            continue
        after = run_plan(question, plan, costs=Costs(question.on(plan).device, factors))
        plans.append(Corrected(plan.name, before.step_time_s, after.step_time_s, after.tokens_per_s))
    return Follows(factors, tuple(plans))
