"""Topologies as networkx graphs: attributes of edges and vertices, and generators of common graphs.

A part of a cluster is an ``nx.DiGraph``; a plane of switches, whose cables may be separate, an ``nx.MultiDiGraph``.

- An edge is one direction of a link: ``bandwidth_bytes_per_s`` (also read as ``capacity``), ``latency_s`` (also
  ``latency``), and ``kind``.
- A vertex has a ``kind``: ``gpu``, ``switch``, ``nic``, ``router``, ``leaf``, ``spine`` or ``core``. GPUs, and the
  nodes that a fabric joins, are the numbers 0 …; everything else has a name.

Links are numbered as the graph lists its edges. networkx is imported when the first graph is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import InputError, shorten
from ..base.memo import remembered
from ..base.units import parse

if TYPE_CHECKING:
    import networkx as nx

Vertex = int | str
#: A directed link: (source, target, bytes/s, seconds).
Link = tuple[Vertex, Vertex, float, float]

#: Names of edge attributes in graphs of this package.
BANDWIDTH, LATENCY, KIND = "bandwidth_bytes_per_s", "latency_s", "kind"
#: Attribute → (other name in a user's graph, unit).
SYNONYMS = {BANDWIDTH: ("capacity", "bytes/s"), LATENCY: ("latency", "s")}
#: Kinds of vertices inside nodes, and between them.
INSIDE, BETWEEN = ("gpu", "switch", "nic"), ("router", "leaf", "spine", "core")


class CompiledAttributes(dict[str, Any]):
    """Attributes of a compiled edge; setting one raises InputError, which names ``with_graph``."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise InputError("this graph is compiled and stays as it is; change a copy() and give that to with_graph")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledAttributes, (dict(self),)

    def copy(self) -> dict[str, Any]:
        """A mutable copy."""
        return dict(self)


def read_only(graph: nx.DiGraph[Any]) -> nx.DiGraph[Any]:
    """Freeze the graph and its edges' attributes, and return it; its ``copy()`` is mutable."""
    import networkx as nx

    rows: Any = graph
    for source, row in rows._succ.items():
        for target, edge in row.items():
            fixed = (
                {key: CompiledAttributes(value) for key, value in edge.items()}
                if graph.is_multigraph()
                else CompiledAttributes(edge)
            )
            row[target] = rows._pred[target][source] = fixed
    frozen: nx.DiGraph[Any] = nx.freeze(graph)
    return frozen


def part_of(links: Iterable[Link], endpoints: int, inner: str = "switch", outer: str = "gpu") -> nx.DiGraph[Any]:
    """Graph of links among the endpoints 0 … ``endpoints`` − 1, of kind ``outer``, and named vertices of kind
    ``inner``."""
    import networkx as nx

    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(range(endpoints), kind=outer)
    for source, target, bandwidth, latency in links:
        graph.add_edge(source, target, **{BANDWIDTH: bandwidth, LATENCY: latency})
    for vertex, facts in graph.nodes(data=True):
        facts.setdefault(KIND, outer if isinstance(vertex, int) else inner)
    return read_only(graph)


