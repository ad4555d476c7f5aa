"""Routing policies of a fabric: the choice among equal paths between two leaf switches.

``spread`` is static routing by destination (D-mod-k), as InfiniBand subnet managers configure it. ``ecmp`` is that of
Ethernet switches: every flow is hashed to one of the cables, and flows collide by chance. ``planned`` selects the paths
of a collective's flows together, so that all uplinks and downlinks carry equally many (C4P: Dong et al. 2024, arXiv
2406.04594, which selects the source ports of RDMA connections so that their hashes differ).
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
from .even import even_colouring

Integers = NDArray[np.int64]
#: Draws of paths that one answer is made of, at most.
MOST_SEEDS = 1000


class Flows(NamedTuple):
    """Messages between leaf switches, as columns.

    ``leaving`` and ``arriving`` are the NICs, ``source`` and ``target`` their leaves over all planes, and ``endpoint``
    is the number of the arriving NIC in its plane.
    """

    leaving: Integers
    arriving: Integers
    source: Integers
    target: Integers
    endpoint: Integers


@dataclass(frozen=True)
class RoutingPolicy:
    """A policy that selects among equal paths.

    Attributes
    ----------
    name, summary
        Name in a scenario's ``routing``, and one line for the catalogue.
    choose
        (plane, flows, seed) → one number for each flow, the ``spread`` of :meth:`~tspsim.network.clos.Clos.paths`.
    drawn
        The result depends on the seed: a run is one of many draws.
    by_cable
        A flow stays on one cable. Otherwise parallel cables between two switches are one link of their summed rate.
    alone
        Policy of messages outside collectives; empty: this one.
    by_destination
        The choice depends only on the number of the arriving NIC.
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
    """A scenario's routing: drawn policies are run with ``seeds`` seeds from ``seed`` on."""

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
    def for_messages(self) -> Routing:
        """Routing of messages outside collectives."""
        return replace(self, policy=self.object.alone) if self.object.alone else self

    def draws(self) -> tuple[Routing, ...]:
        """One routing for each seed; one if the policy is not drawn."""
        if not self.object.drawn:
            return (self,)
        return tuple([replace(self, seed=self.seed + draw, seeds=1) for draw in range(self.seeds)])


def by_destination(plane: Clos, flows: Flows, seed: int) -> Integers:
    """D-mod-k, which has no contention in shifts (Zahavi, Journal of Parallel and Distributed Computing 72, 2012)."""
    return flows.endpoint


def by_hash(plane: Clos, flows: Flows, seed: int) -> Integers:
    """Hash of both NICs and the seed: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) for each word."""
    mixed = np.full(len(flows.leaving), seed, dtype=np.int64).astype(np.uint64)
    for word in (flows.leaving, flows.arriving):
        mixed = _mixed(mixed ^ _mixed(word.astype(np.uint64) + np.uint64(1)))
    return (mixed >> np.uint64(2)).astype(np.int64)


def planned(plane: Clos, flows: Flows, seed: int) -> Integers:
    """Routing by destination, unless that is uneven: then every leaf's flows are balanced over its spines, and every
    spine's over its cores, so that no link has more flows than the mean, rounded up."""
    preferred, chosen = flows.endpoint, flows.endpoint.copy()
    if plane.leaves == 1:
        return chosen
    pairs = np.stack([flows.leaving, flows.arriving], axis=1)
    _, first, again = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    again = again.reshape(-1)
    kept = first[flows.source[first] != flows.target[first]]
    spine = even_colouring(flows.source[kept], flows.target[kept], preferred[kept] % plane.pod_spines, plane.pod_spines)
    core = preferred[kept] // plane.pod_spines % max(1, plane.spine_cores)
    if plane.pods > 1:
        source, target = flows.source[kept] // plane.pod_leaves, flows.target[kept] // plane.pod_leaves
        for turn in range(plane.pod_spines):
            far = np.flatnonzero((spine == turn) & (source != target))
            core[far] = even_colouring(source[far], target[far], core[far], plane.spine_cores)
    chosen[kept] = spine + plane.pod_spines * core
    return np.asarray(chosen[first][again], dtype=np.int64)


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def mean_ring_rate(flows: int, paths: int) -> float:
    """Expected rate of a ring whose ``flows`` equal flows take one of ``paths`` equal paths at random: E[1/M], where M
    is the most flows on one path.

    Of all ``paths^flows`` outcomes, flows!·[x^flows](Σ_{i ≤ m} x^i/i!)^paths have M ≤ m.

    >>> [round(mean_ring_rate(*pair), 2) for pair in ((2, 2), (4, 4), (8, 8), (8, 16), (8, 32), (16, 16))]
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
ROUTINGS.register(RoutingPolicy("planned", "a collective's flows balanced over all paths", planned, alone="spread"))
#: Default routing.
SPREAD = Routing("spread")
