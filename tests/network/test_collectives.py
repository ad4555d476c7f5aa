"""Collectives: bytes are conserved, algorithms use the links they should, large ones meet measurements."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base.errors import InputError, UnknownNameError
from tspsim.network import (
    ALGORITHMS,
    Cluster,
    Traffic,
    build_cluster,
    collective,
    load_cluster,
    point_to_point,
)
from tspsim.network.collectives.multi_ring import decomposition, hamiltonian_cycles
from tspsim.network.collectives.tree import double_tree
from tspsim.program import COLLECTIVE_KINDS, RING_SHIFT

MIB, GIB = 2**20, 2**30
BUS = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1.0}


def bus_bandwidth(traffic: Traffic, kind: str, ranks: int, size_bytes: float) -> float:
    """GB/s as nccl-tests defines it (doc/PERFORMANCE.md)."""
    factor = BUS.get(kind, lambda n: (n - 1) / n)(ranks)
    return factor * size_bytes / (traffic.latency_s + traffic.fluid_s) / 1e9


def moved(cluster: Cluster, traffic: Traffic) -> tuple[dict[int | str, float], dict[int | str, float]]:
    """Bytes into and out of every vertex."""
    into: dict[int | str, float] = {}
    out: dict[int | str, float] = {}
    for link, size in zip(traffic.links, traffic.link_bytes, strict=True):
        u, v = cluster.links.source[link], cluster.links.target[link]
        out[u] = out.get(u, 0.0) + size
        into[v] = into.get(v, 0.0) + size
    return into, out


CLUSTERS = {
    "mesh": load_cluster("mi300x-8"),
    "switch": load_cluster("hgx-h100-8"),
    "mesh nodes on rails": build_cluster("mi300x", 3, "rails-400g"),
    "switched nodes on rails": build_cluster("b200", 4, "rails-400g"),
    "switched nodes on a fat tree": build_cluster("h100", 5, "fat-tree-400g"),
    "racks": build_cluster("gb200", 2, "rail-optimised-400g"),
}


@st.composite
def groups(draw: st.DrawFn) -> tuple[Cluster, tuple[int, ...]]:
    """Some of one node, the same of every node, or any GPUs at all."""
    cluster = CLUSTERS[draw(st.sampled_from(sorted(CLUSTERS)))]
    per_node = min(cluster.gpus_per_node, 12)
    local = st.lists(st.integers(0, per_node - 1), min_size=1, max_size=per_node, unique=True)
    shape = draw(st.sampled_from(["node", "every node", "any"]))
    if shape == "any":
        ranks = draw(st.lists(st.integers(0, cluster.gpus - 1), min_size=2, max_size=12, unique=True))
    elif shape == "node":
        node = draw(st.integers(0, cluster.nodes - 1))
        ranks = [node * cluster.gpus_per_node + i for i in draw(local)]
    else:
        ranks = [n * cluster.gpus_per_node + i for i in draw(local) for n in range(cluster.nodes)]
    return cluster, tuple(ranks)


@settings(max_examples=70, deadline=None)
@given(groups(), st.sampled_from(COLLECTIVE_KINDS), st.sampled_from([None, *ALGORITHMS]), st.data())
def test_every_rank_gets_and_gives_at_least_what_it_must(
    group: tuple[Cluster, tuple[int, ...]], kind: str, algorithm: str | None, data: st.DataObject
) -> None:
    cluster, ranks = group
    n, size = len(ranks), 1e9
    root = data.draw(st.integers(0, n - 1))
    try:
        traffic = collective(cluster, ranks, kind, size, root=root, algorithm=algorithm)
    except InputError as error:
        assert algorithm is not None and "cannot run" in str(error)
        return
    if n == 1:
        assert traffic.links == ()
        return
    into, out = moved(cluster, traffic)
    for position, rank in enumerate(ranks):
        received, sent = into.get(rank, 0.0), out.get(rank, 0.0)
        # What no algorithm can avoid (a reduction in the switch or on the way may merge what others send).
        least_in = {"broadcast": size * (position != root), "reduce_scatter": size / n}.get(kind, size * (n - 1) / n)
        least_out = {"broadcast": size * (position == root), "all_gather": size / n}.get(kind, size * (n - 1) / n)
        assert received >= least_in * (1 - 1e-9)
        assert sent >= least_out * (1 - 1e-9)
    if traffic.algorithm not in ("in_switch", "two_level"):
        for vertex in {*into, *out} - set(range(cluster.gpus)):  # switches and NICs keep and add nothing
            assert into[vertex] == pytest.approx(out[vertex], rel=1e-9)
    bandwidth = cluster.bandwidth_bytes_per_s
    slowest = max(b / bandwidth[link] for link, b in zip(traffic.links, traffic.link_bytes, strict=True))
    assert traffic.fluid_s >= slowest * (1 - 1e-12)
    assert traffic.latency_s > 0.0
    assert len(set(traffic.links)) == len(traffic.links)


@pytest.mark.parametrize("name", ["mi300x-8", "hgx-h100-8"])
@pytest.mark.parametrize("algorithm", ["ring", "multi_ring", "direct"])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 1, 2, 3, 4, 5, 6, 7), (1, 3, 4, 6)])
def test_rings_and_direct_exchange_move_exactly_what_is_needed(
    name: str, algorithm: str, kind: str, ranks: tuple[int, ...]
) -> None:
    cluster = load_cluster(name)
    if algorithm == "multi_ring" and name == "hgx-h100-8":
        with pytest.raises(InputError, match="cannot run"):
            collective(cluster, ranks, kind, GIB, algorithm=algorithm)
        return
    into, out = moved(cluster, collective(cluster, ranks, kind, GIB, algorithm=algorithm))
    n = len(ranks)
    for rank in ranks:
        assert into[rank] == out[rank] == pytest.approx(GIB * (n - 1) / n, rel=1e-12)


@pytest.mark.parametrize("n", range(2, 17))
def test_hamiltonian_cycles_share_no_arc(n: int) -> None:
    cycles = hamiltonian_cycles(n)
    arcs = [arc for cycle in cycles for arc in pairwise((*cycle, cycle[0]))]
    assert len(set(arcs)) == len(arcs) == n * len(cycles)
    assert all(sorted(cycle) == list(range(n)) for cycle in cycles)
    assert len(cycles) == (n - 1 if n % 2 or n in (2, 8) else n - 2)


def test_k8_decomposes_into_seven_cycles_and_k4_and_k6_do_not() -> None:
    cycles = decomposition(8)
    assert cycles is not None
    arcs = {arc for cycle in cycles for arc in pairwise((*cycle, cycle[0]))}
    assert arcs == {(u, v) for u in range(8) for v in range(8) if u != v}
    assert decomposition(4) is None
    assert decomposition(6) is None


@pytest.mark.parametrize("n", range(1, 40))
def test_nobody_feeds_more_than_two_over_both_trees(n: int) -> None:
    """So nobody sends more than the whole payload down, half of it in each of two directions."""
    trees = double_tree(n)
    assert max(trees[0].count(vertex) + trees[1].count(vertex) for vertex in range(n)) <= 2
    for tree in trees:
        assert tree.count(None) == 1
        for vertex in range(n):
            depth, above = 0, tree[vertex]
            while above is not None:
                depth, above = depth + 1, tree[above]
            assert depth <= max(1, n - 1).bit_length()


def test_a_subgroup_of_a_mesh_owns_only_its_links() -> None:
    cluster = load_cluster("mi300x-8")
    fluid = {n: collective(cluster, range(n), "all_gather", GIB, algorithm="direct").fluid_s for n in (2, 4, 8)}
    bus = {n: (n - 1) / n / seconds for n, seconds in fluid.items()}
    assert bus[2] / bus[8] == pytest.approx(1 / 7)
    assert bus[4] / bus[8] == pytest.approx(3 / 7)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_a_ring_pinned_on_a_mesh_gets_one_link_of_seven(kind: str) -> None:
    cluster = load_cluster("mi300x-8")
    one, seven, direct = (
        collective(cluster, range(8), kind, GIB, algorithm=name) for name in ("ring", "multi_ring", "direct")
    )
    # All seven links either way; the all-reduce over all of them is as measured, the others by the links' efficiency.
    assert one.fluid_s / seven.fluid_s == pytest.approx(7, rel=0.06 if kind == "all_reduce" else 1e-9)
    assert seven.fluid_s == pytest.approx(direct.fluid_s)
    assert len(one.links) == (7 if kind == "broadcast" else 8)
    assert len(seven.links) == (49 if kind == "broadcast" else 56)
    chosen = collective(cluster, range(8), kind, GIB)
    assert chosen.fluid_s == pytest.approx(direct.fluid_s)


def test_a_hop_goes_round_one_link_of_a_gpu_or_all_seven_alike() -> None:
    """Every rank sends a block to the next: round one ring 8 links carry it, round seven all 56 a seventh of it."""
    cluster = load_cluster("mi300x-8")
    one, seven = (collective(cluster, range(8), RING_SHIFT, GIB, algorithm=name) for name in ("ring", "multi_ring"))
    assert dict.fromkeys(one.link_bytes) == {GIB: None} and len(one.links) == len(set(one.links)) == 8
    assert len(set(seven.links)) == 56 and list(seven.link_bytes) == pytest.approx([GIB / 7] * 56, rel=1e-12)
    assert one.fluid_s == pytest.approx(7 * seven.fluid_s, rel=1e-9)


@pytest.mark.parametrize("name", ["ring", "multi_ring"])
@pytest.mark.parametrize("ranks", [(0, 1), (1, 3, 4), (0, 2, 5, 7), range(7), range(8)])
@pytest.mark.parametrize("cluster", ["mi300x-8", "hgx-h100-8", "mi300x-2x8"])
def test_in_a_hop_each_rank_sends_what_it_receives(cluster: str, ranks: tuple[int, ...], name: str) -> None:
    found = load_cluster(cluster)
    both = [*ranks, *(8 + rank for rank in ranks)] if found.nodes == 2 else list(ranks)
    into, out = moved(found, collective(found, both, RING_SHIFT, GIB, algorithm=name))
    for rank in both:
        assert into[rank] == pytest.approx(GIB, rel=1e-12) and out[rank] == pytest.approx(GIB, rel=1e-12)


def test_behind_a_switch_several_rings_hop_no_faster_than_one() -> None:
    """A port sends as much along seven rings as along one."""
    cluster = load_cluster("hgx-h100-8")
    one, seven = (collective(cluster, range(8), RING_SHIFT, GIB, algorithm=name) for name in ("ring", "multi_ring"))
    assert seven.alone_s == pytest.approx(one.alone_s, rel=1e-12)


@pytest.mark.parametrize("name", ["ring", "multi_ring"])
def test_a_hop_stays_inside_nodes_which_take_as_long_as_one(name: str) -> None:
    single, two = load_cluster("mi300x-8"), load_cluster("mi300x-2x8")
    alone = collective(single, range(8), RING_SHIFT, GIB, algorithm=name)
    traffic = collective(two, range(16), RING_SHIFT, GIB, algorithm=name)
    kinds = {two.links.kind[link] for link in traffic.links}
    ends = [(two.links.source[link], two.links.target[link]) for link in traffic.links]
    assert kinds == {"xgmi"} and len(traffic.links) == 2 * len(alone.links)
    assert all(int(source) // 8 == int(target) // 8 for source, target in ends)
    assert traffic.alone_s == alone.alone_s


def test_several_rings_need_as_many_ranks_in_the_same_places_of_every_node() -> None:
    cluster = load_cluster("mi300x-2x8")
    for ranks in ([0, 1, 2, 8], [0, 1, 9, 10], [0, 8]):
        with pytest.raises(InputError, match="cannot run ring_shift"):
            collective(cluster, ranks, RING_SHIFT, GIB, algorithm="multi_ring")


def test_rings_reach_two_links_of_three_on_four_gpus_and_direct_exchange_all() -> None:
    cluster = load_cluster("mi355x-8")
    rings, direct = (
        collective(cluster, range(4), "all_reduce", GIB, algorithm=name) for name in ("multi_ring", "direct")
    )
    assert rings.fluid_s / direct.fluid_s == pytest.approx(3 / 2)


@pytest.mark.parametrize("name", ["hgx-h100-8", "hgx-b200-8", "hgx-a100-80gb-8"])
def test_a_pair_behind_a_switch_is_not_cut_to_a_seventh(name: str) -> None:
    cluster = load_cluster(name)
    pair, all_ = (collective(cluster, range(n), "all_gather", GIB, algorithm="ring") for n in (2, 8))
    busbw = [bus_bandwidth(t, "all_gather", n, GIB) for t, n in ((pair, 2), (all_, 8))]
    assert busbw[0] > 0.6 * busbw[1]


def test_a_reduction_in_the_switch_pays_from_a_handful_of_gpus() -> None:
    """Measured on H200: ring as good at 4, 1.14 times at 5, 1.29 times at 8 (nvls_gain_by_gpu_count.csv)."""
    cluster = load_cluster("hgx-h200-8")
    gain = {
        n: collective(cluster, range(n), "all_reduce", 16 * GIB, algorithm="ring").fluid_s
        / collective(cluster, range(n), "all_reduce", 16 * GIB, algorithm="in_switch").fluid_s
        for n in (2, 4, 8)
    }
    assert gain[2] < 1.0
    assert 0.95 < gain[4] < 1.15
    assert 1.2 < gain[8] < 1.4
    with pytest.raises(InputError, match="cannot run all_reduce"):
        collective(load_cluster("hgx-a100-80gb-8"), range(8), "all_reduce", GIB, algorithm="in_switch")


@pytest.mark.parametrize(
    ("kind", "out", "into"),
    [
        ("all_reduce", [1.25] * 4, [1.25] * 4),
        ("reduce_scatter", [1.0] * 4, [0.25] * 4),
        ("all_gather", [0.25] * 4, [1.0] * 4),
        ("broadcast", [0.0, 0.0, 1.0, 0.0], [1.0] * 4),
    ],
)
def test_the_switch_reads_and_writes_every_rank_once(kind: str, out: list[float], into: list[float]) -> None:
    """What multimem.ld_reduce and multimem.st move for four ranks that own a quarter each."""
    cluster = load_cluster("hgx-h100-8")
    traffic = collective(cluster, (1, 3, 4, 6), kind, 1.0, root=2, algorithm="in_switch")
    received, sent = moved(cluster, traffic)
    assert [sent.get(rank, 0.0) for rank in (1, 3, 4, 6)] == out
    assert [received.get(rank, 0.0) for rank in (1, 3, 4, 6)] == into


#: Measured bus bandwidths, GB/s. Sources: MI300X: stas00/ml-engineering (2 GPUs), ROCm blog on xGMI (8).
#: MI355X: rocm-systems #9049, #9040, PR 10072. H100, B200: aiconfigurator; at 16 GiB stas00/ml-engineering.
ANCHORS = [
    ("mi300x-8", 2, 4 * GIB, 47.7, 0.15),
    ("mi300x-8", 8, GIB, 315, 0.15),
    ("mi300x-8", 8, 16 * GIB, 319, 0.15),
    ("mi355x-8", 2, 64 * MIB, 55.6, 0.15),
    ("mi355x-8", 4, 64 * MIB, 155.8, 0.15),
    ("mi355x-8", 8, GIB, 382, 0.15),
    ("mi355x-8", 8, 4 * GIB, 388, 0.15),
    ("hgx-h100-8", 2, 512 * MIB, 318, 0.15),
    ("hgx-h100-8", 4, 512 * MIB, 350, 0.15),
    ("hgx-h100-8", 8, 512 * MIB, 445, 0.15),
    ("hgx-h100-8", 8, 8 * GIB, 480, 0.15),
    ("hgx-b200-8", 2, 512 * MIB, 534, 0.15),
    ("hgx-b200-8", 4, 512 * MIB, 634, 0.15),
    ("hgx-b200-8", 8, 512 * MIB, 704, 0.20),  # 17 % over: its in-switch all-reduce ramps up until 16 GiB
    ("hgx-b200-8", 8, 16 * GIB, 846, 0.15),
    ("hgx-a100-80gb-8", 8, 512 * MIB, 222, 0.15),
]


@pytest.mark.parametrize(("name", "ranks", "size", "measured", "within"), ANCHORS)
def test_large_all_reduces_meet_measured_bus_bandwidth(
    name: str, ranks: int, size: int, measured: float, within: float
) -> None:
    traffic = collective(load_cluster(name), range(ranks), "all_reduce", size)
    assert bus_bandwidth(traffic, "all_reduce", ranks, size) == pytest.approx(measured, rel=within)


#: ROCm/cvs expects 330 to 350 (all-reduce and all-gather) and 340 to 360 (reduce-scatter) of two MI300X nodes at
#: 8 and 16 GB; dstack's documentation measured 703 on B200 and 468 on H100.
@pytest.mark.parametrize(
    ("name", "kind", "size", "measured"),
    [
        ("mi300x-2x8", "all_reduce", 16 * GIB, 345),
        ("mi300x-2x8", "all_gather", 16 * GIB, 350),
        ("mi300x-2x8", "reduce_scatter", 16 * GIB, 360),
        ("mi300x-2x8", "broadcast", 16 * GIB, 312),
        ("b200-2x8", "all_reduce", 2 * GIB, 703),
        ("h100-2x8", "all_reduce", 8 * GIB, 468),
    ],
)
def test_two_nodes_meet_measured_bus_bandwidth(name: str, kind: str, size: int, measured: float) -> None:
    traffic = collective(load_cluster(name), range(16), kind, size)
    assert bus_bandwidth(traffic, kind, 16, size) == pytest.approx(measured, rel=0.15)


def test_rings_between_nodes_use_every_nic_alike_and_cross_once_a_rail() -> None:
    cluster = build_cluster("h100", 4, "rails-400g")
    traffic = collective(cluster, range(32), "all_gather", GIB, algorithm="ring")
    nics = [b for link, b in zip(traffic.links, traffic.link_bytes, strict=True) if cluster.links.kind[link] == "nic"]
    assert len(nics) == 2 * 32
    assert nics == pytest.approx([GIB * 31 / 32 / 8] * 64)


def test_one_gpu_a_node_stays_on_its_rail() -> None:
    cluster = build_cluster("mi300x", 6, "rails-400g")
    for kind in COLLECTIVE_KINDS:
        traffic = collective(cluster, range(3, 48, 8), kind, GIB)
        ends = {str(cluster.links.source[link]) for link in traffic.links}
        assert all("nic3" in end or end.startswith("rail3") or end.isdigit() for end in ends)
        assert not any(cluster.links.kind[link] == "xgmi" for link in traffic.links)


def test_two_levels_spare_the_rails() -> None:
    """Of an all-gather's bytes, a NIC takes in what its own rail's peers hold, and no more."""
    cluster = build_cluster("mi300x", 4, "rails-400g")
    traffic = collective(cluster, range(32), "all_gather", GIB, algorithm="two_level")
    into, _ = moved(cluster, traffic)
    assert into["node2/nic5"] == pytest.approx(2 * GIB * 3 / 4 / 8)  # from its leaf, and as much from its GPU


@settings(max_examples=35, deadline=None)
@given(groups(), st.sampled_from(COLLECTIVE_KINDS), st.floats(1.0, 1e10), st.floats(1.0, 10.0))
def test_more_bytes_are_never_faster(
    group: tuple[Cluster, tuple[int, ...]], kind: str, size: float, factor: float
) -> None:
    cluster, ranks = group
    few, many = (collective(cluster, ranks, kind, s) for s in (size, size * factor))
    assert few.latency_s + few.fluid_s <= (many.latency_s + many.fluid_s) * (1 + 1e-12)


@settings(max_examples=25, deadline=None)
@given(groups(), st.sampled_from(COLLECTIVE_KINDS), st.floats(1e3, 1e10), st.data())
def test_less_bandwidth_is_never_faster(
    group: tuple[Cluster, tuple[int, ...]], kind: str, size: float, data: st.DataObject
) -> None:
    cluster, ranks = group
    link = data.draw(st.integers(0, len(cluster.links) - 1))
    pair = cluster.links.source[link], cluster.links.target[link]
    slow = cluster.with_links({pair: data.draw(st.floats(0.05, 1.0))})
    before, after = collective(cluster, ranks, kind, size), collective(slow, ranks, kind, size)
    assert after.latency_s + after.fluid_s >= (before.latency_s + before.fluid_s) * (1 - 1e-12)


def test_a_slow_link_slows_its_node_and_no_other() -> None:
    cluster = build_cluster("mi300x", 2, "rails-400g")
    slow = cluster.with_links({(0, 1): 0.5})
    first, second = (collective(slow, range(n * 8, n * 8 + 8), "all_gather", GIB) for n in (0, 1))
    healthy = collective(cluster, range(8), "all_gather", GIB)
    assert second.fluid_s == healthy.fluid_s
    assert 1.0 < first.fluid_s / healthy.fluid_s <= 2.0


@pytest.mark.parametrize("name", ["mi300x-16x8", "h100-16x8"])
@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_nodes_are_alike(name: str, kind: str) -> None:
    """A group's cost does not depend on its node; its links are those of its own node."""
    cluster = load_cluster(name)
    first, other = (collective(cluster, [n * 8 + i for i in (0, 2, 5)], kind, MIB, root=1) for n in (0, 11))
    assert (first.algorithm, first.latency_s, first.fluid_s) == (
        other.algorithm,
        other.latency_s,
        other.fluid_s,
    )
    assert first.link_bytes == other.link_bytes
    shift = np.array(other.links) - np.array(first.links)
    assert set(shift.tolist()) == {11 * cluster.layout.node_links}


