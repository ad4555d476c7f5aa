"""Orders of nodes by simulated annealing on the closed form; simulation judges the best few.

The moves are those of Pipette's code (arXiv 2405.18093): two nodes swap, a run of nodes is reversed, or a run moves to
another position. The seed determines everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import InputError
from ...base.units import duration
from ...scenario import RankPlacement, Scenario
from ...step.question import look_up
from ...step.result import SCHEMA_VERSION, PlanResult
from ...step.simulation import run_plan, scheduled
from .closed_form import form_of

Integers = NDArray[np.int64]

#: Number of moves. The temperature falls from HOT to COLD times the first cost.
TURNS = 4000
HOT, COLD = 0.1, 1e-5
#: Orders that are simulated, besides the default one.
JUDGED = 4


@dataclass(frozen=True)
class Mapping:
    """The best order of nodes for a plan."""

    #: The scenario with this plan alone, in this order.
    source_scenario: Scenario
    #: Nodes in the order of the plan's axes; by number where no order is better.
    order: tuple[int, ...]
    #: The plan in this order, and with nodes by number.
    result: PlanResult
    default: PlanResult
    #: Seconds of both by the closed form.
    closed_s: float
    closed_default_s: float

    @property
    def gain(self) -> float:
        """Rate over the rate of the default order, 1 or more."""
        return self.default.step_time_s / self.result.step_time_s

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "schema": SCHEMA_VERSION,
            "plan": self.result.name,
            "order": list(self.order),
            "gain": self.gain,
            "step_time_s": self.result.step_time_s,
            "default_step_time_s": self.default.step_time_s,
            "closed_form_s": self.closed_s,
            "default_closed_form_s": self.closed_default_s,
        }

    def in_words(self) -> tuple[str, ...]:
        """The order and its gain, in lines."""
        usual, here = duration(self.default.step_time_s), duration(self.result.step_time_s)
        steps = f"{usual} a step by number, {here} in this order"
        closed = f"{duration(self.closed_default_s)} and {duration(self.closed_s)}"
        return (
            f"{self.result.name}: placement: {{order: {list(self.order)}}}",
            f"{steps}: {self.gain:.3f} times the rate (closed form: {closed})",
        )


def annealed(
    cost: Callable[[Integers], float], nodes: int, *, seed: int = 0, turns: int = TURNS, keep: int = JUDGED
) -> list[tuple[float, tuple[int, ...]]]:
    """The cheapest orders of the search, one per cost, cheapest first.

    Examples
    --------
    >>> annealed(lambda order: float(abs(order - [2, 1, 0]).sum()), 3, turns=200, keep=1)
    [(0.0, (2, 1, 0))]
    """
    draw = np.random.default_rng(seed)
    order = np.arange(nodes)
    now = first = cost(order)
    best: dict[float, tuple[int, ...]] = {rounded(now): tuple(order.tolist())}
    for turn in range(turns if nodes > 1 else 0):
        moved = neighbour(order, draw)
        value = cost(moved)
        heat = first * HOT * (COLD / HOT) ** (turn / turns)
        if value <= now or draw.random() < math.exp((now - value) / heat):
            order, now = moved, value
            best.setdefault(rounded(now), tuple(order.tolist()))
            if len(best) > 4 * keep:
                best = dict(sorted(best.items())[:keep])
    return sorted(best.items())[:keep]


def rounded(cost: float) -> float:
    """The cost to nine digits, so that rounding does not split equal costs."""
    return float(f"{cost:.9g}")


def neighbour(order: Integers, draw: np.random.Generator) -> Integers:
    """The order after one move."""
    first, last = sorted(draw.choice(len(order), 2, replace=False).tolist())
    move = int(draw.integers(3))
    moved = order.copy()
    if move == 0:
        moved[[first, last]] = moved[[last, first]]
    elif move == 1:
        moved[first : last + 1] = moved[first : last + 1][::-1]
    else:
        rest = np.concatenate([order[:first], order[last:]])
        place = int(draw.integers(len(rest) + 1))
        moved = np.concatenate([rest[:place], order[first:last], rest[place:]])
    return moved


def mapped(scenario: Scenario, plan: str | None = None, *, seed: int = 0, turns: int = TURNS) -> Mapping:
    """The order of nodes in which a plan is fastest.

    Parameters
    ----------
    scenario
        A single step.
    plan
        Name of one of its plans; the first when None. The search ignores an order that the plan states.
    seed, turns
        Seed and number of moves of the annealing.

    Raises
    ------
    InputError
        The scenario is wrong, has traffic, or the plan does not fit its memory.
    """
    if scenario.traffic is not None:
        raise InputError("placements are searched for a single step; leave traffic out", key="traffic")
    keys = scenario.plan(plan) if plan is not None else scenario.plans[0]
    placement = keys.placement.model_copy(update={"order": ()}) if keys.placement is not None else None
    plain = keys.model_copy(update={"placement": placement})
    question = look_up(scenario.model_copy(update={"plans": (plain,), "offers": ()}))
    stated_plan = question.plans[0]
    question = question.on(stated_plan)
    job = scheduled(question, stated_plan)
    default = run_plan(question, stated_plan)
    if not default.ran:
        raise InputError(f"cannot be placed: {default.error}", key=f"plans.{stated_plan.name}")
    form, nodes = form_of(question, job), question.cluster.nodes
    usual = tuple(range(nodes))
    closed_default_s = form.step_s(np.arange(nodes))
    orders = [(closed_default_s, usual, default)]
    for closed_s, order in annealed(form.step_s, nodes, seed=seed, turns=turns):
        if order != usual:
            orders.append((closed_s, order, run_plan(question, replace(job.plan, node_order=order))))
    closed_s, order, result = min(orders, key=lambda candidate: candidate[2].step_time_s)
    stated = placement.model_dump(exclude_unset=True) if placement is not None else {}
    there = plain.model_copy(
        update={"placement": RankPlacement(**stated | ({"order": order} if order != usual else {}))}
    )
    placed = scenario.model_copy(update={"plans": (there,), "offers": ()})
    return Mapping(placed, order, result, default, closed_s, closed_default_s)
