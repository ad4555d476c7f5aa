"""Collective tables: every row is one collective of a group of GPUs, counted as nccl-tests counts its bytes."""

from __future__ import annotations

import contextlib

from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.network import Cluster, Traffic, build_cluster, collective, load_cluster
from tspsim.network.load import usual_node
from tspsim.program import COLLECTIVE_KINDS

from ..base.memo import remembered
from .answers import RowAnswers, each_row
from .cells import Row
from .devices import device_name, named_device
from .kernels import MICROSECONDS

#: GPUs whose NVLink domain is a rack; one of its machines ("node" 1 of a table) holds four.
RACKS = {"gb200": ("gb200-nvl72", 72), "gb300": ("gb300-nvl72", 72)}
#: Words of a library column that name the fabric of the run.
FABRICS = {
    "nebius": "infiniband-400g-nebius",
    "lambda": "infiniband-400g-lambda",
    "gcp a4": "roce-400g-gcp",
    "tcpxo": "tcpxo-200g",
    "tcpx": "tcpx-100g",
    "efa": "efa-400g",
    "nvl72": "nvl72-400g",
    "aac10": "roce-400g-aac10",
    "aac14": "roce-400g-aac14",
}
#: Fabric between the nodes of a GPU's usual machine, for tables that name none.
USUAL_FABRICS = {
    "a100-40gb": "rails-200g",
    "a100-80gb": "rails-200g",
    "b300": "rails-800g",
    "h100": "rail-optimised-400g",
    "h200": "rail-optimised-400g",
    "b200": "rail-optimised-400g",
}
#: Transport on these fabrics, where it differs from the fabric's own.
USUAL_TRANSPORTS = {"a100-40gb": "infiniband", "a100-80gb": "infiniband"}


@each_row
def predict(row: Row, position: int, answers: RowAnswers) -> None:
    """All-reduce, all-gather, reduce-scatter, all-to-all and broadcast, by nodes, GPUs and library."""
    op, gpus, written = row["op"], int(row["gpus"]), str(row.get("library", ""))
    if op not in COLLECTIVE_KINDS:
        raise InputError(f"no collective '{op}'")
    cluster = cluster_of(str(row["gpu"]), int(row["nodes"]), gpus, fabric_of(written), node_of(row))
    library = library_of(cluster, written)
    traffic = collective(cluster, range(gpus), op, float(row["bytes"]), library=library)
    if library is None and cluster.nodes == 1 and cluster.node.collectives.libraries:
        own = cluster.node.collectives.default_library or "its own, in the middle of those known"
        answers.note(f"{cluster.node.name} knows no library '{written}': {own}", 1)
    tell(answers, position, traffic)


@each_row
def predict_custom(row: Row, position: int, answers: RowAnswers) -> None:
    """Predict an all-reduce by a serving engine's own kernels: ``custom``, the engine, and the kernels' library."""
    gpus, library = int(row["gpus"]), custom_library(str(row["library"]))
    cluster = cluster_of(str(row["gpu"]), 1, gpus, node=node_of(row))
    tell(answers, position, collective(cluster, range(gpus), "all_reduce", float(row["bytes"]), library=library))


def tell(answers: RowAnswers, position: int, traffic: Traffic, column: str | None = None) -> None:
    """Set a row's answer: the time of a transfer in microseconds, with its range."""
    time_us = traffic.alone_s * MICROSECONDS
    if not traffic.links:
        answers.skip(position, "one GPU alone exchanges nothing")
    elif column is None:
        answers.predict(position, time_us, time_us * traffic.low, time_us * traffic.high)
    else:
        answers.also(position, column, time_us)


def fabric_of(written: str) -> str | None:
    """The fabric that a library column names.

    >>> fabric_of("NCCL, GCP A3 Mega H100 TCPXO 1.8 Tbps"), fabric_of("NCCL 2.27.3")
    ('tcpxo-200g', None)
    """
    return next((fabric for word, fabric in FABRICS.items() if word in written.lower()), None)


def node_of(row: Row) -> str | None:
    """The node that a row names; None: the GPU's usual one."""
    return str(row.get("node", "")).strip() or None


def library_of(cluster: Cluster, written: str) -> str | None:
    """The node's name of a library; None if it has none."""
    return written if written in cluster.node.collectives.libraries else None


def custom_library(written: str) -> str:
    """The catalog's name of a serving engine's all-reduce.

    >>> custom_library("custom vllm vLLM_custom_graph"), custom_library("custom sglang trtllm")
    ('vllm custom', 'sglang trtllm custom')
    """
    words = written.lower().split()
    engine, kernels = words[1] if len(words) > 1 else written, words[2] if len(words) > 2 else ""
    return f"{engine} trtllm custom" if kernels == "trtllm" != engine else f"{engine} custom"


def cluster_of(gpu: str, nodes: int, gpus: int, fabric: str | None = None, node: str | None = None) -> Cluster:
    """The cluster that a row was measured on, built again only if the files of its GPU or node change.

    Parameters
    ----------
    gpu
        As the table writes it.
    nodes
        Machines; 0: one or several racks that are a domain of NVLink each.
    gpus
        Ranks of the group.
    fabric
        Catalog name of what joins the nodes; None: the usual one.
    node
        Catalog name of the node; None: the GPU's usual one.

    Raises
    ------
    InputError
        The catalog has no such machine, or it has fewer GPUs.
    """
    return _cluster_of(gpu, nodes, gpus, fabric, node, _changed_ns(gpu, fabric, node))


def _changed_ns(gpu: str, fabric: str | None, node: str | None) -> tuple[int, ...]:
    """Times of the last change of a GPU's file, its node's and its fabric's; empty for a GPU that the catalog lacks."""
    name = device_name(gpu)
    if name is None:
        return ()
    files = [catalog.locate("devices", name)]
    with contextlib.suppress(InputError):
        files.append(catalog.locate("nodes", node or usual_node(name)))
    with contextlib.suppress(InputError):
        files.append(catalog.locate("fabrics", fabric or USUAL_FABRICS.get(name, "rails-400g")))
    return tuple(path.stat().st_mtime_ns for path in files)


@remembered(64)
def _cluster_of(
    gpu: str, nodes: int, gpus: int, fabric: str | None, node: str | None, changed_ns: tuple[int, ...]
) -> Cluster:
    written = gpu.strip().lower()
    if node is None and written in RACKS:
        rack, domain = RACKS[written]
        racks = -(-gpus // domain)
        if racks > 1:
            return build_cluster(node=rack, nodes=racks, fabric=fabric or "rail-optimised-400g")
        return load_cluster(rack)
    name = named_device(gpu)
    if nodes < 1:
        raise InputError(f"{gpu} has no rack-scale domain in the catalog")
    if nodes == 1:
        return build_cluster(device=name, node=node)
    if fabric is not None:
        return build_cluster(device=name, node=node, nodes=nodes, fabric=fabric)
    usual, transport = USUAL_FABRICS.get(name, "rails-400g"), USUAL_TRANSPORTS.get(name)
    return build_cluster(device=name, node=node, nodes=nodes, fabric=usual, transport=transport)
