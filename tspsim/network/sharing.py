"""Max-min fair sharing: who gets how much of links that several activities want at once.

Everything grows together until a resource is full or an activity has all it can use; those stop, the rest
grows on (progressive filling; Bertsekas and Gallager, Data Networks, 2nd ed., §6.5.2). The result is the only
allocation in which nobody can get more without taking from someone who has no more.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from ..base.errors import InputError

#: The activities that use one resource, and the share each takes at full speed.
Row = list[tuple[int, float]]
#: A resource counts as full from this share on: far above rounding, far below anything measurable.
FULL = 1.0 + 1e-12
#: Resources that are full at the same level but for rounding.
TIED = 1.0 + 1e-13
#: Resources that are wanted as much as each other but for rounding.
ALIKE = 1.0 - 1e-9
#: Usages from which arrays are faster than lists (benchmarks/scale.py).
MANY = 100
#: Speeds that are remembered, at most.
REMEMBERED = 200_000


A = TypeVar("A", bound=Hashable)


class Claim(Protocol):
    """What an activity wants: see :func:`shares`. Claims of one ``number`` are the same.

    ``weight`` is its claim on what it fills when it is alone, ``weight_at`` that on other resources.
    """

    @property
    def number(self) -> int: ...
    @property
    def usage(self) -> Mapping[Hashable, float]: ...
    @property
    def weight(self) -> float: ...
    @property
    def weight_at(self) -> Mapping[Hashable, float]: ...


class Solutions:
    """Speeds of claims that met before, by their numbers: the same ones meet again and again."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], list[float]] = {}
        self._remembered = 0

    def speeds(self, claims: Sequence[Claim]) -> list[float]:
        """What :func:`shares` says of them."""
        meeting = tuple([claim.number for claim in claims])
        return self.known.get(meeting) or self.solve(meeting, claims)

    def solve(self, meeting: tuple[int, ...], claims: Sequence[Claim]) -> list[float]:
        """The same of claims with these numbers, which have not met."""
        self._remembered += len(meeting)
        if self._remembered > REMEMBERED:
            self.known.clear()
            self._remembered = len(meeting)
        speeds = _filled([claim.usage for claim in claims], contested(claims))
        self.known[meeting] = speeds
        return speeds


class Sharing(Generic[A]):
    """Activities that come and go, and the speed of each while the set stays.

    A resource is *scarce* when those who use it could fill it more than once; only scarce ones tie activities to each
    other. What comes or goes can therefore touch those alone that it is tied to, directly or through others:
    :meth:`settle` solves these again, unless ``solutions`` have them.
    """

    def __init__(self, solutions: Solutions | None = None) -> None:
        self._solutions = solutions or Solutions()
        self._claims: dict[A, Claim] = {}
        self._users: dict[Hashable, dict[A, float]] = {}
        self._scarce: set[Hashable] = set()
        self._touched: dict[Hashable, None] = {}
        self._begun: dict[A, None] = {}

    def enter(self, activity: A, claim: Claim) -> None:
        """An activity begins."""
        self._claims[activity] = claim
        self._begun[activity] = None
        for resource, share in claim.usage.items():
            users = self._users.get(resource)
            if users is None:
                users = self._users[resource] = {}
            users[activity] = share
            self._touched[resource] = None

    def leave(self, activity: A) -> None:
        """An activity is over."""
        self._begun.pop(activity, None)
        for resource in self._claims.pop(activity).usage:
            del self._users[resource][activity]
            self._touched[resource] = None

    def settle(self) -> dict[A, float]:
        """New speeds, as shares of the speed alone, of those that what came and went can touch."""
        pending, self._begun = self._begun, {}
        touched, self._touched = self._touched, {}
        for resource in touched:
            users = self._users[resource]
            if sum(users.values()) > FULL:
                self._scarce.add(resource)
            elif resource in self._scarce:
                self._scarce.remove(resource)
            else:
                continue
            for activity in users:
                pending[activity] = None
        speeds: dict[A, float] = {}
        for activity in pending:
            if activity not in speeds:
                tied = self._tied(activity)
                speeds.update(zip(tied, self._speeds([self._claims[signature] for signature in tied]), strict=True))
        return speeds

    def _tied(self, first: A) -> list[A]:
        """An activity and all that share scarce resources with it or with each other, by their claims' numbers."""
        reached, pending = {first: None}, [first]
        seen: set[Hashable] = set()
        while pending:
            for resource in self._claims[pending.pop()].usage:
                if resource in self._scarce and resource not in seen:
                    seen.add(resource)
                    for activity in self._users[resource]:
                        if activity not in reached:
                            reached[activity] = None
                            pending.append(activity)
        if len(reached) == 1:
            return [first]
        return sorted(reached, key=lambda activity: self._claims[activity].number)

    def _speeds(self, claims: Sequence[Claim]) -> list[float]:
        if len(claims) == 1 and self._scarce.isdisjoint(claims[0].usage):
            return [1.0]
        return self._solutions.speeds(claims)


