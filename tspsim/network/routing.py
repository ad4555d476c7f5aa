"""Which of the equal paths between two leaf switches a flow takes: a policy of the fabric.

``spread`` is static routing by destination (D-mod-k), as subnet managers of InfiniBand set it up. ``ecmp`` is what
Ethernet switches do: every flow is hashed to one of the cables, and flows meet by chance. ``planned`` chooses the paths
of a collective's flows together, so that every uplink and downlink gets as many as any other (C4P: Dong et al. 2024,
arXiv 2406.04594, which picks the source ports of RDMA connections so that their hashes fall apart).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import factorial
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt

from ..base.registry import Registry
from ..base.strict import OneOf, section
from .clos import Clos
from .even import evenly

Integers = NDArray[np.int64]
#: Draws of paths that one answer is made of, at most.
MOST_SEEDS = 1000


class Flows(NamedTuple):
    """Messages between leaf switches, in columns.

    ``leaving`` and ``arriving`` are NICs, ``source`` and ``target`` their leaves, numbered over all planes, and
    ``endpoint`` is the number of the arriving NIC in its plane.
    """

    leaving: Integers
    arriving: Integers
    source: Integers
    target: Integers
    endpoint: Integers


@dataclass(frozen=True)
class RoutingPolicy:
    """A way to choose among equal paths.

    Attributes
    ----------
    name, summary
        What a scenario's ``routing`` calls it, and a line for the catalogue.
    choose
        (a plane, flows, seed) → a number a flow; :meth:`~tspsim.network.clos.Clos.paths` says what it picks.
    drawn
        The seed decides: one run is one draw of many.
    by_cable
        A flow stays on one cable. Elsewhere parallel cables between two switches are one link of their summed rate.
    alone
        Policy of messages that belong to no collective; empty: this one.
    by_destination
        It asks for the number of the arriving NIC and nothing else.
    """

    name: str
    summary: str
    choose: Callable[[Any, Flows, int], Integers]
    drawn: bool = False
    by_cable: bool = False
    alone: str = ""
    by_destination: bool = False


@dataclass(frozen=True)
class Routing:
    """A policy as a scenario states it: drawn policies are run for ``seeds`` seeds from ``seed`` on."""

    __pydantic_config__ = section(
        "A routing policy; one that draws paths is run for every seed, and the answer is the median draw."
    )

    policy: Annotated[
        str,
        OneOf(lambda: ROUTINGS.names()),
        Field(
            description="of equal paths between switches: by destination, by a hash of each flow, planned for a "
            "collective"
        ),
    ]
    seed: Annotated[StrictInt, Field(ge=0, le=2**31, description="first seed, for policies that draw paths")] = 0
    seeds: Annotated[
        StrictInt,
        Field(ge=1, le=MOST_SEEDS, description="number of draws, from `seed` on, for policies that draw paths"),
    ] = 20

    @property
    def object(self) -> RoutingPolicy:
        """The registered policy."""
        return ROUTINGS.get(self.policy)

    @property
    def of_messages(self) -> Routing:
        """What messages follow that belong to no collective."""
        return replace(self, policy=self.object.alone) if self.object.alone else self

    def draws(self) -> tuple[Routing, ...]:
        """One a seed; one where no seed decides anything."""
        if not self.object.drawn:
            return (self,)
        return tuple([replace(self, seed=self.seed + draw, seeds=1) for draw in range(self.seeds)])


def by_destination(plane: Clos, flows: Flows, seed: int) -> Integers:
    """D-mod-k: free of contention for shifts (Zahavi, Journal of Parallel and Distributed Computing 72, 2012)."""
    return flows.endpoint


def by_hash(plane: Clos, flows: Flows, seed: int) -> Integers:
    """A hash of both NICs and the seed: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), once a word."""
    mixed = np.full(len(flows.leaving), seed, dtype=np.int64).astype(np.uint64)
    for word in (flows.leaving, flows.arriving):
        mixed = _mixed(mixed ^ _mixed(word.astype(np.uint64) + np.uint64(1)))
    return (mixed >> np.uint64(2)).astype(np.int64)


def together(plane: Clos, flows: Flows, seed: int) -> Integers:
    """As by destination, but where that is uneven every leaf's flows are dealt out to its spines, and every spine's to
    its cores: no link has more than one flow over its share."""
    wish, chosen = flows.endpoint, flows.endpoint.copy()
    if plane.leaves == 1:
        return chosen
    pairs = np.stack([flows.leaving, flows.arriving], axis=1)
    _, first, again = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    again = again.reshape(-1)
    kept = first[flows.source[first] != flows.target[first]]
    spine = evenly(flows.source[kept], flows.target[kept], wish[kept] % plane.pod_spines, plane.pod_spines)
    core = wish[kept] // plane.pod_spines % max(1, plane.spine_cores)
    if plane.pods > 1:
        source, target = flows.source[kept] // plane.pod_leaves, flows.target[kept] // plane.pod_leaves
        for turn in range(plane.pod_spines):
            far = np.flatnonzero((spine == turn) & (source != target))
            core[far] = evenly(source[far], target[far], core[far], plane.spine_cores)
    chosen[kept] = spine + plane.pod_spines * core
    return np.asarray(chosen[first][again], dtype=np.int64)


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def mean_ring_rate(flows: int, paths: int) -> float:
    """Expected rate of a ring whose ``flows`` equal flows choose among ``paths`` equal paths at random: E[1/M], M the
    most that meet on one.

    Of all ``paths^flows`` outcomes, flows!·[x^flows](Σ_{i ≤ m} x^i/i!)^paths have M ≤ m.

    >>> [round(mean_ring_rate(*each), 2) for each in ((2, 2), (4, 4), (8, 8), (8, 16), (8, 32), (16, 16))]
    [0.75, 0.51, 0.41, 0.53, 0.68, 0.34]
    """

    def at_most(most: int) -> float:
        """Probability of M ≤ most."""
        one = np.array([1.0 / factorial(count) for count in range(most + 1)])
        power = np.ones(1)
        for _ in range(paths):
            power = np.convolve(power, one)[: flows + 1] / paths ** (flows / paths)
        return float(power[flows]) * factorial(flows) if len(power) > flows else 0.0

    below = [at_most(most) for most in range(flows + 1)]
    return sum((here - before) / most for most, (before, here) in enumerate(pairwise(below), 1))


ROUTINGS: Registry[RoutingPolicy] = Registry("routing policy", "tspsim.routing_policies", RoutingPolicy)
ROUTINGS.register(
    RoutingPolicy("spread", "by destination: no two flows of a shift meet", by_destination, by_destination=True)
)
ROUTINGS.register(
    RoutingPolicy("ecmp", "by a hash of each flow: flows meet by chance", by_hash, drawn=True, by_cable=True)
)
ROUTINGS.register(
    RoutingPolicy("planned", "a collective's flows dealt out evenly over all paths", together, alone="spread")
)
#: What a fabric does that states nothing.
SPREAD = Routing("spread")
