"""Laws of a collective algorithm: every rank receives and sends the least that any algorithm needs, and no link exceeds
its bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...base.errors import InputError
from ...network import Cluster, Traffic, build_cluster, collective, load_cluster
from ...network.kinds import KINDS
from ...program import COLLECTIVE_KINDS, RING_SHIFT
from .findings import Finding, judged

SIZE_BYTES = 1e9
#: Kinds in which all ranks of a group have the same part, except for a root.
EVERYBODYS = (*COLLECTIVE_KINDS, RING_SHIFT)


def hold(thing: Any) -> Iterator[Finding]:
    """Findings over a mesh, a switched node, and two nodes, for every kind that the algorithm claims."""
    clusters = {
        "eight GPUs of a mesh": load_cluster("mi300x-8"),
        "eight GPUs of a switch": load_cluster("hgx-h100-8"),
        "two nodes of eight": build_cluster("mi300x", 2, "rails-400g"),
    }
    ran = 0
    for where, cluster in clusters.items():
        for kind in thing.kinds:
            name = f"{kind} over {where}"
            try:
                moved = collective(cluster, range(cluster.gpus), kind, SIZE_BYTES, algorithm=thing.name)
            except InputError as error:
                yield Finding("it runs", name, "left out", error.message)
                continue
            ran += 1
            yield from kept(cluster, kind, moved, name)
    if not ran:
        yield Finding("it runs", "all of these", "left out", "none has what it needs: give --scenario FILE that does")


def kept(cluster: Cluster, kind: str, moved: Traffic, where: str) -> Iterator[Finding]:
    """Least bytes that every rank receives and sends (a switch may merge contributions), and rates of links."""
    into, out = _through(cluster, moved)
    of, ranks = KINDS.get(kind), cluster.gpus
    summed = of.reduces and of.passes == 1  # a switch, or a rank on the way, may add up contributions
    share = 1.0 / ranks if summed else (ranks - 1) / ranks if of.keeps_own and not of.rooted else 1.0
    least = SIZE_BYTES * share
    short = [rank for rank in range(ranks) if into.get(rank, 0.0) < least * (1.0 - 1e-9)]
    short = [rank for rank in short if not (of.rooted and rank == 0)]
    why = f"GPU {short[0]} receives {into.get(short[0], 0.0):,.0f} of {least:,.0f} bytes" if short else ""
    if kind in EVERYBODYS:
        yield judged("every rank receives what it lacks", where, not short, why)
    sent = sum(out.get(rank, 0.0) for rank in range(ranks))
    yield judged("ranks send something", where, sent > 0.0, "no byte leaves a GPU")
    rates = cluster.bandwidth_bytes_per_s
    slowest_s = max((size / rates[link] for link, size in zip(moved.links, moved.link_bytes, strict=True)), default=0.0)
    why = f"it takes {moved.fluid_s:.3g} s, its busiest link alone {slowest_s:.3g} s"
    yield judged("no link is faster than it is", where, moved.fluid_s >= slowest_s * (1.0 - 1e-9), why)
    yield judged("steps take time", where, moved.latency_s > 0.0, "its latency is nothing")


def _through(cluster: Cluster, moved: Traffic) -> tuple[dict[Any, float], dict[Any, float]]:
    """Bytes into and out of every vertex."""
    into: dict[Any, float] = {}
    out: dict[Any, float] = {}
    for link, size in zip(moved.links, moved.link_bytes, strict=True):
        source, target = cluster.links.source[link], cluster.links.target[link]
        out[source] = out.get(source, 0.0) + size
        into[target] = into.get(target, 0.0) + size
    return into, out