def contested(claims: Sequence[Claim]) -> list[float]:
    """The weight of each claim where they meet: on the resource, of those that it uses, that is wanted most.

    What an activity fills when it is alone need not be what it waits for among others: a gather over NICs and links
    inside nodes that meets another on the latter gets as many bytes/s there as the other does, whatever its NICs carry.
    """
    demand: dict[Hashable, float] = {}
    for claim in claims:
        for resource, share in claim.usage.items():
            demand[resource] = demand.get(resource, 0.0) + share
    weights = []
    for claim in claims:
        own = claim.weight_at
        wanted = [(demand[kind], own.get(kind, claim.weight)) for kind, share in claim.usage.items() if share]
        most = max([level for level, _ in wanted], default=0.0)
        weights.append(
            min([weight for level, weight in wanted if level >= most * ALIKE]) if most > FULL else claim.weight
        )
    return weights


def shares(usages: Sequence[Mapping[Hashable, float]], weights: Sequence[float]) -> list[float]:
    """Speed of each activity, as a share of its speed alone.

    Parameters
    ----------
    usages
        For each activity the share of every resource that it takes at full speed, over 0 up to 1.
    weights
        Claim of each activity, over 0. Speeds are ``min(1, weight·λ)``, with λ as large as the resources that
        the activity needs allow. With ``weight = 1 / (bytes/s alone)`` plain flows on a full link get equal
        bytes/s; with equal weights all slow down alike.

    Returns
    -------
    list of float
        In (0, 1]; ``Σ usage·speed ≤ 1`` on every resource.

    Raises
    ------
    InputError
        A weight is not positive, or a usage is not finite or negative.

    Examples
    --------
    >>> shares([{"link": 1.0}, {"link": 1.0}], [1.0, 1.0])
    [0.5, 0.5]

    The second needs little; the first gets the rest:

    >>> shares([{"link": 1.0}, {"link": 0.25}], [1.0, 2.0])
    [0.75, 1.0]
    """
    for usage in usages:
        for share in usage.values():
            if not 0.0 <= share < math.inf:
                raise InputError(f"usage {share} of a resource must be finite and not negative")
    for weight in weights:
        if not 0.0 < weight < math.inf:
            raise InputError(f"weight {weight} of an activity must be over 0 and finite")
    return _filled(usages, weights)


def _filled(usages: Sequence[Mapping[Hashable, float]], weights: Sequence[float]) -> list[float]:
    """:func:`shares` of what is known to be in order."""
    demand: dict[Hashable, float] = {}
    for usage in usages:
        for resource, share in usage.items():
            demand[resource] = demand.get(resource, 0.0) + share
    scarce: dict[Hashable, Row] = {resource: [] for resource, share in demand.items() if share > FULL}
    speeds = [1.0] * len(usages)
    if not scarce:
        return speeds
    for i, usage in enumerate(usages):
        for resource, share in usage.items():
            if share and resource in scarce:
                scarce[resource].append((i, share))
    # Many links carry the same activities in the same proportions (all those of a mesh): one constraint each.
    rows = [(1.0, row) for row in dict(zip(map(tuple, scarce.values()), scarce.values(), strict=True)).values()]
    if sum([len(row) for _, row in rows]) >= MANY:
        return _on_arrays([row for _, row in rows], weights)
    growing = {i: None for _, row in rows for i, _ in row}
    while growing:
        level, full = math.inf, rows[0][1]
        for room, row in rows:
            growth = sum([share * weights[i] for i, share in row])
            if room < level * growth:
                level, full = room / growth, row
        # Some reach full speed before anything is full; else a resource is.
        stopped = {i: 1.0 for i in growing if weights[i] * level >= 1.0} or {i: weights[i] * level for i, _ in full}
        for i, speed in stopped.items():
            speeds[i] = speed
            del growing[i]
        rows = [kept for room, row in rows if (kept := _without(stopped, room, row))[1]]
    return speeds


def _without(stopped: Mapping[int, float], room: float, row: Row) -> tuple[float, Row]:
    """A constraint once some of its activities have their speed: less room, fewer that grow."""
    taken = [share * stopped[i] for i, share in row if i in stopped]
    if not taken:
        return room, row
    return max(0.0, room - sum(taken)), [entry for entry in row if entry[0] not in stopped]


def _on_arrays(rows: Sequence[Row], weights: Sequence[float]) -> list[float]:
    """The same on sparse rows: ``amount[k]`` of resource ``row[k]`` is what activity ``column[k]`` takes."""
    row = np.repeat(np.arange(len(rows)), [len(entries) for entries in rows])
    column = np.array([i for entries in rows for i, _ in entries])
    amount = np.array([share for entries in rows for _, share in entries])
    weight = np.array(weights)
    claim, room = amount * weight[column], np.ones(len(rows))
    speed, growing = np.ones(len(weights)), np.ones(len(weights), dtype=bool)
    while growing.any():
        growth = np.bincount(row, claim * growing[column], len(rows))
        levels = np.divide(room, growth, out=np.full(len(rows), math.inf), where=growth > 0.0)
        level = float(levels.min(initial=math.inf))
        stopped = growing & (weight * level >= 1.0)
        if not stopped.any():
            full = column[(levels <= level * TIED)[row]]
            stopped[full] = growing[full]
            speed[stopped] = weight[stopped] * level
        growing &= ~stopped
        room = np.maximum(0.0, room - np.bincount(row, amount * (speed * stopped)[column], len(rows)))
    return [float(rate) for rate in speed]
