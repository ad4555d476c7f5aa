"""Compiled graphs: links as columns, and the shortest routes over them.

A :class:`Wiring` holds a graph of :mod:`tspsim.network.graphs` as columns: endpoints (a node's GPUs, or what a fabric
connects), switches, and links with bandwidth and latency. A message takes the route of least latency, then fewest hops
(networkx's Dijkstra), then the link of the lowest number at every vertex. Generators of common graphs register as
topologies; a node's or fabric's file names one, alone or with its argument (``intra: {torus: [4, 4]}``, ``intra:
{graph: [...]}``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, shorten
from ..base.memo import once, remembered
from ..base.registry import Registry
from ..base.units import parse
from .graphs import BANDWIDTH, KIND, LATENCY, Link, Vertex, full_mesh, joined, links_of, number, switched, torus

if TYPE_CHECKING:
    import networkx as nx

Integers = NDArray[np.int64]


#: Key of a fabric's ``kind`` for a user's graph of switches.
OWN = "own"
#: A route's cost as one whole number: hops + HOPS · latency in attoseconds + LATENCIES · dead links.
HOPS, LATENCIES, ATTO = 2**16, 2**80, 1e18


@dataclass(frozen=True, eq=False)
class Wiring:
    """A graph as columns, and the routes over it."""

    #: Vertices 0 … that send and receive messages; they also forward the messages of others.
    endpoints: int
    #: Names of the other vertices, numbered after the endpoints.
    switches: tuple[str, ...]
    #: Links by id.
    links: tuple[Link, ...]
    #: Kind of every link; empty: all have the kind that the caller states.
    kinds: tuple[str, ...] = ()
    #: Links that are used only if there is no other route.
    dead: tuple[int, ...] = ()
    #: Endpoint of each NIC; empty: an endpoint is a node, with all its NICs.
    attached: tuple[int, ...] = ()
    #: Names of endpoints with NICs, and kinds of all vertices.
    leaves: tuple[str, ...] = ()
    vertex_kinds: tuple[str, ...] = ()

    @classmethod
    def of(cls, graph: nx.DiGraph[Any]) -> Wiring:
        """The columns of a graph; raises InputError where an edge lacks a number."""
        endpoints = sum(not isinstance(vertex, str) for vertex in graph)
        names = tuple([vertex for vertex in graph if isinstance(vertex, str)])
        edges = list(graph.edges(data=True))
        links = tuple([(u, v, number(facts, BANDWIDTH), number(facts, LATENCY)) for u, v, facts in edges])
        kinds = tuple([facts.get(KIND, "") for *_, facts in edges])
        return cls(endpoints, names, links, kinds if any(kinds) else ())

    @classmethod
    def of_switches(cls, stated: Mapping[str, Any]) -> Wiring:
        """The columns of a graph of switches with NICs (:mod:`tspsim.network.own`)."""
        kinds = dict(stated["kinds"])
        leaves = tuple(stated["leaves"])
        others = tuple([name for name in kinds if name not in set(leaves)])
        links = tuple([(u, v, bandwidth, latency) for u, v, bandwidth, latency, _ in stated["links"]])
        return cls(
            len(leaves), others, links, tuple([link[4] for link in stated["links"]]), (), tuple(stated["attached"]),
            leaves, tuple([kinds[name] for name in (*leaves, *others)]),
        )  # fmt: skip

    @once
    def ends(self) -> tuple[Integers, Integers]:
        """Source and target vertex of every link."""
        names: dict[Vertex, int] = dict(zip(self.switches, range(self.endpoints, self.vertices), strict=True))
        source = [names.get(link[0], link[0]) for link in self.links]
        target = [names.get(link[1], link[1]) for link in self.links]
        return np.array(source, dtype=np.int64), np.array(target, dtype=np.int64)

    @property
    def vertices(self) -> int:
        """Number of endpoints and switches."""
        return self.endpoints + len(self.switches)

    @once
    def out_links(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Outgoing links of every vertex: (target vertex, link)."""
        hops: list[list[tuple[int, int]]] = [[] for _ in range(self.vertices)]
        for link, (source, target) in enumerate(zip(*(ends.tolist() for ends in self.ends), strict=True)):
            hops[source].append((target, link))
        return tuple(tuple(row) for row in hops)

    @once
    def islands(self) -> Integers:
        """Connected component of every vertex, named by its lowest vertex."""
        import networkx as nx

        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(self.vertices))
        graph.add_edges_from(zip(*(ends.tolist() for ends in self.ends), strict=True))
        lowest = np.zeros(self.vertices, dtype=np.int64)
        for part in nx.connected_components(graph):
            lowest[list(part)] = min(part)
        return lowest

    @once
    def equal_links(self) -> tuple[Integers, Integers]:
        """Next links of all shortest routes, and their number.

        The first array has shape (endpoints, vertices, most links): links by which a shortest route to an endpoint
        leaves a vertex, ascending; -1 at the endpoint itself and after the last. The second, (endpoints, vertices), is
        their number.

        Raises
        ------
        InputError
            An endpoint of the same connected component cannot be reached.

        Notes
        -----
        Costs are whole numbers, so that equal routes compare as equal: dead links, then latency in attoseconds, then
        hops.
        """
        import networkx as nx

        back: nx.DiGraph[int] = nx.DiGraph()
        back.add_nodes_from(range(self.vertices))
        dead = frozenset(self.dead)
        for link, (source, target) in enumerate(zip(*(ends.tolist() for ends in self.ends), strict=True)):
            cost = (link in dead) * LATENCIES + round(self.links[link][3] * ATTO) * HOPS + 1
            back.add_edge(target, source, cost=cost, link=link)
        rows: list[list[list[int]]] = []
        for end in range(self.endpoints):
            before, _ = nx.dijkstra_predecessor_and_distance(back, end, weight="cost")
            rows.append([sorted(back[near][at]["link"] for near in before.get(at, ())) for at in range(self.vertices)])
            self._check(end, before)
        most = max(1, *(len(links) for row in rows for links in row))
        table = [[links + [-1] * (most - len(links)) for links in row] for row in rows]
        count = [[len(links) for links in row] for row in rows]
        return np.array(table, dtype=np.int32), np.array(count, dtype=np.int32)

    def _check(self, end: int, reached: Mapping[int, object]) -> None:
        for vertex in range(self.endpoints):
            if vertex not in reached and (not self.attached or self.islands[vertex] == self.islands[end]):
                raise InputError(f"there is no route from {self.name_of(vertex)} to {self.name_of(end)}")

    def name_of(self, vertex: int) -> Vertex:
        """Name of a vertex in the graph."""
        if vertex < len(self.leaves):
            return self.leaves[vertex]
        return vertex if vertex < self.endpoints else self.switches[vertex - self.endpoints]

    @once
    def spread_numbers(self) -> Integers:
        """Number by which routes to every NIC are spread: its rank in its connected component, leaf by leaf."""
        leaf = np.array(self.attached, dtype=np.int64)
        ranks = np.empty_like(leaf)
        for part in np.unique(self.islands[leaf]):
            own = np.flatnonzero(self.islands[leaf] == part)
            ranks[own[np.argsort(leaf[own], kind="stable")]] = np.arange(len(own))
        return ranks

    @once
    def next_link(self) -> Integers:
        """Next link at each vertex (column) towards each endpoint (row), the lowest of equal ones; -1 at the endpoint
        itself. Raises InputError if an endpoint cannot be reached."""
        if self.complete and not self.dead and len({link[3] for link in self.links}) == 1:
            source, target = self.ends  # the direct link is always the shortest route
            table = np.full((self.endpoints, self.vertices), -1, dtype=np.int64)
            table[target, source] = np.arange(len(self.links))
            return table
        return self.equal_links[0][:, :, 0].astype(np.int64)

    def columns(self, start: Integers, end: Integers) -> list[Integers]:
        """Links of many routes, a column a hop; -1 after a route's last hop. At least one column."""
        if not self.links:
            return [np.full(len(start), -1, dtype=np.int64)]
        columns, at, target = list[Integers](), start, self.ends[1]
        while True:
            link = self.next_link[end, at]
            columns.append(link)
            at = np.where(link >= 0, target[link], at)
            if bool((at == end).all()):
                return columns

    def paths(self, start: Integers, end: Integers, spread: Integers) -> Integers:
        """Links of many routes, shape (routes, hops); -1 after a route's last hop.

        Between switches with NICs, ``spread`` selects among equal routes as a mixed-radix number: its remainder at the
        first vertex, the next digit at the second, …. Between nodes there is only one route.
        """
        if not self.attached or not self.links:
            return np.stack(self.columns(start, end), axis=1)
        links, counts = self.equal_links
        columns, at, target, left = list[Integers](), start, self.ends[1], spread
        while not columns or not bool((at == end).all()):
            left, turn = np.divmod(left, np.maximum(1, counts[end, at]))
            link = links[end, at, turn].astype(np.int64)
            columns.append(link)
            at = np.where(link >= 0, target[link], at)
        return np.stack(columns, axis=1)

    @once
    def choices(self) -> int:
        """Most equal links at one vertex."""
        return int(self.equal_links[1].max(initial=1)) if self.attached else 1

    @once
    def complete(self) -> bool:
        """Whether the graph is a full mesh: a link from every endpoint to every other, and nothing else."""
        pairs = {link[:2] for link in self.links}
        return not self.switches and len(self.links) == len(pairs) == self.endpoints * (self.endpoints - 1)

    @once
    def star(self) -> bool:
        """Whether all endpoints are attached to one switch, with up links numbered before down links."""
        ends = range(self.endpoints)
        hub = self.switches[0] if len(self.switches) == 1 else None
        return [link[:2] for link in self.links] == [(end, hub) for end in ends] + [(hub, end) for end in ends]

    def runs(self, copies: int, kind: str) -> Iterator[tuple[str, int, float, float]]:
        """Runs of equal links over ``copies`` of the graph, in order: (kind, number of links, bytes/s, seconds).
        ``kind`` is that of links without one."""
        kinds = self.kinds or ("",) * len(self.links)
        facts = [(own or kind, link[2], link[3]) for own, link in zip(kinds, self.links, strict=True)]
        alike = [(run[0], len(list(same)), *run[1:]) for run, same in groupby(facts)]
        if len(alike) == 1:
            name, count, bandwidth, latency = alike[0]
            yield name, copies * count, bandwidth, latency
        else:
            yield from alike * copies

    def switches_and_cables(self, endpoints: int, oversubscription: float) -> tuple[int, int]:
        """Number of switches and routers, and of cables between them (one for both directions), for a bill."""
        return self.vertices, len(self.links) // 2


