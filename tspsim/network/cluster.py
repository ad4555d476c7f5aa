"""A cluster: its GPUs, links and routes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, UnknownNameError, shorten
from ..base.memo import BoundedCache, once
from .clos import Clos
from .graphs import BANDWIDTH, KIND, LATENCY, read_only
from .layout import Layout
from .routing import SPREAD, Routing
from .specs import sources
from .wiring import Wiring

#: Entries of a cluster's memo; when it is full, the older half is dropped.
MOST_KEPT = 65_536

if TYPE_CHECKING:
    import networkx as nx

    from ..base.provenance import Provenance
    from .islands import Islands
    from .specs import FabricSpec, NodeSpec

Made = TypeVar("Made")
Vertex = int | str
Floats = NDArray[np.float64]
#: A run of equal links: (kind, number of links, bytes/s, seconds).
Block = tuple[str, int, float, float]


@dataclass(frozen=True, eq=False)
class Links:
    """All directed links as columns, indexed by link id.

    Vertices are GPU numbers (``int``) or names of switches and NICs (``str``). Columns of names are built on first
    use.
    """

    cluster: Cluster = field(repr=False)

    def __len__(self) -> int:
        return self.cluster.layout.links

    @property
    def bandwidth_bytes_per_s(self) -> Floats:
        """Bytes/s of each link in its direction."""
        return self.cluster.bandwidth_bytes_per_s

    @property
    def latency_s(self) -> Floats:
        """Latency of each link, seconds."""
        return self.cluster.latency_s

    @once
    def source(self) -> tuple[Vertex, ...]:
        """Vertex each link leaves."""
        return self._ends[0]

    @once
    def target(self) -> tuple[Vertex, ...]:
        """Vertex each link enters."""
        return self._ends[1]

    @once
    def kind(self) -> tuple[str, ...]:
        """``xgmi`` or ``nvlink`` inside a node; GPU to NIC ``pcie``; NIC to leaf ``nic``; ``spine``;
        ``core``; ``router`` between nodes whose fabric is a graph."""
        return tuple(kind for kind, count, _, _ in self.cluster.blocks() for _ in range(count))

    @once
    def ids(self) -> dict[tuple[Vertex, Vertex], int]:
        """Link id by (source, target); the last one of parallel links."""
        return {pair: link for link, pair in enumerate(zip(*self._ends, strict=True))}

    @once
    def cables(self) -> dict[tuple[Vertex, Vertex], tuple[int, ...]]:
        """All link ids by (source, target): several where parallel cables are separate links."""
        numbers: dict[tuple[Vertex, Vertex], list[int]] = {}
        for link, pair in enumerate(zip(*self._ends, strict=True)):
            numbers.setdefault(pair, []).append(link)
        return {pair: tuple(links) for pair, links in numbers.items()}

    @once
    def _ends(self) -> tuple[tuple[Vertex, ...], tuple[Vertex, ...]]:
        names = self.cluster.layout.vertices()
        source, target = self.cluster.layout.ends()
        return tuple([names[i] for i in source.tolist()]), tuple([names[i] for i in target.tolist()])


@dataclass(frozen=True, eq=False)
class Cluster:
    """Nodes of one kind on one fabric.

    GPUs are numbered ``0 … gpus − 1``, node by node. Data that grows with the cluster is built on first use. A cluster
    is immutable: :meth:`with_links` returns another.

    Parameters
    ----------
    name
        Name in reports.
    node
        Specification of each node.
    nodes
        Number of nodes.
    fabric
        Fabric that connects the nodes; None for a single node.
    oversubscription
        Bandwidth into a leaf switch over bandwidth out of it, at least 1.
    factors
        (link id, factor of its bandwidth) of slow links; 0 is a dead link, which routes avoid.
    engine_all_reduces
        Library of all-reduces of small groups inside a node that name no library; None: the node's collective library.
    routing
        Policy that selects among equal paths between switches.
    islands
        Groups of nodes with a fabric of their own, joined by ``fabric`` (:mod:`tspsim.network.islands`).
    measured
        The installed fabric, where ``fabric`` holds bandwidths measured between nodes (:mod:`tspsim.network.pairs`).

    Examples
    --------
    >>> from tspsim.network import load_cluster
    >>> cluster = load_cluster("mi300x-8")
    >>> cluster.gpus, cluster.graph.number_of_edges()
    (8, 56)
    >>> cluster.graph.edges[0, 1]["bandwidth_bytes_per_s"]
    64000000000.0
    """

    name: str
    node: NodeSpec
    nodes: int = 1
    fabric: FabricSpec | None = None
    oversubscription: float = 1.0
    factors: tuple[tuple[int, float], ...] = ()
    engine_all_reduces: str | None = None
    routing: Routing = SPREAD
    islands: Islands | None = None
    measured: FabricSpec | None = None

    def __repr__(self) -> str:
        fabric = f" on {self.fabric.name}" if self.fabric is not None else ""
        return f"<Cluster {self.name}: {self.gpus:,} × {self.device_name} in {self.nodes:,} × {self.node.name}{fabric}>"

    @property
    def device_name(self) -> str:
        """Catalog name of the GPUs."""
        return self.node.device

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one node."""
        return self.node.gpus

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.nodes * self.node.gpus

    @once
    def layout(self) -> Layout:
        """Numbering of links and vertices, and routes."""
        node, fabric = self.node, self.fabric
        shape = (self.nodes, node.wiring(), node.nics, node.rails or node.nics)
        dead = tuple([link for link, factor in self.factors if not factor])
        if fabric is None:
            return Layout(*shape, dead=dead)
        kind = fabric.joining(self.nodes, node.nics)
        radix, ports = fabric.switch.radix.value, fabric.nic.ports.value if fabric.nic.ports else 1
        return Layout(
            *shape, kind, radix, dead, routing=self.routing, oversubscription=self.oversubscription, ports=ports,
            nic_bytes_per_s=fabric.nic.bandwidth.value, switch_s=fabric.switch.latency.value,
        )  # fmt: skip

    @property
    def installed_clusters(self) -> tuple[Cluster, ...]:
        """One cluster for each installed fabric, with the nodes on it: islands and the fabric between them; the
        installed fabric where simulated links are measured ones."""
        if self.islands is not None:
            isles = zip(self.islands.fabrics, self.islands.nodes, strict=True)
            own = [(fabric, nodes, fabric.oversubscription.value) for fabric, nodes in isles]
            fabrics = [*own, (self.islands.common, self.nodes, self.oversubscription)]
            return tuple([
                replace(self, nodes=nodes, fabric=fabric, oversubscription=ratio, factors=(), islands=None)
                for fabric, nodes, ratio in fabrics
            ])  # fmt: skip
        return (self if self.measured is None else replace(self, fabric=self.measured, factors=()),)

    def joining(self, ranks: Iterable[int]) -> FabricSpec | None:
        """Fabric over which a group of ranks communicates; None in a single node."""
        if self.islands is None:
            return self.fabric
        return self.islands.joining({rank // self.gpus_per_node for rank in ranks})

    def layout_of(self, ranks: Iterable[int]) -> Layout:
        """Layout for a group of ranks: a group that spans islands avoids the islands' own switches."""
        if self.islands is None or self.joining(ranks) is not self.islands.common:
            return self.layout
        return self._common_layout

    @once
    def _common_layout(self) -> Layout:
        """Layout that avoids the islands' own switches."""
        assert self.islands is not None
        layout, wiring = self.layout, self.layout.plane
        assert isinstance(wiring, Wiring)
        shared = {*range(self.nodes), self.islands.switch}
        own = [link for link, (source, target, *_) in enumerate(wiring.links) if not {source, target} <= shared]
        return replace(layout, avoided=tuple([layout.switch_start + link for link in own]))

    @once
    def links(self) -> Links:
        """All links as columns."""
        return Links(self)

    def blocks(self) -> list[Block]:
        """Runs of equal links in id order: (kind, number of links, bytes/s, seconds)."""
        node, layout = self.node, self.layout
        blocks = list(layout.inside.runs(self.nodes, node.link.kind))
        if self.fabric is None:
            return blocks
        nic = self.fabric.nic
        port = nic.bandwidth.value
        blocks += [
            (node.host_link.kind, layout.nic_start - layout.host_start, node.host_link.bandwidth.value, 0.0),
            ("nic", layout.switch_start - layout.nic_start, port / layout.nic_lanes, nic.latency.value),
        ]
        if isinstance(layout.plane, Wiring):
            return [*blocks, *layout.plane.runs(1, "router")]
        clos = layout.plane
        spine, core = clos.tables.rates
        for _ in range(layout.planes):
            blocks.append(("spine", clos.leaf_links, *spine))
            blocks.append(("core", clos.links - clos.leaf_links, *core))
        return blocks

    @once
    def bandwidth_bytes_per_s(self) -> Floats:
        """Bytes/s of every link, by id."""
        counts, rates = zip(*((count, rate) for _, count, rate, _ in self.blocks()), strict=True)
        bandwidth = np.repeat(np.array(rates), counts)
        for link, factor in self.factors:
            bandwidth[link] *= factor
        bandwidth.flags.writeable = False
        return bandwidth

    @once
    def latency_s(self) -> Floats:
        """Seconds of every link, by id."""
        counts, seconds = zip(*((count, latency) for _, count, _, latency in self.blocks()), strict=True)
        latency = np.repeat(np.array(seconds), counts)
        latency.flags.writeable = False
        return latency

    @once
    def graph(self) -> nx.DiGraph[Vertex]:
        """The cluster as a networkx graph of every live link that the simulation uses.

        Edges have ``bandwidth_bytes_per_s``, ``latency_s`` and ``kind``; vertices have ``kind`` and, inside nodes,
        ``node``. Parallel cables are one edge of their summed remaining bandwidth. The graph is read-only; change a
        ``copy()`` and give it to :func:`~tspsim.network.with_graph`.
        """
        import networkx as nx

        names = self.layout.vertices()
        graph: nx.DiGraph[Vertex] = nx.DiGraph()
        graph.add_nodes_from(zip(names, self.layout.vertex_facts(), strict=True))
        pairs = zip(*(ends.tolist() for ends in self.layout.ends()), strict=True)
        for kind, count, bandwidth, latency in self.blocks():
            attributes = {BANDWIDTH: bandwidth, LATENCY: latency, KIND: kind}
            graph.add_edges_from(((names[u], names[v]) for u, v in islice(pairs, count)), **attributes)
        touched = [(self.links.source[link], self.links.target[link]) for link, _ in self.factors]
        parallel = [ends for ends, links in self.links.cables.items() if len(links) > 1] if self.separate_cables else []
        for ends in dict.fromkeys([*touched, *parallel]):
            left = float(self.bandwidth_bytes_per_s[list(self.links.cables[ends])].sum())
            if left:
                graph.edges[ends][BANDWIDTH] = left
            else:
                graph.remove_edge(*ends)
        return read_only(graph)

    @property
    def parts(self) -> dict[str, nx.DiGraph[Any]]:
        """The quotient of the cluster: the graph of each repeated part.

        ``node`` connects a node's GPUs. A fabric of leaf and spine switches has a ``plane``, or a ``pod`` where a plane
        has three stages and several equal pods.

        >>> from tspsim.network import build_cluster
        >>> {name: len(part) for name, part in build_cluster("h100", 2048, "rails-400g").parts.items()}
        {'node': 9, 'plane': 48}
        >>> {name: len(part) for name, part in build_cluster("h100", 2048, "fat-tree-400g").parts.items()}
        {'node': 9, 'pod': 320}
        """
        graphs: dict[str, nx.DiGraph[Any]] = {"node": self.node.graph}
        if self.fabric is not None and isinstance(clos := self.layout.plane, Clos):
            graphs["plane" if clos.pods == 1 else "pod"] = clos.graph
        return graphs

    @property
    def divisible(self) -> bool:
        """Whether any few nodes are connected like all of them: no slow links, and no fabric graph of named nodes."""
        return not self.factors and (self.fabric is None or self.fabric.leaf_and_spine)

    @property
    def separate_cables(self) -> bool:
        """Whether parallel cables between two switches, or of a NIC, are separate links."""
        plane = self.layout.plane if self.fabric is not None else None
        if plane is None or isinstance(plane, Wiring):
            return False
        return max(plane.lanes, plane.core_lanes, self.layout.nic_lanes) > 1

    def with_links(self, factors: Mapping[tuple[Vertex, Vertex], float]) -> Cluster:
        """The cluster with some links slow or dead.

        Parameters
        ----------
        factors
            Share of its bandwidth, 0 to 1, that the directed link ``(source, target)`` keeps. Factors of a link that
            was slow before multiply.

        Raises
        ------
        InputError
            There is no such link, or a factor is out of bounds.

        Examples
        --------
        >>> from tspsim.network import load_cluster
        >>> slow = load_cluster("mi300x-8").with_links({(0, 1): 0.5})
        >>> slow.graph.edges[0, 1]["bandwidth_bytes_per_s"], slow.graph.edges[1, 0]["bandwidth_bytes_per_s"]
        (32000000000.0, 64000000000.0)
        """
        marked = dict(self.factors)
        for (source, target), factor in factors.items():
            links = self.links.cables.get((source, target))
            if links is None:
                if isinstance(source, str) or isinstance(target, str):
                    pairs = [f"{u} → {v}" for u, v in self.links.ids if source == u or target == v]
                    raise UnknownNameError("link", f"{source} → {target}", pairs)
                raise InputError(f"GPUs {source} and {target} of {self.name} have no link of their own")
            if not 0.0 <= factor <= 1.0:
                raise InputError(f"factor {factor} of link {source} → {target} must be 0 (dead) to 1")
            for link in links:
                marked[link] = marked.get(link, 1.0) * float(factor)
        return replace(self, factors=tuple(sorted(marked.items())))

    def without(self, vertex: str) -> Cluster:
        """The cluster with all links of a switch or NIC dead; raises UnknownNameError."""
        touching = [pair for pair in self.links.ids if vertex in pair]
        if not touching:
            names = {name for name in self.links.source if isinstance(name, str)}
            raise UnknownNameError("switch or NIC", vertex, names)
        return self.with_links(dict.fromkeys(touching, 0.0))

    @once
    def memo(self) -> BoundedCache:
        """Memo of results that depend on this cluster alone; a changed cluster has its own."""
        return BoundedCache(MOST_KEPT)

    def with_all_reduces(self, word: str) -> Cluster:
        """The cluster with the all-reduce kernels of the serving engine whose library begins with ``word``; the same
        cluster if its nodes have none."""
        own = self.node.collectives.all_reduces_of(word)
        if own is None or own == self.engine_all_reduces:
            return self
        return self.memo.once(("all-reduces of", own), lambda: replace(self, engine_all_reduces=own))

    def with_exchanges(self, library: str) -> Cluster:
        """The cluster that uses ``library`` for expert dispatch and combine, where its nodes have measured curves of
        it."""
        curves = self.node.collectives.experts
        own = tuple(curve for curve in curves if curve.library == library)
        if not own or curves[: len(own)] == own:
            return self
        others = tuple(curve for curve in curves if curve.library != library)

        def preferring() -> Cluster:
            collectives = self.node.collectives.model_copy(update={"experts": own + others})
            return replace(self, node=self.node.model_copy(update={"collectives": collectives}))

        return self.memo.once(("exchanges of", library), preferring)

    def with_routing(self, routing: Routing) -> Cluster:
        """The cluster with another routing policy.

        Raises
        ------
        InputError
            Links of NICs or between switches are slow or dead, and the policy numbers links differently.
        """
        if routing == self.routing:
            return self

        def routed() -> Cluster:
            other = replace(self, routing=routing)
            same = self.layout.nic_lanes == other.layout.nic_lanes
            first = self.layout.switch_start if same else self.layout.nic_start
            if any(link >= first for link, _ in self.factors) and other.layout.links != self.layout.links:
                raise InputError(f"'{routing.policy}' makes every cable a link: state the routing before slow links")
            return other

        return self.memo.once(("routed", routing), routed)

    @once
    def sound(self) -> Cluster:
        """The cluster with every link at its specified bandwidth."""
        return replace(self, factors=()) if self.factors else self

    def check_gpu(self, gpu: Any) -> int:
        """``gpu`` as a plain int; raises InputError if the cluster has no such GPU."""
        try:
            number = operator.index(gpu)
        except TypeError:
            message = f"'{shorten(gpu)}' is no GPU; GPUs of {self.name} are 0 to {self.gpus - 1}"
            raise InputError(message) from None
        if not 0 <= number < self.gpus:
            raise InputError(f"GPU {shorten(number)} is not in {self.name}; it has 0 to {self.gpus - 1}")
        return number

    def route(self, source: int, destination: int, label: int = 0) -> tuple[int, ...]:
        """Link ids of a message's route, in order.

        Inside a node a message takes the direct link, or up to the switch and down. Between nodes it takes the GPU's
        NIC, its leaf, a spine if needed, and the destination's NIC; where rails are separate, it first hops to the GPU
        of its node on the destination's rail. Routes avoid dead links (:mod:`tspsim.network.detours`). Equal arguments
        give equal routes.

        Parameters
        ----------
        source, destination
            GPU numbers; the route from a GPU to itself is empty.
        label
            Distinguishes messages between the same GPUs, which take different equal paths (ECMP).

        Raises
        ------
        InputError
            A GPU is not in the cluster.
        UnreachableError
            Dead links leave no route.
        """
        key = ("route", source, destination, label)
        route: tuple[int, ...] | None = self.memo.get(key)
        if route is None:
            ends = [self.check_gpu(source)], [self.check_gpu(destination)]
            row = self.layout.routes(*ends, label)[0]
            route = self.memo[key] = tuple(row[row >= 0].tolist())
        return route

    def provenance(self) -> tuple[Provenance, ...]:
        """Source and basis of every number of the network that results depend on."""
        return sources(self.node, self.fabric)
