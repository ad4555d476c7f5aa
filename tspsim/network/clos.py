"""A folded Clos network of leaf, spine and core switches: its graph, and the links and routes compiled from it.

The graph is that of the repeated part: the whole of a two-stage plane, or one pod of a three-stage plane with its
cores, to which every pod connects alike. Parallel cables between two switches are one link of their summed bandwidth,
unless the routing policy keeps a flow on one cable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.memo import once, remembered
from .graphs import BANDWIDTH, KIND, LATENCY, folded_clos

if TYPE_CHECKING:
    import networkx as nx

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Clos:
    """``leaves`` switches with ``ports`` endpoints each, connected by spines and, if there are pods, cores.

    Notes
    -----
    With at most ``radix`` leaves there are two stages and ``ceil(leaves·ports / radix)`` spines, each connected to
    every leaf. With more, ``radix/2`` leaves and as many spines form a pod, and the spines at one position of all pods
    share cores: the three-stage fat tree of Al-Fares et al., SIGCOMM 2008, §3.

    Links come in pairs: ``2·i`` up, ``2·i + 1`` down. First are all leaf-spine pairs in order of leaves, then all
    spine-core pairs in order of pods, then spines; parallel cables are consecutive.
    """

    #: Leaf switches, and endpoints of each.
    leaves: int
    ports: int
    #: Ports of every switch. If there are several leaves, half of a leaf's ports go up.
    radix: int
    #: Parallel cables between a leaf and a spine, and between a spine and a core, that are separate links.
    lanes: int = 1
    core_lanes: int = 1
    #: Bytes/s of an endpoint; bandwidth into a leaf over bandwidth out of it; seconds of a link between switches.
    port_bytes_per_s: float = 1.0
    oversubscription: float = 1.0
    latency_s: float = 0.0

    @classmethod
    def joining(cls, endpoints: int, radix: int) -> Clos:
        """The smallest network that connects ``endpoints``: one switch if its ports suffice."""
        if endpoints <= radix:
            return cls(1, radix, radix)
        return cls(-(-endpoints // (radix // 2)), radix // 2, radix)

    def __post_init__(self) -> None:
        half = self.radix // 2
        if self.leaves > max(self.radix, half * self.radix):
            most = half * self.radix * self.ports
            raise InputError(
                f"{self.leaves * self.ports} ports need more than three stages of {self.radix}-port "
                f"switches; at most {most} ports, or a larger switch"
            )

    @property
    def pods(self) -> int:
        """Pods of a three-stage network; 1 for two stages."""
        return 1 if self.leaves <= self.radix else -(-self.leaves // (self.radix // 2))

    @once
    def pod_leaves(self) -> int:
        """Leaves of a full pod."""
        return self.leaves if self.pods == 1 else self.radix // 2

    @once
    def pod_spines(self) -> int:
        """Spines of a pod."""
        if self.leaves == 1:
            return 0
        return -(-self.leaves * self.ports // self.radix) if self.pods == 1 else self.radix // 2

    @property
    def spines(self) -> int:
        """Spines of all pods."""
        return self.pods * self.pod_spines

    @once
    def spine_cores(self) -> int:
        """Cores above each spine; the spines at one position of all pods share them."""
        return 0 if self.pods == 1 else -(-self.pods // 2)

    @property
    def cores(self) -> int:
        return self.pod_spines * self.spine_cores

    @property
    def vertices(self) -> int:
        """Number of leaves, spines and cores."""
        return self.leaves + self.spines + self.cores

    @property
    def choices(self) -> int:
        """Number of equal paths between two leaves."""
        core_paths = self.spine_cores * self.core_lanes if self.spine_cores else 1
        return self.pod_spines * self.lanes * core_paths if self.leaves > 1 else 1

    def by_cable(self, oversubscription: float) -> Clos:
        """The network with every cable as a separate link."""
        if self.leaves == 1:
            return self
        lanes = max(1, round(self.ports / (self.pod_spines * oversubscription)))
        core_lanes = max(1, self.pod_leaves * lanes // self.spine_cores) if self.spine_cores else 1
        return replace(self, lanes=lanes, core_lanes=core_lanes)

    def switches_and_cables(self, endpoints: int, oversubscription: float) -> tuple[int, int]:
        """Number of switches, and of cables between them, that ``endpoints`` of all planes like this one use.

        An endpoint uses a port of a leaf and 1/``oversubscription`` of an uplink, and as much above a spine. A stage's
        ports fill whole switches, which several rails or pods may share.

        >>> plane = Clos(8, 32, 64)
        >>> plane.switches_and_cables(256, 1.0), plane.switches_and_cables(16, 1.0)
        ((12, 256), (2, 16))
        >>> Clos(1, 64, 64).switches_and_cables(16, 1.0)
        (1, 0)
        """
        stages = 1 + (self.spines > 0) + (self.cores > 0)
        rising = math.ceil(endpoints / oversubscription)
        ports = [endpoints, *[rising] * (stages - 1)]
        used = [below + above for below, above in zip(ports, [*ports[1:], 0], strict=True)]
        return sum(math.ceil(count / self.radix) for count in used), rising * (stages - 1)

    @property
    def leaf_links(self) -> int:
        """Directed links between leaves and spines."""
        return 2 * self.leaves * self.pod_spines * self.lanes

    @property
    def links(self) -> int:
        """Directed links between switches."""
        return self.leaf_links + 2 * self.spines * self.spine_cores * self.core_lanes

    def bandwidths(self, port: float, oversubscription: float) -> tuple[float, float]:
        """Bytes/s of a leaf-spine link and of a spine-core link, for endpoints of ``port`` bytes/s."""
        spine = port * self.ports / (self.pod_spines * oversubscription) if self.pod_spines else 0.0
        core = spine * self.pod_leaves / self.spine_cores if self.spine_cores else 0.0
        return spine / self.lanes, core / self.core_lanes

    @property
    def graph(self) -> nx.MultiDiGraph[Any]:
        """Graph of the plane; of a three-stage plane that of one pod and the cores.

        >>> plane = Clos(8, 32, 64, port_bytes_per_s=50e9).graph
        >>> sorted(plane.edges["leaf0", "spine3", 0].items())
        [('bandwidth_bytes_per_s', 400000000000.0), ('kind', 'spine'), ('latency_s', 0.0)]
        """
        return _graph(self)

    @property
    def tables(self) -> Tables:
        """The compiled graph."""
        return _tables(self)

    @once
    def ends(self) -> tuple[Integers, Integers]:
        """Source and target of every link; vertices are leaves, then spines, then cores."""
        low, high = self.tables.below
        pod = np.repeat(np.arange(self.pods), len(low))[: self.leaf_links // 2]
        leaf = np.tile(low, self.pods)[: len(pod)] + pod * self.pod_leaves
        upper = self.leaves + np.tile(high, self.pods)[: len(pod)] + pod * self.pod_spines
        below, above = self.tables.above
        pod = np.repeat(np.arange(self.pods), len(below))
        position = self.leaves + np.tile(below, self.pods) + pod * self.pod_spines
        cores = self.leaves + self.spines + np.tile(above, self.pods)
        low, high = np.concatenate([leaf, position]), np.concatenate([upper, cores])
        return _interleave(low, high), _interleave(high, low)

    def paths(self, source_leaf: Integers, target_leaf: Integers, spread: Integers) -> Integers:
        """Links from leaf to leaf, shape (paths, hops); -1 where a path has no such hop.

        ``spread`` selects among equal paths as a mixed-radix number: spine, cable to it, core, cable to that. A path
        uses the same cables down as up.
        """
        if self.leaves == 1:
            return np.full((len(spread), 1), -1, dtype=np.int64)
        above, spine = np.divmod(spread, self.pod_spines)
        above, lane = np.divmod(above, self.lanes)
        differs = source_leaf != target_leaf
        up, rise = self.tables.up, self.tables.rise
        if self.pods == 1:
            first, last = up[source_leaf, spine, lane], up[target_leaf, spine, lane] + 1
            return np.stack([np.where(differs, first, -1), np.where(differs, last, -1)], axis=1)
        source_pod, source_leaf = np.divmod(source_leaf, self.pod_leaves)
        target_pod, target_leaf = np.divmod(target_leaf, self.pod_leaves)
        per_pod, per_core = 2 * len(self.tables.below[0]), 2 * len(self.tables.above[0])
        first = np.where(differs, up[source_leaf, spine, lane] + source_pod * per_pod, -1)
        last = np.where(differs, up[target_leaf, spine, lane] + target_pod * per_pod + 1, -1)
        above, core = np.divmod(above, self.spine_cores)
        cable, far = above % self.core_lanes, source_pod != target_pod

        to_core = self.leaf_links + rise[spine, core, cable]
        upper, lower = to_core + source_pod * per_core, to_core + target_pod * per_core + 1
        return np.stack([first, np.where(far, upper, -1), np.where(far, lower, -1), last], axis=1)


def _interleave(first: Integers, second: Integers) -> Integers:
    return np.stack([first, second], axis=1).reshape(-1)


class Tables(NamedTuple):
    """A plane's graph as arrays. Within a stage a cable's up link has an even number, its down link the next."""

    #: Up links by (leaf of a pod, spine, cable), and by (spine of a pod, core above it, cable).
    up: Integers
    rise: Integers
    #: Lower and upper end of every cable in this order: (leaves, spines), and (spines, cores).
    below: tuple[Integers, Integers]
    above: tuple[Integers, Integers]
    #: (bytes/s, seconds) of a leaf-spine link, and of a spine-core link.
    rates: tuple[tuple[float, float], tuple[float, float]]


@remembered(64)
def _graph(clos: Clos) -> nx.MultiDiGraph[Any]:
    cables, rates = (clos.lanes, clos.core_lanes), clos.bandwidths(clos.port_bytes_per_s, clos.oversubscription)
    return folded_clos(clos.pod_leaves, clos.pod_spines, clos.spine_cores, cables, rates, clos.latency_s)


@remembered(64)
def _tables(clos: Clos) -> Tables:
    graph = _graph(clos)
    stages: dict[str, dict[str, int]] = {}
    for vertex, facts in graph.nodes(data=True):
        stage = stages.setdefault(facts[KIND], {})
        stage[vertex] = len(stage)
    lines = []
    for lower, upper in (("leaf", "spine"), ("spine", "core")):
        low, high = stages.get(lower, {}), stages.get(upper, {})
        cables = [(low[u], high[v]) for u in low for v, edges in graph[u].items() if v in high for _ in edges]
        first = next((next(iter(graph[u][v].values())) for u in low for v in graph[u] if v in high), None)
        rate = (first[BANDWIDTH], first[LATENCY]) if first is not None else (0.0, clos.latency_s)
        ends = np.array(cables, dtype=np.int64).reshape(-1, 2).T
        across = len(cables) // max(1, len(low))
        width = clos.lanes if upper == "spine" else clos.core_lanes
        up_links = 2 * np.arange(len(cables)).reshape(len(low) if cables else 0, across // width, width)
        lines.append((up_links, (ends[0], ends[1]), rate))
    (up, below, slow), (rise, above, fast) = lines
    return Tables(up, rise, below, above, (slow, fast))
