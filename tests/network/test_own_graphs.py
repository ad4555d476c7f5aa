"""The simulation acts on the networkx graph: what is taken from it, slowed or added changes the answer, and algorithms
of networkx on it say what the simulation does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.network import (
    Cluster,
    Flow,
    Routing,
    between_nodes,
    build_cluster,
    collective,
    finish_times,
    load_cluster,
    read_graphml,
    with_graph,
    with_topology,
)
from tspsim.network.clos import Clos
from tspsim.network.load import load_fabric
from tspsim.studies.planner.searches import at_nodes

BANDWIDTH = "bandwidth_bytes_per_s"
RAILS = load_cluster("mi300x-2x8")


def vertices(cluster: Cluster, source: int, destination: int, label: int = 0) -> list[int | str]:
    """What a message passes."""
    links = cluster.links
    route = cluster.route(source, destination, label)
    return [source, *(links.target[link] for link in route)]


def with_small_switches(nodes: int, kind: str = "fat-tree-400g", radix: int = 8) -> Cluster:
    """A cluster whose switches have few ports, so that few nodes need three stages."""
    fabric = load_fabric(kind)
    ports = fabric.switch.radix.model_copy(update={"value": radix})
    fabric = fabric.model_copy(update={"switch": fabric.switch.model_copy(update={"radix": ports})})
    node = build_cluster("h100").node
    return Cluster(f"{kind} of {radix} ports", node, nodes, fabric)


# --- the graph and what is compiled from it ----------------------------------------------------------------------


CLUSTERS = {
    "rails of one leaf": build_cluster("mi300x", 4, "rails-400g"),
    "rails of three leaves": build_cluster("h100", 70, "rails-400g"),
    "rail-optimised": build_cluster("h100", 40, "rail-optimised-400g"),
    "a fat tree": build_cluster("h100", 24, "fat-tree-400g"),
    "a fat tree of three stages": with_small_switches(6),
    "oversubscribed": build_cluster("b200", 9, "fat-tree-400g", oversubscription=2.0),
}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", CLUSTERS)
def test_ways_found_in_the_whole_graph_are_those_of_the_equal_parts(name: str) -> None:
    """A switch that leads nowhere makes the whole graph be compiled, by networkx' Dijkstra, not its parts."""
    cluster = CLUSTERS[name]
    graph = cluster.graph.copy()
    leaf = next(v for u, v, kind in graph.edges(data="kind") if kind == "nic" and u == "node0/nic0")
    graph.add_node("annexe", kind="leaf")
    graph.add_edge(leaf, "annexe", capacity=1e9, latency="1 ms")
    graph.add_edge("annexe", leaf, capacity=1e9, latency="1 ms")
    whole = with_graph(cluster, graph)
    assert isinstance(cluster.layout.plane, Clos) and not isinstance(whole.layout.plane, Clos)
    random = np.random.default_rng(7)
    for source, destination in random.integers(0, cluster.gpus, (150, 2)).tolist():
        assert vertices(whole, source, destination) == vertices(cluster, source, destination)
    for kind in ("all_reduce", "all_to_all"):
        one, other = (collective(each, range(cluster.gpus), kind, 1e8) for each in (cluster, whole))
        assert (one.algorithm, one.alone_s) == (other.algorithm, pytest.approx(other.alone_s, rel=1e-12))


@pytest.mark.parametrize("name", ["a fat tree", "a fat tree of three stages", "oversubscribed"])
def test_every_route_is_a_shortest_path_of_the_graph(name: str) -> None:
    cluster = CLUSTERS[name]
    for source in (0, cluster.gpus - 3):
        lengths = nx.single_source_dijkstra_path_length(cluster.graph, source, weight="latency_s")
        for destination in range(cluster.gpus):
            path = vertices(cluster, source, destination)
            assert nx.is_path(cluster.graph, path)
            assert nx.path_weight(cluster.graph, path, "latency_s") == pytest.approx(lengths[destination])


