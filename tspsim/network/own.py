"""A user's graph as a cluster: kinds of its vertices, its nodes, and the links that are compiled from it.

A graph is read in three parts: inside nodes, between GPUs and their NICs, and between NICs. Nodes have one shape: the
compiled node has every link of any node, at its highest bandwidth; where another node has less or none, that link is
slow or dead. If the graph only removes or slows links between NICs, the cluster keeps its leaves and spines. Otherwise
the graph's switches are compiled as they are, and messages take the route of least latency, then fewest hops, spread
over equal routes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, UnknownNameError, shorten
from .cluster import Cluster
from .graphs import BETWEEN, INSIDE, KIND, Link, edge_in_words, links_of
from .wiring import OWN

if TYPE_CHECKING:
    import networkx as nx

    from .specs import FabricSpec, NodeSpec

#: (source, target) → (bytes/s, seconds) of links.
Rates = dict[tuple[Any, Any], tuple[float, float]]
#: Suffix of the name of a cluster on a user's graph.
GIVEN = " (own graph)"
#: Names of vertices inside nodes, in a compiled cluster.
_NODE = re.compile(r"node(\d+)/(.+)")


@dataclass(frozen=True)
class GraphReading:
    """Parts of a user's graph. Vertices inside nodes have the same names in every node; GPUs are 0 …."""

    #: Number of nodes, and of GPUs a node.
    nodes: int
    gpus: int
    #: Links between the GPUs and switches of each node.
    inside: tuple[Rates, ...]
    #: NICs of each node.
    nics: tuple[tuple[str, ...], ...]
    #: Bytes/s between every GPU and its NIC, (up, down).
    host: tuple[tuple[float, float], ...]
    #: Links between NICs and switches outside nodes, and among those switches.
    between: Rates
    #: Kinds of the vertices outside nodes, in the graph's order.
    kinds: dict[str, str]


def kinds_of(graph: nx.Graph[Any]) -> dict[Any, str]:
    """Kind of every vertex: its attribute ``kind``, else guessed from its name.

    Raises
    ------
    UnknownNameError
        A kind is unknown.
    """
    fabric = any(facts.get(KIND) in ("nic", *BETWEEN) for _, facts in graph.nodes(data=True))
    fabric = fabric or any(isinstance(vertex, str) and _guessed(vertex) == "nic" for vertex in graph)
    kinds_of = {}
    for vertex, facts in graph.nodes(data=True):
        kind = facts.get(KIND)
        if kind is None:
            kind = "gpu" if isinstance(vertex, int) else _guessed(vertex) or ("leaf" if fabric else "switch")
        if kind not in (*INSIDE, *BETWEEN):
            raise UnknownNameError("kind of vertex", kind, (*INSIDE, *BETWEEN), key=f"vertex {shorten(vertex)}")
        kinds_of[vertex] = kind
    return kinds_of


def _guessed(vertex: Hashable) -> str | None:
    named = _NODE.fullmatch(str(vertex))
    if named is None:
        return None
    within = re.sub(r"\d+$", "", named[2])
    return within if within in ("nic", "router") else "switch"


def is_whole(graph: nx.Graph[Any]) -> bool:
    """Whether a graph has NICs or switches between nodes, not only the GPUs and switches of one node."""
    return any(kind not in ("gpu", "switch") for kind in kinds_of(graph).values())


