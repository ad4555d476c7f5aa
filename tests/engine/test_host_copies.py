"""Copies between GPUs and hosts: alone at the link's rate, beside messages to other nodes on one link, folded right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.engine import grid, hop, kernel, play, program

from tspsim.engine.core import Interference, Submission
from tspsim.network import Cluster, build_cluster, host_bandwidth, host_copy, load_cluster
from tspsim.program import Copy, Program

ONE = load_cluster("mi300x-8")
TWO = build_cluster("mi300x", 2, "rails-400g")
GB = 10**9


def spans(played: Submission) -> dict[str, float]:
    """Seconds of every instruction of the first rank, by name."""
    timeline = played.timeline
    columns = timeline.columns()
    names = timeline.labelled(lambda label: label.name, object)
    mine = columns["rank"] == columns["rank"].min()
    return dict(zip(names[mine], (columns["end_s"] - columns["start_s"])[mine], strict=True))


def copies(*directions: str) -> Program:
    return program(*[Copy(each, GB, each, stream=f"copies {each}") for each in directions])


@pytest.mark.parametrize("cluster", [ONE, TWO])
def test_a_copy_alone_takes_its_bytes_at_the_hosts_rate_and_directions_share_nothing(cluster: Cluster) -> None:
    played = play(cluster, copies("out", "in"), grid(8))
    alone_s = GB / host_bandwidth(ONE.node)
    assert alone_s == pytest.approx(GB / (0.83 * 63e9))
    assert spans(played) == pytest.approx({"out": alone_s, "in": alone_s}, rel=1e-9)


def test_copies_of_one_queue_follow_each_other_and_a_store_takes_its_time() -> None:
    played = play(
        ONE,
        program(
            Copy("out", GB, "first"),
            Copy("out", GB, "second"),
            Copy("out", 0, "file", seconds=2.0),
        ),
        grid(8),
    )
    assert played.makespan_s == pytest.approx(2 * GB / host_bandwidth(ONE.node) + 2.0)


def test_what_is_copied_out_and_what_is_sent_to_another_node_share_the_gpu_s_link() -> None:
    """A GPU of the first node sends: its copies out are beside that on its PCIe, copies in are not."""
    mesh = grid(2, 8, axes="yx")
    message = hop(GB, axis="y", wrap=False)
    alone = spans(play(TWO, program(message), mesh, by="y"))["hop"]
    for direction in ("out", "in"):
        both = spans(play(TWO, program(message, *copies(direction).items), mesh, by="y"))
        copy_s = host_copy(TWO, 0, GB, direction).alone_s
        assert both["hop"] > 1.2 * alone, "the other end's link carries what comes in"
        assert (both[direction] > 1.2 * copy_s) == (direction == "out")
        assert max(both.values()) <= 1.01 * (alone + copy_s)


def test_nothing_is_copied_faster_than_the_link_carries() -> None:
    mesh = grid(2, 8, axes="yx")
    played = play(TWO, program(hop(4 * GB, axis="y"), *copies("out", "in").items), mesh, by="y")
    capacity = TWO.links.bandwidth_bytes_per_s
    for link, carried, _ in zip(*played.system.link_loads(), strict=True):
        assert carried / played.makespan_s <= float(capacity[link]) * (1 + 1e-9)


def test_copy_engines_take_nothing_from_kernels() -> None:
    slow = Interference(compute=2.0, communication=2.0)
    played = play(ONE, program(kernel(0.05), *copies("out").items), grid(8), interference=slow)
    assert spans(played)["kernel"] == pytest.approx(0.05) and played.makespan_s == pytest.approx(0.05)


def test_folded_copies_are_those_of_every_rank_also_where_a_link_is_slow() -> None:
    mesh = grid(2, 8, axes="yx")
    asked = program(hop(GB, axis="y"), *copies("out").items)
    folded, full = (play(TWO, asked, mesh, by="y", every_rank=every) for every in (False, True))
    assert folded.makespan_s == pytest.approx(full.makespan_s, rel=1e-12) and len(folded.ranks) < len(full.ranks)
    node = TWO.node
    own = node.model_copy(update={"host_memory": node.host_link})
    assert host_copy(replace(TWO, node=own), 0, GB, "out").links == ()
