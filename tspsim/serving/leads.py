"""The places of a step that may decide how long it takes, without an array over all of them.

A step with prompts takes max over places of H_i + Σ_{j ≥ i} d_j in every stage (:mod:`.mixed`). Mostly the device is
behind the host from the first place on, or from one soon after it. Place i decides instead of the first, 0, only where

    H_i − H_0 > Σ_j (n_0j − n_ij) · d_j                      n_ij: how often kernel j runs from place i on

The kernels whose time depends on tokens alone are in a table by tokens, and by these most places never decide for the
numbers of a tile. Of those that are left, places from which all other kernels run as often are compared by a number
each. A few such groups of places are added up; of the rest, mostly at a step's end, :class:`StageLead` keeps by how
much the host may be later at most, and how much less often the kernels that are priced for every step run at least:
where their seconds make up for it, none of these decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..program.layout import InstructionLayout
from .grid import AtPlace
from .tables import Floats

#: Relative rounding of sums that are compared.
ROUNDING = 1e-9
#: Groups of places of a stage that are added up, and places of one of them.
FEW_GROUPS, FEW_PLACES = 4, 12


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


class PlacesAlike(NamedTuple):
    """Places of a stage from which the same kernels run whose time depends on more than tokens.

    Attributes
    ----------
    parts
        Indices of the seconds of their parts in those of the stage.
    runs
        As in :class:`OthersFrom`.
    sums_s
        Of each place the seconds of what depends on tokens alone at the first number, and their growth.
    """

    parts: list[int]
    runs: list[float]
    sums_s: list[tuple[float, float]]


class StageLead(NamedTuple):
    """Places of a stage that may decide for some numbers of tokens.

    Attributes
    ----------
    parts
        Different parts behind these places.
    groups
        The places.
    later_s
        By how much the host is later at others than kernels that depend on tokens alone are shorter, at most.
    fewer
        How much less often the kernels that are priced for every step run from these on, at least.
    """

    parts: list[tuple[int, AtPlace]]
    groups: list[PlacesAlike]
    later_s: float
    fewer: list[float]


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

    def makespan_s(self, tokens: int, numbers: Sequence[Any], priced_s: list[float]) -> float | None:
        """Seconds of all stages by the numbers that parts depend on and the seconds of kernels that are priced for
        every step; None where another place may decide."""
        along = (tokens - self.low) / self.width
        makespan_s = 0.0
        for parts, groups, later_s, fewer in self.stages:
            if later_s > 0.0 and sum(map(mul, fewer, priced_s)) < later_s:
                return None
            parts_s = [part_s(numbers[index]) for index, part_s in parts]
            stage_s = 0.0
            for own, runs, sums_s in groups:
                start_s, grown_s = sums_s[0]
                total_s = start_s + grown_s * along
                if len(sums_s) > 1:
                    total_s = max([start_s + grown_s * along for start_s, grown_s in sums_s])
                for part in own:
                    total_s += parts_s[part]
                total_s += sum(map(mul, runs, priced_s))
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
        self._issued_s, self._starts, self._priced = layout.issued_s, layout.starts, priced
        #: Of every place, what runs from it on: one object for all from which the same does.
        self._from: list[OthersFrom] = []
        followed: dict[bytes, OthersFrom] = {}
        at_places: dict[tuple[int, bytes], AtPlace] = {}
        for place in range(len(layout.issued_s)):
            rows = [follows[place] for _, follows in parts]
            key = b"".join([row.tobytes() for row in (*rows, priced[place])])
            if key not in followed:
                for index, ((cells, _), row) in enumerate(zip(parts, rows, strict=True)):
                    if row.any() and (index, row.tobytes()) not in at_places:
                        at_places[index, row.tobytes()] = cells.at_place(place)
                own = [(index, at_places[index, row.tobytes()]) for index, row in enumerate(rows) if row.any()]
                followed[key] = OthersFrom(own, priced[place].tolist())
            self._from.append(followed[key])

    def of(self, low: int, width: int, start: Floats, grown: Floats) -> LeadingPlaces | None:
        """The lead of numbers of tokens, with the vector at the first and its growth; None where too many places may
        decide."""
        stages = []
        for first, behind in zip(self._starts, (*self._starts[1:], len(start)), strict=True):
            late = self._issued_s[first:behind] - self._issued_s[first]
            ends = start[first:behind], (start + grown)[first:behind]
            later = np.max([late - (end[0] - end) * (1.0 + ROUNDING) for end in ends], axis=0)
            groups: dict[int, list[int]] = {id(self._from[first]): [first]}
            apart: list[int] = []
            for place in (first + np.flatnonzero(later > 0.0)).tolist():
                group = id(self._from[place])
                if group in groups or len(groups) < FEW_GROUPS:
                    groups.setdefault(group, []).append(place)
                else:
                    apart.append(place)
            if any(len(places) > FEW_PLACES for places in groups.values()):
                return None
            later_s, fewer = 0.0, list[float]()
            if apart:
                later_s = float(later[np.array(apart) - first].max()) * (1.0 + ROUNDING)
                fewer = (self._priced[first] - self._priced[apart]).min(axis=0).tolist()
            parts = list(dict.fromkeys([part for places in groups.values() for part in self._from[places[0]].parts]))
            alike = [
                PlacesAlike(
                    [parts.index(part) for part in self._from[places[0]].parts],
                    self._from[places[0]].runs,
                    [(float(self._issued_s[i] + start[i]), float(grown[i])) for i in places],
                )
                for places in groups.values()
            ]
            stages.append(StageLead(parts, alike, later_s, fewer))
        return LeadingPlaces(low, width, stages)
