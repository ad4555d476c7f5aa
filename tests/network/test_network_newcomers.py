"""A collective algorithm from outside the package: registered here, chosen by a plan, moved on links and reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tspsim
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.network import (
    ALGORITHMS,
    KINDS,
    Cluster,
    CollectiveAlgorithm,
    CollectiveKind,
    Group,
    Schedule,
    collective,
    load_cluster,
    scheduled,
)
from tspsim.report import write_report

GIB = 2**30


def star(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """Everybody sends all it has to the first rank, which adds up and sends back."""
    others = group.ranks[1:]
    ends = [*others, *[group.ranks[0]] * len(others)], [*[group.ranks[0]] * len(others), *others]
    return [scheduled(group, "direct", *ends, 1.0, node_steps=2)] if len(group.members) == 1 else []


def with_library(cluster: Cluster, **changes: object) -> Cluster:
    """The same cluster with another library."""
    library = cluster.node.collectives.model_copy(update=changes)
    return replace(cluster, node=cluster.node.model_copy(update={"collectives": library}))


@pytest.fixture
def newcomer() -> Iterator[CollectiveAlgorithm]:
    yield ALGORITHMS.register(CollectiveAlgorithm("star", ("all_reduce",), "by way of the first rank", star))
    ALGORITHMS.remove("star")


def test_a_newcomer_is_named_like_those_that_ship(newcomer: CollectiveAlgorithm) -> None:
    cluster = load_cluster("mi300x-8")
    traffic = collective(cluster, range(8), "all_reduce", GIB, algorithm="star")
    ends = {(cluster.links.source[link], cluster.links.target[link]) for link in traffic.links}
    assert traffic.algorithm == "star"
    assert ends == {pair for peer in range(1, 8) for pair in ((0, peer), (peer, 0))}
    assert set(traffic.link_bytes) == {float(GIB)}
    with pytest.raises(InputError, match="'star' cannot run all_gather"):
        collective(cluster, range(8), "all_gather", GIB, algorithm="star")
    with pytest.raises(ValueError, match="registered twice"):
        ALGORITHMS.register(newcomer)


def test_it_wins_and_loses_by_its_own_closed_form(newcomer: CollectiveAlgorithm) -> None:
    """Two steps and S over each link, against 2·S/n of a direct exchange: four times as long among eight, as long among
    two."""
    cluster = load_cluster("mi300x-8")
    node = cluster.node.collectives
    plain = with_library(cluster, curves=())
    bandwidth = 64e9 * node.efficiency["default"].value
    for ranks in (2, 4, 8):
        mine, usual = (
            collective(plain, range(ranks), "all_reduce", 4 * GIB, algorithm=name) for name in ("star", "direct")
        )
        assert mine.fluid_s == pytest.approx(4 * GIB / bandwidth)
        assert mine.fluid_s / usual.fluid_s == pytest.approx(ranks / 2)
        simple = node.protocols[-1].ring
        assert mine.latency_s == pytest.approx(simple.base + 2 * simple.hop)
        # A ring's 2·(n − 1) steps take longer than its two where nothing but latency counts.
        few, many = (collective(plain, range(ranks), "all_reduce", 1, algorithm=name) for name in ("star", "ring"))
        assert few.alone_s <= many.alone_s


def test_a_tuner_weighs_it_where_a_node_lists_it(newcomer: CollectiveAlgorithm) -> None:
    cluster = load_cluster("mi300x-8")
    library = cluster.node.collectives
    for listed, chosen in ((("ring", "star"), "star"), (("star", "direct"), "direct")):
        inside = {**library.inside_node, "all_reduce": listed}
        weighed = with_library(cluster, curves=(), inside_node=inside)
        assert collective(weighed, range(8), "all_reduce", 2**24).algorithm == chosen


def test_a_plan_chooses_it_and_the_report_shows_it(newcomer: CollectiveAlgorithm, tmp_path: Path) -> None:
    scenario = tspsim.load(
        {
            "name": "newcomer",
            "cluster": {"device": "mi300x", "nodes": 1},
            "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "4Ki", "sequences_per_replica": 1},
            "plans": [
                {"name": "usual", "tp": 8},
                {"name": "star", "tp": 8, "algorithms": {"all_reduce": "star"}},
            ],
        }
    )
    result = tspsim.simulate(scenario)
    usual, mine = (result.plan(name) for name in ("usual", "star"))
    assert mine.step_time_s > usual.step_time_s
    rows = result.timeline("star")
    reduced = rows[rows["kind"] == "all_reduce"]
    assert len(reduced) and reduced["shape"].str.contains("star").all()
    used = {(source, target) for source, target, share in mine.link_shares if share > 0.0}
    assert used == {pair for peer in range(1, 8) for pair in (("0", str(peer)), (str(peer), "0"))}
    page = tmp_path / "report.html"
    write_report(result, page)
    text = page.read_text()
    assert "Node and fabric" in text and "star" in text


def test_a_plan_that_names_what_nobody_registered_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"use .*did you mean 'ring'"):
        tspsim.load("ring-on-a-mesh-mi300x", ["plans.TP8.algorithms={all_reduce: rng}"])
    with pytest.raises(UnknownNameError, match="did you mean 'all_gather'"):
        collective(load_cluster("mi300x-8"), range(8), "all_gathr", GIB)


LITTLE = """
from tspsim.network import CollectiveAlgorithm, CollectiveKind, Topology, scheduled
from tspsim.network.wiring import joined