def test_the_order_of_ranks_does_not_matter_but_the_root_does() -> None:
    cluster = load_cluster("mi300x-8")
    up, down = (collective(cluster, ranks, "all_gather", MIB) for ranks in ((1, 4, 6), (6, 4, 1)))
    assert up == down
    into, _ = moved(cluster, collective(cluster, (6, 4, 1), "broadcast", MIB, root=2))
    assert into.get(1, 0.0) == 0.0
    assert min(into[4], into[6]) >= MIB


def test_small_messages_take_the_low_latency_protocol() -> None:
    cluster = load_cluster("hgx-h100-8")
    small, large = (collective(cluster, range(8), "all_gather", size, algorithm="ring") for size in (1024, GIB))
    assert small.latency_s == pytest.approx(10.4e-6, rel=0.1)  # measured: all-gather of 1 KiB on eight H100
    curve = cluster.node.collectives.curves[0]
    assert large.latency_s == pytest.approx(curve.base[2] + 7 * curve.hop[2], rel=0.01)


def test_many_nodes_take_trees_for_small_all_reduces() -> None:
    cluster = load_cluster("h100-128x8")
    ring, tree, chosen = (
        collective(cluster, range(1024), "all_reduce", 64 * 1024, algorithm=name) for name in ("ring", "tree", None)
    )
    assert tree.latency_s < ring.latency_s / 10
    assert chosen.latency_s + chosen.fluid_s <= tree.latency_s + tree.fluid_s


