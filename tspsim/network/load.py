"""Load clusters from the catalog, or build them from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base import catalog, dialect
from ..base.errors import InputError, UnknownNameError, shorten
from ..base.memo import MOST, BoundedCache
from ..base.registry import changes
from .cluster import Cluster
from .graphml import with_topology
from .joining import with_islands
from .own import is_whole, with_graph

if TYPE_CHECKING:
    import networkx as nx

    from .specs import FabricSpec, NodeSpec


def load_cluster(name: str) -> Cluster:
    """A cluster from the catalog, or a single node.

    Parameters
    ----------
    name
        Name of a cluster or a node, or the path of a cluster's YAML file.

    Raises
    ------
    InputError
        The name is unknown (the message offers the nearest), or a file is wrong.

    Examples
    --------
    >>> load_cluster("mi300x-128x8").gpus
    1024
    """
    from .specs import ClusterSpec

    if catalog.is_path(str(name)) or name in catalog.names("clusters"):
        spec = catalog.load("clusters", name, ClusterSpec)
        label = spec.name or str(name)
        parts = (spec.device, spec.nodes, spec.fabric, spec.node, spec.oversubscription, spec.library)
        try:
            cluster = build_cluster(*parts, spec.gpus_per_node, spec.transport, name=label)
        except InputError as error:
            raise error.at(file=str(catalog.locate("clusters", name))) from None
        if spec.topology is None:
            return cluster
        return with_topology(cluster, spec.topology, beside=catalog.locate("clusters", name).parent)
    if name in catalog.names("nodes"):
        return build_cluster(node=name, name=name)
    raise UnknownNameError("cluster", name, [*catalog.names("clusters"), *catalog.names("nodes")])


def build_cluster(
    device: str | None = None,
    nodes: int = 1,
    fabric: str | None = None,
    node: str | None = None,
    oversubscription: float | None = None,
    library: str | None = None,
    gpus_per_node: int | None = None,
    transport: str | None = None,
    nic_bandwidth: float | None = None,
    *,
    name: str | None = None,
    graph: nx.Graph[Any] | None = None,
) -> Cluster:
    """Build a cluster of any size. Equal arguments give the same object while the catalog's files do not change.

    Parameters
    ----------
    device
        Catalog name of the GPU, in its usual node (:func:`usual_node`).
    nodes
        Number of nodes.
    fabric
        Catalog name of the fabric between nodes; required for two or more.
    node
        Catalog name of the node, if not the device's usual one.
    oversubscription
        Bandwidth into a leaf switch over bandwidth out of it; None: the fabric's.
    library
        Version or launch mode of the node's collective library inside a node; None: the node's default.
    gpus_per_node
        GPUs of each node that are used; None: all.
    transport
        Catalog name of the transport between nodes; None: the fabric's.
    nic_bandwidth
        Bytes/s of every NIC and of the switches' ports; None: the fabric's.
    name
        Name in reports; None: made from device and size.
    graph
        Links between GPUs that replace the node's: GPUs are numbers from 0, other vertices are switches, and every edge
        has ``bandwidth_bytes_per_s`` and ``latency_s``. The node keeps its device and its library's latencies, without
        what was measured on its links. A graph with NICs describes the whole cluster and its number of nodes
        (:func:`with_graph`).

    Raises
    ------
    InputError
        A name is unknown (the message offers the nearest), or the parts do not fit together.

    Examples
    --------
    >>> build_cluster(device="mi300x", nodes=2, fabric="rails-400g").gpus
    16

    Four GPUs in a ring:

    >>> import networkx as nx
    >>> ring = nx.cycle_graph(4, create_using=nx.DiGraph)
    >>> for _, _, link in ring.edges(data=True):
    ...     link.update(bandwidth_bytes_per_s=50e9, latency_s=1e-6)
    >>> build_cluster(node="mi300x-8", graph=ring).route(0, 3)
    (0, 1, 2)
    """
    from .announced import NODES

    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise InputError(f"'{shorten(nodes)}' nodes; a cluster has one or more")
    if node is None:
        if device is None:
            raise InputError("name a device or a node")
        stated = spec = node_of(device)
    else:
        stated = spec = NODES.load(node)
    if device is not None and spec.device != device:
        stated = spec = with_device(spec, device)
    whole = graph is not None and is_whole(graph)
    if graph is not None and not whole:
        spec = spec.with_graph_links(graph)
    if gpus_per_node is not None:
        try:
            spec = spec.part(gpus_per_node)
        except InputError as error:
            raise error.at(key="cluster.gpus_per_node") from None
    if library is not None:
        if library not in spec.collectives.versions:
            raise UnknownNameError("library", library, spec.collectives.versions)
        collectives = spec.collectives.model_copy(update={"default_library": library})
        spec = spec.model_copy(update={"collectives": collectives})
    joined = load_fabric(fabric, transport, nic_bandwidth) if fabric is not None else None
    if joined is None and nic_bandwidth is not None:
        raise InputError("a NIC's bandwidth is that of a fabric; name one")
    if graph is not None and whole:
        template = Cluster(name or spec.name, spec, max(2, nodes), joined, float(oversubscription or 1.0))
        graphed = with_graph(template, graph)
        if nodes not in (1, graphed.nodes):
            raise InputError(f"the graph has {graphed.nodes} nodes, not {nodes}")
        return graphed if name is None else replace(graphed, name=name)
    if nodes > 1 and joined is None:
        raise InputError(f"{nodes} nodes need a fabric ({', '.join(catalog.names('fabrics'))})")
    ratio = oversubscription
    if ratio is None:
        ratio = joined.oversubscription.value if joined else 1.0
    if not 1.0 <= ratio < float("inf"):
        raise InputError(f"oversubscription {shorten(ratio)} must be 1 or more")
    label = name or (spec.name if nodes == 1 else f"{spec.device}-{nodes}x{spec.gpus}")

    def made() -> Cluster:
        cluster = Cluster(label, spec, nodes, joined if nodes > 1 else None, float(ratio))
        _ = cluster.layout.links  # raises InputError for more nodes than the fabric's switches can connect
        return cluster

    if graph is not None:
        return made()
    return _clusters.of_parts((stated, joined), (label, nodes, float(ratio), library, gpus_per_node), made)


#: Clusters are reused, because they keep the routes and collectives that were computed on them.
_clusters = BoundedCache(MOST, changes)
_fabrics = BoundedCache(MOST, changes)


def load_fabric(name: str, transport: str | None = None, nic_bandwidth: float | None = None) -> FabricSpec:
    """A fabric from the catalog with the factors of its transport.

    ``transport`` replaces the fabric's transport; ``nic_bandwidth``, in bytes/s, replaces that of its NICs.

    Raises
    ------
    InputError
        A name is unknown, or a file is wrong.

    Examples
    --------
    >>> load_fabric("rails-400g").collectives.latency, load_fabric("rails-400g", "infiniband").collectives.latency
    (1.36, 0.28)
    """
    from .specs import FabricSpec, TransportSpec

    fabric = catalog.load("fabrics", name, FabricSpec)
    if nic_bandwidth is not None:
        loaded = fabric
        fabric = _fabrics.of_parts((loaded,), nic_bandwidth, lambda: _with_nics(loaded, nic_bandwidth))
    carrying = transport or (fabric.transport if fabric.collectives is None else None)
    if carrying is None:
        return fabric
    try:
        spec = catalog.load("transports", carrying, TransportSpec)
    except UnknownNameError as error:
        place = {} if transport else {"file": str(catalog.locate("fabrics", name)), "key": "transport"}
        raise error.at(**place) from None
    changes = {"transport": carrying, "collectives": spec.collectives}
    return _fabrics.of_parts((fabric, spec), carrying, lambda: fabric.model_copy(update=changes))


def _with_nics(fabric: FabricSpec, bytes_per_s: float) -> FabricSpec:
    update = {"value": bytes_per_s, "source": "the scenario's cluster.nic_bandwidth", "basis": "assumed"}
    bandwidth = fabric.nic.bandwidth.model_copy(update=update)
    return fabric.model_copy(update={"nic": fabric.nic.model_copy(update={"bandwidth": bandwidth})})


def with_fabrics(cluster: Cluster, islands: Sequence[tuple[int, str]]) -> Cluster:
    """The cluster in islands of (number of nodes, catalog name of the fabric inside).

    Raises
    ------
    InputError
        A name is unknown, or the islands' nodes do not add up to the cluster's.
    """
    fabrics = [load_fabric(name) for _, name in islands]
    sizes = tuple(nodes for nodes, _ in islands)
    return _clusters.of_parts((cluster, *fabrics), ("islands", sizes), lambda: with_islands(cluster, sizes, fabrics))


def with_nodes(cluster: Cluster, islands: Sequence[tuple[int, str | None]]) -> Cluster:
    """The cluster with the links of other devices' usual nodes in some islands: (number of nodes, device or None).

    All nodes have one shape, and links inside them are at most as fast as the cluster's. Slower ones have a factor,
    which also stretches times that were measured on the cluster's own links.

    Raises
    ------
    InputError
        A device is unknown, or its node is of another shape or has faster links.
    """
    others = [(nodes, node_of(device) if device is not None else None) for nodes, device in islands]
    parts, sizes = (cluster, *(node for _, node in others)), tuple(nodes for nodes, _ in others)
    return _clusters.of_parts(parts, ("nodes", sizes), lambda: _with_nodes(cluster, others))


def _with_nodes(cluster: Cluster, islands: Sequence[tuple[int, NodeSpec | None]]) -> Cluster:
    own, layout, factors, first = cluster.node, cluster.layout, dict(cluster.factors), 0
    for nodes, stated in islands:
        if stated is not None:
            other = stated.part(own.gpus)
            wiring = other.wiring()
            shape, mine = ([link[:2] for link in side.links] for side in (wiring, layout.inside))
            if other.nics != own.nics or shape != mine:
                raise InputError(f"nodes of {stated.device} have other links than {own.name}")
            shares = [link[2] / own_link[2] for link, own_link in zip(wiring.links, layout.inside.links, strict=True)]
            if max(shares, default=1.0) > 1.0:
                problem = f"links in nodes of {stated.device} are faster than in {own.name}"
                raise InputError(f"{problem}: make it `cluster.device`")
            for node in range(first, first + nodes):
                begin = node * layout.node_links
                factors |= {begin + link: share for link, share in enumerate(shares) if share < 1.0}
        first += nodes
    return replace(cluster, factors=tuple(sorted(factors.items()))) if factors else cluster


def node_of(device: str) -> NodeSpec:
    """The node of a device: its usual one, or the one that its file describes (``node: {like: NAME}``).

    Raises
    ------
    InputError
        As :func:`usual_node`; or a key of ``node`` is wrong.
    """
    from .announced import NODES, lent_node

    path = catalog.locate("devices", device)
    stated = dialect.stated(path, "node")
    return lent_node(device, stated, str(path)) if isinstance(stated, dict) else NODES.load(usual_node(device))


def with_device(node: NodeSpec, device: str) -> NodeSpec:
    """The node with another GPU of the same vendor: with its links, and its library's times as assumed.

    Raises
    ------
    InputError
        The catalog has no such device, or it is of another vendor.
    """
    from .announced import lent_node

    vendors = [
        dialect.stated(catalog.locate("devices", device_name), "vendor") for device_name in (node.device, device)
    ]
    if vendors[0] != vendors[1]:
        problem = f"node '{node.name}' has {node.device} GPUs, not {shorten(device)}, which is of another vendor"
        raise InputError(f"{problem}; a GPU of {shorten(vendors[0])} can take their place")
    return lent_node(device, {"like": node.name}, str(catalog.locate("devices", device)))


def usual_node(device: str) -> str:
    """Catalog name of a device's usual node: the one that its file names (``node``), else the only one with it.

    Raises
    ------
    UnknownNameError
        The catalog has no such device, or not the node that its file names.
    InputError
        No node has the device, several have it and its file names none, or its file names a node of another device.

    Examples
    --------
    >>> usual_node("h100")
    'hgx-h100-8'
    """
    path = catalog.locate("devices", device)
    stated = dialect.stated(path, "node")
    if stated is not None:
        nodes = catalog.names("nodes")
        if stated not in nodes:
            raise UnknownNameError("node", stated, nodes, file=str(path), key="node")
        if (its := _device_of(stated)) != device:
            problem = f"node '{stated}' has {shorten(its)} GPUs, not {shorten(device)}; name one that has"
            raise InputError(problem, file=str(path), key="node")
        return str(stated)
    having = [name for name in catalog.names("nodes") if _device_of(name) == device]
    if len(having) > 1:
        candidates = ", ".join(having)
        problem = f"device '{shorten(device)}' comes in {shorten(candidates, 200)}"
        raise InputError(f"{problem}; name one with cluster.node, or for good with the key node of {shorten(path)}")
    if not having:
        problem = f"no node in the catalog holds '{shorten(device)}' GPUs"
        remedy = (
            "name one with cluster.node, say in its file which it is like (node: {like: hgx-h100-8}), or describe one "
            "in topologies/nodes (tspsim init node writes a first one)"
        )
        raise InputError(f"{problem}; {remedy}", key="cluster.device")
    return having[0]


def _device_of(node: str) -> object:
    """The device that a node's file names; None if the file cannot be read, which loading that node reports."""
    try:
        return dialect.stated(catalog.locate("nodes", node), "device")
    except InputError:
        return None
