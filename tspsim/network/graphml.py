"""Topologies from GraphML files, as networkx, yEd and Gephi write them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import catalog
from ..base.errors import InputError, shorten
from .cluster import Cluster
from .graphs import KIND
from .own import with_graph

if TYPE_CHECKING:
    import networkx as nx

#: Bound on files; one of a thousand nodes has some ten megabytes.
LARGEST_FILE_BYTES = 2**28


def with_topology(cluster: Cluster, stated: str, *, beside: Path | None = None) -> Cluster:
    """The cluster on the links of a GraphML file; the same object while the file does not change.

    Parameters
    ----------
    stated
        Path of the file; a relative one is also looked up in ``beside`` and in the catalog's folders.

    Raises
    ------
    InputError
        The file cannot be read, is no graph of a cluster, or has another number of nodes than the cluster.
    """
    path = catalog.locate_file(stated, beside=beside)
    text = _text(path)
    key = "topology", hashlib.sha256(text).hexdigest()
    try:
        compiled = cluster.memo.once(key, lambda: with_graph(cluster, _parsed(text)))
        if compiled.nodes != cluster.nodes:
            raise InputError(f"the file has {compiled.nodes} nodes, and the cluster {cluster.nodes}")
    except InputError as error:
        raise InputError(error.message, file=error.file or str(path), key=error.key) from None
    return compiled


def read_graphml(path: str | Path) -> nx.Graph[Any]:
    """Read the graph of a GraphML file, with GPUs as numbers.

    A vertex is a GPU if its ``kind`` is gpu, or if it has no kind and its id is a number. If ids of GPUs are not all
    numbers, GPUs are numbered in the order of the file.

    Raises
    ------
    InputError
        There is no such file, or it is no GraphML.
    """
    try:
        return _parsed(_text(catalog.locate_file(str(path))))
    except InputError as error:
        raise error.at(file=str(path)) from None


def _text(path: Path) -> bytes:
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise InputError(f"is larger than {LARGEST_FILE_BYTES >> 20} MiB", file=str(path))
    return path.read_bytes()


def _parsed(text: bytes) -> nx.Graph[Any]:
    import networkx as nx

    if b"<!DOCTYPE" in text[:4096] or b"<!ENTITY" in text:
        raise InputError("declares entities, which GraphML does not need; leave them out")
    try:
        graph = nx.parse_graphml(text.decode("utf-8"))
    except (nx.NetworkXError, SyntaxError, KeyError, ValueError, TypeError) as error:  # ParseError is a SyntaxError
        raise InputError(f"is no GraphML: {shorten(error, 120)}") from None
    kinds = {name: facts.get(KIND) for name, facts in graph.nodes(data=True)}
    gpus = [name for name, kind in kinds.items() if kind == "gpu" or (kind is None and name.isdecimal())]
    if all(name.isdecimal() for name in gpus):
        numbers = {name: int(name) for name in gpus}
    else:
        numbers = {name: place for place, name in enumerate(gpus)}
    if len(set(numbers.values())) < len(gpus):
        raise InputError(f"names a GPU twice: {shorten(gpus, 60)}")
    return nx.relabel_nodes(graph, numbers)
