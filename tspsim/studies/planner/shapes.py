"""The plans of a search by their sets: how one is completed nearest to a given plan, and its neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from ...base.memo import once
from ...parallel import Job, Plan, scheme_axes
from ...step.paths import Division
from .candidate import Candidate
from .sets import Sets
from .space import RECOMPUTATION

#: Degrees by axis in order, ranks of experts, sequences of a micro-batch, context method.
SpreadKey = tuple[tuple[int, ...], int, int, str]
#: Axes whose degrees identify a plan's spread, up to its replicas.
AXES = (*scheme_axes(), "pp")
Source = TypeVar("Source", Job, Candidate)
_COMPARED = [
    key_field.name
    for key_field in fields(Plan)
    if key_field.name not in ("name", "degrees", "together", "expert_owners", "kv_copies")
]
_USUAL = {name: getattr(Plan("", {}), name) for name in _COMPARED}


@dataclass(frozen=True)
class PlanLine:
    """A plan with the sets that contain it, largest first, and the memory that it needs."""

    spread: Job
    family: Job
    staged: Candidate
    layout: Candidate
    division: Division
    candidate: Candidate
    needed_bytes: float


class Shapes:
    """The plans of one search.

    Parameters
    ----------
    sets
        The search's memoized sets.
    spreads
        All spreads.
    """

    def __init__(self, sets: Sets, spreads: Sequence[Job]) -> None:
        self.sets, self.spreads = sets, spreads

    @once
    def by_key(self) -> Mapping[SpreadKey, Job]:
        return {key_of(spread.plan): spread for spread in self.spreads}

    def lightest(self, spread: Job, zero: int, like: Plan, room_bytes: float) -> PlanLine | None:
        """The plan of a spread that fits with the least recomputation, otherwise nearest to ``like``."""
        like = like.with_values({"zero": zero})
        every = self.sets.once(self.sets.families, spread)
        for recomputation in RECOMPUTATION:
            families = [family for family in every if family.plan.recomputation == recomputation]
            line = self.of_family(spread, nearest(families, like), like) if families else None
            if line is not None and line.division.zero == zero and line.needed_bytes <= room_bytes:
                return line
        return None

    def of(self, plan: Plan) -> PlanLine | None:
        """The plan nearest to a plan with these degrees."""
        spread = self.by_key.get(key_of(plan))
        families = self.sets.once(self.sets.families, spread) if spread is not None else []
        return self.of_family(spread, nearest(families, plan), plan) if spread is not None and families else None

    def of_family(self, spread: Job, family: Job, like: Plan) -> PlanLine | None:
        """The plan of a family nearest to ``like``; None where none is legal."""
        every = self.sets.once(self.sets.staged, family)
        return self.of_staged(spread, family, nearest(every, like), like) if every else None

    def of_staged(self, spread: Job, family: Job, staged: Candidate, like: Plan) -> PlanLine | None:
        """The plan of a schedule within a stage nearest to ``like``."""
        layout = nearest(self.sets.once(self.sets.pipelined, staged), like)
        return self.of_layout(spread, family, staged, layout, like)

    def of_layout(self, spread: Job, family: Job, staged: Candidate, layout: Candidate, like: Plan) -> PlanLine | None:
        """The plan of a layout nearest to ``like``."""
        every = self.sets.space.divisions(layout)
        alike = [division for division in every if division.zero == like.zero] or every[-1:]
        division = next((candidate for candidate in alike if candidate.shard_group == like.shard_group), alike[0])
        return self._line(spread, family, staged, layout, division)

    def _line(
        self, spread: Job, family: Job, staged: Candidate, layout: Candidate, division: Division
    ) -> PlanLine | None:
        sized = self.sets.plan(layout, division)
        return None if sized is None else PlanLine(spread, family, staged, layout, division, sized[1], sized[0])

    def within(self, line: PlanLine) -> Iterator[PlanLine]:
        """Plans of the same spread that differ in one of its sets: recomputation or expert dispatch, schedule,
        pipeline, division of state."""
        plan, sets = line.candidate.plan, self.sets
        spread, family, staged = line.spread, line.family, line.staged
        families = [other for other in sets.once(sets.families, spread) if differences(other.plan, family.plan) == 1]
        lines: Iterator[PlanLine | None] = itertools.chain(
            (
                self._line(spread, family, staged, line.layout, division)
                for division in sets.space.divisions(line.layout)
            ),
            (self.of_family(spread, other, plan.with_values(_again(other))) for other in families),
            (self.of_layout(spread, family, staged, layout, plan) for layout in sets.once(sets.pipelined, staged)),
            (self.of_staged(spread, family, schedule, plan) for schedule in sets.once(sets.staged, family)),
        )
        yield from (neighbour for neighbour in lines if neighbour is not None and neighbour.candidate.name != plan.name)

    def beside(self, line: PlanLine) -> Iterator[Job]:
        """Spreads one step away: another micro-batch, other ranks of experts or context method, a factor moved between
        two axes, one scheme in place of another."""
        spread = line.spread
        degrees, ep, size, exchange = key_of(spread.plan)
        tried: list[SpreadKey] = [
            (degrees, ep, other_size, exchange) for other_size in self._sizes(degrees, ep, exchange, size)
        ]
        tried += [(degrees, ranks, size, exchange) for ranks in self._experts(degrees, size, exchange, ep)]
        tried += [(degrees, ep, size, method) for method in self.sets.space.exchanges(spread.plan)]
        for moved in self._moved(degrees):
            tried += self._like(moved, ep, size, exchange)
        for key in dict.fromkeys(tried):
            if key in self.by_key and key != key_of(spread.plan):
                yield self.by_key[key]

    def larger(self, spread: Job) -> list[Job]:
        """The same degrees at the next larger micro-batch, if there is one."""
        degrees, ep, size, exchange = key_of(spread.plan)
        sizes = [larger for larger in self._sizes(degrees, ep, exchange, size) if larger > size]
        return [self.by_key[degrees, ep, larger, exchange] for larger in sizes]

    @once
    def _of_degrees(self) -> Mapping[tuple[int, ...], list[SpreadKey]]:
        by_degrees: dict[tuple[int, ...], list[SpreadKey]] = {}
        for key in self.by_key:
            by_degrees.setdefault(key[0], []).append(key)
        return by_degrees

    def _sizes(self, degrees: tuple[int, ...], ep: int, exchange: str, size: int) -> list[int]:
        """The next smaller and larger micro-batch."""
        every = [key[2] for key in self._of_degrees[degrees] if (key[1], key[3]) == (ep, exchange)]
        return around(every, size)

    def _experts(self, degrees: tuple[int, ...], size: int, exchange: str, ep: int) -> list[int]:
        """The next fewer and more ranks of experts, and one."""
        every = [key[1] for key in self._of_degrees[degrees] if (key[2], key[3]) == (size, exchange)]
        return [*around(every, ep), 1]

    def _moved(self, degrees: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Degrees with a prime factor moved between two axes, or between an axis and replicas."""
        near = self.sets.space.cluster.gpus
        steps = primes(near)
        for place, degree in enumerate(degrees):
            for step in steps:
                more = (*degrees[:place], degree * step, *degrees[place + 1 :])
                less = (*degrees[:place], degree // step, *degrees[place + 1 :])
                yield more
                if degree % step:
                    continue
                yield less
                for other, given in enumerate(less):
                    if other != place:
                        yield (*less[:other], given * step, *less[other + 1 :])
            if degree > 1:  # all of it on another axis
                bare = (*degrees[:place], 1, *degrees[place + 1 :])
                for other, given in enumerate(bare):
                    if other != place and given == 1:
                        yield (*bare[:other], degree, *bare[other + 1 :])

    def _like(self, degrees: tuple[int, ...], ep: int, size: int, exchange: str) -> list[SpreadKey]:
        """Of spreads with other degrees, the nearest in ranks of experts and micro-batch."""
        every = self._of_degrees.get(degrees, [])
        if not every:
            return []
        fewer = max((key[1] for key in every if key[1] <= ep), default=every[0][1])
        alike = [key for key in every if key[1] == fewer]
        smaller = max((key[2] for key in alike if key[2] <= size), default=alike[0][2])
        alike = [key for key in alike if key[2] == smaller]
        return [next((key for key in alike if key[3] == exchange), alike[0])]


def _again(family: Job) -> Mapping[str, str]:
    return {"recomputation": family.plan.recomputation}


def key_of(plan: Plan) -> SpreadKey:
    """The key of a plan's spread."""
    exchange = plan.exchange if plan.sp > 1 else Plan.exchange
    return tuple(plan.degree(axis) for axis in AXES), plan.ep, plan.micro_batch or 1, exchange


def nearest(options: Sequence[Source], like: Plan) -> Source:
    """The option that agrees with a plan in most keys; of several, the one with the nearest number of pipeline chunks,
    since chunks per stage that suit one depth suit another as layers per chunk; of these the first."""

    def apart(option: Source) -> tuple[int, float]:
        plan = option.plan
        return differences(plan, like), abs(math.log2((plan.pp * plan.vpp) / (like.pp * like.vpp)))

    return min(options, key=apart)


def differences(plan: Plan, other: Plan) -> int:
    """Keys in which two plans differ."""
    return sum(getattr(plan, name) != getattr(other, name) for name in _COMPARED)


def distance(plan: Plan, other: Plan) -> tuple[int, int, float]:
    """Distance of two plans: keys that only one leaves at its default, keys that differ, and factors between their
    degrees."""
    apart = sum((getattr(plan, name) == _USUAL[name]) != (getattr(other, name) == _USUAL[name]) for name in _COMPARED)
    factors = sum(abs(math.log2(plan.degree(axis) / other.degree(axis))) for axis in (*AXES, "ep"))
    return apart, differences(plan, other), factors


def around(every: Iterable[int], here: int) -> list[int]:
    """The next smaller and the next larger of some numbers.

    >>> around([1, 2, 4, 8], 4)
    [2, 8]
    """
    few, many = [number for number in every if number < here], [number for number in every if number > here]
    return [*([max(few)] if few else []), *([min(many)] if many else [])]


def primes(number: int) -> list[int]:
    """The primes that divide a number.

    >>> primes(72)
    [2, 3]
    """
    factors, divisor = [], 2
    while number > 1:
        if number % divisor == 0:
            factors.append(divisor)
            while number % divisor == 0:
                number //= divisor
        divisor += 1
    return factors
