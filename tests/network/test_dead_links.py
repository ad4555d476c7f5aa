"""Dead links: what goes round them, what that costs by hand, and when there is no way left."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base.errors import UnknownNameError, UnreachableError
from tspsim.network import Cluster, Flow, build_cluster, collective, finish_times, load_cluster, point_to_point
from tspsim.network.cluster import Vertex

XGMI = 64e9
NIC = 50e9


def dead(cluster: Cluster, *pairs: tuple[Any, Any]) -> Cluster:
    """The cluster with these links dead in both directions."""
    return cluster.with_links({ends: 0.0 for a, b in pairs for ends in ((a, b), (b, a))})


def visited(cluster: Cluster, source: int, destination: int, label: int = 0) -> list[Vertex]:
    path: list[Vertex] = [source]
    for link in cluster.route(source, destination, label):
        assert cluster.links.source[link] == path[-1]
        path.append(cluster.links.target[link])
    return path


def alone_s(cluster: Cluster, kind: str, algorithm: str, size_bytes: float = 1e9) -> float:
    return collective(cluster, range(8), kind, size_bytes, algorithm=algorithm).fluid_s


def test_a_pair_of_a_mesh_relays_over_another_gpu_and_others_keep_their_link() -> None:
    broken = dead(load_cluster("mi300x-8"), (0, 1))
    assert visited(broken, 0, 1) == [0, 2, 1] and visited(broken, 1, 0) == [1, 2, 0]
    assert visited(broken, 0, 2) == [0, 2]
    assert not broken.graph.has_edge(0, 1) and not broken.graph.has_edge(1, 0)


def test_detours_spread_over_relays() -> None:
    """GPU 0 has lost its links to 1, 2 and 3: each of the three has a relay of its own."""
    broken = dead(load_cluster("mi300x-8"), (0, 1), (0, 2), (0, 3))
    assert [visited(broken, 0, far)[1] for far in (1, 2, 3)] == [4, 5, 6]


def test_a_relayed_flow_shares_both_links_of_its_way_by_hand() -> None:
    """0 → 1 goes 0 → 2 → 1. The two flows on 0 → 2 get half each; when one is done the other has it all."""
    broken = dead(load_cluster("mi300x-8"), (0, 1))
    hop_s = broken.latency_s[0]
    relayed, direct = finish_times(broken, [Flow(0.0, 0, 1, 2 * XGMI), Flow(0.0, 0, 2, XGMI)])
    assert direct == pytest.approx(2.0 + hop_s)
    assert relayed == pytest.approx(3.0 + 2 * hop_s)


def test_a_direct_all_gather_waits_for_the_link_that_carries_two_flows() -> None:
    sound = load_cluster("mi300x-8")
    broken = dead(sound, (0, 1))
    traffic = collective(broken, range(8), "all_gather", 8e9, algorithm="direct")
    carried = {
        (broken.links.source[link], broken.links.target[link]): size
        for link, size in zip(traffic.links, traffic.link_bytes, strict=True)
    }
    assert {ends for ends, size in carried.items() if size == pytest.approx(2e9)} == {(0, 2), (2, 1), (1, 2), (2, 0)}
    assert (0, 1) not in carried and sum(carried.values()) == pytest.approx(58e9)
    assert alone_s(broken, "all_gather", "direct") == pytest.approx(2 * alone_s(sound, "all_gather", "direct"))


def test_rings_over_the_dead_link_are_left_out() -> None:
    """Seven rings use every link of the mesh once; two of them lose theirs, five carry all."""
    sound = load_cluster("mi300x-8")
    ratio = alone_s(dead(sound, (0, 1)), "all_reduce", "multi_ring") / alone_s(sound, "all_reduce", "multi_ring")
    assert ratio == pytest.approx(7 / 5)


def test_a_single_ring_relays_over_links_it_does_not_use() -> None:
    sound = load_cluster("mi300x-8")
    assert alone_s(dead(sound, (0, 1)), "all_reduce", "ring") == pytest.approx(alone_s(sound, "all_reduce", "ring"))


def test_a_relay_costs_the_latency_of_one_more_hop() -> None:
    sound = load_cluster("mi300x-8")
    step_s = sound.node.collectives.protocols[0].ring.hop
    longer = point_to_point(dead(sound, (0, 1)), 0, 1, 8.0).latency_s - point_to_point(sound, 0, 1, 8.0).latency_s
    assert longer == pytest.approx(step_s)


@pytest.mark.parametrize("fabric", ["rails-400g", "rail-optimised-400g", "fat-tree-400g"])
def test_a_gpu_whose_nic_is_dead_uses_a_neighbours(fabric: str) -> None:
    broken = build_cluster("mi300x", 2, fabric).without("node0/nic3")
    out, back = visited(broken, 3, 11), visited(broken, 11, 3)
    assert out[:3] == [3, 4, "node0/nic4"] and back[-3:] == ["node0/nic4", 4, 3]
    two = [Flow(0.0, 3, 11, NIC), Flow(0.0, 4, 12, NIC)]
    healthy = finish_times(build_cluster("mi300x", 2, fabric), two)
    for late, early in zip(finish_times(broken, two), healthy, strict=True):
        assert late == pytest.approx(2 * early, rel=1e-3)


def test_a_dead_rail_moves_to_another_rail_through_the_node() -> None:
    broken = build_cluster("mi300x", 2, "rails-400g").without("rail3/leaf0")
    assert visited(broken, 3, 11) == [3, 4, "node0/nic4", "rail4/leaf0", "node1/nic4", 12, 11]
    assert visited(broken, 3, 10) == [3, 2, "node0/nic2", "rail2/leaf0", "node1/nic2", 10]
    # To the dead rail from another one: along the sender's own, then inside the destination's node.
    assert visited(broken, 2, 11) == [2, "node0/nic2", "rail2/leaf0", "node1/nic2", 10, 11]


def test_a_ring_leaves_out_the_channel_whose_nic_is_dead() -> None:
    """Eight channels, one a NIC: the seven that are left carry an eighth of the bytes each times 8/7."""
    sound = build_cluster("h100", 2, "rails-400g")
    carried = []
    for cluster in (sound, sound.without("node0/nic3")):
        traffic = collective(cluster, range(16), "all_reduce", 1e10, algorithm="ring")
        wire = cluster.links.ids["node0/nic4", "rail4/leaf0"]
        carried.append(traffic.link_bytes[traffic.links.index(wire)])
    assert carried[1] / carried[0] == pytest.approx(8 / 7)


def test_a_dead_spine_leaves_the_others() -> None:
    cluster = build_cluster("h100", 32, "rail-optimised-400g")
    usual = visited(cluster, 3, 200)
    spine = next(str(vertex) for vertex in usual if "spine" in str(vertex))
    other = visited(cluster.without(spine), 3, 200)
    assert spine not in other and len(other) == len(usual)


def test_a_gpu_cut_off_from_its_switch_goes_out_by_its_nic_and_back_in() -> None:
    broken = dead(build_cluster("h100", 2, "rail-optimised-400g"), (0, "node0/switch"))
    path = visited(broken, 0, 1)
    assert path[:2] == [0, "node0/nic0"] and path[-2:] == ["node0/nic1", 1]
    with pytest.raises(UnreachableError, match="GPU 0 to GPU 1"):
        dead(build_cluster("h100", 2, "rails-400g"), (0, "node0/switch")).route(0, 1)


def test_a_gpu_that_is_cut_off_is_told() -> None:
    lonely = dead(load_cluster("mi300x-8"), *((0, far) for far in range(1, 8)))
    with pytest.raises(UnreachableError, match="dead links leave no route from GPU 0 to GPU 5"):
        finish_times(lonely, [Flow(0.0, 1, 2, 1.0), Flow(0.0, 0, 5, 1.0)])
    assert lonely.route(1, 2) == load_cluster("mi300x-8").route(1, 2)


def test_a_switch_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="node0/nic3"):
        build_cluster("mi300x", 2, "rails-400g").without("node0/nick3")


def test_no_reduction_in_a_switch_that_a_member_has_lost() -> None:
    """The other seven still use it."""
    broken = dead(build_cluster("h100", 2, "rail-optimised-400g"), (0, "node0/switch"))
    assert collective(broken, range(1, 8), "all_reduce", 1e9).algorithm == "in_switch"
    assert collective(broken, range(8), "all_reduce", 1e9).algorithm != "in_switch"


@st.composite
def broken_clusters(draw: st.DrawFn) -> Cluster:
    name = draw(st.sampled_from(["mi300x-8", "hgx-h100-8", "mi300x-2x8", "h100-2x8"]))
    cluster = load_cluster(name)
    count = len(cluster.links)
    chosen = draw(st.sets(st.integers(0, count - 1), max_size=40))
    return cluster.with_links({(cluster.links.source[link], cluster.links.target[link]): 0.0 for link in chosen})


@given(broken_clusters(), st.data())
@settings(max_examples=60, deadline=None)
def test_routes_are_ways_in_the_graph_that_is_left(cluster: Cluster, data: st.DataObject) -> None:
    gpu = st.integers(0, cluster.gpus - 1)
    source, destination = data.draw(gpu), data.draw(gpu)
    label = data.draw(st.integers(0, 3))
    try:
        path = visited(cluster, source, destination, label)
    except UnreachableError:
        one_mesh = cluster.nodes == 1 and cluster.layout.mesh
        assert not one_mesh or not nx.has_path(cluster.graph, source, destination)
        # Somebody had to lose a link of a GPU or of its NIC: no message is refused for a lost link between switches.
        assert any(link < cluster.layout.switch_start for link in cluster.layout.dead)
        return
    assert path[-1] == destination and len(set(path)) == len(path)
    assert all(cluster.graph.has_edge(*hop) for hop in pairwise(path))


@given(broken_clusters(), st.sampled_from(["all_reduce", "all_gather", "all_to_all", "broadcast", "reduce_scatter"]))
@settings(max_examples=25, deadline=None)
def test_collectives_never_use_a_dead_link_and_are_never_faster(cluster: Cluster, kind: str) -> None:
    sound = collective(cluster.sound, range(8), kind, 1e9)
    try:
        traffic = collective(cluster, range(8), kind, 1e9)
    except UnreachableError:
        return
    assert not set(traffic.links) & set(cluster.layout.dead)
    assert traffic.latency_s + traffic.fluid_s >= (sound.latency_s + sound.fluid_s) * (1 - 1e-9)