def test_parts_are_as_often_in_the_graph_as_they_occur() -> None:
    cluster = CLUSTERS["a fat tree of three stages"]
    pod, graph, clos = cluster.parts["pod"], cluster.graph, cluster.layout.clos
    assert clos.pods == 3 and pod.number_of_nodes() == 4 + 4 + clos.cores
    found = [name for name, kind in graph.nodes(data="kind") if kind == "leaf"]
    assert len(found) == clos.leaves
    assert {graph.out_degree(name) for name in found} == {4 + pod.out_degree("leaf0")}
    assert {graph.in_degree(name) for name, kind in graph.nodes(data="kind") if kind == "core"} == {clos.pods}


def test_nobody_changes_a_compiled_graph() -> None:
    graph = RAILS.graph
    with pytest.raises(InputError, match=r"copy\(\) and give that to with_graph"):
        graph.edges[0, 1][BANDWIDTH] = 1.0
    with pytest.raises(nx.NetworkXError, match=r"[Ff]rozen"):
        graph.remove_edge(0, 1)
    graph.copy().edges[0, 1][BANDWIDTH] = 1.0
    assert with_graph(RAILS, graph.copy()) is RAILS
    with pytest.raises(InputError, match=r"copy\(\)"):
        RAILS.parts["node"].edges[0, 1].update(latency_s=0.0)


# --- changed edges ---------------------------------------------------------------------------------------------


def asked(**cluster: Any) -> dict[str, Any]:
    return {
        "name": "own", "cluster": {"device": "mi300x", "nodes": 2, "fabric": "rails-400g", **cluster},
        "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "8Ki", "sequences_per_replica": 1},
        "plans": [{"name": "TP16", "tp": 16}],
    }  # fmt: skip


def step_s(cluster: Cluster | None = None, **keys: Any) -> float:
    found = tspsim.simulate(asked(**keys), cluster=cluster).plans[0].step_time_s
    assert found is not None
    return found


def test_a_rail_that_is_taken_out_of_the_graph_is_gone_round() -> None:
    graph = RAILS.graph.copy()
    graph.remove_edge("node0/nic3", "rail3/leaf0")
    cut = with_graph(RAILS, graph)
    assert cut.factors == RAILS.with_links({("node0/nic3", "rail3/leaf0"): 0.0}).factors
    assert "node0/nic3" not in vertices(cut, 3, 11) and nx.is_path(graph, vertices(cut, 3, 11))
    assert step_s(cut) > step_s() == step_s(RAILS)


def test_a_node_without_rails_is_refused_in_a_line() -> None:
    graph = RAILS.graph.copy()
    graph.remove_edges_from(
        [(u, v) for u, v, kind in RAILS.graph.edges(data="kind") if kind == "nic" and "node1" in str(v)]
    )
    with pytest.raises(InputError, match="no route leads from GPU 0 to GPU 8; every two GPUs need one") as caught:
        with_graph(RAILS, graph)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 3.0])
def test_a_flow_takes_as_long_as_the_capacity_of_its_edge_says(factor: float) -> None:
    node = load_cluster("mi300x-8")
    graph = node.graph.copy()
    graph.edges[0, 1][BANDWIDTH] *= factor
    changed = with_graph(node, graph)
    flows = [Flow(0.0, 0, 1, 64e9), Flow(0.0, 2, 3, 64e9)]
    assert finish_times(changed, flows) == pytest.approx([1.0 / factor, 1.0], rel=1e-5)
    assert changed.graph.edges[0, 1][BANDWIDTH] == pytest.approx(64e9 * factor)
    assert changed.graph.edges[5, 1][BANDWIDTH] == pytest.approx(64e9)


def test_every_link_faster_is_a_faster_collective_and_what_was_measured_stays() -> None:
    node = load_cluster("mi300x-8")
    graph = node.graph.copy()
    for *_, edge in graph.edges(data=True):
        edge[BANDWIDTH] *= 2
    fast = with_graph(node, graph)
    assert fast.factors == () and fast.node.collectives.curves == node.node.collectives.curves
    slow_s, fast_s = (collective(each, range(8), "all_reduce", 2**33).alone_s for each in (node, fast))
    assert fast_s == pytest.approx(slow_s / 2, rel=0.02)