class Cable(NamedTuple):
    """Cables of an endpoint: bytes/s of one in each direction, their number, and seconds from end to end."""

    bandwidth_bytes_per_s: float
    per_endpoint: int
    latency_s: float

    @property
    def together(self) -> float:
        """Bytes/s of all cables of an endpoint."""
        return self.bandwidth_bytes_per_s * self.per_endpoint


@dataclass(frozen=True)
class Topology:
    """A generator of graphs (:mod:`tspsim.network.graphs`): ``build(endpoints, argument, cable)``; ``argument`` is the
    one that a file states beside the name, or None."""

    name: str
    summary: str
    build: Callable[[int, Any, Cable], nx.DiGraph[Any]]


#: Generators by name in files.
TOPOLOGIES: Registry[Topology] = Registry("topology", "tspsim.topologies", Topology)


@remembered(128)
def _compiled(graph: nx.DiGraph[Any]) -> Wiring:
    return Wiring.of(graph)


def compiled(graph: nx.DiGraph[Any]) -> Wiring:
    """The columns of a graph; those of a frozen graph are cached."""
    return _compiled(graph) if getattr(graph, "frozen", False) else Wiring.of(graph)


def wired(stated: str | Mapping[str, Any], endpoints: int, cable: Cable) -> nx.DiGraph[Any]:
    """Build the graph that a file states: a generator's name, alone or with its argument.

    Raises
    ------
    InputError
        The generator is unknown, or cannot connect these endpoints.
    """
    named: Mapping[str, Any] = {stated: None} if isinstance(stated, str) else stated
    if len(named) != 1:
        raise InputError(f"name one topology ({', '.join(TOPOLOGIES)}), alone or with its argument")
    ((name, argument),) = named.items()
    graph = TOPOLOGIES.get(name).build(endpoints, argument, cable)
    return graph if getattr(graph, "frozen", False) else joined(links_of(graph), endpoints)


