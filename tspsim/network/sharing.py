"""Max-min fair rates of activities that share links.

Progressive filling (Bertsekas and Gallager, Data Networks, 2nd ed., §6.5.2): all rates grow together until a resource
is full or an activity runs at full speed; these stop, and the others continue to grow. In the unique result no rate can
grow without reducing one that is not larger.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from ..base.errors import InputError

#: (activity, share that it uses at full speed) of one resource.
Row = list[tuple[int, float]]
#: Demand above which a resource is scarce: above rounding, below anything measurable.
FULL = 1.0 + 1e-12
#: Factor within which two resources become full at the same level, but for rounding.
TIED = 1.0 + 1e-13
#: Factor within which two demands are equal, but for rounding.
ALIKE = 1.0 - 1e-9
#: Usages above which arrays are faster than lists (benchmarks/scale.py).
MANY = 100
#: Most speeds in the memo.
REMEMBERED = 200_000


A = TypeVar("A", bound=Hashable)


class Claim(Protocol):
    """Demand of an activity (:func:`shares`). Claims with the same ``number`` are equal.

    ``weight`` applies on the resource that it fills when it is alone, ``weight_at`` on others.
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
    """Memo of speeds, by the numbers of the claims that share: the same sets recur."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], list[float]] = {}
        self._remembered = 0

    def speeds(self, claims: Sequence[Claim]) -> list[float]:
        """Speeds of claims (:func:`shares`), from the memo if possible."""
        meeting = tuple([claim.number for claim in claims])
        return self.known.get(meeting) or self.solve(meeting, claims)

    def solve(self, meeting: tuple[int, ...], claims: Sequence[Claim]) -> list[float]:
        """Speeds of claims with the numbers ``meeting``, which are not in the memo."""
        self._remembered += len(meeting)
        if self._remembered > REMEMBERED:
            self.known.clear()
            self._remembered = len(meeting)
        speeds = _filled([claim.usage for claim in claims], contested(claims))
        self.known[meeting] = speeds
        return speeds


class Sharing(Generic[A]):
    """Speeds of activities that begin and end.

    A resource is *scarce* if its users together want more than all of it. Only scarce resources make speeds depend on
    each other. So an activity that begins or ends affects only those that share scarce resources with it, directly or
    through others; :meth:`settle` solves these again, unless ``solutions`` has them.
    """

    def __init__(self, solutions: Solutions | None = None) -> None:
        self._solutions = solutions or Solutions()
        self._claims: dict[A, Claim] = {}
        self._users: dict[Hashable, dict[A, float]] = {}
        self._scarce: set[Hashable] = set()
        self._touched: dict[Hashable, None] = {}
        self._begun: dict[A, None] = {}

    def enter(self, activity: A, claim: Claim) -> None:
        """Add an activity."""
        self._claims[activity] = claim
        self._begun[activity] = None
        for resource, share in claim.usage.items():
            users = self._users.get(resource)
            if users is None:
                users = self._users[resource] = {}
            users[activity] = share
            self._touched[resource] = None

    def leave(self, activity: A) -> None:
        """Remove an activity."""
        self._begun.pop(activity, None)
        for resource in self._claims.pop(activity).usage:
            del self._users[resource][activity]
            self._touched[resource] = None

    def settle(self) -> dict[A, float]:
        """New speeds, as shares of the uncontended speed, of the activities that the changes can affect."""
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
                speeds.update(zip(tied, self._speeds([self._claims[other] for other in tied]), strict=True))
        return speeds

    def _tied(self, first: A) -> list[A]:
        """An activity and all that it is tied to by scarce resources, in order of their claims' numbers."""
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
    """Weight of each claim on the resource with the highest demand among those that it uses.

    The resource that an activity fills alone may not be the one that it waits for among others. For example a gather
    over NICs that shares links inside nodes with another transfer gets the same bytes/s on those links.
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
    """Speed of each activity, as a share of its uncontended speed.

    Parameters
    ----------
    usages
        For each activity: resource → share that it uses at full speed, over 0 and at most 1.
    weights
        Weight of each activity, over 0. Speeds are ``min(1, weight·λ)``, with λ as large as the activity's resources
        allow. With ``weight = 1 / (uncontended bytes/s)``, flows on a full link get equal bytes/s; with equal weights
        all slow down by the same factor.

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

    The second runs at full speed; the first gets the rest:

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
    """:func:`shares` of valid input."""
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
    # Many links, such as those of a mesh, have the same activities in the same proportions: one constraint for all.
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
        # Activities that reach full speed before any resource is full stop first; else the users of the full resource.
        stopped = {i: 1.0 for i in growing if weights[i] * level >= 1.0} or {i: weights[i] * level for i, _ in full}
        for i, speed in stopped.items():
            speeds[i] = speed
            del growing[i]
        rows = [kept for room, row in rows if (kept := _without(stopped, room, row))[1]]
    return speeds


def _without(stopped: Mapping[int, float], room: float, row: Row) -> tuple[float, Row]:
    """A constraint without the activities that have stopped: their share is subtracted from its room."""
    taken = [share * stopped[i] for i, share in row if i in stopped]
    if not taken:
        return room, row
    return max(0.0, room - sum(taken)), [entry for entry in row if entry[0] not in stopped]


def _on_arrays(rows: Sequence[Row], weights: Sequence[float]) -> list[float]:
    """:func:`_filled` as sparse arrays: activity ``column[k]`` uses ``amount[k]`` of resource ``row[k]``."""
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