def test_a_slow_edge_is_left_for_a_way_of_less_latency() -> None:
    node = load_cluster("mi300x-8")
    graph = node.graph.copy()
    graph.edges[0, 1]["latency_s"] = 1e-5
    assert len(with_graph(node, graph).route(0, 1)) == 2
    assert with_graph(node, graph).route(1, 0) == node.route(1, 0)


# --- algorithms of networkx ------------------------------------------------------------------------------------


def cut_between(graph: nx.DiGraph[Any], source: int, target: int) -> float:
    """The least cut between the GPUs of two nodes, bytes/s."""
    joined = graph.copy()
    for vertex, facts in graph.nodes(data=True):
        if facts["kind"] == "gpu" and facts["node"] in (source, target):
            ends = ("from", vertex) if facts["node"] == source else (vertex, "to")
            joined.add_edge(*ends)  # without a capacity: as much as there is
    return float(nx.minimum_cut_value(joined, "from", "to", capacity=BANDWIDTH))


@pytest.mark.parametrize("name", ["rails of one leaf", "a fat tree", "a fat tree of three stages"])
def test_the_least_cut_is_what_the_simulator_says_of_two_nodes(name: str) -> None:
    cluster = CLUSTERS[name]
    assert cluster.fabric is not None
    graph = cluster.graph.copy()
    for other in (cluster, with_graph(cluster, _slower(graph, "node1", 0.5))):
        expected = between_nodes(other)[0, 1] / cluster.fabric.efficiency.value
        assert cut_between(other.graph, 0, 1) == pytest.approx(expected)


def _slower(graph: nx.DiGraph[Any], name: str, factor: float) -> nx.DiGraph[Any]:
    for source, target, edge in graph.edges(data=True):
        if edge["kind"] == "nic" and f"{name}/" in f"{source} {target}":
            edge[BANDWIDTH] *= factor
    return graph


def test_flows_over_the_bisection_take_what_the_least_cut_takes() -> None:
    """All GPUs of two nodes send to two others: max-flow, min-cut, and the engine's max-min shares."""
    cluster = CLUSTERS["rails of one leaf"]
    flows = [Flow(0.0, gpu, gpu + 16, 50e9) for gpu in range(16)]
    assert max(finish_times(cluster, flows)) == pytest.approx(1.0, rel=1e-4)
    cut = sum(cut_between(cluster.graph, source, source + 2) for source in (0, 1))
    assert cut == pytest.approx(16 * 50e9)


# --- graphs of one's own ---------------------------------------------------------------------------------------


def dumbbell(graph: nx.Graph[Any] | None = None) -> nx.Graph[Any]:
    """Three nodes of two GPUs; two nodes on one switch, the third on another, two thin trunks between."""
    found: nx.Graph[Any] = nx.MultiGraph() if graph is None else graph
    for gpu in range(6):
        found.add_node(gpu, kind="gpu")
        found.add_node(f"card{gpu}", kind="nic")
        found.add_edge(gpu, f"card{gpu}", capacity=63e9, latency=0.0)
        found.add_edge(f"card{gpu}", "west" if gpu < 4 else "east", capacity="400 Gb/s", latency="1 us")
    for gpu in (0, 2, 4):
        found.add_edge(gpu, gpu + 1, capacity=128e9, latency=1e-6)
    for switch in ("west", "east"):
        found.nodes[switch]["kind"] = "router"
    for _ in range(2):
        found.add_edge("west", "east", capacity=10e9, latency=2e-6)
    return found


