"""Graphs compiled: links as columns, and the shortest ways through them.

A :class:`Wiring` is what :mod:`tspsim.network.graphs` builds as columns: endpoints (a node's GPUs, or what a fabric
joins) and switches, and links with bandwidth and latency. A message takes the way of the least latency, of those the
one of fewest hops (Dijkstra's, as networkx has it), of those at every vertex the link of the lowest number. Generators
make the usual graphs and register themselves; a node's or fabric's file names one, with an argument where it takes one
(``intra: {torus: [4, 4]}``, ``intra: {graph: [...]}``).
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


#: The key of a fabric's ``kind`` under which a graph of switches stands that somebody gave.
OWN = "own"
#: Of a way's cost, the parts that latency in attoseconds and dead links take: hops are counted below them.
HOPS, LATENCIES, ATTO = 2**16, 2**80, 1e18


@dataclass(frozen=True, eq=False)
class Wiring:
    """A graph as columns, and the ways through it."""

    #: Vertices 0 … that messages come from and go to; they hand on what is not theirs.
    endpoints: int
    #: Names of the vertices that follow.
    switches: tuple[str, ...]
    #: Every link; its place is its id.
    links: tuple[Link, ...]
    #: Kind of every link; none: all are of one, which whoever asks knows.
    kinds: tuple[str, ...] = ()
    #: Links that are avoided where there is another way.
    dead: tuple[int, ...] = ()
    #: The endpoint that each NIC hangs on; none: an endpoint is a node, with all its NICs.
    attached: tuple[int, ...] = ()
    #: Names of endpoints that NICs hang on, and kinds of all vertices.
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
        """The columns of a graph of switches that NICs hang on (:mod:`tspsim.network.own`)."""
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
        """Endpoints and switches."""
        return self.endpoints + len(self.switches)

    @once
    def out(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For every vertex the vertices that it has a link to, with the link."""
        hops: list[list[tuple[int, int]]] = [[] for _ in range(self.vertices)]
        for link, (source, target) in enumerate(zip(*(ends.tolist() for ends in self.ends), strict=True)):
            hops[source].append((target, link))
        return tuple(tuple(row) for row in hops)

    @once
    def islands(self) -> Integers:
        """For every vertex the connected part of the graph that it is in, by its lowest vertex."""
        import networkx as nx

        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(self.vertices))
        graph.add_edges_from(zip(*(ends.tolist() for ends in self.ends), strict=True))
        lowest = np.zeros(self.vertices, dtype=np.int64)
        for part in nx.connected_components(graph):
            lowest[list(part)] = min(part)
        return lowest

    @once
    def equal(self) -> tuple[Integers, Integers]:
        """The links that begin a way of the least cost at each vertex (column) to each endpoint (row), ascending, and
        how many they are; -1 there itself, and where they are over.

        Raises
        ------
        InputError
            An endpoint cannot be reached from one that it is joined to.

        Notes
        -----
        Costs are whole numbers, so that equal ways are equal: dead links, then latency in attoseconds, then hops.
        """
        import networkx as nx

        back: nx.DiGraph[int] = nx.DiGraph()
        back.add_nodes_from(range(self.vertices))
        dead = frozenset(self.dead)
        for link, (source, target) in enumerate(zip(*(ends.tolist() for ends in self.ends), strict=True)):
            cost = (link in dead) * LATENCIES + round(self.links[link][3] * ATTO) * HOPS + 1
            back.add_edge(target, source, cost=cost, link=link)
        ways: list[list[list[int]]] = []
        for end in range(self.endpoints):
            before, _ = nx.dijkstra_predecessor_and_distance(back, end, weight="cost")
            ways.append([sorted(back[near][at]["link"] for near in before.get(at, ())) for at in range(self.vertices)])
            self._check(end, before)
        most = max(1, *(len(links) for row in ways for links in row))
        table = [[links + [-1] * (most - len(links)) for links in row] for row in ways]
        count = [[len(links) for links in row] for row in ways]
        return np.array(table, dtype=np.int32), np.array(count, dtype=np.int32)

    def _check(self, end: int, reached: Mapping[int, object]) -> None:
        for vertex in range(self.endpoints):
            if vertex not in reached and (not self.attached or self.islands[vertex] == self.islands[end]):
                raise InputError(f"there is no way from {self.named(vertex)} to {self.named(end)}")

    def named(self, vertex: int) -> Vertex:
        """A vertex as the graph calls it."""
        if vertex < len(self.leaves):
            return self.leaves[vertex]
        return vertex if vertex < self.endpoints else self.switches[vertex - self.endpoints]

    @once
    def turns(self) -> Integers:
        """The number of every NIC that ways to it are spread by: of its connected part, leaf by leaf."""
        leaf = np.array(self.attached, dtype=np.int64)
        ranks = np.empty_like(leaf)
        for part in np.unique(self.islands[leaf]):
            own = np.flatnonzero(self.islands[leaf] == part)
            ranks[own[np.argsort(leaf[own], kind="stable")]] = np.arange(len(own))
        return ranks

    @once
    def towards(self) -> Integers:
        """The link to take at each vertex (column) to reach each endpoint (row), of equal ones the lowest; -1 there
        itself. Raises InputError where some endpoint cannot be reached."""
        if self.complete and not self.dead and len({link[3] for link in self.links}) == 1:
            source, target = self.ends  # a detour over others is never as short
            table = np.full((self.endpoints, self.vertices), -1, dtype=np.int64)
            table[target, source] = np.arange(len(self.links))
            return table
        return self.equal[0][:, :, 0].astype(np.int64)

    def columns(self, start: Integers, end: Integers) -> list[Integers]:
        """Links of many ways at once, a column a hop; -1 where a way is over. At least one column."""
        if not self.links:
            return [np.full(len(start), -1, dtype=np.int64)]
        columns, at, target = list[Integers](), start, self.ends[1]
        while True:
            link = self.towards[end, at]
            columns.append(link)
            at = np.where(link >= 0, target[link], at)
            if bool((at == end).all()):
                return columns

    def paths(self, start: Integers, end: Integers, spread: Integers) -> Integers:
        """The same, a row a way.

        Between nodes there is one way, so that ``spread`` has nothing to choose. Between switches that NICs hang on it
        picks among equal ways: its remainder at the first vertex, the next digit at the second, ….
        """
        if not self.attached or not self.links:
            return np.stack(self.columns(start, end), axis=1)
        links, counts = self.equal
        columns, at, target, left = list[Integers](), start, self.ends[1], spread
        while not columns or not bool((at == end).all()):
            left, turn = np.divmod(left, np.maximum(1, counts[end, at]))
            link = links[end, at, turn].astype(np.int64)
            columns.append(link)
            at = np.where(link >= 0, target[link], at)
        return np.stack(columns, axis=1)

    @once
    def choices(self) -> int:
        """Ways to choose from, at most, at one vertex."""
        return int(self.equal[1].max(initial=1)) if self.attached else 1

    @once
    def complete(self) -> bool:
        """Whether every endpoint has a link of its own to every other, and there is nothing else: a full mesh."""
        pairs = {link[:2] for link in self.links}
        return not self.switches and len(self.links) == len(pairs) == self.endpoints * (self.endpoints - 1)

    @once
    def star(self) -> bool:
        """Whether all endpoints hang on one switch, up links first, then down links."""
        ends = range(self.endpoints)
        hub = self.switches[0] if len(self.switches) == 1 else None
        return [link[:2] for link in self.links] == [(end, hub) for end in ends] + [(hub, end) for end in ends]

    def runs(self, copies: int, kind: str) -> Iterator[tuple[str, int, float, float]]:
        """Links of as many copies of it, in order: their kind (``kind`` where the graph has none), how many are alike,
        bytes/s, seconds."""
        kinds = self.kinds or ("",) * len(self.links)
        facts = [(own or kind, link[2], link[3]) for own, link in zip(kinds, self.links, strict=True)]
        alike = [(run[0], len(list(same)), *run[1:]) for run, same in groupby(facts)]
        if len(alike) == 1:
            name, count, bandwidth, latency = alike[0]
            yield name, copies * count, bandwidth, latency
        else:
            yield from alike * copies

    # As a fabric: what a bill counts.

    def pieces(self, endpoints: int, oversubscription: float) -> tuple[int, int]:
        """Its switches and routers, and cables between them, each for both directions."""
        return self.vertices, len(self.links) // 2