def read(graph: nx.Graph[Any]) -> GraphReading:
    """Read the parts of a graph.

    Raises
    ------
    InputError
        A number is missing or impossible, a GPU cannot reach another, nodes are unequal, or a NIC has several switches.
    """
    kinds, links = kinds_of(graph), links_of(graph)
    gpus = [vertex for vertex, kind in kinds.items() if kind == "gpu"]
    if not gpus or sorted(gpus, key=str) != sorted(range(len(gpus)), key=str):
        raise InputError(f"GPUs are the numbers 0 to {max(0, len(gpus) - 1)}, not {shorten(gpus, 60)}")
    _check_joined(links, kinds, len(gpus))
    home = _homes(graph, kinds, links)
    nodes, many = 1 + max(home[gpu] for gpu in gpus), Counter(home[gpu] for gpu in gpus)
    if len(set(many.values())) > 1 or any(home[gpu] != gpu // many[0] for gpu in gpus):
        sizes = ", ".join(str(many[node]) for node in sorted(many)[:8])
        raise InputError(f"nodes have {sizes} GPUs; they have equally many, numbered node by node")
    per_node = many[0]
    local = _local_names(kinds, home, per_node)
    inside: list[Rates] = [{} for _ in range(nodes)]
    hosts: dict[int, dict[str, list[float]]] = {gpu: {} for gpu in range(len(gpus))}
    between: Rates = {}
    for source, target, bandwidth, latency in links:
        ends = kinds[source], kinds[target]
        if source in local and target in local:
            if home[source] != home[target]:
                raise InputError("leads from one node into another past their NICs", key=edge_in_words(source, target))
            inside[home[source]][local[source], local[target]] = bandwidth, latency
        elif "gpu" in ends and "nic" in ends:
            if latency:
                problem = f"latency_s {latency:g} between a GPU and its NIC is 0: state it between NIC and switch"
                raise InputError(problem, key=edge_in_words(source, target))
            way = ends.index("nic") ^ 1
            gpu, nic = ((source, target), (target, source))[way]
            hosts[int(gpu)].setdefault(str(nic), [0.0, 0.0])[way] = bandwidth
        elif source in local or target in local:
            raise InputError("joins a node's inside and the fabric past its NICs", key=edge_in_words(source, target))
        else:
            between[source, target] = bandwidth, latency
    nics = _nics_of(hosts, nodes, per_node) if nodes > 1 or between else ((),)
    rates = tuple([(up, down) for gpu in sorted(hosts) for up, down in list(hosts[gpu].values())[:1]])
    outer = {str(vertex): kind for vertex, kind in kinds.items() if vertex not in local}
    return GraphReading(nodes, per_node, tuple(inside), nics, rates, between, outer)


def _check_joined(links: Iterable[Link], kinds: Mapping[Any, str], gpus: int) -> None:
    """Raise InputError if a GPU cannot reach another."""
    import networkx as nx

    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(kinds)
    graph.add_edges_from(link[:2] for link in links)
    there, back = nx.descendants(graph, 0), nx.ancestors(graph, 0)
    for gpu in range(1, gpus):
        for reached, (source, target) in ((there, (0, gpu)), (back, (gpu, 0))):
            if gpu not in reached:
                problem = f"no route leads from GPU {source} to GPU {target}"
                raise InputError(f"{problem}; every two GPUs need one in each direction")


def _homes(graph: nx.Graph[Any], kinds: Mapping[Any, str], links: Iterable[Link]) -> dict[Any, int]:
    """Node of every GPU and of every switch inside a node: their attribute ``node``, else the components without
    NICs."""
    import networkx as nx

    stated = {vertex: facts["node"] for vertex, facts in graph.nodes(data=True) if "node" in facts}
    wrong = next((vertex for vertex, node in stated.items() if not isinstance(node, int) or node < 0), None)
    if wrong is not None:
        raise InputError(f"node {shorten(stated[wrong])} is no number of a node", key=f"vertex {shorten(wrong)}")
    near: nx.Graph[Any] = nx.Graph()
    near.add_nodes_from(vertex for vertex, kind in kinds.items() if kind in ("gpu", "switch"))
    near.add_edges_from(link[:2] for link in links if link[0] in near and link[1] in near)
    parts = [part for part in nx.connected_components(near) if any(kinds[vertex] == "gpu" for vertex in part)]
    first = {id(part): min(vertex for vertex in part if kinds[vertex] == "gpu") for part in parts}
    parts.sort(key=lambda part: first[id(part)])
    part_of = {vertex: number for number, part in enumerate(parts) for vertex in part}
    gpus = [vertex for vertex, kind in kinds.items() if kind == "gpu"]
    if all(gpu in stated for gpu in gpus):
        part_of |= {vertex: stated[vertex] for vertex, kind in kinds.items() if vertex in stated and vertex in near}
    return part_of


def _local_names(kinds: Mapping[Any, str], home: Mapping[Any, int], per_node: int) -> dict[Any, Any]:
    """Names of vertices inside nodes: a GPU's position in its node; a switch's name, or its number in the node."""
    names_of: dict[Any, Any] = {}
    turns: Counter[int] = Counter()
    for vertex in home:
        if kinds[vertex] == "gpu":
            names_of[vertex] = vertex % per_node
    for vertex, kind in kinds.items():
        if kind == "switch" and vertex in home:
            named = _NODE.fullmatch(str(vertex))
            names_of[vertex] = named[2] if named else f"switch{turns[home[vertex]]}"
            turns[home[vertex]] += 1
    return names_of


def _nics_of(hosts: Mapping[int, Mapping[str, Any]], nodes: int, per_node: int) -> tuple[tuple[str, ...], ...]:
    nics_of_nodes: list[tuple[str, ...]] = []
    for node in range(nodes):
        own = range(node * per_node, (node + 1) * per_node)
        for gpu in own:
            if len(hosts[gpu]) != 1:
                raise InputError(f"has {len(hosts[gpu])} NICs; a GPU has one, of its node", key=f"vertex {gpu}")
        served = [next(iter(hosts[gpu])) for gpu in own]
        nics = tuple(dict.fromkeys(served))
        if served != [nics[place * len(nics) // per_node] for place in range(per_node)]:
            raise InputError(f"GPUs of node {node} share {len(nics)} NICs unevenly; equal runs of GPUs share one")
        nics_of_nodes.append(nics)
    if len({len(nics) for nics in nics_of_nodes}) > 1 or len({nic for nics in nics_of_nodes for nic in nics}) < sum(
        map(len, nics_of_nodes)
    ):
        raise InputError("every node needs equally many NICs of its own")
    return tuple(nics_of_nodes)


def with_graph(cluster: Cluster, graph: nx.Graph[Any]) -> Cluster:
    """The cluster on the links of a graph, with its devices, collective library and efficiencies.

    Parameters
    ----------
    cluster
        Cluster with the facts that a graph does not have.
    graph
        A changed ``copy()`` of the cluster's graph, or another one: GPUs are numbers, NICs and switches have names and
        a ``kind``, and every edge has a bandwidth and a latency. An undirected edge is a link in each direction.

    Raises
    ------
    InputError
        An edge lacks a number or has an impossible one, a GPU cannot reach another, nodes have different shapes, or
        several nodes need a fabric that the cluster does not have.

    Notes
    -----
    Measured collectives inside nodes stay valid where the graph slows or removes links, or speeds all up alike; on
    other links they do not apply. Routes avoid removed links.

    Examples
    --------
    >>> from tspsim.network import load_cluster
    >>> node = load_cluster("mi300x-8")
    >>> graph = node.graph.copy()
    >>> graph.remove_edge(0, 1)
    >>> [len(cluster.route(0, 1)) for cluster in (node, with_graph(node, graph))]
    [1, 2]
    """
    reading = read(graph)
    if reading.nodes > 1 and cluster.fabric is None:
        problem = f"the graph has {reading.nodes} nodes: state as many, and a fabric"
        raise InputError(f"{problem}, for its transport and efficiency")
    node, inside = _node(cluster.node, reading)
    factors: dict[int, float] = {}
    fabric = cluster.fabric if reading.nodes > 1 else None
    changes: dict[str, Any] = {"node": node, "nodes": reading.nodes, "fabric": fabric, "factors": ()}
    if not cluster.name.endswith(GIVEN):
        changes["name"] = cluster.name + GIVEN
    as_built = None
    if fabric is not None:
        as_built = _kept(cluster, reading)
        if as_built is None:
            if cluster.islands is not None:
                raise InputError(f"islands of {cluster.name} have fabrics by name; only take links away, or slow them")
            if not (cluster.routing.object.by_destination or cluster.routing.object.drawn):
                raise InputError(f"routing '{cluster.routing.policy}' is of leaves and spines; use spread or ecmp")
            changes |= {"fabric": _fabric(fabric, reading), "oversubscription": 1.0}
    other = replace(cluster, **changes)
    layout = other.layout
    for number, links in enumerate(inside):
        begin = number * layout.node_links
        factors |= {begin + link: factor for link, factor in enumerate(links) if factor != 1.0}
    if fabric is not None:
        assert other.fabric is not None
        host, port = other.node.host_link.bandwidth.value, other.fabric.nic.bandwidth.value
        for gpu, both in enumerate(reading.host):
            begin = layout.host_start + 2 * gpu
            factors |= {begin + way: share for way, rate in enumerate(both) if (share := _share(rate, host)) != 1.0}
        if as_built is not None:
            factors |= as_built
        else:
            for place, (up, down) in enumerate(_ports(reading)):
                for way, ends in enumerate((up, down)):
                    share = _share(reading.between.get(ends, (0.0, 0.0))[0], port)
                    if share != 1.0:
                        factors[layout.nic_start + 2 * place + way] = share
    every = tuple(sorted(factors.items()))
    if (node, fabric, every) == (cluster.node, other.fabric, cluster.factors) and reading.nodes == cluster.nodes:
        return cluster
    return replace(other, factors=every) if every else other


def _node(node: NodeSpec, reading: GraphReading) -> tuple[NodeSpec, list[list[float]]]:
    """The compiled node, and for every node the share of its bandwidth that each link keeps."""
    union: Rates = {}
    for number, links in enumerate(reading.inside):
        for ends, (bandwidth, latency) in links.items():
            most, beside = union.get(ends, (0.0, latency))
            if beside != latency:
                problem = f"latency_s {latency:g} of {ends[0]} → {ends[1]} in node {number} is {beside:g} in others"
                raise InputError(f"{problem}; nodes are of one shape")
            union[ends] = max(most, bandwidth), latency
    a_node = len(reading.nics[0]) or max(1, node.nics * reading.gpus // node.gpus)
    spec = _as_specified(node, union) if (reading.gpus, a_node) == (node.gpus, node.nics) else None
    if spec is None:
        spec = node.with_links([(*ends, *rate) for ends, rate in union.items()], reading.gpus, a_node)
    host = max((rate for both in reading.host for rate in both), default=node.host_link.bandwidth.value)
    if host > node.host_link.bandwidth.value or spec.gpus != node.gpus:
        spec = spec.model_copy(update={"host_link": node.host_link.model_copy(update=_at(node.host_link, host))})
    base = spec.wiring().links
    shares = [[_share(links.get(link[:2], (0.0, 0.0))[0], link[2]) for link in base] for links in reading.inside]
    return spec, shares


def _share(bandwidth: float, of: float) -> float:
    """Share of a link's bandwidth, with rounding errors removed near 1."""
    share = bandwidth / of
    return 1.0 if abs(share - 1.0) < 1e-12 else share


def _as_specified(node: NodeSpec, union: Rates) -> NodeSpec | None:
    """The node with its own links, all sped up by the largest gain of one; None: the graph has other links."""
    own = {link[:2]: link[2:] for link in node.wiring().links}
    if any(ends not in own or own[ends][1] != latency for ends, (_, latency) in union.items()):
        return None
    gain = max((bandwidth / own[ends][0] for ends, (bandwidth, _) in union.items()), default=1.0)
    if gain <= 1.0:
        return node
    if not isinstance(node.intra, str) and "graph" in node.intra:
        return None
    link = node.link.model_copy(update=_at(node.link, node.link.bandwidth.value * gain))
    return node.model_copy(update={"link": link})


def _at(part: Any, bandwidth: float) -> dict[str, Any]:
    """Update of a part's bandwidth, with its new source."""
    stated = part.bandwidth
    source = f"a graph that was given, instead of {stated.value / 1e9:g} GB/s ({stated.source})"
    return {"bandwidth": stated.model_copy(update={"value": bandwidth, "source": source, "basis": "assumed"})}


def _kept(cluster: Cluster, reading: GraphReading) -> dict[int, float] | None:
    """Factors of the links of NICs and switches if the graph only slows or removes the cluster's own; else None."""
    if (reading.nodes, len(reading.nics[0])) != (cluster.nodes, cluster.node.nics):
        return None
    layout, links = cluster.layout, cluster.links
    kept, factors = dict(cluster.factors), {}
    rates, latencies = cluster.bandwidth_bytes_per_s, cluster.latency_s
    cables = {ends: ids for ends, ids in links.cables.items() if ids[0] >= layout.nic_start}
    for ends, (bandwidth, latency) in reading.between.items():
        ids = cables.get(ends)
        if ids is None or latency != latencies[ids[0]] or bandwidth > float(rates[list(ids)].sum()):
            return None
    for ends, ids in cables.items():
        has = float(rates[list(ids)].sum())
        share = reading.between.get(ends, (0.0, 0.0))[0] / has if has else 0.0
        for link in ids:
            factor = kept.get(link, 1.0) * share
            if factor != 1.0:
                factors[link] = factor
    return factors


def _ports(reading: GraphReading) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """(source, target) of every NIC's link to its switch, and of the link back."""
    beyond: dict[str, set[str]] = {nic: set() for nics in reading.nics for nic in nics}
    for source, target in reading.between:
        for nic, other in ((source, target), (target, source)):
            if nic in beyond:
                beyond[nic].add(other)
    for nic, switches in beyond.items():
        if len(switches) != 1:
            known_switches = ", ".join(sorted(map(str, switches))[:3]) or "none"
            wrong = f"is attached to {len(switches)} switches ({known_switches}); a NIC has one"
            raise InputError(wrong, key=f"vertex {shorten(nic)}")
    return [((nic, *switches), (*switches, nic)) for nic, switches in beyond.items()]  # type: ignore[misc]


def _fabric(fabric: FabricSpec, reading: GraphReading) -> FabricSpec:
    """The fabric with the graph's switches instead of its own."""
    ports = _ports(reading)
    leaves = list(dict.fromkeys(up[1] for up, _ in ports))
    order = {vertex: place for place, vertex in enumerate(reading.kinds)}
    leaves.sort(key=lambda leaf: order[leaf])
    place = {leaf: number for number, leaf in enumerate(leaves)}
    nics = {up[0] for up, _ in ports}
    rates = [reading.between[ends] for both in ports for ends in both if ends in reading.between]
    latencies = {latency for _, latency in rates}
    if len(latencies) > 1:
        low, high = min(latencies), max(latencies)
        raise InputError(f"NICs have latency_s {low:g} and {high:g}; all have one: state more between switches")
    links = []
    for (source, target), rate in reading.between.items():
        if source not in nics and target not in nics:
            kinds = {reading.kinds[source], reading.kinds[target]}
            kind = "core" if "core" in kinds else "spine" if "spine" in kinds else "router"
            links.append((source, target, *rate, kind))
    links.sort(key=lambda link: order[link[0]])
    own = {
        "links": [(place.get(source, source), place.get(target, target), *rest) for source, target, *rest in links],
        "leaves": leaves,
        "attached": [place[up[1]] for up, _ in ports],
        "kinds": {name: kind for name, kind in reading.kinds.items() if kind != "nic"},
    }  # fmt: skip
    nic = fabric.nic.model_copy(update=_at(fabric.nic, max(rate for rate, _ in rates)))
    nic = nic.model_copy(update={"latency": nic.latency.model_copy(update={"value": latencies.pop()}), "ports": None})
    return fabric.model_copy(update={"kind": {OWN: own}, "nic": nic})
