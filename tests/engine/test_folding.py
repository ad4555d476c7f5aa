"""One rank a class stands for all of it: the same times as every rank, and classes split where ranks differ."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.draws import in_turn
from helpers.engine import architecture, collective, grid, hop, kernel, model_file, play, program, question
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.engine import classes
from tspsim.engine.classes import constrain, number, refined
from tspsim.network import build_cluster, load_cluster, point_to_point
from tspsim.network import collective as traffic_of
from tspsim.network.cluster import Vertex
from tspsim.network.fluid import Channel
from tspsim.program.instructions import Mesh
from tspsim.step.result import PlanResult
from tspsim.step.simulation import Question, look_up, run_plan

NEAR = 1e-9
GIB = 2**30

PLANS: dict[str, dict[str, Any]] = {
    "TSP8": {"tsp": 8},
    "TSP4": {"tsp": 4},
    "TSP8 in turn": {"tsp": 8, "overlap": False},
    "TSP8 contiguous": {"tsp": 8, "partition": "contiguous"},
    "TP8": {"tp": 8},
    "TP8 overlapped, sequence regions": {"tp": 8, "overlap": True, "sequence_regions": True},
    "TP2": {"tp": 2},
    "SP8": {"sp": 8},
    "SP4 contiguous": {"sp": 4, "partition": "contiguous"},
    "SP8 ring": {"sp": 8, "exchange": "ring"},
    "SP8 ring contiguous": {"sp": 8, "exchange": "ring", "partition": "contiguous"},
    "SP8 token ring": {"sp": 8, "exchange": "token_ring"},
    "SP4 ulysses": {"sp": 4, "exchange": "ulysses"},
    "TP8 ladder": {"tp": 8, "residual": "ladder"},
    "TP8 parallel": {"tp": 8, "residual": "parallel"},
    "TP4-SP2": {"tp": 4, "sp": 2},
    "TP2-SP4 ring": {"tp": 2, "sp": 4, "exchange": "ring"},
}
#: On two nodes: an axis over rails, and a replica that spans nodes by its size alone.
ACROSS: dict[str, dict[str, Any]] = {
    "TP2 across nodes": {"tp": 2, "placement": {"rails": ["tp"]}},
    "SP2 across nodes, TP4 inside": {"tp": 4, "sp": 2, "placement": {"node": ["tp"], "rails": ["sp"]}},
    "TSP2 across nodes": {"tsp": 2, "placement": {"rails": ["tsp"]}},
    "TSP16": {"tsp": 16},
    "TP4-SP4 ring": {"tp": 4, "sp": 4, "exchange": "ring"},
    "TP4-SP4 token ring": {"tp": 4, "sp": 4, "exchange": "token_ring"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    shape = architecture(2048, layers=3, heads=32, kv_heads=16, head_dim=64)
    return model_file(tmp_path_factory.mktemp("models"), shape)


def asked(
    model: str,
    cluster: str,
    plans: Mapping[str, Mapping[str, Any]],
    *,
    slow: Mapping[tuple[Vertex, Vertex], float] = {},
) -> Question:
    """The question of some plans, on a cluster some of whose links may be slow."""
    named = [{"name": name, **plan} for name, plan in plans.items()]
    found = look_up(tspsim.load(question(model, named, cluster=cluster, sequence=8192)))
    return replace(found, cluster=found.cluster.with_links(slow)) if slow else found


def both(found: Question) -> list[tuple[PlanResult, PlanResult]]:
    """Every plan folded and with every rank."""
    return [(run_plan(found, plan), run_plan(found, plan, every_rank=True)) for plan in found.plans]


def assert_same(folded: PlanResult, whole: PlanResult) -> None:
    """Everything that is told of a plan, and every row of the ranks that ran in both."""
    assert sum(entry.size for entry in folded.classes) == len(whole.classes) == folded.gpus
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=NEAR)
    assert folded.block_forward_tokens_per_s == pytest.approx(whole.block_forward_tokens_per_s, rel=NEAR)
    assert folded.communication_bytes_per_layer == whole.communication_bytes_per_layer
    for part in ("compute", "idle", "bubble"):
        near = pytest.approx(whole.breakdown_s[part], rel=NEAR, abs=NEAR * whole.step_time_s)
        assert folded.breakdown_s[part] == near
    for kind, seconds in folded.breakdown_s["exposed_communication"].items():
        near = pytest.approx(whole.breakdown_s["exposed_communication"][kind], rel=NEAR, abs=NEAR * whole.step_time_s)
        assert seconds == near
    for one, other in zip(folded.links, whole.links, strict=True):
        assert one.kind == other.kind
        assert (one.carried_bytes, one.mean, one.peak) == pytest.approx(
            (other.carried_bytes, other.mean, other.peak), rel=NEAR
        )
    assert folded.timeline is not None and whole.timeline is not None
    rows, expected = folded.timeline.frame(), whole.timeline.frame()
    expected = expected[expected["rank"].isin(rows["rank"].unique())].reset_index(drop=True)
    assert list(rows["name"]) == list(expected["name"])
    for column in ("start_s", "end_s"):
        assert rows[column].to_numpy() == pytest.approx(expected[column].to_numpy(), rel=NEAR, abs=1e-15)


@pytest.mark.parametrize(
    ("cluster", "first"), in_turn([("mi300x-8", 0), ("hgx-h100-8", 1), ("mi300x-2x8", 1), ("h100-2x8", 0)])
)
def test_folded_equals_every_rank_for_every_scheme(cluster: str, first: int, model: str) -> None:
    """Each on a node of one vendor, and on two nodes of the other."""
    plans = dict([*PLANS.items()][first::2])
    for folded, whole in both(asked(model, cluster, plans)):
        assert_same(folded, whole)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("cluster", ["mi300x-2x8", "h100-2x8"])
def test_folded_equals_every_rank_when_groups_span_nodes(cluster: str, model: str) -> None:
    for folded, whole in both(asked(model, cluster, ACROSS)):
        assert_same(folded, whole)


def test_folded_equals_every_rank_while_training(model: str) -> None:
    plans = {name: PLANS[name] for name in ("TSP8", "TP4-SP2", "SP8 ring", "TP8")}
    named = [{"name": name, **plan} for name, plan in plans.items()]
    training = question(model, named, cluster="mi300x-2x8", pass_="training", sequence=8192)
    for folded, whole in both(look_up(tspsim.load(training))):
        assert_same(folded, whole)


def test_the_device_of_these_tests_does_interfere(model: str) -> None:
    """So that the equality above covers kernels and transfers that slow each other."""
    device = asked(model, "mi300x-8", {"TSP8": PLANS["TSP8"]}).device
    assert device.compute_slowdown > 1.0


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("cluster", ["mi300x-2x8", "h100-2x8"])
def test_a_slow_link_splits_the_classes_and_slows_its_replica(cluster: str, model: str) -> None:
    plans = {name: PLANS[name] for name in ("TSP8", "TP8", "SP8 ring", "TP4-SP2")}
    links = load_cluster(cluster).links
    slow = {(links.source[0], links.target[0]): 0.1}
    for (healthy, _), (folded, whole) in zip(
        both(asked(model, cluster, plans)), both(asked(model, cluster, plans, slow=slow)), strict=True
    ):
        assert_same(folded, whole)
        assert len(folded.classes) > len(healthy.classes)
        assert folded.step_time_s > healthy.step_time_s


def test_a_slow_nic_splits_only_what_uses_it(model: str) -> None:
    links = load_cluster("mi300x-2x8").links
    slow = {(links.source[-1], links.target[-1]): 0.25}
    plans = {"inside": {"tp": 8}, "across": {"tp": 2, "placement": {"rails": ["tp"]}}}
    (inside, _), (across, whole) = both(asked(model, "mi300x-2x8", plans, slow=slow))
    (healthy_inside, _), (healthy_across, _) = both(asked(model, "mi300x-2x8", plans))
    assert_same(across, whole)
    assert inside.step_time_s == healthy_inside.step_time_s
    assert len(across.classes) > len(healthy_across.classes) and across.step_time_s > healthy_across.step_time_s


def test_folding_does_not_grow_with_the_number_of_replicas(model: str) -> None:
    counts = {}
    for cluster in ("mi300x-8", "mi300x-16x8", "mi300x-128x8"):
        found = asked(model, cluster, {"TSP8": PLANS["TSP8"], "TP8": PLANS["TP8"], "TP4-SP2": PLANS["TP4-SP2"]})
        results = [run_plan(found, plan) for plan in found.plans]
        counts[cluster] = [len(result.classes) for result in results]
        assert all(sum(entry.size for entry in result.classes) == found.cluster.gpus for result in results)
    assert counts["mi300x-8"] == counts["mi300x-16x8"] == counts["mi300x-128x8"]


def test_ranks_of_a_tensor_group_are_one_class_and_token_shards_one_a_position(model: str) -> None:
    folded = {"TSP8": {**PLANS["TSP8"], "tsp_schedule": "published"}}
    found = asked(model, "mi300x-2x8", {name: PLANS[name] for name in ("TP8", "TP4-SP2")} | folded)
    sizes = {plan.name: sorted(entry.size for entry in run_plan(found, plan).classes) for plan in found.plans}
    assert sizes == {"TP8": [16], "TP4-SP2": [8, 8], "TSP8": [2] * 8}


def test_a_slow_rank_is_a_class_of_its_own_and_holds_its_group_up() -> None:
    cluster = load_cluster("mi300x-2x8")
    work = program(kernel(1.0), collective("all_gather", 10**6, after=[0]))
    even = play(cluster, work, grid(4, 4), every_rank=False)
    late = play(cluster, work, grid(4, 4), every_rank=False, slowness={5: 1.5})
    assert [simulated.size for simulated in even.ranks] == [16]
    sizes = sorted(simulated.size for simulated in late.ranks)
    assert sizes[:2] == [1, 3] and sum(sizes) == 16
    assert late.makespan_s == pytest.approx(even.makespan_s + 0.5, rel=1e-12)


@pytest.mark.parametrize("fabric", ["fat-tree-400g", "rail-optimised-400g"])
def test_replicas_that_share_spines_slow_each_other_folded_or_not(fabric: str) -> None:
    """Sixteen nodes; every GPU of the first half talks to one of the second, on another rail, over narrow spines."""
    cluster = build_cluster("h100", 16, fabric, oversubscription=8.0)
    halves = np.arange(128).reshape(2, 64)
    mesh = Mesh(("x", "y"), np.stack([halves[0], np.roll(halves[1], 1)]))
    work = program(hop(GIB), collective("all_reduce", GIB, after=[0]), kernel(1e-3, after=[1]))
    folded, whole = (play(cluster, work, mesh, every_rank=every_rank) for every_rank in (False, True))
    assert folded.makespan_s == pytest.approx(whole.makespan_s, rel=NEAR)
    assert sum(simulated.size for simulated in folded.ranks) == 128
    one, other = (int(rank) for rank in mesh.ranks[:, 1])
    alone_s = sum(
        traffic.latency_s + traffic.fluid_s
        for traffic in (point_to_point(cluster, one, other, GIB), traffic_of(cluster, (one, other), "all_reduce", GIB))
    )
    assert folded.makespan_s > 1.5 * alone_s


@pytest.mark.usefixtures("apart")
def test_an_uneven_fabric_taken_at_its_worst_load_is_no_faster_and_errs_by_its_unevenness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four stages of 40 ranks whose hops cross two spines: 8 to 12 messages a link, so that most ranks are of a kind
    of their own."""
    cluster = build_cluster("h100", 20, "fat-tree-400g", oversubscription=4.0)
    mesh = Mesh(("x", "y"), np.stack([np.roll(part, 7 * i) for i, part in enumerate(np.arange(160).reshape(4, 40))]))
    steps = hop(GIB // 4), kernel(1e-3, after=[0]), collective("all_reduce", GIB // 4, after=[1])
    work = program(*steps, hop(GIB // 4, after=[2]))
    whole, exact = (play(cluster, work, mesh, every_rank=every_rank) for every_rank in (True, False))
    monkeypatch.setattr(classes, "MANY", 2)
    rough = play(replace(cluster), work, mesh, every_rank=False)
    assert len(exact.ranks) > 50 and len(rough.ranks) == 1 and rough.ranks[0].size == 160
    assert rough.system.at_worst and not exact.system.at_worst
    assert exact.makespan_s == pytest.approx(whole.makespan_s, rel=NEAR)
    assert whole.makespan_s * (1 - NEAR) <= rough.makespan_s <= 12 / 8 * whole.makespan_s
    soonest_s = whole.timeline.frame().groupby("rank")["end_s"].max().min()
    assert soonest_s <= rough.makespan_s <= 12 / 8 * soonest_s


def test_of_the_links_a_channel_has_to_itself_the_tightest_says_it_all() -> None:
    """Links 0, 1 and 3 are the first channel's own (copies of it fill link 1 three times over), link 2 is shared."""
    channels = [Channel(index, 0.0, 1.0, {}, 1.0, (), "", 1) for index in range(3)]
    users = {0: {0: (1.0, 1)}, 1: {0: (3.0, 3)}, 2: {0: (0.5, 1), 1: (0.5, 2)}, 3: {0: (0.25, 1)}}
    constrain(channels, users, [8.0, 8.0, 8.0], np.array([8.0, 8.0, 4.0, 8.0]))
    assert sorted(channels[0].usage.values()) == [0.5, 3.0]
    assert list(channels[1].usage.values()) == [0.5]
    assert channels[0].region == channels[1].region != channels[2].region
    # Of the shared link, half as fast as those that they fill, the first channel takes a half, the second twice a
    # quarter: a byte there takes four and eight times as long.
    assert sorted(channels[0].weight_at.values()) == [1.0, 4.0] and list(channels[1].weight_at.values()) == [8.0]


def test_groups_found_before_are_not_taken_for_those_of_another_size(model: str) -> None:
    """Eight ranks or sixteen divide state: the same GPUs in the same order, in other groups."""
    plans = [{"name": f"Z3/{size}", "zero": 3, "shard_group": size} for size in (8, 16)]

    def steps(*some: dict[str, Any]) -> list[float]:
        workload = {"model": model, "pass": "training", "sequence": "2Ki"}
        cluster = {"device": "mi300x", "nodes": 4, "fabric": "rails-400g"}
        asked = {"name": "groups", "cluster": cluster, "workload": workload, "plans": list(some)}
        return [plan.step_time_s for plan in tspsim.simulate(asked).plans]

    assert steps(*plans) == steps(plans[0]) + steps(plans[1])


def test_equal_programs_of_different_roles_are_one_class() -> None:
    cluster = load_cluster("mi300x-8")
    twins = [program(kernel(1.0), role="first"), program(kernel(1.0), role="second")]
    assert [simulated.size for simulated in play(cluster, twins, grid(8), every_rank=False).ranks] == [8]
    others = [program(kernel(1.0)), program(kernel(2.0))]
    assert [simulated.size for simulated in play(cluster, others, grid(8), every_rank=False).ranks] == [4, 4]


# The refinement itself.


def refine(colours: Sequence[Hashable], edges: Sequence[Sequence[tuple[Hashable, int]]]) -> list[int]:
    """Classes of vertices; of every vertex its ``(label, neighbour)``."""
    kind = np.array(number([label for around in edges for label, _ in around]), dtype=np.int64)
    other = np.array([neighbour for around in edges for _, neighbour in around], dtype=np.int64)
    return refined(colours, np.array([len(around) for around in edges], dtype=np.int64), kind, other)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """A coloured graph with labelled edges, both directions given."""
    size = draw(st.integers(1, 9))
    colours = draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
    edges: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    vertices = st.integers(0, size - 1)
    for one, other, label in draw(st.lists(st.tuples(vertices, vertices, st.integers(0, 1)), max_size=14)):
        edges[one].append((label, other))
        edges[other].append((label, one))
    return colours, edges


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_refinement_is_equitable_and_respects_colours(
    graph: tuple[list[int], list[list[tuple[int, int]]]],
) -> None:
    colours, edges = graph
    classes = refine(colours, edges)
    views = [sorted((label, classes[other]) for label, other in around) for around in edges]
    for one, first in enumerate(classes):
        for other, second in enumerate(classes):
            if first == second:
                assert colours[one] == colours[other] and views[one] == views[other]


@settings(max_examples=50, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_refinement_does_not_depend_on_how_vertices_are_numbered(
    graph: tuple[list[int], list[list[tuple[int, int]]]], random: Any
) -> None:
    colours, edges = graph
    order = list(range(len(colours)))
    random.shuffle(order)
    place = {vertex: index for index, vertex in enumerate(order)}
    moved = refine(
        [colours[vertex] for vertex in order],
        [[(label, place[other]) for label, other in edges[vertex]] for vertex in order],
    )
    classes = refine(colours, edges)
    partition = {frozenset(v for v in range(len(colours)) if classes[v] == each) for each in classes}
    assert partition == {frozenset(order[i] for i in range(len(order)) if moved[i] == each) for each in moved}


def test_a_cycle_is_one_class_and_a_path_is_not() -> None:
    cycle = [[("", (vertex - 1) % 6), ("", (vertex + 1) % 6)] for vertex in range(6)]
    assert refine("aaaaaa", cycle) == [0] * 6
    path = [[("", other) for other in (vertex - 1, vertex + 1) if 0 <= other < 6] for vertex in range(6)]
    assert refine("aaaaaa", path) == [0, 1, 2, 2, 1, 0]
