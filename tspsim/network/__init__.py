"""The network: graphs of meshes, switches, rails and fat trees; routes; collectives; fair sharing of links.

Examples
--------
>>> from tspsim import network
>>> cluster = network.load_cluster("mi355x-8")
>>> cluster.graph.edges[0, 1]["kind"], len(cluster.route(0, 5))
('xgmi', 1)

Two GPUs of a mesh share one link; in a group of eight, each GPU has seven:

>>> def bus_bandwidth(gpus, size_bytes=2**30):
...     traffic = network.collective(cluster, range(gpus), "all_reduce", size_bytes)
...     return 2 * (gpus - 1) / gpus * size_bytes / (traffic.latency_s + traffic.fluid_s)
>>> round(bus_bandwidth(8) / bus_bandwidth(2))
7

Finish times of any list of flows:

>>> flows = [network.Flow(start_s=0.0, source=0, destination=1, size_bytes=76.8e9)]
>>> [round(time_s, 3) for time_s in network.finish_times(cluster, flows)]
[1.0]
"""

from ..program import MULTIPROCESSORS, ExpertExchange
from .cluster import Cluster
from .collectives.algorithm import ALGORITHMS, CollectiveAlgorithm
from .collectives.exchange import places_reached
from .collectives.library import collective, exchange_experts, point_to_point, route_messages
from .collectives.multi_ring import hamiltonian_cycles
from .collectives.schedule import Group, Schedule, scheduled
from .collectives.traffic import Traffic, host_bandwidth, host_copy, host_link_bytes_per_s, host_reads, waiting
from .flows import Flow, finish_times
from .graphml import read_graphml, with_topology
from .kinds import KINDS, CollectiveKind
from .load import build_cluster, load_cluster, with_fabrics, with_nodes
from .own import with_graph
from .pairs import between_nodes, with_pairs
from .routing import ROUTINGS, SPREAD, Routing, RoutingPolicy, mean_ring_rate
from .wiring import TOPOLOGIES, Topology

__all__ = [
    "ALGORITHMS",
    "KINDS",
    "MULTIPROCESSORS",
    "ROUTINGS",
    "SPREAD",
    "TOPOLOGIES",
    "Cluster",
    "CollectiveAlgorithm",
    "CollectiveKind",
    "ExpertExchange",
    "Flow",
    "Group",
    "Routing",
    "RoutingPolicy",
    "Schedule",
    "Topology",
    "Traffic",
    "between_nodes",
    "build_cluster",
    "collective",
    "exchange_experts",
    "finish_times",
    "hamiltonian_cycles",
    "host_bandwidth",
    "host_copy",
    "host_link_bytes_per_s",
    "host_reads",
    "load_cluster",
    "mean_ring_rate",
    "places_reached",
    "point_to_point",
    "read_graphml",
    "route_messages",
    "scheduled",
    "waiting",
    "with_fabrics",
    "with_graph",
    "with_nodes",
    "with_pairs",
    "with_topology",
]
