"""Node interconnects and fabrics as plain graphs.

Each function returns a :class:`networkx.DiGraph` whose edges carry ``bandwidth_bytes_per_s``, ``latency_s``
and ``kind``. They serve to look at one piece alone; a :class:`~tspsim.network.cluster.Cluster` lays out whole
clusters with the same code.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ..errors import InputError
from .layout import Layout

if TYPE_CHECKING:
    import networkx as nx

Vertex = int | str
#: A run of equal links: kind, how many, bytes/s, seconds.
Block = tuple[str, int, float, float]


def full_mesh(
    gpus: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0, kind: str = "xgmi"
) -> nx.DiGraph[Vertex]:
    """A direct link from every GPU to every other.

    Parameters
    ----------
    gpus
        Vertices ``0 … gpus − 1``, two or more.
    bandwidth_bytes_per_s, latency_s
        Of each link, in its direction.
    kind
        Written on each edge.

    Returns
    -------
    networkx.DiGraph
        With ``gpus·(gpus − 1)`` edges.

    Raises
    ------
    InputError
        There are fewer than two GPUs.

    Examples
    --------
    >>> graph = full_mesh(8, 64e9)
    >>> graph.out_degree(0), graph.edges[0, 7]["bandwidth_bytes_per_s"]
    (7, 64000000000.0)
    """
    if gpus < 2:
        raise InputError(f"a full mesh joins two GPUs or more, not {gpus}")
    layout = Layout(1, gpus, mesh=True)
    return drawn(layout, [(kind, layout.links, bandwidth_bytes_per_s, latency_s)])


def switched(
    gpus: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0, kind: str = "nvlink"
) -> nx.DiGraph[Vertex]:
    """A switch with one link from and one to each GPU.

    Parameters
    ----------
    gpus
        Vertices ``0 … gpus − 1``; the switch is ``"node0/switch"``.
    bandwidth_bytes_per_s
        Of all a GPU's links together, in one direction.
    latency_s
        From GPU to GPU; each of the two links carries half.

    Returns
    -------
    networkx.DiGraph
        With ``2·gpus`` edges.

    Examples
    --------
    >>> graph = switched(8, 450e9)
    >>> graph.number_of_edges(), list(graph.successors(3))
    (16, ['node0/switch'])
    """
    layout = Layout(1, gpus, mesh=False)
    return drawn(layout, [(kind, layout.links, bandwidth_bytes_per_s, latency_s / 2)])


def rails(
    nodes: int, rails: int, bandwidth_bytes_per_s: float, latency_s: float = 0.0, radix: int = 128
) -> nx.DiGraph[Vertex]:
    """A plane of switches for each rail, and no way between planes: the fabric without what is inside the
    nodes.

    Parameters
    ----------
    nodes
        Each has one NIC a rail.
    rails
        Planes.
    bandwidth_bytes_per_s
        Of a NIC; leaves and spines do not oversubscribe.
    latency_s
        Of each link.
    radix
        Ports of a switch; more nodes than that get leaves and spines.

    Returns
    -------
    networkx.DiGraph
        GPU ``node·rails + rail`` hangs on its NIC, the NIC on its leaf.

    Examples
    --------
    >>> graph = rails(2, 8, 50e9)
    >>> import networkx as nx
    >>> nx.has_path(graph, 0, 8), nx.has_path(graph, 0, 9)
    (True, False)
    """
    return _fabric(Layout(nodes, rails, False, rails, rails, "rails", radix), bandwidth_bytes_per_s, latency_s, 1.0)


def fat_tree(
    nodes: int,
    nics: int,
    bandwidth_bytes_per_s: float,
    latency_s: float = 0.0,
    radix: int = 64,
    oversubscription: float = 1.0,
) -> nx.DiGraph[Vertex]:
    """Leaves that serve whole nodes, spines that join all leaves, cores where one layer of spines is too
    small.

    Parameters
    ----------
    nodes, nics
        Nodes, and NICs (and GPUs) of each.
    bandwidth_bytes_per_s, latency_s
        Of a NIC, and of each link.
    radix
        Ports of a switch.
    oversubscription
        Bandwidth into a leaf over bandwidth out of it.

    Returns
    -------
    networkx.DiGraph

    References
    ----------
    Al-Fares, Loukissas, Vahdat: A scalable, commodity data center network architecture, SIGCOMM 2008, §3.

    Examples
    --------
    >>> graph = fat_tree(16, 8, 50e9)
    >>> import networkx as nx
    >>> nx.has_path(graph, 0, 127), graph.out_degree("leaf0")
    (True, 34)
    """
    layout = Layout(nodes, nics, False, nics, nics, "fat_tree", radix)
    return _fabric(layout, bandwidth_bytes_per_s, latency_s, oversubscription)


def _fabric(layout: Layout, port: float, latency_s: float, oversubscription: float) -> nx.DiGraph[Vertex]:
    """A layout's fabric with GPUs that have no link inside their node."""
    clos = layout.clos
    spine, core = clos.bandwidths(port, oversubscription)
    blocks = [
        ("node", layout.host_start, port, 0.0),
        ("pcie", layout.nic_start - layout.host_start, port, 0.0),
        ("nic", layout.switch_start - layout.nic_start, port, latency_s),
    ]
    for _ in range(layout.planes):
        blocks.append(("spine", clos.leaf_links, spine, latency_s))
        blocks.append(("core", clos.links - clos.leaf_links, core, latency_s))
    graph = drawn(layout, blocks)
    graph.remove_nodes_from([f"node{node}/switch" for node in range(layout.nodes)])
    return graph


def drawn(layout: Layout, blocks: list[Block]) -> nx.DiGraph[Vertex]:
    """The links of ``layout``, in id order, with the attributes of each run of equal links."""
    import networkx as nx

    names = layout.vertices()
    source, target = layout.ends()
    graph: nx.DiGraph[Vertex] = nx.DiGraph()
    graph.add_nodes_from(names)
    pairs = iter(zip(source.tolist(), target.tolist(), strict=True))
    for kind, count, bandwidth, latency in blocks:
        attributes = {"bandwidth_bytes_per_s": bandwidth, "latency_s": latency, "kind": kind}
        run = islice(pairs, count)
        graph.add_edges_from(((names[u], names[v]) for u, v in run), **attributes)
    return graph
