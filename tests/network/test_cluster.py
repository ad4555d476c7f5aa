"""Clusters as graphs: what is joined to what, how fast, and which way messages go."""

from __future__ import annotations

import re
from pathlib import Path

import networkx as nx
import pytest
from helpers.processes import said_in_any_process
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base import catalog
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.hardware.announced import DEVICES
from tspsim.network import Cluster, Flow, build_cluster, collective, finish_times, load_cluster
from tspsim.network.announced import NODES
from tspsim.network.specs import FabricSpec, NodeSpec
from tspsim.network.wiring import full_mesh
from tspsim.scenario import load
from tspsim.step.question import look_up

FABRICS = ["rails-400g", "rail-optimised-400g", "fat-tree-400g"]


def path_of(cluster: Cluster, route: tuple[int, ...], source: int) -> list[int | str]:
    """Vertices a route visits; fails where its links do not join."""
    path: list[int | str] = [source]
    for link in route:
        assert cluster.links.source[link] == path[-1]
        path.append(cluster.links.target[link])
    return path


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_every_cluster_of_the_catalog_builds(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.gpus == cluster.nodes * cluster.gpus_per_node
    assert len(cluster.links) == len(cluster.bandwidth_bytes_per_s) == len(cluster.latency_s)
    assert cluster.bandwidth_bytes_per_s.min() > 0
    assert all(row.source and row.basis for row in cluster.provenance())


@pytest.mark.parametrize(
    ("node", "out_of_a_gpu"),
    [
        ("mi300x-8", 448e9),
        ("mi325x-8", 448e9),
        ("mi355x-8", 537.6e9),
        ("hgx-h100-8", 450e9),
        ("hgx-h200-8", 450e9),
        ("hgx-b200-8", 900e9),
        ("hgx-b300-8", 900e9),
        ("gb200-nvl72", 900e9),
        ("hgx-a100-40gb-8", 300e9),
        ("hgx-a100-80gb-8", 300e9),
    ],
)
def test_a_gpu_has_the_links_of_its_data_sheet(node: str, out_of_a_gpu: float) -> None:
    graph = load_cluster(node).graph
    out = sum(edge["bandwidth_bytes_per_s"] for _, _, edge in graph.out_edges(3, data=True))
    assert out == pytest.approx(out_of_a_gpu, rel=1e-12)


def test_a_mesh_has_one_link_each_way_between_any_two_gpus() -> None:
    cluster = load_cluster("mi300x-8")
    assert sorted(cluster.graph.edges) == [(u, v) for u in range(8) for v in range(8) if u != v]
    assert {edge["kind"] for _, _, edge in cluster.graph.edges(data=True)} == {"xgmi"}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("device", ["mi300x", "h100"])
def test_the_graph_and_the_columns_of_links_agree(device: str, fabric: str) -> None:
    cluster = build_cluster(device, 20, fabric)
    links = cluster.links
    assert cluster.graph.number_of_edges() == len(links) == len(links.ids)
    for (u, v), link in links.ids.items():
        edge = cluster.graph.edges[u, v]
        assert edge["bandwidth_bytes_per_s"] == links.bandwidth_bytes_per_s[link]
        assert edge["latency_s"] == links.latency_s[link]
        assert edge["kind"] == links.kind[link]
    assert nx.is_strongly_connected(cluster.graph)


@pytest.mark.parametrize("fabric", [*FABRICS, "rails-200g"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_route_is_a_path_that_repeats_nothing(fabric: str, data: st.DataObject) -> None:
    device = data.draw(st.sampled_from(["mi300x", "b200", "gb200"]))
    cluster = build_cluster(device, data.draw(st.sampled_from([2, 9, 70])), fabric)
    gpu = st.integers(0, cluster.gpus - 1)
    source, destination = data.draw(gpu), data.draw(gpu)
    route = cluster.route(source, destination, data.draw(st.integers(0, 9)))
    path = path_of(cluster, route, source)
    assert path[-1] == destination
    assert len(set(path)) == len(path)


def test_rails_meet_only_inside_a_node() -> None:
    cluster = build_cluster("mi300x", 4, "rails-400g")
    graph = cluster.graph.copy()
    graph.remove_edges_from([(u, v) for u, v, kind in cluster.graph.edges(data="kind") if kind == "xgmi"])
    assert nx.has_path(graph, 0, 8)
    assert not any(nx.has_path(graph, 0, 8 + rail) for rail in range(1, 8))


def test_a_message_to_another_rail_hops_inside_its_own_node_first() -> None:
    cluster = build_cluster("mi300x", 2, "rails-400g")
    path = path_of(cluster, cluster.route(1, 8 + 5), 1)
    assert path == [1, 5, "node0/nic5", "rail5/leaf0", "node1/nic5", 13]


def test_a_message_on_its_own_rail_leaves_by_its_own_nic() -> None:
    cluster = build_cluster("h100", 2, "rails-400g")
    assert path_of(cluster, cluster.route(3, 11), 3) == [3, "node0/nic3", "rail3/leaf0", "node1/nic3", 11]


def test_a_rack_with_four_rails_joins_nics_of_the_same_rail_only() -> None:
    cluster = build_cluster("gb200", 2, "rails-400g")
    assert path_of(cluster, cluster.route(5, 72 + 6), 5)[-3:] == ["rail2/leaf0", "node1/nic6", 78]


@pytest.mark.parametrize(("nodes", "stages"), [(8, 2), (32, 4), (300, 6)])
def test_a_fat_tree_grows_stages_with_its_size(nodes: int, stages: int) -> None:
    cluster = build_cluster("h100", nodes, "fat-tree-400g")
    route = cluster.route(0, cluster.gpus - 1)
    assert sum(cluster.links.kind[link] in ("nic", "spine", "core") for link in route) == stages


def test_equal_paths_are_spread_by_label() -> None:
    cluster = build_cluster("h100", 32, "fat-tree-400g")
    assert cluster.layout.clos.spines == 4
    assert len({cluster.route(0, 255, label) for label in range(64)}) == 4
    assert cluster.route(0, 255, 7) == cluster.route(0, 255, 7)


def test_a_shift_through_a_fat_tree_meets_nobody() -> None:
    """D-mod-k routing: every GPU sends to the one 32 places on, all at full speed."""
    cluster = build_cluster("h100", 16, "fat-tree-400g")
    shift = [Flow(0.0, gpu, (gpu + 32) % 128, 50e9) for gpu in range(128)]
    assert max(finish_times(cluster, shift)) == pytest.approx(1.0, abs=1e-4)


def test_oversubscription_divides_what_leaves_the_leaves() -> None:
    even, thin = (build_cluster("h100", 16, "fat-tree-400g", oversubscription=ratio) for ratio in (1.0, 4.0))
    shift = [Flow(0.0, gpu, (gpu + 32) % 128, 50e9) for gpu in range(128)]
    near = [Flow(0.0, gpu, (gpu + 8) % 32, 50e9) for gpu in range(32)]
    assert max(finish_times(thin, shift)) == pytest.approx(4 * max(finish_times(even, shift)), rel=1e-4)
    assert finish_times(thin, near) == finish_times(even, near)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("nodes", [3, 40, 130, 520])
def test_what_goes_up_from_the_leaves_can_come_down(fabric: str, nodes: int) -> None:
    """Without oversubscription a stage has at least the bandwidth of the stage below."""
    layout = build_cluster("mi300x", nodes, fabric).layout
    clos = layout.clos
    spine, core = clos.bandwidths(1.0, 1.0)
    if clos.spines:
        assert clos.pod_spines * spine == pytest.approx(clos.ports)
        assert clos.leaves <= clos.pods * clos.pod_leaves
    if clos.cores:
        assert clos.spine_cores * core == pytest.approx(clos.pod_leaves * spine)


def test_a_fabric_beyond_its_switches_is_refused() -> None:
    with pytest.raises(InputError, match="three stages"):
        build_cluster("mi300x", 20_000, "fat-tree-400g")


def test_16384_gpus_cost_nothing_until_their_links_are_listed() -> None:
    cluster = build_cluster("mi300x", 2048, "rails-400g")
    traffic = collective(cluster, range(8 * 2047, 8 * 2048), "all_reduce", 2**20)
    assert len(traffic.links) == 56
    assert "links" not in vars(cluster)
    assert len(cluster.route(0, cluster.gpus - 1)) == 7


def test_a_slow_link_changes_that_link_alone() -> None:
    cluster = build_cluster("h100", 2, "rails-400g")
    slow = cluster.with_links({(0, "node0/nic0"): 0.25}).with_links({(0, "node0/nic0"): 0.5})
    changed = {
        pair
        for pair in cluster.graph.edges
        if slow.graph.edges[pair]["bandwidth_bytes_per_s"] != cluster.graph.edges[pair]["bandwidth_bytes_per_s"]
    }
    assert changed == {(0, "node0/nic0")}
    assert slow.graph.edges[0, "node0/nic0"]["bandwidth_bytes_per_s"] == 63e9 / 8


@pytest.mark.parametrize("factor", [-1.0, 1.5, float("nan")])
def test_a_factor_out_of_bounds_is_refused(factor: float) -> None:
    with pytest.raises(InputError, match="must be 0"):
        load_cluster("mi300x-8").with_links({(0, 1): factor})


def test_a_link_that_is_not_there_is_refused_with_the_nearest() -> None:
    cluster = build_cluster("h100", 2, "rails-400g")
    with pytest.raises(InputError, match="no link of their own"):
        cluster.with_links({(0, 1): 0.5})
    with pytest.raises(UnknownNameError, match="did you mean '0 → node0/nic0'"):
        cluster.with_links({(0, "node0/nic9"): 0.5})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_cluster("mi300x-128"), "mi300x-128x8"),
        (lambda: build_cluster("mi300"), "did you mean 'mi300x'"),
        (lambda: build_cluster("h100", 2, "rails-40g"), "did you mean 'rails-400g'"),
        (lambda: build_cluster(node="hgx-h10-8"), "hgx-h100-8"),
        (lambda: build_cluster("h100", node="mi300x-8"), "not h100"),
        (lambda: build_cluster("h100", 2), "need a fabric"),
        (lambda: build_cluster("h100", 0), "one or more"),
        (lambda: build_cluster("h100", 2, "fat-tree-400g", oversubscription=0.5), "1 or more"),
        (lambda: build_cluster(), "name a device or a node"),
        (lambda: load_cluster("mi300x-8").route(0, 8), "0 to 7"),
        (lambda: load_cluster("mi300x-8").route(-1, 0), "0 to 7"),
        (lambda: full_mesh(1, 1e9), "two GPUs or more"),
    ],
)
def test_wrong_input_is_told_in_one_line_that_helps(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_users_node_is_found_first_and_needs_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "topologies" / "nodes"
    own.mkdir(parents=True)
    text = catalog.locate("nodes", "mi300x-8").read_text()
    (own / "mi300x-8.yaml").write_text(text.replace("64 GB/s", "32 GB/s", 1))
    (own / "bare.yaml").write_text(text.replace("bandwidth: {value: 64 GB/s", "bandwidth: {number: 64 GB/s", 1))
    monkeypatch.setenv("TSPSIM_CATALOG", str(tmp_path))
    assert build_cluster("mi300x").graph.edges[0, 1]["bandwidth_bytes_per_s"] == 32e9
    with pytest.raises(InputError, match=r"link\.bandwidth"):
        catalog.load("nodes", "bare", NodeSpec)


@pytest.mark.parametrize("name", catalog.names("devices"))
def test_every_device_names_its_usual_node(name: str) -> None:
    spec = DEVICES.load(name)
    assert spec.node is not None
    assert NODES.load(spec.node).device == name


def own_catalog(root: Path, monkeypatch: pytest.MonkeyPatch, *, device: str, nodes: dict[str, str]) -> None:
    """Nodes of one's own (name → device), four GPUs each, and a device that is an H100 with this line for its node."""
    devices, folder = root / "topologies/devices", root / "topologies/nodes"
    devices.mkdir(parents=True)
    folder.mkdir(parents=True)
    text = catalog.locate("devices", "h100").read_text()
    text = text.replace("name: h100", "name: mine", 1).replace("node: hgx-h100-8\n", device, 1)
    (devices / "mine.yaml").write_text(text)
    node = catalog.locate("nodes", "hgx-h100-8").read_text()
    node = node.replace("gpus: 8", "gpus: 4").replace("nics: 8", "nics: 4").replace("rails: 8", "rails: 4")
    for name, its in nodes.items():
        own = node.replace("name: hgx-h100-8", f"name: {name}").replace("device: h100", f"device: {its}")
        (folder / f"{name}.yaml").write_text(own)
    monkeypatch.setenv("TSPSIM_CATALOG", str(root))


def test_a_file_that_nobody_names_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_catalog(tmp_path, monkeypatch, device="", nodes={"h100-4": "h100"})
    (tmp_path / "topologies/nodes/h100-broken.yaml").write_text("device: [")
    assert build_cluster("h100", 2, "rails-400g").gpus == 16
    assert build_cluster("h100", 2, "rails-400g", "h100-4").gpus == 8


@pytest.mark.parametrize(
    ("device", "nodes", "message"),
    [
        ("", {}, "cluster.device: no node in the catalog holds 'mine' GPUs; name one with cluster.node"),
        ("", {"a-4": "mine", "b-4": "mine"}, "comes in a-4, b-4; name one with cluster.node"),
        ("node: a-5\n", {"a-4": "mine"}, "mine.yaml: node: unknown node 'a-5'.*did you mean 'a-4'"),
        ("node: hgx-h100-8\n", {"a-4": "mine"}, "mine.yaml: node: node 'hgx-h100-8' has h100 GPUs, not mine"),
        ("node: {like: hgx-h10-8}\n", {}, "mine.yaml: node.like: unknown node 'hgx-h10-8'.*did you mean 'hgx-h100-8'"),
        ("node: {like: hgx-h100-8, gpu: 4}\n", {}, "mine.yaml: node.gpu: unknown key.*did you mean 'gpus'"),
        ("node: {gpus: 4}\n", {}, "mine.yaml: node.like: "),
    ],
)
def test_a_device_without_one_usual_node_is_refused(
    device: str, nodes: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_catalog(tmp_path, monkeypatch, device=device, nodes=nodes)
    with pytest.raises(InputError, match=message):
        build_cluster("mine")


def test_a_device_of_ones_own_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node is another one with this GPU in it: the links, and the library's figures with wider ranges."""
    own_catalog(tmp_path, monkeypatch, device="node: {like: hgx-h100-8}\n", nodes={})
    mine, h100 = build_cluster("mine", 2, "rails-400g"), build_cluster("h100", 2, "rails-400g")
    assert mine is build_cluster("mine", 2, "rails-400g") and mine.device_name == "mine"
    assert (mine.bandwidth_bytes_per_s == h100.bandwidth_bytes_per_s).all()
    one, other = (collective(each, range(8), "all_reduce", 1e8) for each in (mine, h100))
    assert one.alone_s == other.alone_s and one.high > other.high
    question = {
        "name": "own", "cluster": {"device": "mine", "nodes": 2, "fabric": "rails-400g"},
        "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "4Ki", "sequences_per_replica": 1},
        "plans": [{"name": "TP16", "tp": 16}],
    }  # fmt: skip
    found = tspsim.simulate(question)
    assert found.cluster["device"]["name"] == "mine" and found.plans[0].step_time_s
    assert any("assumed as on hgx-h100-8, with wider ranges" in each for each in found.defaults)


def test_a_lent_node_has_what_the_devices_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = "{kind: nvlink, bandwidth: {value: 50 GB/s, source: its sheet}, per_gpu: 18}"
    line = f"node: {{like: hgx-h100-8, gpus: 4, link: {link}, without: [in_switch]}}\n"
    own_catalog(tmp_path, monkeypatch, device=line, nodes={})
    cluster = build_cluster("mine")
    assert (cluster.gpus, cluster.node.nics) == (4, 4)
    assert cluster.graph.edges[0, "node0/switch"]["bandwidth_bytes_per_s"] == 900e9
    with pytest.raises(InputError, match="cannot run"):
        collective(cluster, range(4), "all_reduce", 1e9, algorithm="in_switch")


def test_the_only_node_with_a_device_is_its_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_catalog(tmp_path, monkeypatch, device="", nodes={"a-4": "mine", "b-4": "h100"})
    assert build_cluster("mine").gpus == 4


def test_regimes_between_nodes_are_as_many_as_protocols(tmp_path: Path) -> None:
    text = catalog.locate("nodes", "mi300x-8").read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("    share: [0.0776, 1.042]", "    share: [0.0776]", 1))
    with pytest.raises(InputError, match="2 bases and 1 shares, for 2 protocols"):
        catalog.load("nodes", wrong, NodeSpec)


def test_names_in_the_files_are_their_file_names() -> None:
    assert [NODES.load(name).name for name in catalog.names("nodes")] == catalog.names("nodes")
    fabrics = catalog.names("fabrics")
    assert [catalog.load("fabrics", name, FabricSpec).name for name in fabrics] == fabrics


def test_answers_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from tspsim.network import build_cluster, collective, Flow, finish_times\n"
        "c = build_cluster('mi300x', 4, 'rails-400g').with_links({(0, 1): 0.5})\n"
        "print(collective(c, range(32), 'all_reduce', 1e8), collective(c, range(8), 'broadcast', 1e7))\n"
        "print(finish_times(c, [Flow(i * 1e-5, i % 32, i * 7 % 32, 1e7) for i in range(60)]))\n"
    )
    assert said_in_any_process(program).count("\n") == 2