class Cable(NamedTuple):
    """What an endpoint is joined by: one cable's bytes/s each way, how many there are, seconds from end to end."""

    bandwidth_bytes_per_s: float
    per_endpoint: int
    latency_s: float

    @property
    def together(self) -> float:
        """Bytes/s of all of them."""
        return self.bandwidth_bytes_per_s * self.per_endpoint


@dataclass(frozen=True)
class Topology:
    """A generator of graphs (:mod:`tspsim.network.graphs`): ``build(endpoints, argument, cable)``; ``argument`` is what
    a file gives beside the name, None where it gives nothing."""

    name: str
    summary: str
    build: Callable[[int, Any, Cable], nx.DiGraph[Any]]


#: Every generator that a file may name.
TOPOLOGIES: Registry[Topology] = Registry("topology", "tspsim.topologies", Topology)


@remembered(128)
def _compiled(graph: nx.DiGraph[Any]) -> Wiring:
    return Wiring.of(graph)


def compiled(graph: nx.DiGraph[Any]) -> Wiring:
    """The columns of a graph: once, where it cannot change."""
    return _compiled(graph) if getattr(graph, "frozen", False) else Wiring.of(graph)


def wired(stated: str | Mapping[str, Any], endpoints: int, cable: Cable) -> nx.DiGraph[Any]:
    """The graph that a file states: a generator's name, alone or with its argument.

    Raises
    ------
    InputError
        There is no such generator, or it cannot join these endpoints.
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
    """Edges ``{between: [0, hub], bandwidth: 50 GB/s, latency: 1 us}``, both ways; left out: one cable's. Or links."""
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
