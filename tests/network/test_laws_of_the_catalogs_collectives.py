"""Laws that collectives of every node and fabric of the catalog keep, by every library and algorithm that they have.

A collective of more bytes takes no less time. One of more ranks with equal parts neither, where ranks have parts: who
sends the same to all, a ring's shift, and pools get more links or NICs with every rank. Better links make none slower,
nor faster than they are better, and none beats the bytes that every rank must get or give over all of its links.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.better_machines import better

from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.network import ALGORITHMS, Cluster, build_cluster, collective, load_cluster
from tspsim.network.kinds import KINDS

NODES = catalog.names("nodes")
FABRICS = catalog.names("fabrics")
SIZES = [2.0**power for power in np.arange(6.0, 34.5, 2.75)]
#: Decimals of sums of many terms.
EXACT = 1.0 + 1e-9
#: By how much more ranks are faster, by algorithm: the factor, and the reason.
FASTER = {
    "multi_ring": (1.5, "four ranks of a mesh divide into no rings that use all links (Tillson 1980); two of three do"),
    "in_switch": (1.7, "reductions in a switch were measured from five ranks on; libraries leave fewer to rings"),
}
#: The same of RCCL on Instinct nodes, between all eight GPUs and fewer: its direct-access kernels and MSCCL's are for
#: eight ranks alone (ROCm/rocm-systems issue 9049, ``comm->nRanks == kDdaNranks``; ROCm/rccl pull request 1088), so
#: fewer run rings with the constants of its tuner. Without those kernels, and in engines' own, fewer GPUs take no
#: longer.
EIGHT_ALONE = 2.7
WITHOUT_THEM = "RCCL dda_off_default_ring_tree"
#: The same of a mesh where some pairs have two links (DGX-1).
UNEVEN = 1.0001


@cache
def nodes_on(fabric: str) -> Cluster:
    """Four nodes on a fabric, of the first device that may have it."""
    for node in ("hgx-h100-8", "mi300x-8", "gb200-nvl72", "frontier-8"):
        try:
            return build_cluster(node=node, nodes=4, fabric=fabric)
        except InputError:
            continue
    raise AssertionError(f"no node for {fabric}")


def groups(cluster: Cluster) -> list[tuple[int, ...]]:
    """Groups of ranks, each with all of the one before: inside a node, or as many of every node."""
    local = cluster.gpus_per_node
    if cluster.nodes == 1:
        counts = [count for count in (2, 4, 8, 16, 72) if count <= local]
        return [tuple(range(count)) for count in counts]
    return [
        tuple(node * local + rank for node in range(nodes) for rank in range(ranks))
        for nodes, ranks in ((2, 1), (3, 1), (4, 1), (4, min(8, local)))
    ]


def asked(cluster: Cluster) -> Iterator[tuple[str, str | None, str | None]]:
    """Kind, algorithm and library: as the node's library chooses, each library that was measured, each algorithm."""
    libraries = cluster.node.collectives.libraries
    for kind in KINDS:
        yield kind, None, None
        yield from ((kind, None, library) for library in libraries)
        yield from ((kind, name, None) for name in ALGORITHMS if kind in ALGORITHMS.get(name).kinds)


def time_s(
    cluster: Cluster, ranks: tuple[int, ...], kind: str, size: float, algorithm: str | None, library: str | None
) -> float | None:
    """Seconds of a collective alone; None where an algorithm, an engine's own kernel, or a ring's shift cannot run."""
    try:
        return collective(cluster, ranks, kind, size, algorithm=algorithm, library=library).alone_s
    except InputError:
        return None