# --- libraries and sources ------------------------------------------------------------------------------------


def test_a_cluster_names_the_library_that_its_collectives_get() -> None:
    plain, graph = build_cluster("mi300x"), build_cluster("mi300x", library="RCCL graph")
    unnamed, asked = (
        collective(cluster, range(8), "all_reduce", 2**16, library=library)
        for cluster, library in ((graph, None), (plain, "RCCL graph"))
    )
    assert unnamed == asked
    assert unnamed.alone_s < collective(plain, range(8), "all_reduce", 2**16).alone_s
    with pytest.raises(InputError, match="did you mean 'RCCL graph'"):
        build_cluster("mi300x", library="RCCL grap")


def test_a_scenario_names_it_too() -> None:
    def asked(library: str) -> Cluster:
        return look_up(load("tsp-memory-8x-mi300x", [f"cluster={{device: mi300x, library: {library}}}"])).cluster

    assert asked("RCCL eager").node.collectives.default_library == "RCCL eager"
    with pytest.raises(InputError, match=r"cluster\.library: unknown library 'RCCL eage' \(did you mean 'RCCL eager'"):
        asked("RCCL eage")


def test_a_catalog_cluster_may_name_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("device: h100\nnodes: 2\nfabric: rails-400g\nlibrary: NCCL 2.27.3\n")
    assert load_cluster(str(path)).node.collectives.default_library == "NCCL 2.27.3"
    path.write_text("device: h100\nlibrary: NCCL 2.27.4\n")
    with pytest.raises(InputError, match=r"mine\.yaml: .*did you mean 'NCCL 2\.27\.3'"):
        load_cluster(str(path))


