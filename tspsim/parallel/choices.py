"""What of a schedule is chosen for the machine where a plan leaves it open: switches, and the values worth a look.

A choice changes when bytes move and over which links, never how many. :mod:`tspsim.tuning` runs the options and takes
the fastest that fits, as a collective library's tuner does with algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError
from .plan import Job, Plan

#: Pieces of the MLP's weights that are tried.
PIECES = (1, 2, 4, 8)
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """Switches of a plan that are chosen together.

    Attributes
    ----------
    switches
        Fields of :class:`~tspsim.parallel.plan.Plan`, which are keys of a scenario's plan as well.
    applies
        Whether a plan has them to choose.
    options
        (job, whether GPUs of a node have links of their own) → values of the switches worth a look, simplest first;
        some may not be legal.
    """

    switches: tuple[str, ...]
    applies: Callable[[Plan], bool]
    options: Callable[[Job, bool], Iterator[Values]]


def folded_options(job: Job, mesh: bool) -> Iterator[Values]:
    """Groups of heads, and a ring or gathered pieces. Behind a switch one ring uses all that several would."""
    degree = job.plan.tsp
    groups = [count for count in range(1, degree + 1) if degree % count == 0]
    ways: list[Values] = [{"weight_transport": "multi_ring" if mesh else "ring"}]
    ways += [{"weight_transport": "gather", "mlp_pieces": pieces} for pieces in PIECES]
    for count in groups:
        for way in ways:
            yield {"head_groups": count, **way}


CHOICES = (
    Choice(("weight_transport", "mlp_pieces", "head_groups"), lambda plan: plan.tsp > 1, folded_options),
    Choice(
        ("context_transport",),
        lambda plan: plan.sp > 1 and plan.exchange == "ring",
        lambda job, mesh: iter([{"context_transport": name} for name in (("ring", "multi_ring") if mesh else ("ring",))]),
    ),
    Choice(
        ("overlap_by",),
        lambda plan: plan.sp > 1 and plan.exchange == "all_gather" and bool(plan.overlap),
        lambda job, mesh: iter([{"overlap_by": "heads"}, {"overlap_by": "blocks"}]),
    ),
)


def options_of(job: Job, mesh: bool) -> tuple[Plan, ...]:
    """The plans that a job's open switches allow, those stated as they are, each once; the legal ones."""
    found: dict[Plan, None] = {}
    for choice in CHOICES:
        still_open = [name for name in choice.switches if name in job.plan.open]
        if not still_open:
            continue
        for values in choice.options(job, mesh):
            chosen = {name: value for name, value in values.items() if name in still_open}
            stated = {name: value for name, value in values.items() if name not in still_open}
            plan = replace(job.plan, open=(), **chosen)
            if any(getattr(plan, name) != value for name, value in stated.items()):
                continue
            if legal(replace(job, plan=plan)):
                found[plan] = None
    return tuple(found)


def legal(job: Job) -> bool:
    """Whether the degrees divide what they must."""
    try:
        job.check()
    except InputError:
        return False
    return True
