"""The places of a step that may decide how long it takes, without an array over all of them.

A step with prompts takes max over places of v_i = H_i + Σ_{j ≥ i} d_j in every stage (:mod:`.mixed`). The kernels whose
time depends on tokens alone are in a table by tokens; all others run n_ij times from place i on, and no more often
from a later place. Without knowing how long these take, a place never decides

- where an earlier one, or one from which the same kernels run, is as late for the numbers of a tile;
- where it lies between two others, a before it and b behind it: v_i ≤ λ · v_a + (1 − λ) · v_b for some λ, since every
  kernel runs at most λ · n_aj + (1 − λ) · n_bj times from it on, and it is no later than such shares of both.

The second are most places of a host that is late by as much in every layer. Few are left, and these are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..program.layout import InstructionLayout
from .grid import AtPlace
from .tables import Floats

#: Places of a stage that are added up.
FEW_PLACES = 12
#: Relative rounding of sums that are compared: layers alike are late by as much.
ROUNDING = 1e-12


class OverNumbers(Protocol):
    """A vector over a number, or over several."""

    def at_place(self, place: int) -> AtPlace:
        """One of its elements by these."""


class OthersFrom(NamedTuple):
    """Kernels that run from a place on whose time depends on more than tokens.

    Attributes
    ----------
    parts
        Seconds of those of a part by one of the numbers of a step, each behind that number's index.
    runs
        How often each of those runs that are priced for every step.
    """

    parts: list[tuple[int, AtPlace]]
    runs: list[float]


class LeadingPlace(NamedTuple):
    """A place that may decide.

    Attributes
    ----------
    start_s, grown_s
        Seconds to its issue and of what depends on tokens alone from it on, at the first number, and their growth.
    parts
        Indices of the seconds of its parts in those of the stage.
    runs
        As in :class:`OthersFrom`.
    """

    start_s: float
    grown_s: float
    parts: list[int]
    runs: list[float]


class StageLead(NamedTuple):
    """Places of a stage that may decide for some numbers of tokens, and the different parts behind them."""

    parts: list[tuple[int, AtPlace]]
    places: list[LeadingPlace]


class LeadingPlaces(NamedTuple):
    """Places of all stages that may decide.

    Attributes
    ----------
    low, width
        The first number of tokens, and how many more there are.
    """

    low: int
    width: int
    stages: list[StageLead]

    def makespan_s(self, tokens: int, numbers: Sequence[Any], priced_s: list[float]) -> float:
        """Seconds of all stages by the numbers that parts depend on and the seconds of kernels that are priced for
        every step."""
        along = (tokens - self.low) / self.width
        makespan_s = 0.0
        for parts, places in self.stages:
            parts_s = [part_s(numbers[index]) for index, part_s in parts]
            stage_s = 0.0
            for start_s, grown_s, own, runs in places:
                total_s = start_s + grown_s * along + sum(map(mul, runs, priced_s))
                for part in own:
                    total_s += parts_s[part]
                if total_s > stage_s:
                    stage_s = total_s
            makespan_s += stage_s
        return makespan_s


class Leads:
    """Leads of the steps of one layout.

    Parameters
    ----------
    layout
        Of the steps.
    parts
        Of each part that depends on more than tokens, its vector over numbers and how often its kernels run from every
        place on.
    priced
        How often the kernels that are priced for every step do: (places, kernels).
    """

    def __init__(
        self,
        layout: InstructionLayout,
        parts: Sequence[tuple[OverNumbers, Floats]],
        priced: Floats,
    ) -> None:
        self._issued_s, self._starts = layout.issued_s, layout.starts
        #: How often every kernel runs from every place on whose time depends on more than tokens.
        self._runs = np.hstack([*(follows for _, follows in parts), priced])
        #: Of every place, what runs from it on: one object for all from which the same does.
        self._from: list[OthersFrom] = []
        followed: dict[bytes, OthersFrom] = {}
        at_places: dict[tuple[int, bytes], AtPlace] = {}
        for place in range(len(layout.issued_s)):
            rows = [follows[place] for _, follows in parts]
            key = self._runs[place].tobytes()
            if key not in followed:
                for index, ((cells, _), row) in enumerate(zip(parts, rows, strict=True)):
                    if row.any() and (index, row.tobytes()) not in at_places:
                        at_places[index, row.tobytes()] = cells.at_place(place)
                own = [(index, at_places[index, row.tobytes()]) for index, row in enumerate(rows) if row.any()]
                followed[key] = OthersFrom(own, priced[place].tolist())
            self._from.append(followed[key])
        #: Three places in their order → the least share of the first.
        self._shares: dict[tuple[int, int, int], float] = {}

    def of(self, low: int, width: int, start: Floats, grown: Floats) -> LeadingPlaces | None:
        """The lead of numbers of tokens, with the vector at the first and its growth; None where too many places may
        decide."""
        stages = []
        first_s = self._issued_s + start
        last_s = first_s + grown
        for first, behind in zip(self._starts, (*self._starts[1:], len(start)), strict=True):
            some = self._latest(first, first_s[first:behind], last_s[first:behind])
            some = self._outermost(some, first_s, last_s)
            if len(some) > FEW_PLACES:
                return None
            parts = list(dict.fromkeys([part for place in some for part in self._from[place].parts]))
            places = []
            for place in some:
                own = [parts.index(part) for part in self._from[place].parts]
                places.append(LeadingPlace(float(first_s[place]), float(grown[place]), own, self._from[place].runs))
            stages.append(StageLead(parts, places))
        return LeadingPlaces(low, width, stages)

    def _latest(self, first: int, first_s: Floats, last_s: Floats) -> list[int]:
        """Places of a stage that are later than every earlier one, at the first number or at the last, and than others
        from which the same kernels run."""
        latest: list[tuple[int, float, float]] = []
        some = [0, *np.flatnonzero((first_s > first_s[0]) | (last_s > last_s[0])).tolist()]
        for place, own_s, own_last_s in zip(some, first_s[some].tolist(), last_s[some].tolist(), strict=True):
            if any(other_s >= own_s and other_last_s >= own_last_s for _, other_s, other_last_s in latest):
                continue
            while latest:
                other, other_s, other_last_s = latest[-1]
                same = self._from[first + other] is self._from[first + place]
                if not same or other_s > own_s or other_last_s > own_last_s:
                    break
                latest.pop()
            latest.append((place, own_s, own_last_s))
        return [first + place for place, _, _ in latest]

    def _outermost(self, places: list[int], first_s: Floats, last_s: Floats) -> list[int]:
        """Those that do not lie between two others."""
        if len(places) < 3:
            return places
        seconds = {i: (float(first_s[i]), float(last_s[i])) for i in places}
        kept = list(places)
        for place in places[1:-1]:
            at = kept.index(place)
            if any(self._between(a, place, b, seconds) for a in kept[:at] for b in kept[at + 1 :]):
                del kept[at]
        return kept

    def _between(self, before: int, place: int, behind: int, seconds: dict[int, tuple[float, float]]) -> bool:
        """Whether a place lies between two others."""
        key = before, place, behind
        share = self._shares.get(key)
        if share is None:
            longer, own, shorter = self._runs[[before, place, behind]]
            grown = longer - shorter
            some = np.flatnonzero(grown)
            share = self._shares[key] = float(((own - shorter)[some] / grown[some]).max(initial=0.0))
        return all(
            share * a_s + (1.0 - share) * b_s >= own_s * (1.0 - ROUNDING)
            for a_s, own_s, b_s in zip(seconds[before], seconds[place], seconds[behind], strict=True)
        )
