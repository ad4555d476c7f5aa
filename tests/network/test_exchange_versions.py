"""Versions of a library that brings tokens to experts, against the tables of its own page."""

from __future__ import annotations

import pytest

import tspsim
from tspsim.network import Cluster, ExpertExchange, build_cluster, exchange_experts, load_cluster, places_reached
from tspsim.step.question import look_up

#: DeepEP's README: 4,096 tokens of 7,168, top 8 of 256 in 4 of 8 groups, sent in fp8 with scales, back in bf16; GB/s of
#: what leaves a rank for nodes, its own among them.
BYTES = {"dispatch": 7168 * (1 + 4 / 128), "combine": 7168 * 2.0}


def rate(cluster: Cluster, phase: str) -> float:
    asked = ExpertExchange(4096.0, BYTES[phase], 256, 8, groups=8, kept_groups=4)
    found = exchange_experts(cluster, range(64), phase, asked)
    reached = places_reached(8, asked.topk, asked.groups, asked.kept_groups, asked.experts)
    return 4096.0 * BYTES[phase] * reached / (found.latency_s + found.fluid_s)


@pytest.mark.parametrize(
    ("library", "sent", "back"), [("deepep 2025-02", 46e9, 45e9), ("deepep", 51e9, 50e9), ("nobody's", 51e9, 50e9)]
)
def test_deepep_on_64_h800(library: str, sent: float, back: float) -> None:
    cluster = build_cluster("h800", 8, "rails-400g").with_exchanges(library)
    assert rate(cluster, "dispatch") == pytest.approx(sent, rel=0.06)
    assert rate(cluster, "combine") == pytest.approx(back, rel=0.04)


@pytest.mark.parametrize(("ranks", "sent", "back"), [(16, 76.8, 68.0), (32, 57.7, 57.5), (64, 50.6, 51.0)])
def test_deepep_over_nodes_of_h100(ranks: int, sent: float, back: float) -> None:
    """NVIDIA's page of Hybrid-EP on H100: 4,096 tokens of 7,168 in bf16, top 8 at random of 8 experts a rank,
    kernels alone. Nothing is fitted on it."""
    cluster = build_cluster("h100", ranks // 8, "rails-400g")
    for phase, measured in (("dispatch", sent), ("combine", back)):
        asked = ExpertExchange(4096.0, BYTES["combine"], 8 * ranks, 8)
        found = exchange_experts(cluster, range(ranks), phase, asked)
        sent_bytes = asked.tokens * BYTES["combine"] * places_reached(ranks // 8, 8, 1, 1, 8 * ranks)
        assert sent_bytes / (found.latency_s + found.fluid_s) / 1e9 == pytest.approx(measured, rel=0.17)


@pytest.mark.parametrize(("nodes", "sent", "back"), [(2, 43e9, 43e9), (4, 44e9, 47e9), (8, 46e9, 45e9)])
def test_deepep_as_first_published(nodes: int, sent: float, back: float) -> None:
    """One rate of a multiprocessor gives all six figures of its README. From the 32 on neither NVLink nor the NICs are
    full, so five sixths of the multiprocessors move five sixths as much."""
    cluster = build_cluster("h800", nodes, "rails-400g").with_exchanges("deepep 2025-02")
    for phase, published in (("dispatch", sent), ("combine", back)):
        asked = ExpertExchange(4096.0, BYTES[phase], 256, 8, groups=nodes, kept_groups=min(4, nodes))
        whole, fewer = (
            exchange_experts(cluster, range(8 * nodes), phase, asked._replace(multiprocessors=count))
            for count in (24, 20)
        )
        reached = places_reached(nodes, 8, nodes, min(4, nodes), 256)
        size_bytes = 4096.0 * BYTES[phase] * reached
        assert size_bytes / (whole.latency_s + whole.fluid_s) == pytest.approx(published, rel=0.06)
        if nodes > 2:
            assert fewer.fluid_s / whole.fluid_s == pytest.approx(24 / 20, rel=1e-3)


def test_deepseek_trained_before_the_faster_transport() -> None:
    cluster = look_up(tspsim.load("deepseek-v3-2048-h800")).cluster
    assert cluster.node.collectives.experts[0].library == "deepep 2025-02"
    plain = load_cluster("hgx-h800-8")
    assert plain.node.collectives.experts[0].library == "deepep"
    # A node that has no such curves keeps its own.
    other = load_cluster("hgx-h100-8")
    assert other.with_exchanges("deepep 2025-02") is other


@pytest.mark.parametrize(("nodes", "doublings"), [(1, 0), (2, 1), (8, 3)])
def test_a_notice_takes_longer_with_each_doubling_of_nodes(nodes: int, doublings: int) -> None:
    cluster = build_cluster("h100", nodes, "rails-400g" if nodes > 1 else None)
    ranks = range(8 * nodes)
    asked = ExpertExchange(4096.0, BYTES["combine"], 64 * nodes, 8)
    without, with_it = (
        exchange_experts(cluster, ranks, "dispatch", asked._replace(notice_s=notice)) for notice in (0.0, 35e-6)
    )
    assert with_it.latency_s - without.latency_s == pytest.approx(doublings * 35e-6, abs=1e-12)
