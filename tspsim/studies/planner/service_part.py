"""Plans of many equal replicas are compared on a few of them: replicas that share nothing are alike.

A run takes as long as it has requests, and twice the replicas need twice the requests to show the same. So a search
serves a part of the load on a part of the cluster. The leading plans are then served whole, and only that result is
reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...parallel import scheme_axes
from ...scenario import Scenario
from ...scenario.cluster import ClusterInline
from ...scenario.traffic import TrafficSpec
from ...serving.highest import four_digits

#: Least replicas of a part, so that a router has a choice; of two pools, both together.
REPLICAS = 8


def parts_of(scenario: Scenario, keys: Mapping[str, Any], replicas: int, gpus_per_node: int) -> int:
    """The number of equal parts of a plan, each with :data:`REPLICAS` replicas and whole nodes.

    One, where parts are not alike (links of their own, faults), where requests share something (tools, a trace's times,
    a limit on all), in a single node, or in a cluster of the catalog.
    """
    cluster, traffic = scenario.cluster, scenario.traffic
    assert traffic is not None
    if not isinstance(cluster, ClusterInline):
        return 1
    unlike = (cluster.islands, cluster.measured, cluster.topology, cluster.faults, cluster.variation)
    arrivals = traffic.arrivals
    apart = arrivals.closed or arrivals.searches or arrivals.mean_rate
    limited = arrivals.most and not arrivals.closed
    if any(unlike) or not apart or limited or arrivals.trace() is not None or traffic.prefix.calls_tools:
        return 1
    counts = [cluster.nodes, replicas]
    pools = keys.get("pools")
    if pools is not None:
        sides = [pools[name] for name in ("prefill", "decode")]
        if not all(isinstance(side.get("replicas"), int) and "cluster" not in side for side in sides):
            return 1
        counts += [side["replicas"] for side in sides]
        # Caches cross nodes in a part as they do in the whole.
        whole = (divmod(side["replicas"] * ranks_of(side), gpus_per_node) for side in sides)
        counts += [1 if rest else nodes for nodes, rest in whole]
    return max(part for part in range(1, max(1, replicas // REPLICAS) + 1) if not any(count % part for count in counts))


def ranks_of(side: Mapping[str, Any]) -> int:
    """GPUs of a pool's replica."""
    return math.prod(int(side.get(axis, 1)) for axis in (*scheme_axes(), "pp", "dp"))


def part_of(scenario: Scenario, parts: int) -> Scenario:
    """One part of the cluster."""
    cluster = scenario.cluster
    assert isinstance(cluster, ClusterInline)
    nodes = cluster.nodes // parts
    smaller = cluster.model_copy(update={"nodes": nodes, "fabric": cluster.fabric if nodes > 1 else None})
    return scenario.model_copy(update={"cluster": smaller})


def keys_of_part(keys: Mapping[str, Any], parts: int) -> dict[str, Any]:
    """The plan on one part: fewer replicas of its pools. A plan without pools fills the part."""
    pools = keys.get("pools")
    if pools is None:
        return dict(keys)
    fewer = {name: {**pools[name], "replicas": pools[name]["replicas"] // parts} for name in ("prefill", "decode")}
    return {**keys, "pools": {**pools, **fewer}}


def under(traffic: TrafficSpec, times: float) -> TrafficSpec:
    """The same traffic with its clients and requests, or its rate, times a factor."""
    arrivals = traffic.arrivals
    if arrivals.closed:
        clients = tuple(max(1, round(times * int(point.arrivals.most or 1))) for point in traffic.points())
        requests = max(1, round(times * traffic.requests)) if traffic.requests else traffic.requests
        changed = arrivals.model_copy(update={"concurrency": clients})
        return traffic.model_copy(update={"arrivals": changed, "requests": requests})
    return traffic if arrivals.mean_rate is None else traffic.at_rate(four_digits(times * arrivals.mean_rate))
