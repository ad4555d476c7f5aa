"""Transfers of measured steps as rows that move a node's or a fabric's numbers, like a table of nccl-tests.

Only transfers that ran alone show a library's time: beside kernels and other transfers both slow down. Time spent
waiting for the last rank is left out where several ranks' profiles show it. All-reduces of an engine's own kernels and
exchanges with experts move the node's file too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..base import catalog
from ..base.errors import InputError
from ..network import Cluster
from ..network.collectives.algorithm import ALGORITHMS
from ..network.collectives.experts import ExpertPhase
from ..parallel import build_mesh
from ..program import COLLECTIVE_KINDS
from ..program.instructions import Mesh
from ..traces.comparison import Laid
from ..traces.learned import kernels_found
from ..traces.simulated import Operation
from ..validation.collectives import cluster_of
from .measurements import MeasuredCollective, MeasuredExchange, MeasuredTransfer
from .network_files import MeasuredTransfers

#: Kernel names of NCCL and RCCL, whose numbers a node's file has.
_OF_A_LIBRARY = re.compile(r"nccl|rccl", re.IGNORECASE)
#: The library name in a node's file for numbers from steps.
IN_STEPS = "in steps"
#: Largest share of a transfer's time with other kernels running.
ALONE = 0.2


def _kernels_beside(laid: Laid) -> Callable[[NDArray[np.intp], float, float], float]:
    """``f(own, start, end)`` → share of an interval in which kernels other than a transfer's own run, transfers too."""
    trace = laid.trace
    order = np.argsort(trace.columns["start_s"], kind="stable")
    starts, ends = trace.columns["start_s"][order], trace.end_s[order]

    def share(own: NDArray[np.intp], start: float, end: float) -> float:
        inside = (starts < end) & (ends > start) & ~np.isin(order, own)
        busy, last = 0.0, start
        for begin, stop in zip(np.maximum(starts[inside], start), np.minimum(ends[inside], end), strict=True):
            busy += max(stop - max(begin, last), 0.0)
            last = max(last, stop)
        return busy / (end - start) if end > start else 0.0

    return share


def transfers_of(steps: Sequence[Laid]) -> MeasuredTransfers:
    """The transfers of steps aligned with their scenarios, by the file that they may move."""
    nodes: dict[str, list[MeasuredTransfer]] = {}
    fabrics: dict[str, list[MeasuredTransfer]] = {}
    left_out: Counter[str] = Counter()
    for laid in steps:
        beside, kernels = _kernels_beside(laid), kernels_found(laid)
        cluster = laid.lane.question.cluster
        mesh = build_mesh(laid.lane.job.plan, cluster.gpus, cluster.gpus_per_node)
        columns, ends, names = laid.trace.columns, laid.trace.end_s, laid.trace.word("name")
        for index, rows in kernels.items():
            item = laid.lane.operations[index]
            if not item.is_transfer:
                continue
            exchanged = item.collective is not None and item.collective.tokens is not None
            if item.kind not in COLLECTIVE_KINDS and not exchanged:
                left_out[f"{item.kind}: no collective of a library"] += 1
                continue
            library = f"{cluster.node.collectives.library} {IN_STEPS}"
            if not exchanged and not all(_OF_A_LIBRARY.search(name) for name in names[rows]):
                library = _engine_of(laid, item)
                if not library:
                    left_out[f"{item.kind} of kernels that no library of the node's file is"] += 1
                    continue
            waits = np.nan_to_num(columns["wait_s"][rows])
            start, end = float((columns["start_s"][rows] + waits).min()), float(ends[rows].max())
            if beside(np.asarray(rows), start, end) > ALONE:
                left_out[f"{item.kind} beside kernels or other transfers, where both give way"] += 1
                continue
            own = _on(cluster, mesh, item, laid.rank)
            if isinstance(own, str):
                left_out[own] += 1
                continue
            try:
                row = _row(own, item, _ranks(mesh, item), library, end - start)
            except InputError as error:
                left_out[error.message] += 1
                continue
            # Exchanges with experts belong to the node's file, across nodes too.
            file = (nodes, own.node.name) if own.fabric is None or exchanged else (fabrics, own.fabric.name)
            file[0].setdefault(file[1], []).append(row)
    reasons = tuple(f"{count} transfers: {reason}" for reason, count in sorted(left_out.items()))
    return MeasuredTransfers(nodes, fabrics, reasons)


def _engine_of(laid: Laid, item: Operation) -> str:
    """The node file's name of the engine's own all-reduces; empty where it has none."""
    own = f"{laid.lane.job.work.stack.name.partition('@')[0]} custom"
    libraries = {kernels.library for kernels in laid.lane.question.cluster.node.collectives.custom_all_reduce}
    return own if item.kind == "all_reduce" and own in libraries else ""


def _row(cluster: Cluster, item: Operation, ranks: int, library: str, seconds: float) -> MeasuredTransfer:
    """One measured transfer. Raises InputError where the node has no numbers for it."""
    collective = item.collective
    if collective is None or collective.tokens is None:
        return MeasuredCollective(cluster, item.kind, ranks, item.size_bytes, library, seconds)
    algorithm = ALGORITHMS.get(collective.algorithm or "")
    if not isinstance(algorithm, ExpertPhase):
        raise InputError(f"{item.kind} of no library that moves tokens to experts")
    exchange = collective.tokens
    return MeasuredExchange.of(cluster, algorithm.phase, algorithm.mode, ranks, exchange, seconds)


def _ranks(mesh: Mesh, item: Operation) -> int:
    return int(mesh.groups(item.axis).shape[1])


def _on(cluster: Cluster, mesh: Mesh, item: Operation, rank: int) -> Cluster | str:
    """The cluster with the nodes and ranks of a transfer's group, or the reason why the catalog has none."""
    groups = mesh.groups(item.axis)
    group = groups[int(mesh.group_of(item.axis)[rank]) if rank < mesh.ranks.size else 0]
    nodes = len({int(member) // cluster.gpus_per_node for member in group})
    fabric = cluster.fabric.name if cluster.fabric is not None and nodes > 1 else None
    # A part of a node has no file; the device's usual node stands for it.
    node = cluster.node.name if cluster.node.name in catalog.names("nodes") else None
    try:
        return cluster_of(cluster.node.device, nodes, len(group), fabric, node)
    except InputError as error:
        return error.message
