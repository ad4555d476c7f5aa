"""Which of equal paths flows take: by destination, by chance, or planned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.network import (
    ROUTINGS,
    Cluster,
    Flow,
    Routing,
    RoutingPolicy,
    Traffic,
    build_cluster,
    collective,
    finish_times,
    mean_ring_rate,
    point_to_point,
)
from tspsim.network.clos import Clos
from tspsim.network.even import even_colouring, is_even
from tspsim.network.graphs import switched
from tspsim.network.layout import Layout
from tspsim.network.routing import Flows
from tspsim.network.wiring import compiled
from tspsim.scenario import load
from tspsim.step.question import look_up

SEEDS = 1500


def rates(routing: Routing, plane: Clos, flows: int, seeds: int) -> list[float]:
    """A ring's rate for every seed: ``flows`` flows from leaf 0 to leaf 1, one a NIC."""
    nic = np.arange(flows)
    leaf = np.zeros(flows, dtype=np.int64)
    asked = Flows(nic, nic + plane.ports, leaf, leaf + 1, nic + plane.ports)
    found = []
    for seed in range(seeds):
        up = plane.paths(leaf, leaf + 1, routing.object.choose(plane, asked, seed))[:, 0]
        found.append(1.0 / int(np.bincount(up).max()))
    return found


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("flows", "paths", "rate"),
    [(2, 2, 0.75), (4, 4, 0.51), (8, 8, 0.41), (8, 16, 0.53), (8, 32, 0.68), (16, 16, 0.34), (64, 64, 0.26)],
)
def test_the_mean_rate_of_a_ring_under_ecmp_is_its_closed_form(flows: int, paths: int, rate: float) -> None:
    assert mean_ring_rate(flows, paths) == pytest.approx(rate, abs=0.005)
    plane = Clos(2, max(flows, paths), 2 * max(flows, paths), lanes=1)
    plane = replace(plane, lanes=paths // plane.pod_spines)
    assert plane.choices == paths
    assert np.mean(rates(Routing("ecmp"), plane, flows, SEEDS)) == pytest.approx(mean_ring_rate(flows, paths), abs=0.01)


@pytest.mark.parametrize("policy", [name for name in ROUTINGS if not ROUTINGS.get(name).drawn])
def test_eight_flows_over_eight_paths_have_a_rate_of_one_where_nothing_is_drawn(policy: str) -> None:
    assert rates(Routing(policy), Clos(16, 8, 16), 8, 1) == [1.0]


def test_a_ring_loses_under_ecmp_what_its_flows_that_meet_say_and_nothing_when_planned_or_on_rails() -> None:
    """All-gathers along eight rings of sixteen nodes, four to a leaf; four cables a spine up, and two spines."""
    tree = build_cluster("h100", 16, "fat-tree-400g", oversubscription=4.0)
    nodes = [8 * node for node in range(16)]
    planned = collective(tree.with_routing(Routing("planned")), nodes, "all_gather", 2**30)
    assert planned == collective(tree, nodes, "all_gather", 2**30)
    alone = collective(build_cluster("h100", 16, "rails-400g"), nodes, "all_gather", 2**30)
    # One flow a boundary: nobody to meet, whatever is drawn.
    for seed in range(5):
        drawn = collective(tree.with_routing(Routing("ecmp", seed)), nodes, "all_gather", 2**30)
        assert drawn.fluid_s == pytest.approx(planned.fluid_s)
    assert alone.fluid_s == pytest.approx(planned.fluid_s, rel=0.04)
    # Eight flows a boundary, which meet: as much slower as the fabric's links are busier than any other before.
    together = collective(tree.with_routing(Routing("planned")), range(128), "all_gather", 2**30, algorithm="ring")
    least_s = busiest_s(tree, together)
    for seed in range(5):
        routed = tree.with_routing(Routing("ecmp", seed))
        drawn = collective(routed, range(128), "all_gather", 2**30, algorithm="ring")
        assert busiest_s(routed, drawn) > 1.9 * least_s
        assert drawn.fluid_s / together.fluid_s == pytest.approx(busiest_s(routed, drawn) / least_s, rel=0.05)


def busiest_s(cluster: Cluster, traffic: Traffic) -> float:
    """Seconds that the busiest link of a collective needs."""
    rates = cluster.bandwidth_bytes_per_s
    return max(float(size / rates[link]) for link, size in zip(traffic.links, traffic.link_bytes, strict=True))


def test_flows_of_one_leaf_finish_as_late_as_their_busiest_cable_says() -> None:
    tree = build_cluster("mi300x", 16, "fat-tree-400g", oversubscription=4.0)
    flows = [Flow(0.0, gpu, gpu + 32, 50e9) for gpu in range(8)]
    assert max(finish_times(tree, flows)) == pytest.approx(1.0, rel=1e-4)
    for seed in range(10):
        routed = tree.with_routing(Routing("ecmp", seed))
        met = Counter(link for flow in flows for link in routed.route(flow.source, flow.destination))
        assert max(finish_times(routed, flows)) == pytest.approx(max(met.values()), rel=1e-4)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("policy", ROUTINGS)
@pytest.mark.parametrize("fabric", ["rails-400g", "rail-optimised-400g", "fat-tree-400g"])
def test_every_policy_joins_the_same_ends_over_as_many_links_of_the_same_rate(policy: str, fabric: str) -> None:
    plain = build_cluster("mi300x", 40, fabric)
    routed = plain.with_routing(Routing(policy, 3))
    every = np.arange(plain.gpus)
    for step in (8, 33, 100):
        ways, usual = (each.layout.routes(every, np.roll(every, -step)) for each in (routed, plain))
        assert ((ways >= 0).sum(axis=1) == (usual >= 0).sum(axis=1)).all()
        for gpu in (0, 77):
            at: int | str = gpu
            for link in ways[gpu][ways[gpu] >= 0].tolist():
                assert routed.links.source[link] == at
                at = routed.links.target[link]
            assert at == (gpu + step) % plain.gpus
    one, other = plain.graph, routed.graph
    assert set(one.edges) == set(other.edges)
    for edge in one.edges:
        assert one.edges[edge]["bandwidth_bytes_per_s"] == pytest.approx(other.edges[edge]["bandwidth_bytes_per_s"])


def test_a_hashed_flow_stays_on_one_port_of_its_nic_and_a_planned_one_has_both() -> None:
    two = build_cluster("h100", 2, "fat-tree-2x200g")
    one = build_cluster("h100", 2, "fat-tree-400g")
    alone = point_to_point(one, 0, 8, 2**30).fluid_s
    assert [point_to_point(two.with_routing(Routing(policy)), 0, 8, 2**30).fluid_s / alone for policy in ROUTINGS] == [
        1.0, 2.0, 1.0,
    ]  # fmt: skip
    drawn = two.with_routing(Routing("ecmp"))
    ways = {drawn.with_routing(Routing("ecmp", seed)).route(0, 8) for seed in range(20)}
    assert len(ways) == 4
    assert drawn.graph.edges["node0/nic0", "leaf0"]["bandwidth_bytes_per_s"] == 50e9
    assert not drawn.without("node0/nic0").graph.has_edge("node0/nic0", "leaf0")


def test_a_policy_from_outside_is_one_object() -> None:
    lowest = RoutingPolicy("lowest", "the first path, always", lambda plane, flows, seed: np.zeros_like(flows.endpoint))
    ROUTINGS.register(lowest)
    try:
        cluster = build_cluster("mi300x", 16, "fat-tree-400g").with_routing(Routing("lowest"))
        targets = {cluster.links.target[cluster.route(gpu, gpu + 32)[2]] for gpu in range(32)}
        assert targets == {"spine0"}
        stated = {"device": "mi300x", "nodes": 16, "fabric": "fat-tree-400g", "routing": "lowest"}
        workload = {"model": "llama-3.1-8b", "pass": "training", "sequence": "1Ki"}
        asked = {"name": "outside", "cluster": stated, "workload": workload, "plans": [{"name": "P", "tp": 8}]}
        assert look_up(load(asked)).cluster.routing.policy == "lowest"
    finally:
        ROUTINGS.remove("lowest")


def test_a_fabric_without_a_choice_draws_nothing() -> None:
    routed = build_cluster("mi300x", 16, "rails-400g").with_routing(Routing("ecmp"))
    assert not routed.layout.draws
    assert build_cluster("mi300x", 16, "fat-tree-400g").with_routing(Routing("ecmp")).layout.draws


@settings(max_examples=20, deadline=None)
@given(data=st.data(), leaves=st.integers(2, 6), spines=st.integers(1, 5), flows=st.integers(1, 60))
def test_planned_flows_are_dealt_out_evenly(data: st.DataObject, leaves: int, spines: int, flows: int) -> None:
    source, target, wish = (
        np.array(data.draw(st.lists(st.integers(0, most - 1), min_size=flows, max_size=flows)), dtype=np.int64)
        for most in (leaves, leaves, spines)
    )
    found = even_colouring(source, target, wish, spines)
    assert is_even(source, target, found, spines)
    assert ((found >= 0) & (found < spines)).all()


def test_a_plan_evens_out_what_routing_by_destination_does_not() -> None:
    """Four NICs of a leaf send to NICs whose numbers have one remainder: one spine for all, or one each."""
    layout = Layout(16, compiled(switched(8, 1e9)), 8, 8, "fat_tree", 16)
    assert layout.clos.pod_spines == 8
    source, destination = np.arange(8), 16 + 8 * np.arange(8)
    planned = replace(layout, routing=Routing("planned"))

    def busiest(each: Layout) -> int:
        ways = each.routes(source, destination)
        return int(np.bincount(ways[ways >= each.switch_start]).max())

    assert busiest(layout) == 8
    assert busiest(planned) == 1


def test_three_stages_are_planned_up_to_the_cores() -> None:
    layout = Layout(16, compiled(switched(8, 1e9)), 8, 8, "fat_tree", 8, routing=Routing("planned"))
    assert layout.clos.pods > 2
    source, destination = np.arange(128), np.random.default_rng(5).permutation(128)

    def most(each: Layout) -> int:
        ways = each.routes(source, destination)
        return int(np.bincount(ways[ways >= each.switch_start]).max())

    assert most(layout) == 1 < most(replace(layout, routing=Routing("spread")))


def dead_cable(policy: str) -> Cluster:
    return build_cluster("mi300x", 16, "fat-tree-400g").with_routing(Routing(policy)).with_links({
        ("leaf0", "spine0"): 0.0, ("spine0", "leaf0"): 0.0,
    })  # fmt: skip


@pytest.mark.parametrize("policy", ROUTINGS)
def test_every_policy_goes_round_dead_links(policy: str) -> None:
    cluster = dead_cable(policy)
    assert not cluster.graph.has_edge("leaf0", "spine0")
    every = np.arange(128)
    ways = cluster.layout.routes(every, np.roll(every, -32))
    assert not np.isin(ways, cluster.layout.dead).any()


def test_routing_that_numbers_links_otherwise_cannot_follow_slow_links_between_switches() -> None:
    with pytest.raises(InputError, match="makes every cable a link"):
        dead_cable("spread").with_routing(Routing("ecmp"))
    assert dead_cable("spread").with_routing(Routing("planned")).layout.dead