@remembered(128)
def full_mesh(endpoints: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> nx.DiGraph[Any]:
    """A direct link from every endpoint to every other, as between GPUs on Infinity Fabric.

    Examples
    --------
    >>> mesh = full_mesh(8, 64e9)
    >>> mesh.number_of_edges(), mesh.edges[0, 1]
    (56, {'bandwidth_bytes_per_s': 64000000000.0, 'latency_s': 0.0})
    """
    if endpoints < 2:
        raise InputError(f"a full mesh joins two GPUs or more, not {endpoints}")
    pairs = ((u, v) for u in range(endpoints) for v in range(endpoints) if u != v)
    return part_of(((u, v, bandwidth_bytes_per_s, latency_s) for u, v in pairs), endpoints)


@remembered(128)
def switched(endpoints: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> nx.DiGraph[Any]:
    """A switch with one link from and one to each endpoint, each with half the latency, as between GPUs on NVSwitch.

    Examples
    --------
    >>> star = switched(8, 450e9)
    >>> star.number_of_edges(), star.edges[3, "switch"]
    (16, {'bandwidth_bytes_per_s': 450000000000.0, 'latency_s': 0.0})
    """
    half = (bandwidth_bytes_per_s, latency_s / 2)
    up: list[Link] = [(end, "switch", *half) for end in range(endpoints)]
    return part_of([*up, *[(to, end, *half) for end, to, *_ in up]], endpoints)


@remembered(128)
def torus(shape: tuple[int, ...], bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> nx.DiGraph[Any]:
    """Rings of links in both directions in every dimension; vertices are numbered with the last dimension fastest.

    Edges of a vertex are listed dimension by dimension, so that messages go along the first dimension first, and
    upwards to the opposite vertex of an even ring.

    Examples
    --------
    >>> grid = torus((4, 4), 50e9)
    >>> grid.number_of_edges(), list(grid[0])
    (64, [4, 12, 1, 3])
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
    return part_of(((u, v, bandwidth_bytes_per_s, latency_s) for u, v in pairs), numbers.size)


def joined(links: Iterable[Link], endpoints: int) -> nx.DiGraph[Any]:
    """Graph of any links among endpoints and switches; named vertices are switches.

    Raises
    ------
    InputError
        A link has an unknown end or no bandwidth, or is stated twice.
    """
    every = tuple(links)
    for source, target, bandwidth, latency in every:
        for end in (source, target):
            if not isinstance(end, str) and not 0 <= end < endpoints:
                raise InputError(f"link {source} → {target}: there are endpoints 0 to {endpoints - 1}, no {end}")
        if source == target or not 0.0 < bandwidth < math.inf or not 0.0 <= latency < math.inf:
            raise InputError(f"link {source} → {target} needs two ends, a bandwidth over 0 and a latency")
    if len({link[:2] for link in every}) < len(every):
        raise InputError("two links from the same vertex to the same one; state one of their summed bandwidth")
    return part_of(every, endpoints)


def folded_clos(
    leaves: int,
    spines: int,
    cores: int,
    cables: tuple[int, int],
    bandwidth_bytes_per_s: tuple[float, float],
    latency_s: float,
) -> nx.MultiDiGraph[Any]:
    """A pod: every leaf switch is connected to every spine, and every spine to ``cores`` core switches of its own.

    Parameters
    ----------
    leaves, spines, cores
        Leaves and spines of the pod; cores above each spine.
    cables, bandwidth_bytes_per_s
        Number of parallel cables, and bytes/s of one: (leaf to spine, spine to core).
    latency_s
        Seconds of every cable.

    Examples
    --------
    >>> plane = folded_clos(4, 2, 0, (1, 1), (1600e9, 0.0), 3e-7)
    >>> plane.number_of_edges(), list(plane["leaf3"])
    (16, ['spine0', 'spine1'])
    """
    import networkx as nx

    graph: nx.MultiDiGraph[Any] = nx.MultiDiGraph()
    for kind, count in (("leaf", leaves), ("spine", spines), ("core", spines * cores)):
        graph.add_nodes_from([f"{kind}{number}" for number in range(count)], kind=kind)
    below = [(f"leaf{leaf}", f"spine{spine}") for leaf in range(leaves) for spine in range(spines)]
    above = [(f"spine{spine}", f"core{spine * cores + core}") for spine in range(spines) for core in range(cores)]
    for pairs, count, rate, kind in zip((below, above), cables, bandwidth_bytes_per_s, ("spine", "core"), strict=True):
        facts: dict[str, Any] = {BANDWIDTH: rate, LATENCY: latency_s, KIND: kind}
        for ends in pairs:
            for source, target in (ends, ends[::-1]):
                for cable in range(count):
                    graph.add_edge(source, target, cable, **facts)
    return read_only(graph)  # type: ignore[return-value]


def number(facts: Mapping[str, Any], name: str) -> float:
    """A number among an edge's attributes, under its name or its synonym; a string is parsed with its unit.

    Raises
    ------
    InputError
        The attribute is missing, both names have different values, or the value is no number.
    """
    other, unit = SYNONYMS[name]
    stated = [(key, facts[key]) for key in (name, other) if facts.get(key) is not None]
    if not stated:
        raise InputError(f"needs {name}, in {unit}")
    values = []
    for key, value in stated:
        try:
            values.append(parse(value, unit, minimum=None) if isinstance(value, str) else float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError, InputError):
            raise InputError(f"{key} {shorten(value)} is no number of {unit}") from None
    if values[0] != values[-1]:
        (key, value), (second, beside) = stated
        raise InputError(f"{key} {shorten(value)} and {second} {shorten(beside)} differ; state one of them")
    return values[0]


def links_of(graph: nx.Graph[Any]) -> tuple[Link, ...]:
    """Links of a user's graph: an undirected edge is two links, parallel edges are one link of their summed bandwidth.

    Raises
    ------
    InputError
        An edge lacks a number or has an impossible one, or parallel edges have different latencies.
    """
    links: dict[tuple[Any, Any], tuple[float, float]] = {}
    for source, target, facts in graph.edges(data=True):
        try:
            bandwidth, latency = number(facts, BANDWIDTH), number(facts, LATENCY)
        except InputError as error:
            raise error.at(key=edge_in_words(source, target)) from None
        for name, value, fits, allowed in (
            (BANDWIDTH, bandwidth, 0.0 < bandwidth < math.inf, "over 0"),
            (LATENCY, latency, 0.0 <= latency < math.inf, "0 or more"),
        ):
            if not fits:
                unit = SYNONYMS[name][1]
                raise InputError(f"{name} {value:g} must be {allowed} {unit}", key=edge_in_words(source, target))
        for ends in ((source, target),) if graph.is_directed() else ((source, target), (target, source)):
            more, beside = links.get(ends, (0.0, latency))
            if beside != latency:
                raise InputError(
                    f"edges {source} → {target} beside each other have latencies {beside:g} and {latency:g} s"
                )
            links[ends] = more + bandwidth, latency
    return tuple([(*ends, *rate) for ends, rate in links.items()])


def edge_in_words(source: Any, target: Any) -> str:
    """An edge as messages name it."""
    return f"edge {shorten(source)} → {shorten(target)}"
