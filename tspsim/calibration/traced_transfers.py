"""Transfers of measured steps as rows that move a node's or a fabric's numbers, as a table of nccl-tests would.

Only transfers that ran alone tell what a library takes: beside kernels both give way. What of a transfer was waiting
for the last rank is left out where several ranks' profiles tell it. All-reduces of an engine's own kernels and
exchanges with experts are rows of the node's file like those of a library.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..base import catalog
from ..base.errors import InputError
from ..network import Cluster
from ..network.collectives.algorithm import ALGORITHMS
from ..network.collectives.exchange import ExpertExchange
from ..network.collectives.experts import ExpertPhase
from ..parallel import build_mesh
from ..program import COLLECTIVE_KINDS
from ..program.mesh import Mesh
from ..traces.comparison import Laid
from ..traces.kinds import COLLECTIVES
from ..traces.learned import kernels_found
from ..traces.simulated import Operation
from ..validation.collectives import cluster_of
from .measurements import MeasuredCollective, MeasuredExchange, MeasuredTransfer
from .network_files import MeasuredTransfers

#: Names of NCCL's and RCCL's kernels, whose numbers a node's file has.
_OF_A_LIBRARY = re.compile(r"nccl|rccl", re.IGNORECASE)
#: What a node's file calls a library whose numbers are from steps.
IN_STEPS = "in steps"
#: Share of a transfer's time in which other kernels may run beside it.
ALONE = 0.2


@dataclass(frozen=True)
class _Beside:
    """Kernels of a step, by which a stretch is alone or not: union of their spans."""

    starts: NDArray[np.float64]
    ends: NDArray[np.float64]

    @classmethod
    def of(cls, laid: Laid) -> _Beside:
        trace = laid.trace
        rows = np.flatnonzero(~np.isin(trace.word("kind"), COLLECTIVES))
        rows = rows[np.argsort(trace.columns["start_s"][rows], kind="stable")]
        return cls(trace.columns["start_s"][rows], trace.end_s[rows])

    def share(self, start: float, end: float) -> float:
        """The share of a stretch in which any of them runs."""
        inside = (self.starts < end) & (self.ends > start)
        spans = zip(np.maximum(self.starts[inside], start), np.minimum(self.ends[inside], end), strict=True)
        busy, last = 0.0, start
        for begin, stop in spans:
            busy += max(stop - max(begin, last), 0.0)
            last = max(last, stop)
        return busy / (end - start) if end > start else 0.0


def transfers_of(steps: Sequence[Laid]) -> MeasuredTransfers:
    """The transfers of steps that were laid over their scenarios, by the file that they may move."""
    nodes: dict[str, list[MeasuredTransfer]] = {}
    fabrics: dict[str, list[MeasuredTransfer]] = {}
    left_out: Counter[str] = Counter()
    for laid in steps:
        beside, found = _Beside.of(laid), kernels_found(laid)
        cluster = laid.lane.question.cluster
        mesh = build_mesh(laid.lane.job.plan, cluster.gpus, cluster.gpus_per_node)
        columns, ends, names = laid.trace.columns, laid.trace.end_s, laid.trace.word("name")
        for index, rows in found.items():
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
            if beside.share(start, end) > ALONE:
                left_out[f"{item.kind} beside kernels, where both give way"] += 1
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
            # Exchanges with experts stand in the node's file, across nodes too.
            file = (nodes, own.node.name) if own.fabric is None or exchanged else (fabrics, own.fabric.name)
            file[0].setdefault(file[1], []).append(row)
    reasons = tuple(f"{count} transfers: {reason}" for reason, count in sorted(left_out.items()))
    return MeasuredTransfers(nodes, fabrics, reasons)


def _engine_of(laid: Laid, item: Operation) -> str:
    """The library of all-reduces that a step's engine has in the node's file; empty where it has none."""
    own = f"{laid.lane.job.work.stack.name.partition('@')[0]} custom"
    known = {kernels.library for kernels in laid.lane.question.cluster.node.collectives.custom_all_reduce}
    return own if item.kind == "all_reduce" and own in known else ""


def _row(cluster: Cluster, item: Operation, ranks: int, library: str, seconds: float) -> MeasuredTransfer:
    """One measured transfer; raises InputError where the node has no numbers for it."""
    asked = item.collective
    if asked is None or asked.tokens is None:
        return MeasuredCollective(cluster, item.kind, ranks, item.size_bytes, library, seconds)
    algorithm = ALGORITHMS.get(asked.algorithm or "")
    if not isinstance(algorithm, ExpertPhase):
        raise InputError(f"{item.kind} of no library that moves tokens to experts")
    exchange = ExpertExchange(**asked.tokens._asdict())
    return MeasuredExchange.of(cluster, algorithm.phase, algorithm.mode, ranks, exchange, seconds)


def _ranks(mesh: Mesh, item: Operation) -> int:
    return int(mesh.groups(item.axis).shape[1])


def _on(cluster: Cluster, mesh: Mesh, item: Operation, rank: int) -> Cluster | str:
    """The cluster of as many nodes and ranks as a transfer's group has; why not where the catalog has none such."""
    groups = mesh.groups(item.axis)
    group = groups[int(mesh.group_of(item.axis)[rank]) if rank < mesh.ranks.size else 0]
    nodes = len({int(member) // cluster.gpus_per_node for member in group})
    fabric = cluster.fabric.name if cluster.fabric is not None and nodes > 1 else None
    # A part of a node is no file's; the device's usual node stands for it.
    node = cluster.node.name if cluster.node.name in catalog.names("nodes") else None
    try:
        return cluster_of(cluster.node.device, nodes, len(group), fabric, node)
    except InputError as error:
        return error.message