def test_a_graph_of_ones_own_is_a_cluster() -> None:
    cluster = build_cluster("mi300x", fabric="rails-400g", graph=dumbbell(), name="dumbbell")
    assert (cluster.nodes, cluster.gpus, cluster.name) == (3, 6, "dumbbell")
    assert vertices(cluster, 0, 5) == [0, "node0/nic0", "west", "east", "node2/nic1", 5]
    assert cluster.graph.edges["west", "east"][BANDWIDTH] == 20e9  # both trunks
    assert cut_between(cluster.graph, 0, 2) == 20e9
    alone, both = (finish_times(cluster, [Flow(0.0, gpu, gpu + 2, 20e9) for gpu in gpus]) for gpus in ((2,), (2, 3)))
    assert alone == pytest.approx([1.0], rel=1e-4) and both == pytest.approx([2.0, 2.0], rel=1e-4)
    assert (
        collective(cluster, range(6), "all_reduce", 1e8).alone_s
        > collective(cluster, range(4), "all_reduce", 1e8).alone_s
    )
    with pytest.raises(InputError, match="3 nodes, not 2"):
        build_cluster("mi300x", 2, "rails-400g", graph=dumbbell())
    with pytest.raises(InputError, match="state as many, and a fabric"):
        build_cluster("mi300x", graph=dumbbell())
    with pytest.raises(InputError, match="'planned' is of leaves and spines"):
        with_graph(build_cluster("mi300x", 3, "rails-400g").with_routing(Routing("planned")), dumbbell())


def test_a_step_folded_on_ones_own_graph_is_what_it_is_in_full() -> None:
    graph = RAILS.graph.copy()
    for leaf in range(2):  # a second spine plane over two rails, thinner than the first
        for spine, rate in (("over", 50e9), ("above", 25e9)):
            for ends in ((f"rail{leaf}/leaf0", spine), (spine, f"rail{leaf}/leaf0")):
                graph.add_edge(*ends, bandwidth_bytes_per_s=rate, latency_s=3e-7)
    own = with_graph(RAILS, graph)
    question = asked() | {"plans": [{"name": "P", "tp": 2, "sp": 2, "exchange": "ring"}]}
    folded, full = (tspsim.simulate(question, cluster=own, every_rank=each).plans[0] for each in (False, True))
    assert folded.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)


# --- GraphML ------------------------------------------------------------------------------------------------------


def test_a_graphml_file_is_the_cluster_that_wrote_it(tmp_path: Path) -> None:
    graph = RAILS.graph.copy()
    graph.edges["node0/nic3", "rail3/leaf0"][BANDWIDTH] /= 4
    nx.write_graphml(graph, tmp_path / "slow.graphml")
    slow = with_topology(RAILS, str(tmp_path / "slow.graphml"))
    assert slow.factors == with_graph(RAILS, graph).factors and len(slow.factors) == 1
    assert with_topology(RAILS, str(tmp_path / "slow.graphml")) is slow
    assert step_s(topology=str(tmp_path / "slow.graphml")) == step_s(slow) > step_s()
    back = read_graphml(tmp_path / "slow.graphml")
    assert nx.utils.graphs_equal(nx.DiGraph(back.edges), nx.DiGraph(graph.edges))
    nx.write_graphml(dumbbell(), tmp_path / "own.graphml")
    own = with_topology(build_cluster("mi300x", 3, "rails-400g"), str(tmp_path / "own.graphml"))
    assert own.gpus == 6


