"""What of a schedule is chosen for the machine where a plan leaves it open: switches, and the values worth a look.

A choice changes when bytes move and over which links, never how many. :mod:`tspsim.tuning` runs the options and takes
the fastest that fits, as a collective library's tuner does with algorithms; the planner looks at all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError
from .plan import Job, Plan
from .transport import TRANSPORTS

#: Pieces that the MLP's weights are gathered in: finer ones hide no more, and multiply slower.
PIECES = (1, 2, 4)
#: Ranks whose shards are tried hop by hop: over more every hop is short, and there are many.
LONGEST_RING = 16
#: Groups of heads that are tried block by block: more are small enough without.
BLOCK_GROUPS = (1, 2)
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """Switches of a plan that are chosen together.

    Attributes
    ----------
    switches
        Fields of :class:`~tspsim.parallel.plan.Plan`, which are keys of a scenario's plan as well.
    first
        Those of them that matter most: a tuner settles them before the others.
    applies
        Whether a plan has them to choose.
    options
        (job, whether GPUs of a node have links of their own) → values of the switches worth a look, simplest first;
        some may not be legal.
    searched
        Of these values, those that a search over many plans looks at: fastest, or least memory, somewhere.
    word
        What a plan's name says of them.
    sentence
        What a plan chose, for people.
    """

    switches: tuple[str, ...]
    first: tuple[str, ...]
    applies: Callable[[Plan], bool]
    options: Callable[[Job, bool], Iterator[Values]]
    searched: Callable[[Values], bool]
    word: Callable[[Plan], str]
    sentence: Callable[[Plan], str]

    def settings(self, plan: Plan) -> Values:
        """The switches as they stand."""
        values = {name: getattr(plan, name) for name in self.switches}
        return values | ({"head_groups": plan.attended_groups} if "head_groups" in values else {})


def folded_options(job: Job, mesh: bool) -> Iterator[Values]:
    """Groups of heads, and a ring or gathered pieces. Behind a switch one ring uses all that several would."""
    plan, degree = job.plan, job.plan.tsp
    ring = {"weight_transport": "multi_ring" if mesh else "ring"}
    ways: list[Values] = [ring] if degree <= LONGEST_RING and "mlp_pieces" in plan.open else []
    ways += [{"weight_transport": "gather", "mlp_pieces": pieces} for pieces in _open(plan, "mlp_pieces", PIECES)]
    if "weight_transport" not in plan.open:
        ways = [way for way in ways if way["weight_transport"] == plan.weight_transport] or [{}]
    divisors = [count for count in range(1, degree + 1) if degree % count == 0]
    for overlap_by in _open(plan, "overlap_by", ("heads", "blocks") if plan.overlap is not False else ("heads",)):
        few = overlap_by == "blocks" and "overlap_by" in plan.open
        for groups in _open(plan, "head_groups", BLOCK_GROUPS if few else divisors):
            for way in ways:
                yield {"head_groups": groups, "overlap_by": overlap_by, **way}


def _open(plan: Plan, name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Values of a switch worth a look: those given, or what the plan states."""
    return values if name in plan.open else (getattr(plan, name),)


def folded_searched(values: Values) -> bool:
    """Two or four groups, or one by blocks; the MLP at once, in four pieces, or round rings that need least memory."""
    cut = values["overlap_by"], values["head_groups"]
    return values.get("mlp_pieces") != 2 and cut in (("heads", 2), ("heads", 4), ("blocks", 1))


def folded_word(plan: Plan) -> str:
    way = TRANSPORTS[plan.weight_transport].word(plan)
    return f"g{plan.attended_groups}{'b' * (plan.overlap_by == 'blocks')}{way}"


def folded_sentence(plan: Plan) -> str:
    groups, way = plan.attended_groups, TRANSPORTS[plan.weight_transport].sentence(plan)
    blocks = ", attended block by block" * (plan.overlap_by == "blocks")
    return f"{groups} group{'s' * (groups > 1)} of heads{blocks}, {way}"


CHOICES = (
    Choice(
        ("weight_transport", "mlp_pieces", "head_groups", "overlap_by"),
        ("head_groups", "overlap_by"),
        lambda plan: plan.tsp > 1,
        folded_options,
        folded_searched,
        folded_word,
        folded_sentence,
    ),
    Choice(
        ("context_transport",),
        ("context_transport",),
        lambda plan: plan.sp > 1 and plan.exchange == "ring",
        lambda job, mesh: iter([{"context_transport": name} for name in ("ring", "multi_ring")[: 1 + mesh]]),
        lambda values: True,
        lambda plan: "r" if plan.context_transport == "multi_ring" else "",
        lambda plan: f"K and V round {'several rings' if plan.context_transport == 'multi_ring' else 'one ring'}",
    ),
    Choice(
        ("overlap_by",),
        ("overlap_by",),
        lambda plan: plan.sp > 1 and plan.exchange == "all_gather" and bool(plan.overlap),
        lambda job, mesh: iter([{"overlap_by": "heads"}, {"overlap_by": "blocks"}]),
        lambda values: True,
        lambda plan: "b" if plan.overlap_by == "blocks" else "",
        lambda plan: f"gathers of K and V overlapped by {plan.overlap_by}",
    ),
)


def candidates_of(job: Job, mesh: bool, *, few: bool = False) -> Iterator[Plan]:
    """The plans that a job's open switches allow, those stated as they are; simplest first, not all of them legal.

    ``mesh``: whether the GPUs of a node have links of their own; ``few``: only what a search looks at.
    """
    found: list[Plan] = []
    for choice in CHOICES:
        still_open = tuple(name for name in choice.switches if name in job.plan.open)
        if not still_open or not choice.applies(job.plan):
            continue
        for values in choice.options(job, mesh):
            if few and not choice.searched(values):
                continue
            plan = replace(job.plan, open=(), chosen=still_open, **values)
            if plan not in found:
                found.append(plan)
                yield plan


def options_of(job: Job, mesh: bool, *, few: bool = False) -> tuple[Plan, ...]:
    """The legal ones of :func:`candidates_of`."""
    return tuple(plan for plan in candidates_of(job, mesh, few=few) if legal(replace(job, plan=plan)))


def talks(family: Job, mesh: bool) -> Iterator[Job]:
    """Every way of a family's ranks to talk: with regions or not, overlapped or not, and what is chosen of the schedule
    then; not all of them legal."""
    plan = family.plan
    regions = (False, True) if plan.tp > 1 else (False,)
    overlaps: tuple[bool | None, ...] = (None,)
    if plan.tp > 1 or (plan.sp > 1 and plan.exchange == "all_gather"):
        overlaps = (None, True)
    for region, overlap in itertools.product(regions, overlaps):
        way = replace(plan, sequence_regions=region, overlap=overlap)
        switches = tuple(name for choice in CHOICES if choice.applies(way) for name in choice.switches)
        job = replace(family, plan=replace(way, open=switches))
        yield from (replace(job, plan=option) for option in options_of(job, mesh, few=True)) if switches else (job,)


def legal(job: Job) -> bool:
    """Whether the degrees divide what they must."""
    try:
        job.check()
    except InputError:
        return False
    return True
