"""ExFlow's placement on nodes first: fewer tokens leave their node, bytes are the same in all, one node is one node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.bounds import check_below
from helpers.engine import model_file, moe, question

import tspsim
from tspsim.model import Experts
from tspsim.parallel import ExpertRouting
from tspsim.parallel.affinity import placed_on_nodes, stay_rate, stay_rates, transitions
from tspsim.parallel.dispatches.staying import left, left_by_nodes
from tspsim.step.bound import bounds

MODEL = moe(1024, layers=4, count=32, topk=1, width=512)
TWO_NODES = {"device": "h100", "nodes": 2, "fabric": "rails-400g"}


def measured(experts: int, concentration: float, seed: int) -> ExpertRouting:
    """Transitions with a few likely next experts each."""
    rows = np.random.default_rng(seed).dirichlet(np.full(experts, concentration), size=experts)
    return ExpertRouting(transitions=tuple(tuple(row) for row in rows.tolist()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ranks", "nodes"), [(8, 2), (16, 2), (32, 4)])
def test_more_tokens_stay_in_their_node_than_with_experts_placed_on_ranks(ranks: int, nodes: int, seed: int) -> None:
    """Of one layer the assignment to nodes is exact: nothing keeps more tokens in them."""
    routing = measured(64, 0.1, seed)
    follow, visited = transitions(routing, 64), routing.assigned_shares(64)
    where = np.repeat(np.arange(ranks), 64 // ranks)
    flow = np.array([(visited * (where == rank)) @ follow for rank in range(ranks)])
    each, every = ranks // nodes, np.arange(64)
    inside = flow.reshape(nodes, each, 64).sum(axis=1)
    first = placed_on_nodes(flow, nodes)
    assert sorted(first.tolist()) == sorted(where.tolist())
    generator = np.random.default_rng(seed)
    for _ in range(20):
        other = generator.permutation(where)
        assert inside[first // each, every].sum() >= inside[other // each, every].sum()
    on_rank, on_node = stay_rates(routing, 64, ranks, nodes)
    assert on_rank <= on_node <= 1.0 and on_node > 1.2 / nodes
    assert on_rank == pytest.approx(stay_rate(routing, 64, ranks), rel=0.35)


def test_partners_are_kept_either_way() -> None:
    for affinity in (0.0, 0.5, 1.0):
        on_rank, on_node = stay_rates(ExpertRouting(affinity=affinity), 32, 16, 2)
        assert on_rank == pytest.approx(affinity + (1 - affinity) / 16)
        assert on_node == pytest.approx(affinity + (1 - affinity) / 2)


def test_at_random_as_much_crosses_as_chance_has_it() -> None:
    there, back, across, across_back = left_by_nodes(ExpertRouting(), Experts(32, 1, 512), 16, 2)
    assert (there, back, across_back) == (pytest.approx(1.0), 0.0, 0.0) and across == pytest.approx(8 / 15)
    several = left_by_nodes(ExpertRouting(affinity=0.5), Experts(32, 4, 512), 16, 2)
    assert several[:2] == pytest.approx(left(ExpertRouting(affinity=0.5), Experts(32, 4, 512), 16))
    assert several[2] <= 8 / 15 + 1e-12 and several[3] == pytest.approx(8 / 15)


def served(folder: Path, routing: ExpertRouting, cluster: Any, *dispatches: str, **more: Any) -> list[Any]:
    ranks = 16 if cluster is TWO_NODES else 8
    plans = [{"name": name, "dp": ranks, "ep": ranks, "expert_dispatch": name} for name in dispatches]
    work = {"batch": 64, "context": 256, "routing": {"transitions": routing.transitions}, **more}
    asked = tspsim.load(question(model_file(folder, MODEL), plans, cluster=cluster, pass_="decode", **work))
    result, every = tspsim.simulate(asked), tspsim.simulate(asked, every_rank=True)
    check_below(bounds(asked), result)
    for found, full in zip(result.plans, every.plans, strict=True):
        assert found.ran, found.error
        assert found.step_time_s == pytest.approx(full.step_time_s, rel=1e-9)
    return list(result.plans)


def moved(plan: Any, name: str) -> float:
    frame = plan.timeline.frame()
    return float(frame[(frame["rank"] == 0) & (frame.layer == 1) & (frame.name == name)].bytes.sum())


def test_what_crosses_between_nodes_is_what_leaves_them(tmp_path: Path) -> None:
    routing = measured(32, 0.1, 1)
    (usual, first) = served(tmp_path, routing, TWO_NODES, "links", "staying_by_nodes")
    _, on_node = stay_rates(routing, 32, 16, 2)
    tokens = 64 * 1024 * 2.0
    whole, near = moved(first, "dispatch"), moved(first, "dispatch in node")
    # Of what a rank receives in an all-to-all over both nodes 8 of 15 parts cross.
    assert whole * 8 / 15 == pytest.approx((1 - on_node) * tokens, rel=1e-5)
    on_rank, _ = stay_rates(routing, 32, 16, 2)
    assert whole + near == pytest.approx((1 - on_rank) * tokens, rel=1e-5)
    assert moved(first, "combine") == 0.0 < moved(usual, "combine")


def test_on_one_node_it_is_placed_on_ranks(tmp_path: Path) -> None:
    cluster = {"device": "h100", "nodes": 1}
    once, first = served(tmp_path, measured(32, 0.1, 1), cluster, "staying", "staying_by_nodes")
    assert once.step_time_s == first.step_time_s
