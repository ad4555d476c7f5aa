"""What holds for any programs: bytes are conserved, links never overfull, order is kept, folding changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import simpy
from helpers.engine import grid, play
from helpers.processes import said_in_any_process
from helpers.strategies import CLUSTERS, FLAWED, INTERFERENCE, machines, programs
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.engine.core import Interference, Submission
from tspsim.network import Cluster
from tspsim.network.fluid import Fluid, Transfer
from tspsim.program import Collective, Program
from tspsim.program.instructions import Mesh

#: Near enough for sums of many numbers.
NEAR = 1e-9


@contextmanager
def watched() -> Iterator[list[tuple[float, list[tuple[int, float]]]]]:
    """Whenever rates were settled: the time, and (channel, rate) of every transfer that moves."""
    seen: list[tuple[float, list[tuple[int, float]]]] = []
    settle = Fluid._settle

    def settle_and_look(self: Fluid, event: simpy.Event) -> None:
        settle(self, event)
        moving = [transfer for active in self._active.values() for transfer in active]
        seen.append((self.env.now, [(transfer.channel.number, transfer.rate) for transfer in moving]))

    with patch.object(Fluid, "_settle", settle_and_look):
        yield seen


Row = tuple[float, float]


def rows_of(submission: Submission) -> dict[tuple[int, int], Row]:
    """(rank, label) → (start, end)."""
    columns = {key: column.tolist() for key, column in submission.timeline.columns().items()}
    pairs = zip(columns["rank"], columns["label"], strict=True)
    return dict(zip(pairs, zip(columns["start_s"], columns["end_s"], strict=True), strict=True))


# Conservation.


@settings(max_examples=25, deadline=None)
@given(machines("mi300x-8"), programs())
def test_on_a_mesh_the_bytes_that_ranks_receive_are_those_that_cross_links(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...]
) -> None:
    """Every way is one link, so what was sent, what crossed and what arrived are the same bytes."""
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    submission = play(cluster, chosen, mesh)
    received = sum(submission.timeline.labels[label].size_bytes for label in communication_rows(submission))
    carried = sum(size * copies for _, size, copies in zip(*submission.system.link_loads(), strict=True))
    assert carried == pytest.approx(received, rel=NEAR)


def communication_rows(submission: Submission) -> list[int]:
    labels = submission.timeline.labels
    return [label for label in submission.timeline.label if not labels[label].is_compute]


@settings(max_examples=15, deadline=None)
@given(machines("mi300x-2x8"), programs())
def test_what_enters_a_nic_or_a_switch_leaves_it(machine: tuple[str, Mesh], chosen: tuple[Program, ...]) -> None:
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    submission = play(cluster, chosen, mesh)
    balance: dict[int | str, float] = {}
    largest = 1.0
    for link, size_bytes, _ in zip(*submission.system.link_loads(), strict=True):
        source, target = cluster.links.source[link], cluster.links.target[link]
        balance[source] = balance.get(source, 0.0) - size_bytes
        balance[target] = balance.get(target, 0.0) + size_bytes
        largest = max(largest, size_bytes)
    assert all(abs(left) <= NEAR * largest for vertex, left in balance.items() if isinstance(vertex, str))
    assert abs(sum(balance.values())) <= NEAR * largest


# Capacity.


@settings(max_examples=25, deadline=None)
@given(machines(), programs(), INTERFERENCE)
def test_no_link_is_above_its_capacity_at_any_moment(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...], interference: Interference
) -> None:
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    with watched() as seen:
        submission = play(cluster, chosen, mesh, interference=interference)
    traffic = {channel.number: instance.traffic for instance, channel in submission.system.instances}
    bandwidth = cluster.links.bandwidth_bytes_per_s
    for _, moving in seen:
        flowing: dict[int, float] = {}
        for number, rate in moving:
            each = traffic[number]
            for link, size_bytes in zip(each.links, each.link_bytes, strict=True):
                flowing[link] = flowing.get(link, 0.0) + rate * size_bytes / each.fluid_s
        assert all(rate <= bandwidth[link] * (1.0 + NEAR) for link, rate in flowing.items())


@settings(max_examples=15, deadline=None)
@given(machines(), programs(), INTERFERENCE)
def test_a_transfer_is_never_faster_than_alone_and_ends_when_all_of_it_has_moved(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...], interference: Interference
) -> None:
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    left: list[float] = []
    leave = Fluid.leave

    def look_and_leave(self: Fluid, transfer: Transfer) -> None:
        unmoved_s = transfer.remaining_s - (self.env.now - transfer.since_s) * transfer.rate
        left.append(unmoved_s / transfer.channel.fluid_s if transfer.channel.fluid_s else 0.0)
        assert 0.0 < transfer.rate <= 1.0
        leave(self, transfer)

    with patch.object(Fluid, "leave", look_and_leave):
        submission = play(cluster, chosen, mesh, interference=interference)
    assert left == pytest.approx([0.0] * len(left), abs=1e-6)
    assert len(left) == sum(submission.system.uses().values())


# Order.


@settings(max_examples=25, deadline=None)
@given(machines(), programs(), INTERFERENCE, st.booleans())
def test_time_never_runs_back(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...], interference: Interference, every_rank: bool
) -> None:
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    with watched() as seen:
        submission = play(cluster, chosen, mesh, interference=interference, every_rank=every_rank)
    columns = submission.timeline.columns()
    assert (columns["end_s"] >= columns["start_s"]).all() and (columns["start_s"] >= 0.0).all()
    settled = [now for now, _ in seen]
    assert settled == sorted(settled)


@settings(max_examples=25, deadline=None)
@given(machines(), programs(), INTERFERENCE, st.booleans())
def test_streams_run_in_order_and_waits_are_respected(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...], interference: Interference, every_rank: bool
) -> None:
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    submission = play(cluster, chosen, mesh, interference=interference, every_rank=every_rank)
    rows = rows_of(submission)
    assert len(rows) == len(submission.timeline) == submission.instructions
    for simulated in submission.ranks:
        first = min(label for rank, label in rows if rank == simulated.rank.number)
        for steps in simulated.role.streams.values():
            before_s = 0.0
            for step in steps:
                start_s, end_s = rows[simulated.rank.number, first + step.number]
                assert start_s >= before_s
                assert all(start_s >= rows[simulated.rank.number, first + other][1] for other in step.after)
                before_s = end_s


@settings(max_examples=15, deadline=None)
@given(machines(), programs())
def test_members_of_a_group_move_together(machine: tuple[str, Mesh], chosen: tuple[Program, ...]) -> None:
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    submission = play(cluster, chosen, mesh)
    rows = rows_of(submission)
    roles = [list(entry.unrolled()) for entry in chosen]
    for index, issued in enumerate(roles[0]):
        if not isinstance(issued.instruction, Collective):
            continue
        for group in mesh.groups(issued.instruction.axis).tolist():
            spans = {rows[rank, index + (mesh.positions["x"][rank] % len(roles)) * len(roles[0])] for rank in group}
            assert len(spans) == 1


# Sameness.


@settings(max_examples=15, deadline=None)
@given(machines(), programs(), INTERFERENCE)
def test_the_same_programs_give_the_same_timeline_to_the_bit(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...], interference: Interference
) -> None:
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    first, second = (play(cluster, chosen, mesh, interference=interference) for _ in range(2))
    for one, other in zip(first.timeline.columns().values(), second.timeline.columns().values(), strict=True):
        assert one.tobytes() == other.tobytes()


@settings(max_examples=50, deadline=None)
@given(
    machines(*CLUSTERS, *FLAWED),
    programs(),
    INTERFERENCE,
    st.dictionaries(st.integers(0, 7), st.sampled_from([1.0, 1.5, 3.0]), max_size=2),
)
def test_folded_ranks_do_what_every_rank_does(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...], interference: Interference, slowness: dict[int, float]
) -> None:
    cluster, mesh = (CLUSTERS | FLAWED)[machine[0]], machine[1]
    folded, whole = (
        play(cluster, chosen, mesh, interference=interference, slowness=slowness, every_rank=every_rank)
        for every_rank in (False, True)
    )
    assert sum(simulated.size for simulated in folded.ranks) == len(whole.ranks) == cluster.gpus
    assert folded.makespan_s == pytest.approx(whole.makespan_s, rel=NEAR)
    expected = rows_of(whole)
    for key, row in rows_of(folded).items():
        assert row == pytest.approx(expected[key], rel=NEAR, abs=1e-15)
    columns = [run.system.link_loads() for run in (folded, whole)]
    loads = [float((size * copies).sum()) for _, size, copies in columns]
    assert loads[0] == pytest.approx(loads[1], rel=NEAR)


@settings(max_examples=15, deadline=None)
@given(machines(), programs(repeat_kernels=1), st.integers(1, 1000))
def test_a_later_start_shifts_everything(machine: tuple[str, Mesh], chosen: tuple[Program, ...], seconds: int) -> None:
    cluster, mesh = CLUSTERS[machine[0]], machine[1]
    now, later = play(cluster, chosen, mesh), play(cluster, chosen, mesh, at_s=float(seconds))
    expected = rows_of(now)
    for key, (start_s, end_s) in rows_of(later).items():
        assert (start_s - seconds, end_s - seconds) == pytest.approx(expected[key], rel=1e-6, abs=1e-11)


# More is never worse.


def slower(cluster: Cluster, factor: float) -> Cluster:
    """The same cluster with every link at a share of its bandwidth."""
    links = cluster.links
    return cluster.with_links(dict.fromkeys(zip(links.source, links.target, strict=True), factor))


SLOWER = {(name, factor): slower(CLUSTERS[name], factor) for name in ("mi300x-8", "h100-2x8") for factor in (0.3, 0.8)}


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(SLOWER)), programs(axes="x", streams=1))
def test_more_bandwidth_is_never_slower(which: tuple[str, float], chosen: tuple[Program, ...]) -> None:
    """One communication stream, groups with links of their own: then every end is a sum of maxima of times that only
    shrink. (Where transfers compete, Graham's anomalies allow the opposite: one that arrives earlier can delay
    another.)"""
    cluster = CLUSTERS[which[0]]
    mesh = grid(cluster.gpus // 4, 4)
    fast, slow = (play(each, chosen, mesh) for each in (cluster, SLOWER[which]))
    expected = rows_of(slow)
    assert all(row[1] <= expected[key][1] * (1.0 + NEAR) for key, row in rows_of(fast).items())


# Across processes.

SCRIPT = """
import hashlib
from helpers.engine import collective, grid, hop, kernel, play, program
from tspsim.engine.core import Interference
from tspsim.network import load_cluster
work = program(
    kernel(1e-3), collective("all_gather", 10**8, stream="a"), hop(10**8, axis="y", stream="b"),
    collective("all_reduce", 10**7, axis="y", stream="c", after=[0]), kernel(2e-3, after=[1, 2]), hop(10**6, after=[4]),
)
for every_rank in (True, False):
    submission = play(load_cluster("h100-2x8"), work, grid(4, 4), every_rank=every_rank,
                      interference=Interference(1.2, 1.1))
    digest = hashlib.sha256()
    for column in submission.timeline.columns().values():
        digest.update(column.tobytes())
    digest.update(repr(submission.timeline.labels).encode())
    print(digest.hexdigest())
"""


def test_the_timeline_is_the_same_in_every_process() -> None:
    assert len(said_in_any_process(SCRIPT).split()) == 2
