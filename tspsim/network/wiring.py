"""What is joined to what: one description of a node's inside and of a fabric, and the shortest ways through it.

A :class:`Wiring` is a directed graph as columns: endpoints (a node's GPUs, or a fabric's nodes) and switches, and links
with bandwidth and latency. A message takes the way of the least latency, of those the one of fewest hops, of those at
every vertex the link of the lowest number. Generators make the usual ones and register themselves; a node's or fabric's
file names one, with an argument where it takes one (``intra: {torus: [4, 4]}``, ``intra: {graph: [...]}``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, shorten
from ..registry import Registry
from ..units import parse

if TYPE_CHECKING:
    import networkx as nx

Integers = NDArray[np.int64]
Vertex = int | str
#: A directed link: from, to, bytes/s, seconds.
Link = tuple[Vertex, Vertex, float, float]


@dataclass(frozen=True, eq=False)
class Wiring:
    """A directed graph."""

    #: Vertices 0 … that messages come from and go to; they hand on what is not theirs.
    endpoints: int
    #: Names of the vertices that follow.
    switches: tuple[str, ...]
    #: Every link; its place is its id.
    links: tuple[Link, ...]
    #: Links that are avoided where there is another way.
    dead: tuple[int, ...] = ()

    @cached_property
    def ends(self) -> tuple[Integers, Integers]:
        """Source and target vertex of every link."""
        number: dict[Vertex, int] = dict(zip(self.switches, range(self.endpoints, self.vertices), strict=True))
        source, target = ([number.get(end, end) for end in ends] for ends in list(zip(*self.links, strict=True))[:2])
        return np.array(source, dtype=np.int64), np.array(target, dtype=np.int64)

    @property
    def vertices(self) -> int:
        """Endpoints and switches."""
        return self.endpoints + len(self.switches)

    @cached_property
    def out(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For every vertex the vertices that it has a link to, with the link."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.vertices)]
        for link, (source, target) in enumerate(zip(*(ends.tolist() for ends in self.ends), strict=True)):
            found[source].append((target, link))
        return tuple(tuple(row) for row in found)

    @cached_property
    def towards(self) -> Integers:
        """The link to take at each vertex (column) to reach each endpoint (row); -1 there itself.

        Raises
        ------
        InputError
            Some endpoint cannot be reached.
        """
        into: list[list[tuple[int, int]]] = [[] for _ in range(self.vertices)]
        for near, row in enumerate(self.out):
            for far, link in row:
                into[far].append((near, link))
        dead, latency = frozenset(self.dead), [link[3] for link in self.links]
        table = np.full((self.endpoints, self.vertices), -1, dtype=np.int64)
        for end in range(self.endpoints):
            best: dict[int, tuple[int, float, int, int]] = {end: (0, 0.0, 0, -1)}
            pending, done = [(0, 0.0, 0, end)], set[int]()
            while pending:
                broken, seconds, hops, at = heappop(pending)
                if at in done:
                    continue
                done.add(at)
                for near, link in into[at]:
                    way = (broken + (link in dead), seconds + latency[link], hops + 1, link)
                    if near not in done and (near not in best or way < best[near]):
                        best[near] = way
                        heappush(pending, (*way[:3], near))
            lost = next((vertex for vertex in range(self.endpoints) if vertex not in best), None)
            if lost is not None:
                raise InputError(f"there is no way from {lost} to {end}")
            for vertex, way in best.items():
                table[end, vertex] = way[3]
        return table

    def columns(self, start: Integers, end: Integers) -> list[Integers]:
        """Links of many ways at once, a column a hop; -1 where a way is over. At least one column."""
        found, at, target = list[Integers](), start, self.ends[1]
        while True:
            link = self.towards[end, at]
            found.append(link)
            at = np.where(link >= 0, target[link], at)
            if bool((at == end).all()):
                return found

    def paths(self, start: Integers, end: Integers, spread: Integers) -> Integers:
        """The same, a row a way. There is one between two endpoints, so that ``spread`` has nothing to choose."""
        return np.stack(self.columns(start, end), axis=1)

    #: Ways to choose from.
    choices = 1

    @cached_property
    def complete(self) -> bool:
        """Whether every endpoint has a link of its own to every other, and there is nothing else: a full mesh."""
        pairs = {link[:2] for link in self.links}
        return not self.switches and len(self.links) == len(pairs) == self.endpoints * (self.endpoints - 1)

    @cached_property
    def star(self) -> bool:
        """Whether all endpoints hang on one switch, up links first, then down links."""
        ends = range(self.endpoints)
        hub = self.switches[0] if len(self.switches) == 1 else None
        return [link[:2] for link in self.links] == [(end, hub) for end in ends] + [(hub, end) for end in ends]

    def runs(self, copies: int) -> Iterator[tuple[int, float, float]]:
        """Links of as many copies of it, in order: how many alike, bytes/s, seconds."""
        alike = [(len(list(run)), *rate) for rate, run in groupby(self.links, key=lambda link: link[2:])]
        if len(alike) == 1:
            yield copies * alike[0][0], alike[0][1], alike[0][2]
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
    """A generator of wirings: ``build(endpoints, argument, cable)``; ``argument`` is what a file gives beside the name,
    None where it gives nothing."""

    name: str
    summary: str
    build: Callable[[int, Any, Cable], Wiring]


#: Every generator that a file may name.
TOPOLOGIES: Registry[Topology] = Registry("topology", "tspsim.topologies", Topology)


def wired(stated: str | Mapping[str, Any], endpoints: int, cable: Cable) -> Wiring:
    """The wiring that a file states: a generator's name, alone or with its argument.

    Raises
    ------
    InputError
        There is no such generator, or it cannot join these endpoints.
    """
    named: Mapping[str, Any] = {stated: None} if isinstance(stated, str) else stated
    if len(named) != 1:
        raise InputError(f"name one topology ({', '.join(TOPOLOGIES)}), alone or with its argument")
    ((name, argument),) = named.items()
    return TOPOLOGIES.get(name).build(endpoints, argument, cable)


@lru_cache
def full_mesh(endpoints: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> Wiring:
    """A direct link from every endpoint to every other.

    Examples
    --------
    >>> mesh = full_mesh(8, 64e9)
    >>> len(mesh.links), mesh.links[0]
    (56, (0, 1, 64000000000.0, 0.0))
    """
    if endpoints < 2:
        raise InputError(f"a full mesh joins two GPUs or more, not {endpoints}")
    pairs = [(u, v) for u in range(endpoints) for v in range(endpoints) if u != v]
    return Wiring(endpoints, (), tuple([(u, v, bandwidth_bytes_per_s, latency_s) for u, v in pairs]))


@lru_cache
def switched(endpoints: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> Wiring:
    """A switch with one link from and one to each endpoint, which share the latency.

    Examples
    --------
    >>> star = switched(8, 450e9)
    >>> len(star.links), star.links[3]
    (16, (3, 'switch', 450000000000.0, 0.0))
    """
    half = (bandwidth_bytes_per_s, latency_s / 2)
    up = [(end, "switch", *half) for end in range(endpoints)]
    return Wiring(endpoints, ("switch",), (*up, *[(to, end, *rate) for end, to, *rate in up]))  # type: ignore[arg-type]


@lru_cache
def torus(shape: tuple[int, ...], bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> Wiring:
    """A link each way between neighbours in every dimension, closed to rings; numbered with the last dimension fastest.

    Links of a vertex come dimension by dimension, so that messages go along the first dimension first, and halfway
    round an even ring upwards.

    Examples
    --------
    >>> grid = torus((4, 4), 50e9)
    >>> len(grid.links), [grid.links[link][:2] for link in grid.paths(np.array([0]), np.array([15]), np.array([0]))[0]]
    (64, [(0, 12), (12, 15)])
    """
    if not shape or min(shape) < 1 or math.prod(shape) < 2:
        raise InputError(f"a torus has sizes of 1 or more and two vertices at least, not {shorten(list(shape))}")
    numbers = np.arange(math.prod(shape)).reshape(shape)
    around = [
        np.roll(numbers, -step, axis=axis).reshape(-1)
        for axis, size in enumerate(shape)
        for step in (1, -1)[: size - 1]
    ]
    pairs = [(u, v) for u, row in enumerate(np.stack(around, axis=1).tolist()) for v in row]
    return Wiring(numbers.size, (), tuple([(u, v, bandwidth_bytes_per_s, latency_s) for u, v in pairs]))


def joined(links: Iterable[Link], endpoints: int) -> Wiring:
    """Any links among endpoints and switches; vertices with a name are switches."""
    every = tuple(links)
    names = tuple(dict.fromkeys(end for link in every for end in link[:2] if isinstance(end, str)))
    for source, target, bandwidth, latency in every:
        for end in (source, target):
            if not isinstance(end, str) and not 0 <= end < endpoints:
                raise InputError(f"link {source} → {target}: there are endpoints 0 to {endpoints - 1}, no {end}")
        if source == target or not 0.0 < bandwidth < math.inf or not 0.0 <= latency < math.inf:
            raise InputError(f"link {source} → {target} needs two ends, a bandwidth over 0 and a latency")
    if len({link[:2] for link in every}) < len(every):
        raise InputError("two links from the same vertex to the same one; state one of their summed bandwidth")
    return Wiring(endpoints, names, every)


def links_of(graph: nx.DiGraph[Any]) -> tuple[Link, ...]:
    """The edges of a graph whose endpoints are the numbers 0 …, with ``bandwidth_bytes_per_s`` and ``latency_s``."""
    try:
        return tuple(
            [
                (u, v, float(edge["bandwidth_bytes_per_s"]), float(edge["latency_s"]))
                for u, v, edge in graph.edges(data=True)
            ]
        )
    except KeyError as error:
        raise InputError(f"every edge of the graph needs {error.args[0]}") from None


def _mesh(endpoints: int, argument: Any, cable: Cable) -> Wiring:
    if endpoints < 2 or cable.per_endpoint % (endpoints - 1):
        raise InputError(f"a full mesh of {endpoints} GPUs needs a multiple of {endpoints - 1} links per GPU")
    return full_mesh(endpoints, cable.together / (endpoints - 1), cable.latency_s)


def _torus(endpoints: int, argument: Any, cable: Cable) -> Wiring:
    if not isinstance(argument, Sequence) or not all(type(size) is int for size in argument):
        raise InputError(f"a torus needs the sizes of its dimensions, such as [4, 4], not {shorten(argument)}")
    if math.prod(argument) != endpoints:
        raise InputError(f"a torus of {shorten(list(argument))} joins {math.prod(argument)}, not {endpoints}")
    neighbours = sum(min(2, size - 1) for size in argument)
    return torus(tuple(argument), cable.together / max(1, neighbours), cable.latency_s)


def _graph(endpoints: int, argument: Any, cable: Cable) -> Wiring:
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