def least_s(cluster: Cluster, rank: int, kind: str, size: float, ranks: int) -> float:
    """What a rank must get or give, over all of its links; sums may be made in a switch or on the way."""
    into, out = (
        sum(bandwidth for end, bandwidth in zip(ends, cluster.bandwidth_bytes_per_s, strict=True) if end == rank)
        for ends in (cluster.links.target, cluster.links.source)
    )
    others = size * (ranks - 1) / ranks
    must = {
        "all_gather": (others, size / ranks), "reduce_scatter": (size / ranks, others), "all_to_all": (others, others),
        "all_reduce": (others, others), "broadcast": (0.0, 0.0), "ring_shift": (size, size),
    }.get(kind, (0.0, 0.0))  # fmt: skip
    return max(must[0] / into, must[1] / out)


def check(cluster: Cluster) -> int:
    """Bytes, ranks and bound; how many collectives were compared."""
    count = 0
    for kind, algorithm, library in asked(cluster):
        what = cluster.name, kind, algorithm, library
        of_parts: list[list[float]] = []
        for ranks in groups(cluster):
            n = len(ranks)
            times = [time_s(cluster, ranks, kind, size, algorithm, library) for size in SIZES]
            known = [seconds for seconds in times if seconds is not None]
            if len(known) < len(SIZES):
                assert not known, what
                continue
            count += len(known)
            assert all(small <= large * EXACT for small, large in pairwise(known)), (*what, n)
            least = least_s(cluster, ranks[0], kind, 1.0, n)
            wrong = [(size, s) for size, s in zip(SIZES, known, strict=True) if s * EXACT < size * least]
            assert not wrong, (*what, n, wrong[:2])
            if KINDS.get(kind).keeps_own and not KINDS.get(kind).rooted:
                of_parts.append([time_s(cluster, ranks, kind, n * size, algorithm, library) or 0.0 for size in SIZES])
        allowed = FASTER.get(algorithm or "", (UNEVEN, ""))[0]
        engines = [kernels.library for kernels in cluster.node.collectives.custom_all_reduce]
        curves = [one for one in cluster.node.collectives.curves if kind in one.kinds and one.ranks[0] > 2]
        if library not in (WITHOUT_THEM, *engines) and any(not one.in_switch for one in curves):
            allowed = max(allowed, EIGHT_ALONE)
        for few, many in pairwise(of_parts):
            faster = [(size, a, b) for size, a, b in zip(SIZES, few, many, strict=True) if a > b * allowed]
            assert not faster, (*what, faster[:2])
    return count


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("name", NODES)
def test_collectives_of_a_node_keep_the_laws(name: str) -> None:
    cluster = load_cluster(name)
    assert check(cluster) >= 5 * len(SIZES) or cluster.gpus == 1


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("name", FABRICS)
def test_collectives_between_nodes_keep_the_laws(name: str) -> None:
    assert check(nodes_on(name)) >= 5 * len(SIZES)


def compare(usual: Cluster, faster: Cluster, factor: float) -> None:
    for kind, algorithm, library in asked(usual):
        for ranks in groups(usual)[-2:]:
            for size in SIZES[::3]:
                one, other = (time_s(on, ranks, kind, size, algorithm, library) for on in (usual, faster))
                if one is None or other is None:
                    assert one is other
                    continue
                what = usual.name, kind, algorithm, library, len(ranks), size, one, other
                assert one / factor <= other * UNEVEN and other <= one * UNEVEN, what


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("name", NODES)
def test_a_node_with_better_links_is_not_slower_and_gains_no_more_than_they_are_better(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = load_cluster(name)
    compare(usual, build_cluster(node=better(tmp_path, "nodes", name, 1.25)), 1.25)


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("name", FABRICS)
def test_a_fabric_with_better_nics_is_not_slower_and_gains_no_more_than_they_are_better(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = nodes_on(name)
    faster = build_cluster(node=usual.node.name, nodes=4, fabric=better(tmp_path, "fabrics", name, 1.5))
    compare(usual, faster, 1.5)


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("name", NODES)
def test_slow_links_make_no_collective_faster(name: str) -> None:
    usual = load_cluster(name)
    slow = usual.with_links(dict.fromkeys(usual.links.cables, 0.8))
    compare(slow, usual, 1.0 / 0.8)