def _mesh(endpoints: int, argument: Any, cable: Cable) -> nx.DiGraph[Any]:
    if endpoints < 2 or cable.per_endpoint % (endpoints - 1):
        raise InputError(f"a full mesh of {endpoints} GPUs needs a multiple of {endpoints - 1} links per GPU")
    return full_mesh(endpoints, cable.together / (endpoints - 1), cable.latency_s)


def _torus(endpoints: int, argument: Any, cable: Cable) -> nx.DiGraph[Any]:
    if not isinstance(argument, Sequence) or not all(type(size) is int for size in argument):
        raise InputError(f"a torus needs the sizes of its dimensions, such as [4, 4], not {shorten(argument)}")
    if math.prod(argument) != endpoints:
        raise InputError(f"a torus of {shorten(list(argument))} joins {math.prod(argument)}, not {endpoints}")
    neighbours = sum(min(2, size - 1) for size in argument)
    return torus(tuple(argument), cable.together / max(1, neighbours), cable.latency_s)


def _graph(endpoints: int, argument: Any, cable: Cable) -> nx.DiGraph[Any]:
    """Graph of edges ``{between: [0, hub], bandwidth: 50 GB/s, latency: 1 us}``, in both directions, with one cable's
    numbers where left out; or of directed links."""
    if not isinstance(argument, Sequence) or not argument:
        raise InputError("a graph needs a list of edges, such as {between: [0, 1], bandwidth: 50 GB/s}")
    links: list[Link] = []
    for edge in argument:
        if isinstance(edge, tuple):
            links.append(edge)
            continue
        ends = edge.get("between") if isinstance(edge, Mapping) else None
        if not isinstance(ends, Sequence) or len(ends) != 2 or set(edge) - {"between", "bandwidth", "latency"}:
            raise InputError(f"{shorten(edge)} is no edge; say {{between: [0, 1], bandwidth: 50 GB/s, latency: 1 us}}")
        bandwidth = parse(edge["bandwidth"], "bytes/s") if "bandwidth" in edge else cable.bandwidth_bytes_per_s
        latency = parse(edge["latency"], "s") if "latency" in edge else cable.latency_s
        links += [(*ends, bandwidth, latency), (*reversed(ends), bandwidth, latency)]
    return joined(links, endpoints)


TOPOLOGIES.register(Topology("full_mesh", "a link of its own between any two", _mesh))
TOPOLOGIES.register(
    Topology("switch", "all on one switch", lambda ends, _, cable: switched(ends, cable.together, cable.latency_s))
)
TOPOLOGIES.register(Topology("torus", "neighbours in rings of every dimension, of the sizes given", _torus))
TOPOLOGIES.register(Topology("graph", "the edges given, switches by name", _graph))
