"""Clusters from the catalog, or put together from its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .. import catalog
from ..errors import InputError, UnknownNameError, shorten
from .cluster import Cluster

if TYPE_CHECKING:
    from .specs import NodeSpec


def load_cluster(name: str) -> Cluster:
    """A cluster from the catalog, or one node of that name.

    Parameters
    ----------
    name
        Name of a cluster or a node, or the path of a cluster's YAML file.

    Raises
    ------
    InputError
        Nothing has this name (the nearest is offered), or a file is wrong.

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
            return build_cluster(*parts, name=label)
        except InputError as error:
            raise error.at(file=str(catalog.locate("clusters", name))) from None
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
    *,
    name: str | None = None,
) -> Cluster:
    """A cluster of any size.

    Parameters
    ----------
    device
        Catalog name of the GPU; its node is found in the catalog of nodes.
    nodes
        How many nodes.
    fabric
        Catalog name of what joins them; needed from two nodes on.
    node
        Catalog name of the node, where a device comes in several.
    oversubscription
        Bandwidth into a leaf switch over bandwidth out of it; None: as the fabric states.
    library
        Version or launch mode of the node's library that collectives inside a node get; None: the node's default.
    name
        How reports call it; None: from device and size.

    Raises
    ------
    InputError
        A name is unknown (the nearest is offered), or the parts do not fit together.

    Examples
    --------
    >>> build_cluster(device="mi300x", nodes=2, fabric="rails-400g").gpus
    16
    """
    from .specs import FabricSpec, NodeSpec

    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise InputError(f"'{shorten(nodes)}' nodes; a cluster has one or more")
    spec = catalog.load("nodes", node, NodeSpec) if node is not None else _node_of(device)
    if device is not None and spec.device != device:
        raise InputError(f"node '{spec.name}' has {spec.device} GPUs, not {shorten(device)}")
    if library is not None:
        if library not in spec.collectives.versions:
            raise UnknownNameError("library", library, spec.collectives.versions)
        collectives = spec.collectives.model_copy(update={"default_library": library})
        spec = spec.model_copy(update={"collectives": collectives})
    joined = catalog.load("fabrics", fabric, FabricSpec) if fabric is not None else None
    if nodes > 1 and joined is None:
        raise InputError(f"{nodes} nodes need a fabric ({', '.join(catalog.names('fabrics'))})")
    ratio = oversubscription
    if ratio is None:
        ratio = joined.oversubscription.value if joined else 1.0
    if not 1.0 <= ratio < float("inf"):
        raise InputError(f"oversubscription {shorten(ratio)} must be 1 or more")
    label = name or (spec.name if nodes == 1 else f"{spec.device}-{nodes}x{spec.gpus}")
    cluster = Cluster(label, spec, nodes, joined if nodes > 1 else None, float(ratio))
    _ = cluster.layout.links  # a fabric too large for its switches is refused here, not at first use
    return cluster


def _node_of(device: str | None) -> NodeSpec:
    """The first node in the catalog, by name, with this GPU."""
    from .specs import NodeSpec

    if device is None:
        raise InputError("name a device or a node")
    found: list[str] = []
    for entry in _likely_first(catalog.names("nodes"), device):
        path = catalog.locate("nodes", entry)
        data = catalog.read_yaml(path)
        if data.get("device") == device:
            return catalog.validate(data, NodeSpec, file=str(path))
        found.append(str(data.get("device")))
    raise UnknownNameError("device", device, found)


def _likely_first(names: Sequence[str], device: str) -> Iterable[str]:
    """Entries whose name contains the device's, then the others: most are never read."""
    return sorted(names, key=lambda name: (str(device) not in name, name))
