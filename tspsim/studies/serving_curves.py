"""Rates of serving steps at other batches, and sessions at other contexts, for pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ..base.errors import InputError
from ..hardware import Costs
from ..parallel.state import capacity
from ..parallel.state.capacity import Capacity
from ..scenario import Scenario
from ..step.result import PlanResult
from ..step.simulation import Question, run_plan, scheduled
from .query import Library

#: Most batches per plan, and the largest batch.
MOST_BATCHES, LARGEST = 8, 1024
#: Contexts at which sessions are counted.
CONTEXTS = tuple(2**power for power in range(10, 22))


@dataclass(frozen=True)
class Rate:
    """A plan at ``batch`` sequences per replica: tokens/s per GPU, tokens/s of one user, seconds per token."""

    batch: int
    per_gpu: float
    per_user: float
    token_s: float


@dataclass(frozen=True)
class BatchRates:
    """Plan → its rates by batch, ascending; ``complete`` is False where time ran out."""

    plans: dict[str, tuple[Rate, ...]]
    complete: bool = True


def rates_over_batch(scenario: Scenario, plans: Sequence[PlanResult], limit_s: float = 4.0) -> BatchRates:
    """Rates of plans of a decoding step at up to eight batches each, to the largest that has room.

    Parameters
    ----------
    plans
        Results at the scenario's own batch; refused plans are left out.
    limit_s
        Seconds of processor time after which no further batch is started.
    """
    library, end_s = Library(), time.process_time() + limit_s
    question = library.look_up(scenario)
    rates = {plan.name: {question.work.load.batch: rate_of(plan, question.work.load.batch)} for plan in plans}
    left = [[(plan.name, batch) for batch in batches(question, plan.name)] for plan in plans]
    costs = Costs(question.device)
    complete = True
    # In turn, so that all plans have the same number of batches where time runs out.
    for name, batch in (pair for turn in zip_longest(*left) for pair in turn if pair is not None):
        if time.process_time() > end_s:
            complete = False
            break
        if batch in rates[name]:
            continue
        workload = scenario.workload.model_copy(update={"batch": batch})
        changed = scenario.model_copy(update={"workload": workload, "plans": (scenario.plan(name),), "offers": ()})
        try:
            other = library.look_up(changed)
        except InputError:  # a batch that the plan cannot divide
            continue
        result = run_plan(other, other.plans[0], costs=costs)
        if result.ran:
            rates[name][batch] = rate_of(result, batch)
    return BatchRates(
        {name: tuple(by_batch[batch] for batch in sorted(by_batch)) for name, by_batch in rates.items()}, complete
    )


def rate_of(result: PlanResult, batch: int) -> Rate:
    """The rates of a plan that ran."""
    seen = result.inference
    return Rate(batch, result.tokens_per_s_per_gpu, seen["tokens_per_s_per_user"], seen["time_per_output_token_s"])


def batches(question: Question, name: str) -> list[int]:
    """Powers of two up to the largest batch that fits a plan, largest and smallest first."""
    room, longest = room_of(question, name)
    most = max(1, min(LARGEST, room.whole_sessions(longest)))
    powers = [1 << power for power in range(most.bit_length())]
    apart = -(-len(powers) // (MOST_BATCHES - 1))
    chosen = sorted({powers[0], *powers[::-apart]})
    return [chosen[-1], *chosen[:-1]]


def room_of(question: Question, name: str) -> tuple[Capacity, int]:
    """The cache capacity of a plan, and the tokens of the longest sequence of its step."""
    plan = next(other for other in question.plans if other.name == name)
    job = scheduled(question, plan)
    room = capacity.capacity_of(job, question.device.visible_memory_bytes)
    return room, max(tokens for tokens, _ in capacity.kept_by(job))


def sessions_over_context(scenario: Scenario, names: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    """Plan → ``(context, sessions of all its replicas)``, for contexts of which every replica can keep one."""
    question = Library().look_up(scenario)
    by_plan = {}
    for name in names:
        room, longest = room_of(question, name)
        replicas = next(plan.dp for plan in question.plans if plan.name == name)
        contexts = sorted({*CONTEXTS, longest})
        counts = [(context, replicas * room.sessions(context)) for context in contexts]
        by_plan[name] = [(context, count) for context, count in counts if replicas <= count < float("inf")]
    return by_plan