def test_what_was_measured_is_listed_a_line_a_curve_with_rows_and_error() -> None:
    cluster = build_cluster("h100", 2, "infiniband-400g-nebius", library="NCCL 2.27.3")
    rows = {row.what: row for row in cluster.provenance()}
    library = cluster.node.collectives
    assert sum(what.endswith("measured") or ", measured of" in what for what in rows) == (
        len(library.curves) + len(library.custom_all_reduce) + 1
    )
    ring = rows["NCCL all_reduce, all_gather, reduce_scatter by ring, measured"]
    assert "rows used" in ring.source and "median" in ring.source
    assert re.findall(r"[\d.]*\d", str(ring.value)) == ["4.6", "0.814", "2.27.3", "0.97", "0.996"]
    assert "of NCCL 2.23" in next(what for what in rows if what.startswith("NCCL all_to_all") and " of " in what)
    measured = rows["infiniband-400g-nebius collectives over infiniband against those"]
    assert measured.value == "latency × 0.23, bandwidth × 0.989"
    assert "vllm custom all_reduce, measured" in rows


@pytest.mark.parametrize("device", ["mi300x", "h100"])
def test_a_group_takes_as_long_on_part_of_a_node_as_on_those_gpus_of_the_whole(device: str) -> None:
    whole, part = build_cluster(device), build_cluster(device, gpus_per_node=4)
    assert (part.gpus, part.node.nics, part.node.rails) == (4, 4, 4)
    for size in (2**10, 2**20, 2**28):
        own, every = (collective(cluster, range(4), "all_reduce", size) for cluster in (part, whole))
        assert (own.latency_s, own.fluid_s) == (every.latency_s, every.fluid_s)


def test_part_of_a_rack_keeps_its_switch_and_rails() -> None:
    part = build_cluster("gb200", nodes=2, fabric="nvl72-400g", gpus_per_node=64)
    assert (part.gpus, part.gpus_per_node, part.node.nics, part.node.rails) == (128, 64, 64, 4)
    alone = build_cluster("mi300x", nodes=4, fabric="rails-400g", gpus_per_node=1)
    assert alone.gpus == 4 and alone.node.nics == 1