SCAN = CollectiveKind("scan", "the vector", reduces=True)

def line(group, kind):
    return [scheduled(group, "ring", group.ranks[:-1], group.ranks[1:], 1.0, node_steps=group.size - 1)]

LINE = CollectiveAlgorithm("line", ("scan",), "one after the other", line)

def pair(endpoints, argument, cable):
    return joined([(0, 1, cable.together, 0.0), (1, 0, cable.together, 0.0)], endpoints)

PAIR = Topology("pair", "two", pair)
"""
ENTRIES = """[tspsim.collective_kinds]
scan = little:SCAN
[tspsim.collective_algorithms]
line = little:LINE
[tspsim.topologies]
pair = little:PAIR
"""


def test_an_installed_package_brings_a_kind_an_algorithm_and_a_topology(tmp_path: Path) -> None:
    (tmp_path / "little.py").write_text(LITTLE)
    metadata = tmp_path / "little-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: little\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    asks = (
        "from tspsim.network import TOPOLOGIES, collective, load_cluster\n"
        "traffic = collective(load_cluster('mi300x-8'), range(4), 'scan', 1e9)\n"
        "print(traffic.algorithm, traffic.link_bytes, 'pair' in TOPOLOGIES)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = subprocess.run(
        [sys.executable, "-c", asks], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert told.stdout == "line (1000000000.0, 1000000000.0, 1000000000.0) True\n"


# --- what holds for every algorithm and kind that is registered -----------------------------------------------

PLACES = {
    "mesh": ("mi300x-8", range(8)),
    "switch": ("hgx-h100-8", range(8)),
    "mesh nodes": ("mi300x-2x8", range(16)),
    "switched nodes": ("h100-2x8", range(16)),
}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_rank_receives_what_its_kind_says_and_no_link_is_over_its_capacity(
    algorithm: str, kind: str, place: str
) -> None:
    name, ranks = PLACES[place]
    cluster, size = load_cluster(name), float(GIB)
    if kind not in ALGORITHMS.get(algorithm).kinds:
        with pytest.raises(InputError, match="cannot run"):
            collective(cluster, ranks, kind, size, algorithm=algorithm)
        return
    try:
        traffic = collective(cluster, ranks, kind, size, algorithm=algorithm)
    except InputError as error:
        assert "cannot run" in str(error)
        return
    links, moved = np.array(traffic.links), np.array(traffic.link_bytes)
    into = dict.fromkeys(ranks, 0.0)
    for link, bytes_ in zip(traffic.links, traffic.link_bytes, strict=True):
        if (target := cluster.links.target[link]) in into:
            into[target] += bytes_  # type: ignore[index]
    told = KINDS.get(kind).received_bytes(size, len(ranks))
    # A switch that adds up hands on a rank's share alone; elsewhere the mean rank gets what the kind says.
    if algorithm != "in_switch" and traffic.algorithm != "two_level":
        assert sum(into.values()) / len(ranks) >= told * (1 - 1e-9)
    assert traffic.fluid_s >= float((moved / cluster.bandwidth_bytes_per_s[links]).max()) * (1 - 1e-12)
    assert traffic.latency_s >= 0.0


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_group_moved_inside_its_node_moves_its_links_alone(algorithm: str, kind: str) -> None:
    cluster = load_cluster("mi300x-2x8")
    step = cluster.layout.node_links
    try:
        first, second = (
            collective(cluster, range(start, start + 8), kind, GIB, algorithm=algorithm) for start in (0, 8)
        )
    except InputError:
        return
    assert tuple(link + step for link in first.links) == second.links
    assert replace(second, links=first.links) == first
