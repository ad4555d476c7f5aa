"""Any graph can be a node or a fabric: tori, edges from a file, graphs of networkx; routes are shortest ways."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.network import Cluster, Flow, build_cluster, collective, finish_times, load_cluster, wiring

LINK = 64e9


def vertices(cluster: Cluster, source: int, destination: int) -> list[int | str]:
    """What a message passes; fails where its links do not join."""
    path: list[int | str] = [source]
    for link in cluster.route(source, destination):
        assert cluster.links.source[link] == path[-1]
        path.append(cluster.links.target[link])
    return path


# --- a torus inside a node ------------------------------------------------------------------------------------


def test_a_torus_has_four_neighbours_a_gpu_and_goes_along_rows_first() -> None:
    cluster = load_cluster("torus-4x4")
    graph = cluster.graph
    assert nx.is_isomorphic(graph.to_undirected(), nx.grid_2d_graph(4, 4, periodic=True))
    assert {edge["bandwidth_bytes_per_s"] for _, _, edge in graph.edges(data=True)} == {LINK}
    assert vertices(cluster, 0, 5) == [0, 4, 5]
    assert vertices(cluster, 0, 15) == [0, 12, 15]
    for u, row in nx.all_pairs_shortest_path_length(graph):
        assert all(len(cluster.route(u, v)) == hops for v, hops in row.items())


def test_flows_on_a_torus_share_the_links_that_they_cross() -> None:
    """0 → 5 and 4 → 5 meet on 4 → 5; 0 → 4 shares the first hop of one of them, and is left what that does not use."""
    cluster = load_cluster("torus-4x4")
    flows = [Flow(0.0, 0, 5, LINK), Flow(0.0, 4, 5, LINK), Flow(0.0, 0, 1, LINK)]
    assert finish_times(cluster, flows) == pytest.approx([2.0, 2.0, 1.0], abs=1e-5)
    shift = [Flow(0.0, gpu, gpu // 4 * 4 + (gpu + 1) % 4, LINK) for gpu in range(16)]
    assert finish_times(cluster, shift) == pytest.approx([1.0] * 16, abs=1e-5)


def test_a_ring_round_a_torus_uses_one_link_a_gpu_and_a_direct_exchange_all() -> None:
    """By rank order a ring steps along rows, and from the end of one to the beginning of the next over two links. A
    direct exchange puts 1/16 a message on every link of its way: 2 hops in the mean row or column each."""
    cluster = load_cluster("torus-4x4")
    size, n = 2.0**30, 16
    ring = collective(cluster, range(16), "all_reduce", size, algorithm="ring")
    hops = sum(len(cluster.route(gpu, (gpu + 1) % n)) for gpu in range(n))
    passed = 2 * (n - 1) / n * size
    assert sum(ring.link_bytes) == pytest.approx(hops * passed)
    assert ring.fluid_s == pytest.approx(max(ring.link_bytes) / (LINK * 0.727))
    direct = collective(cluster, range(16), "all_reduce", size, algorithm="direct")
    lengths = sum(len(cluster.route(u, v)) for u in range(n) for v in range(n))
    assert len(direct.links) == 64
    assert sum(direct.link_bytes) == pytest.approx(lengths * 2 * size / n)
    assert direct.fluid_s < ring.fluid_s
    with pytest.raises(InputError, match="cannot run"):
        collective(cluster, range(16), "all_reduce", size, algorithm="in_switch")


def test_a_plan_runs_on_a_torus_and_folded_it_is_what_it_is_in_full() -> None:
    scenario = tspsim.load(
        {
            "name": "torus",
            "cluster": {"node": "torus-4x4", "nodes": 2, "fabric": "rails-400g"},
            "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "8Ki", "sequences_per_replica": 1},
            "plans": [{"name": "TP4-SP4", "tp": 4, "sp": 4, "exchange": "ring"}],
        }
    )
    folded = tspsim.simulate(scenario).plan("TP4-SP4")
    full = tspsim.simulate(scenario, every_rank=True).plan("TP4-SP4")
    assert folded.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)


def test_a_dead_link_of_a_torus_is_gone_round() -> None:
    cluster = load_cluster("torus-4x4").with_links({(0, 1): 0.0})
    path = vertices(cluster, 0, 1)
    assert len(path) == 4 and path[1] != 1
    assert vertices(cluster, 1, 0) == [1, 0]


# --- edges of one's own ---------------------------------------------------------------------------------------


def own_node(folder: Path, intra: str, gpus: int = 4) -> str:
    text = catalog.locate("nodes", "torus-4x4").read_text()
    text = text.replace("{torus: [4, 4]}", intra).replace("gpus: 16", f"gpus: {gpus}")
    text = text.replace("nics: 16\nrails: 16", f"nics: {gpus}\nrails: {gpus}").replace("torus-4x4", "own")
    path = folder / "topologies/nodes/own.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return "own"


def test_a_file_may_list_its_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs on a hub each, hubs joined by a thin link."""
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    ends = ("[0, left]", "[1, left]", "[2, right]", "[3, right]", "[left, right], bandwidth: 8 GB/s, latency: 3 us")
    edges = ", ".join(f"{{between: {each}}}" for each in ends)
    cluster = build_cluster(node=own_node(tmp_path, f"{{graph: [{edges}]}}"), nodes=2, fabric="rails-400g")
    assert vertices(cluster, 5, 6) == [5, "node1/left", "node1/right", 6]
    assert finish_times(cluster, [Flow(0.0, 0, 3, 8e9)]) == pytest.approx([1.0 + 4.6e-6], rel=1e-9)
    assert nx.is_strongly_connected(cluster.graph)
    thin = cluster.links.ids["node0/left", "node0/right"]
    assert cluster.bandwidth_bytes_per_s[thin] == 8e9
    assert cluster.graph.edges["node1/left", "node1/right"]["latency_s"] == 3e-6


