"""Islands of nodes with a fabric each, and what groups that span them fall back to."""

from __future__ import annotations

import numpy as np
import pytest

from tspsim.base.errors import InputError
from tspsim.network import Cluster, between_nodes, build_cluster, collective, point_to_point
from tspsim.network.load import with_fabrics

INFINIBAND, ROCE, COMMON = "infiniband-400g-lambda", "roce-400g-gcp", "ethernet-100g"
GIB = 2**30


def mixed(first: str = INFINIBAND, second: str = ROCE) -> Cluster:
    return with_fabrics(build_cluster("h100", 8, COMMON), [(4, first), (4, second)])


def on(cluster: Cluster, nodes: range) -> list[int]:
    return [gpu for node in nodes for gpu in range(8 * node, 8 * node + 8)]


@pytest.mark.parametrize(("nodes", "fabric"), [(range(4), INFINIBAND), (range(4, 8), ROCE)])
@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all"])
def test_inside_an_island_a_group_is_as_fast_as_on_its_fabric_alone(nodes: range, fabric: str, kind: str) -> None:
    alone = collective(build_cluster("h100", 4, fabric), range(32), kind, GIB)
    here = collective(mixed(), on(mixed(), nodes), kind, GIB)
    assert (here.algorithm, here.fluid_s) == (alone.algorithm, pytest.approx(alone.fluid_s, rel=0.01))
    assert here.latency_s == pytest.approx(alone.latency_s, rel=0.01)


def test_replicas_across_islands_sum_at_the_common_rate() -> None:
    """2·Ψ·β·(d − 1)/d/e for d ranks one a node, which share a node's port with seven other groups."""
    cluster, size = mixed(), 4 * GIB
    ranks = [8 * node for node in range(8)]
    rate = 0.9 * 12.5e9 / 8
    gather, reduce = (collective(cluster, ranks, kind, size) for kind in ("all_gather", "reduce_scatter"))
    shared_s = (gather.fluid_s + reduce.fluid_s) * busy_of(cluster, ranks, size)
    assert shared_s == pytest.approx(2 * size * 7 / 8 / rate, rel=0.02)


def busy_of(cluster: Cluster, ranks: list[int], size: int) -> float:
    """How many times longer the common port takes for a node's eight groups than for one."""
    one = collective(cluster, ranks, "all_gather", size)
    port = [link for link in one.links if cluster.links.target[link] == "common"]
    carried = one.link_bytes[one.links.index(port[0])]
    return 8 * carried / (cluster.bandwidth_bytes_per_s[port[0]] * 0.9) / one.fluid_s


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all", "broadcast"])
def test_a_group_that_spans_islands_falls_back_for_all_its_ranks(kind: str) -> None:
    cluster = mixed()
    traffic = collective(cluster, on(cluster, range(8)), kind, GIB)
    used = {cluster.links.target[link] for link in traffic.links}
    assert "common" in used
    assert not used & {"island0", "island1"}
    within = collective(cluster, on(cluster, range(4)), kind, GIB)
    assert "common" not in {cluster.links.target[link] for link in within.links}


def test_messages_take_what_both_ends_have() -> None:
    cluster = mixed()
    rates = between_nodes(cluster)
    inside, across = 8 * 50e9 * 0.96, 12.5e9 * 0.9
    expected = np.where(np.arange(8)[:, None] // 4 == np.arange(8) // 4, inside, across)
    off = ~np.eye(8, dtype=bool)
    assert rates[off] == pytest.approx(expected[off])
    near, far = point_to_point(cluster, 0, 8, GIB), point_to_point(cluster, 0, 32, GIB)
    assert far.fluid_s / near.fluid_s == pytest.approx(50e9 * 0.96 / across, rel=0.01)


def test_an_island_of_slower_nics_is_as_slow_as_they_are() -> None:
    cluster = mixed(second="rails-200g")
    rates = between_nodes(cluster)
    assert rates[0, 1] == pytest.approx(8 * 50e9 * 0.96)
    assert rates[4, 5] == pytest.approx(8 * 25e9 * 0.94)
    alone = point_to_point(build_cluster("h100", 4, "rails-200g"), 0, 8, GIB)
    assert point_to_point(cluster, 32, 40, GIB).fluid_s == pytest.approx(alone.fluid_s, rel=0.01)


def test_islands_have_the_nodes_of_the_cluster() -> None:
    with pytest.raises(InputError, match="6 nodes are not the 8"):
        with_fabrics(build_cluster("h100", 8, COMMON), [(4, INFINIBAND), (2, ROCE)])
