"""Groups that stand alike have the schedule of the first of them, under their own numbers, to the bit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tspsim.network import Cluster, build_cluster, collective
from tspsim.network.collectives.traffic import position_of

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")
CLUSTERS = {
    "three leaves a rail": build_cluster("mi300x", 160, "rails-400g"),
    "a fat tree": build_cluster("h100", 24, "fat-tree-400g", oversubscription=2.0),
    "one switch a rail": build_cluster("b200", 8, "rail-optimised-400g"),
    "racks": build_cluster("gb200", 3, "rails-400g"),
}


def fresh(cluster: Cluster) -> Cluster:
    """The same with nothing known of it."""
    return replace(cluster)


def some_groups(cluster: Cluster, rng: random.Random) -> list[tuple[int, ...]]:
    """The same ranks of a few nodes, and of others as far apart."""
    per_node = cluster.gpus_per_node
    count = rng.choice([1, 2, 3])
    ranks = sorted(rng.sample(range(per_node), rng.choice([1, 2, 4])))
    step = rng.choice([1, 2, 4])
    starts = rng.sample(range(cluster.nodes), min(cluster.nodes, 4))
    places = [sorted({(start + step * number) % cluster.nodes for number in range(count)}) for start in starts]
    return [tuple(node * per_node + rank for node in nodes for rank in ranks) for nodes in places]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", CLUSTERS)
def test_what_is_known_of_others_changes_nothing(name: str) -> None:
    cluster, rng, shared = CLUSTERS[name], random.Random(7), fresh(CLUSTERS[name])
    for _ in range(12):
        kind = rng.choice(KINDS)
        for ranks in some_groups(cluster, rng):
            root, size = rng.randrange(len(ranks)), rng.choice([1e4, 3e8])
            alone = collective(fresh(cluster), ranks, kind, size, root=root)
            assert collective(shared, ranks, kind, size, root=root) == alone


def test_who_stands_alike_is_told_by_leaves_and_spines() -> None:
    cluster = CLUSTERS["three leaves a rail"]
    alike = [position_of(cluster, ranks) for ranks in ((0, 8), (16, 24), (0, 8 * 70), (8, 8 * 71), (1, 9))]
    near, other_nodes, far, shifted, other_rank = [position.key for position in alike if position is not None]
    assert near == other_nodes != other_rank
    assert near != far
    # The next node of either leaf has NICs whose flows take another spine.
    assert cluster.layout.clos.pod_spines > 1 and far != shifted


def test_where_links_differ_every_group_is_itself() -> None:
    cluster = CLUSTERS["one switch a rail"]
    assert position_of(replace(cluster, factors=((0, 0.5),)), (0, 8)) is None
    assert position_of(cluster.with_routing(replace(cluster.routing, policy="ecmp")), (0, 8)) is None