WRONG: dict[str, tuple[Any, str]] = {
    "an edge without latency": (lambda g: g.edges[0, 1].pop("latency_s"), "edge 0 → 1: needs latency_s, in s"),
    "a negative capacity": (
        lambda g: g.edges[0, 1].update(bandwidth_bytes_per_s=-5.0),
        r"edge 0 → 1: bandwidth_bytes_per_s -5 must be over 0 bytes/s",
    ),
    "two capacities": (lambda g: g.edges[0, 1].update(capacity=1.0), "and capacity 1.0 differ; state one"),
    "a kind of vertex": (
        lambda g: g.nodes["node0/nic0"].update(kind="nik"),
        r"vertex node0/nic0: unknown kind of vertex 'nik' \(did you mean 'nic'\?\)",
    ),
    "a GPU that is cut off": (
        lambda g: g.remove_edges_from(list(g.in_edges(3))), "no route leads from GPU 0 to GPU 3; every two GPUs",
    ),
    "a GPU too few": (lambda g: g.remove_node(15), "nodes have 8, 7 GPUs; they have equally many"),
    "two switches of a NIC": (
        lambda g: g.add_edge("node0/nic0", "rail1/leaf0", bandwidth_bytes_per_s=1e9, latency_s=1e-6),
        r"vertex node0/nic0: is attached to 2 switches \(rail0/leaf0, rail1/leaf0\); a NIC has one",
    ),
    "an edge from node to node": (
        lambda g: g.add_edge(0, 8, bandwidth_bytes_per_s=1e9, latency_s=1e-6), "edge 0 → 8: leads from one node into",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_told_in_a_line_with_its_place(what: str, tmp_path: Path) -> None:
    graph = RAILS.graph.copy()
    WRONG[what][0](graph)
    path = tmp_path / "wrong.graphml"
    nx.write_graphml(graph, path)
    with pytest.raises(InputError, match=WRONG[what][1]) as caught:
        with_topology(RAILS, str(path))
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_a_scenario_names_the_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = RAILS.graph.copy()
    graph.remove_edge("node0/nic3", "rail3/leaf0")
    nx.write_graphml(graph, tmp_path / "cut.graphml")
    (tmp_path / "here.yaml").write_text(json.dumps(asked(topology="cut.graphml")))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = tspsim.simulate(str(tmp_path / "here.yaml"))
    assert found.plans[0].step_time_s == step_s(with_graph(RAILS, graph))
    assert any("cut.graphml (`cluster.topology`)" in each for each in found.defaults)
    (tmp_path / "topologies/clusters").mkdir(parents=True)
    own = tmp_path / "topologies/clusters/cut.yaml"
    own.write_text("{device: mi300x, nodes: 2, fabric: rails-400g, topology: cut.graphml}")
    (tmp_path / "cut.graphml").rename(own.with_name("cut.graphml"))
    assert load_cluster(str(own)).factors == with_graph(RAILS, graph).factors


def test_a_graph_is_of_as_many_nodes_as_it_is(tmp_path: Path) -> None:
    nx.write_graphml(RAILS.graph, tmp_path / "own.graphml")
    scenario = tspsim.load(asked(topology=str(tmp_path / "own.graphml")))
    with pytest.raises(InputError, match=r"cluster.topology: the file has 2 nodes, not 4"):
        at_nodes(scenario, RAILS, 4)
    pools = {"name": "PD", "pools": {"prefill": {"replicas": 1, "tp": 8}, "decode": {"replicas": 1, "tp": 8}}}
    served = asked(topology=str(tmp_path / "own.graphml")) | {
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"}, "plans": [pools],
        "traffic": {"arrivals": {"kind": "at_once"}, "prompt": 60, "output": 4, "requests": 3},
    }  # fmt: skip
    with pytest.raises(InputError, match="pools are not looked at on a graph of one's own"):
        tspsim.simulate(served)


def test_no_graphml_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.graphml").write_text("<graph")
    (tmp_path / "bomb.graphml").write_text('<!DOCTYPE a [<!ENTITY b "c">]><graphml/>')
    for name, message in (
        ("none", "is no GraphML"),
        ("bomb", "declares entities"),
        ("missing", "no such file"),
    ):
        keys = f"cluster={{device: mi300x, nodes: 2, fabric: rails-400g, topology: {tmp_path / name}.graphml}}"
        assert main(["run", "tsp-vs-tpsp-8x-mi300x", "--set", keys]) == 2
        told = capsys.readouterr().err
        assert message in told and name in told and told.count("\n") == 1
    with pytest.raises(InputError, match="topology says what all links are; leave out oversubscription"):
        tspsim.load(asked(topology="a.graphml", oversubscription=2.0))
