"""Choices that TSP leaves to the tuner: groups of heads, and how the MLP's weights arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..choice import Choice, Values
from ..job import Job
from ..plan import Plan
from .transport import WEIGHT_TRANSPORTS

#: Pieces in which the MLP's weights are gathered: finer ones hide no more, and multiply slower.
PIECES = (1, 2, 4)
#: Most ranks for which hops of shards are tried: over more, hops are short and many.
LONGEST_RING = 16
#: Groups of heads that are tried block by block: more groups are small enough without.
BLOCK_GROUPS = (1, 2)


def options(job: Job, mesh: bool) -> Iterator[Values]:
    """Groups of heads, with a ring or gathered pieces. Behind a switch one ring uses the links of several. Empty if no
    weights move."""
    if job.tensor_ranks > 1:
        yield {}
        return
    plan, degree = job.plan, job.plan.tsp
    ring = {"weight_transport": "multi_ring" if mesh else "ring"}
    arrivals: list[Values] = [ring] if degree <= LONGEST_RING and "mlp_pieces" in plan.open else []
    arrivals += [{"weight_transport": "gather", "mlp_pieces": pieces} for pieces in _open(plan, "mlp_pieces", PIECES)]
    if "weight_transport" not in plan.open:
        arrivals = [arrival for arrival in arrivals if arrival["weight_transport"] == plan.weight_transport] or [{}]
    divisors = [count for count in range(1, degree + 1) if degree % count == 0]
    for overlap_by in _open(plan, "overlap_by", ("heads", "blocks") if plan.overlap is not False else ("heads",)):
        few = overlap_by == "blocks" and "overlap_by" in plan.open
        for groups in _open(plan, "head_groups", BLOCK_GROUPS if few else divisors):
            for arrival in arrivals:
                yield {"head_groups": groups, "overlap_by": overlap_by, **arrival}


def _open(plan: Plan, name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Candidate values of a switch, or the one that the plan states."""
    return values if name in plan.open else (getattr(plan, name),)


def searched(values: Values) -> bool:
    """Candidates of a search: two or four groups, or one by blocks; the MLP whole, in four pieces, or by rings, which
    need least memory."""
    if not values:
        return True
    cut = values["overlap_by"], values["head_groups"]
    return values.get("mlp_pieces") != 2 and cut in (("heads", 2), ("heads", 4), ("blocks", 1))


def word(plan: Plan) -> str:
    way = WEIGHT_TRANSPORTS.get(plan.weight_transport).word(plan)
    return f"g{plan.attended_groups}{'b' * (plan.overlap_by == 'blocks')}{way}"


def sentence(plan: Plan) -> str:
    groups, way = plan.attended_groups, WEIGHT_TRANSPORTS.get(plan.weight_transport).sentence(plan)
    blocks = ", attended block by block" * (plan.overlap_by == "blocks")
    return f"{groups} group{'s' * (groups > 1)} of heads{blocks}, {way}"


CHOICE = Choice(
    switches=("weight_transport", "mlp_pieces", "head_groups", "overlap_by"),
    first=("head_groups", "overlap_by"),
    options=options,
    word=word,
    sentence=sentence,
    searched=searched,
    settings=lambda plan: {"head_groups": plan.attended_groups},
)