def test_a_message_crosses_the_links_of_its_route() -> None:
    cluster = build_cluster("mi300x", 2, "rails-400g")
    traffic = point_to_point(cluster, 1, 13, 1e9)
    assert sorted(traffic.links) == sorted(cluster.route(1, 13))
    assert set(traffic.link_bytes) == {1e9}
    near = point_to_point(cluster, 0, 1, 1e9)
    assert near.fluid_s == pytest.approx(1e9 / 64e9 / 0.727)
    assert point_to_point(cluster, 3, 3, 1e9).links == ()


def test_nothing_to_move_takes_no_time() -> None:
    cluster = load_cluster("mi300x-8")
    for traffic in (
        collective(cluster, [3], "all_reduce", GIB),
        collective(cluster, range(8), "all_gather", 0),
    ):
        assert (traffic.latency_s, traffic.fluid_s, traffic.links) == (0.0, 0.0, ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "all_reduced"}, "did you mean 'all_reduce'"),
        ({"algorithm": "rings"}, "did you mean 'ring'"),
        ({"algorithm": "two_level"}, "cannot run all_reduce.*here: direct, ring, multi_ring, tree"),
        ({"size_bytes": -1}, "finite number of bytes"),
        ({"size_bytes": math.nan}, "finite number of bytes"),
        ({"ranks": [0, 0]}, "distinct"),
        ({"ranks": []}, "distinct"),
        ({"ranks": [0, 8]}, "0 to 7"),
        ({"kind": "broadcast", "root": 8}, "0 to 7"),
    ],
)
def test_wrong_arguments_are_told_in_one_line_that_helps(arguments: dict[str, object], message: str) -> None:
    question = {"ranks": range(8), "kind": "all_reduce", "size_bytes": 1.0} | arguments
    with pytest.raises(InputError, match=message):
        collective(load_cluster("mi300x-8"), **question)  # type: ignore[arg-type]


def test_unknown_names_are_unknown_name_errors() -> None:
    with pytest.raises(UnknownNameError):
        collective(load_cluster("mi300x-8"), range(8), "gather", 1.0)


def test_what_no_algorithm_runs_is_said_in_one_line() -> None:
    with pytest.raises(
        InputError, match=r"^no algorithm of hgx-h100-8 can run ring_shift on these 2 ranks; here: none"
    ):
        collective(CLUSTERS["switched nodes on a fat tree"], (0, 8), "ring_shift", MIB)