@pytest.mark.parametrize(
    ("intra", "message"),
    [
        ("{torus: [3, 2]}", r"own.yaml: a torus of \[3, 2\] joins 6, not 4"),
        ("{torus: wide}", "needs the sizes of its dimensions"),
        ("toros", "unknown topology 'toros'.*did you mean 'torus'"),
        ("{graph: [{between: [0, 1]}]}", "there is no route from 1 to 2|there is no route"),
        ("{graph: [{between: [0, 7]}]}", "endpoints 0 to 3"),
        ("{graph: [{from: 0}]}", "is no edge"),
        ("{graph: [{between: [0, 1]}, {between: [1, 0]}]}", "summed bandwidth"),
    ],
)
def test_a_graph_that_joins_nothing_is_refused(
    intra: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    with pytest.raises(InputError, match=message) as caught:
        build_cluster(node=own_node(tmp_path, intra))
    assert "\n" not in str(caught.value)


# --- graphs of networkx ---------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> nx.DiGraph[int]:
    """Strongly connected, four to nine GPUs, links of different latencies."""
    n = draw(st.integers(4, 9))
    graph = nx.cycle_graph(n, create_using=nx.DiGraph)
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), max_size=12)))
    for _, _, edge in graph.edges(data=True):
        edge["latency_s"] = draw(st.sampled_from([1e-6, 2e-6, 5e-6]))
        edge["bandwidth_bytes_per_s"] = draw(st.sampled_from([25e9, 50e9]))
    return graph


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_routes_are_the_shortest_ways_of_any_graph(graph: nx.DiGraph[int]) -> None:
    cluster = build_cluster(node="mi300x-8", graph=graph)
    assert nx.utils.graphs_equal(nx.DiGraph(cluster.graph.edges), nx.DiGraph(graph.edges))
    for source, row in nx.all_pairs_dijkstra_path_length(graph, weight="latency_s"):
        for destination, seconds in row.items():
            route = cluster.route(source, destination)
            assert sum(cluster.latency_s[link] for link in route) == pytest.approx(seconds)
            assert vertices(cluster, source, destination)[-1] == destination
    traffic = collective(cluster, range(len(graph)), "all_gather", 1e9)
    assert traffic.alone_s > 0.0


def test_a_mesh_given_as_a_graph_is_the_mesh() -> None:
    mesh = load_cluster("mi300x-8")
    same = build_cluster(node="mi300x-8", graph=mesh.graph)
    assert same.layout.mesh and len(same.links) == 56
    assert all(same.route(u, v) == mesh.route(u, v) for u in range(8) for v in range(8))
    assert (same.bandwidth_bytes_per_s == mesh.bandwidth_bytes_per_s).all()
    assert same.node.collectives.curves == ()
    with pytest.raises(InputError, match="needs latency_s"):
        build_cluster(node="mi300x-8", graph=nx.DiGraph([(0, 1, {"bandwidth_bytes_per_s": 1.0})]))


# --- a graph between nodes ------------------------------------------------------------------------------------


def test_nodes_may_stand_on_a_torus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    text = catalog.locate("fabrics", "fat-tree-400g").read_text()
    (tmp_path / "topologies/fabrics").mkdir(parents=True)
    own = text.replace("name: fat-tree-400g", "name: grid").replace("kind: fat_tree", "kind: {torus: [3, 3]}")
    (tmp_path / "topologies/fabrics/grid.yaml").write_text(own)
    cluster = build_cluster("h100", 9, "grid")
    assert vertices(cluster, 2, 8 * 4 + 2) == [
        2, "node0/nic2", "node0/router", "node3/router", "node4/router", "node4/nic2", 34,
    ]  # fmt: skip
    routers = cluster.links.ids["node0/router", "node3/router"]
    assert cluster.links.kind[routers] == "router"
    assert cluster.bandwidth_bytes_per_s[routers] == 8 * 50e9 / 4
    assert nx.is_strongly_connected(cluster.graph)
    assert collective(cluster, range(72), "all_reduce", 2**28).alone_s > 0.0
    dead = cluster.with_links({("node0/router", "node3/router"): 0.0})
    assert "node6/router" in vertices(dead, 2, 26) or "node1/router" in vertices(dead, 2, 26)
    with pytest.raises(InputError, match="joins 9, not 4"):
        build_cluster("h100", 4, "grid")


def test_generators_are_one_table() -> None:
    assert set(wiring.TOPOLOGIES) == {"full_mesh", "switch", "torus", "graph"}
