"""One machine for all that is launched on it: shared links and devices, an event for each end, nothing costed twice."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import simpy
from helpers.engine import collective, grid, hop, kernel, play, program, seconds_of, sleep
from helpers.strategies import CLUSTERS, FLAWED, INTERFERENCE, SIZES, machines
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.base.errors import TspsimError
from tspsim.engine.core import Interference, SimulationEngine, Submission
from tspsim.engine.instances import Assignment
from tspsim.network import Cluster, build_cluster, load_cluster, point_to_point
from tspsim.network import collective as traffic_of
from tspsim.operators import Operator
from tspsim.program import COLLECTIVE_KINDS, Collective, Compute, Instruction, Program, SendReceive
from tspsim.program.instructions import Mesh

MIB, GIB = 2**20, 2**30
SAME = 1e-12


def over(gpus: Sequence[int], *instructions: Instruction) -> Assignment:
    """The same program on some GPUs of a cluster, along one axis."""
    return Assignment.uniform(Mesh(("x",), np.array(gpus, dtype=np.int64)), program(*instructions))


def together(
    cluster: Cluster,
    *assignments: Assignment,
    interference: Interference | None = None,
    every_rank: bool = False,
    at_s: Sequence[float] = (),
) -> list[Submission]:
    """All of them launched on one engine, and run."""
    engine = SimulationEngine(cluster, seconds_of, interference=interference, every_rank=every_rank)
    prepared = [engine.prepare(each) for each in assignments]
    begin_s = at_s or [0.0] * len(prepared)
    found = [engine.launch(each, begin) for each, begin in zip(prepared, begin_s, strict=True)]
    engine.run()
    return found


def times_of(*submissions: Submission) -> dict[tuple[int, str], list[tuple[float, float]]]:
    """(rank, stream) → (start, end) of its instructions, over all submissions."""
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for submission in submissions:
        frame = submission.timeline.frame()[["rank", "stream", "start_s", "end_s"]]
        for rank, stream, start, end in frame.itertuples(index=False):
            found.setdefault((rank, stream), []).append((start, end))
    return found


def assert_same_times(one: Sequence[Submission], other: Sequence[Submission]) -> None:
    """Every stream of every rank did its instructions at the same times."""
    mine, theirs = times_of(*one), times_of(*other)
    assert mine.keys() == theirs.keys()
    longest_s = max((end for rows in theirs.values() for _, end in rows), default=0.0)
    for key, rows in theirs.items():
        assert np.array(mine[key]) == pytest.approx(np.array(rows), rel=SAME, abs=SAME * longest_s), key


# Two submissions are one with two streams.


def test_two_all_reduces_at_once_take_twice_as_long_as_one() -> None:
    """On eight H100, where two simulators side by side would take as long as one."""
    cluster = load_cluster("hgx-h100-8")
    reduce = collective("all_reduce", GIB)
    traffic = traffic_of(cluster, range(8), "all_reduce", GIB)
    both = together(cluster, over(range(8), reduce), over(range(8), replace(reduce, stream="two")))
    expected_s = traffic.latency_s + 2 * traffic.fluid_s
    assert [each.makespan_s for each in both] == pytest.approx([expected_s] * 2, rel=SAME)
    twice = together(cluster, over(range(8), reduce, replace(reduce, stream="two")))
    assert_same_times(both, twice)


def test_the_same_prepared_thing_launched_twice_shares_with_itself() -> None:
    cluster = load_cluster("hgx-h100-8")
    reduce = collective("all_reduce", GIB)
    both = together(cluster, over(range(8), reduce), over(range(8), reduce))
    twice = together(cluster, over(range(8), reduce, replace(reduce, stream="two")))
    assert {each.makespan_s for each in both} == {twice[0].makespan_s}


def test_two_kernels_on_one_device_take_twice_as_long() -> None:
    cluster = load_cluster("hgx-h100-8")
    work = kernel(1e-3)
    both = together(cluster, over(range(8), work), over(range(8), replace(work, stream="second")))
    assert [each.makespan_s for each in both] == pytest.approx([2e-3] * 2, rel=SAME)
    assert_same_times(both, together(cluster, over(range(8), work, replace(work, stream="second"))))


def test_a_kernel_that_comes_later_slows_only_what_is_left() -> None:
    cluster = load_cluster("hgx-h100-8")
    first, second = together(cluster, over(range(8), kernel(1.0)), over([3], kernel(1.0)), at_s=[0.0, 0.5])
    assert times_of(first)[0, "compute"] == [(0.0, 1.0)] and times_of(first)[3, "compute"] == [(0.0, 1.5)]
    assert times_of(second)[3, "compute"] == [(0.5, 2.0)]


def test_kernels_that_share_a_device_are_disturbed_by_what_moves_through_it() -> None:
    """While data moves each of the two runs at a quarter; then at half."""
    cluster = load_cluster("mi300x-8")
    fluid_s = traffic_of(cluster, range(8), "all_gather", GIB).fluid_s
    works = [(kernel(fluid_s), collective("all_gather", GIB)), (replace(kernel(fluid_s), stream="second"),)]
    two = together(cluster, *(over(range(8), *work) for work in works), interference=Interference(compute=2.0))
    assert two[1].makespan_s == pytest.approx(2 * fluid_s + fluid_s / 2, rel=SAME)
    one = together(cluster, over(range(8), *works[0], *works[1]), interference=Interference(compute=2.0))
    assert_same_times(two, one)


@pytest.mark.parametrize("every_rank", [False, True])
def test_a_transfer_between_disjoint_groups_shares_the_link_it_crosses(every_rank: bool) -> None:
    """From node 0 to node 8 and from node 1 to node 9, over the one spine of a fat tree that is narrow there."""
    cluster = build_cluster("h100", 16, "fat-tree-400g", oversubscription=16.0)
    ends = [(0, 64), (8, 72)]
    groups = [over(gpus, hop(GIB)) for gpus in ends]
    alone, two = (together(cluster, *each, every_rank=every_rank) for each in (groups[:1], groups))
    one = together(cluster, Assignment.uniform(Mesh(("y", "x"), np.array(ends)), program(hop(GIB))))
    assert [each.makespan_s for each in two] == pytest.approx([one[0].makespan_s] * 2, rel=SAME)
    assert one[0].makespan_s > 1.9 * alone[0].makespan_s


def test_one_sender_feeds_two_groups_over_one_port() -> None:
    """Groups that have only GPU 0 in common: its port carries both."""
    cluster = load_cluster("hgx-h100-8")
    traffic = point_to_point(cluster, 0, 1, GIB)
    both = together(cluster, over([0, 1], hop(GIB)), over([0, 2], hop(GIB)))
    assert [each.makespan_s for each in both] == pytest.approx([traffic.latency_s + 2 * traffic.fluid_s] * 2, rel=SAME)


@st.composite
def streams(draw: st.DrawFn, name: str, most: int = 5) -> tuple[Instruction, ...]:
    """A program of one stream of kernels and one of communication."""
    found: list[Instruction] = []
    for index in range(draw(st.integers(1, most))):
        after = sorted(draw(st.sets(st.integers(0, index - 1), max_size=2))) if index else []
        what = draw(st.sampled_from(["kernel", "collective", "hop"]))
        axis = draw(st.sampled_from("xy"))
        if what == "kernel":
            lengths = st.sampled_from([0.0, 2e-4, 1e-3, 5e-3])
            found.append(replace(kernel(draw(lengths), after=after), stream=f"{name} kernels"))
        elif what == "collective":
            kind = draw(st.sampled_from(COLLECTIVE_KINDS))
            found.append(collective(kind, draw(SIZES), axis=axis, after=after, stream=f"{name} moves"))
        else:
            found.append(hop(draw(SIZES), axis=axis, after=after, stream=f"{name} moves"))
    return tuple(found)


def joined(one: Sequence[Instruction], other: Sequence[Instruction]) -> Program:
    """Both programs as one, side by side."""
    moved = [replace(each, after=tuple(index + len(one) for index in each.after)) for each in other]
    return program(*one, *moved)


@settings(max_examples=20, deadline=None)
@given(machines(*CLUSTERS, *FLAWED), streams("one"), streams("two"), INTERFERENCE)
def test_two_submissions_are_one_with_both_their_streams(
    machine: tuple[str, Mesh],
    one: tuple[Instruction, ...],
    other: tuple[Instruction, ...],
    interference: Interference,
) -> None:
    cluster, mesh = (CLUSTERS | FLAWED)[machine[0]], machine[1]
    assignments = [Assignment.uniform(mesh, program(*each)) for each in (one, other)]
    two = together(cluster, *assignments, interference=interference, every_rank=True)
    whole = play(cluster, joined(one, other), mesh, interference=interference)
    assert_same_times(two, [whole])


@settings(max_examples=20, deadline=None)
@given(
    machines(*CLUSTERS, *FLAWED),
    machines(*CLUSTERS),
    streams("one"),
    streams("two"),
    INTERFERENCE,
    st.sampled_from([0.0, 1e-3]),
    st.booleans(),
)
def test_folded_submissions_do_what_every_rank_does(
    machine: tuple[str, Mesh],
    shuffled: tuple[str, Mesh],
    one: tuple[Instruction, ...],
    other: tuple[Instruction, ...],
    interference: Interference,
    later_s: float,
    part: bool,
) -> None:
    """On one mesh or on two, one of which may be a part of the cluster."""
    cluster, mesh = (CLUSTERS | FLAWED)[machine[0]], machine[1]
    second = shuffled[1] if shuffled[1].ranks.size <= cluster.gpus else mesh
    second = Mesh(second.axes, second.ranks[:1]) if part else second
    assignments = [Assignment.uniform(mesh, program(*one)), Assignment.uniform(second, program(*other))]
    folded, whole = (
        together(cluster, *assignments, interference=interference, every_rank=every_rank, at_s=[0.0, later_s])
        for every_rank in (False, True)
    )
    for some, every in zip(folded, whole, strict=True):
        assert sum(each.size for each in some.ranks) == len(every.ranks)
        assert some.makespan_s == pytest.approx(every.makespan_s, rel=1e-9)
        expected = times_of(every)
        for key, rows in times_of(some).items():
            assert np.array(rows) == pytest.approx(np.array(expected[key]), rel=1e-9, abs=1e-14)


# Any set of ranks.


@pytest.mark.parametrize("gpus", [(4, 5, 6, 7), (7, 0, 5, 2), (3,)])
@pytest.mark.parametrize("every_rank", [False, True])
def test_a_mesh_over_a_part_of_the_cluster(gpus: tuple[int, ...], every_rank: bool) -> None:
    cluster = load_cluster("mi300x-8")
    work = (kernel(1e-3), collective("all_reduce", GIB, after=[0]), hop(MIB, after=[1]))
    (submission,) = together(cluster, over(gpus, *work), every_rank=every_rank)
    assert sum(each.size for each in submission.ranks) == len(gpus)
    assert {each.rank.number for each in submission.ranks} <= set(gpus)
    assert submission.makespan_s == pytest.approx(together(cluster, over(range(len(gpus)), *work))[0].makespan_s)


def test_replicas_on_disjoint_gpus_do_not_disturb_each_other_on_a_mesh() -> None:
    cluster = load_cluster("mi300x-8")
    work = kernel(1e-3), collective("all_reduce", GIB, after=[0])
    alone = together(cluster, over(range(4), *work))[0].makespan_s
    both = together(cluster, over(range(4), *work), over(range(4, 8), *work))
    assert [each.makespan_s for each in both] == pytest.approx([alone, alone], rel=SAME)


def test_a_mesh_knows_who_is_not_in_it() -> None:
    mesh = Mesh(("x", "y"), np.array([[5, 3], [6, 1]]))
    assert mesh.positions["x"].tolist() == [-1, 1, -1, 0, -1, 0, 1]
    assert mesh.group_of("x").tolist() == [-1, 1, -1, 1, -1, 0, 0]


# A machine that stays.


def test_a_process_waits_for_a_thousand_iterations_of_equal_length() -> None:
    cluster = load_cluster("hgx-h100-8")
    engine = SimulationEngine(cluster, seconds_of)
    iteration = engine.prepare(over(range(8), kernel(0.25), collective("all_reduce", GIB, after=[0])))
    seconds: list[float] = []

    def serve() -> Generator[simpy.Event, None, None]:
        for _ in range(1000):
            begin_s = engine.env.now
            submission = engine.launch(iteration)
            yield submission.done
            assert len(submission.timeline) == submission.instructions
            seconds.append(engine.env.now - begin_s)

    engine.env.process(serve())
    engine.run()
    alone_s = together(cluster, iteration.assignment)[0].makespan_s
    assert seconds == pytest.approx([alone_s] * 1000, rel=1e-9)
    assert engine.env.now == pytest.approx(1000 * alone_s, rel=1e-9)


def test_what_is_prepared_is_found_again_and_nothing_is_costed_twice() -> None:
    asked: list[Operator] = []

    def cost(operator: Operator) -> float:
        asked.append(operator)
        return seconds_of(operator)

    engine = SimulationEngine(load_cluster("mi300x-8"), cost)
    work: list[Instruction] = [kernel(1.0), kernel(2.0), collective("all_gather", MIB)]
    first = engine.prepare(over(range(8), *work))
    assert engine.prepare(first.assignment) is first and engine.prepare(over(range(8), *work)) is first
    assert engine.prepare(replace(first.assignment, slowness={1: 2.0})) is not first
    assert engine.prepare(over(range(7), *work)) is not first
    assert engine.prepare(over(range(8), *work[1:])) is not first
    costed, system = len(asked), engine.system(first)
    for _ in range(3):
        engine.launch(first)
        engine.run()
        assert engine.system(first) is system and len(asked) == costed
    assert asked.count(sleep(1.0)) == 3


def test_an_empty_program_ends_when_it_begins() -> None:
    engine = SimulationEngine(load_cluster("mi300x-8"), seconds_of)
    submission = engine.launch(engine.prepare(over(range(8))), at_s=3.0)
    engine.run()
    assert submission.done.processed and engine.env.now == 3.0 and submission.makespan_s == 0.0


def test_folding_is_for_all_that_is_prepared() -> None:
    """Alone eight ranks are alike; with a second mesh over half of them, and a third over one, they are not."""
    engine = SimulationEngine(load_cluster("mi300x-8"), seconds_of)
    whole = engine.prepare(over(range(8), kernel(1.0)))
    assert [each.size for each in engine.system(whole).ranks] == [8]
    engine.launch(whole)
    engine.run()
    half = engine.prepare(over(range(4), kernel(1.0)))
    one = engine.prepare(over([2], kernel(1.0)))
    assert sorted(each.size for each in engine.system(whole).ranks) == [1, 3, 4]
    submissions = [engine.launch(each) for each in (whole, half, one)]
    engine.run()
    assert [each.makespan_s for each in submissions] == [3.0, 3.0, 3.0]


def test_preparing_what_parts_ranks_in_flight_is_refused_and_says_what_to_do() -> None:
    engine = SimulationEngine(load_cluster("mi300x-8"), seconds_of)
    engine.launch(engine.prepare(over(range(8), kernel(1.0))))
    part = engine.prepare(over([5], kernel(1.0)))
    with pytest.raises(TspsimError, match="prepare it before that launch, or run every rank"):
        engine.launch(part)
    engine.run()
    assert engine.launch(part).system.ranks[0].rank.number == 5


def test_kernels_of_other_lengths_need_no_new_classes() -> None:
    """What a decode does from one token to the next: the same messages, kernels of another length."""
    engine = SimulationEngine(load_cluster("mi300x-8"), seconds_of)
    lengths = [1.0, 2.0, 3.0]
    found = [engine.prepare(over(range(8), kernel(each), collective("all_reduce", MIB, after=[0]))) for each in lengths]
    engine.launch(found[0])
    with patch("tspsim.engine.classes.rank_classes", side_effect=AssertionError("refined again")):
        found.append(engine.prepare(over(range(8), kernel(4.0), collective("all_reduce", MIB, after=[0]))))
        submissions = [engine.launch(each, at_s=10.0 * index) for index, each in enumerate(found, 1)]
    engine.run()
    steps = np.diff([each.makespan_s for each in submissions])
    assert steps == pytest.approx([1.0] * 3)
    assert [each.size for each in submissions[-1].ranks] == [8]


def test_the_same_programs_on_new_ranks_get_devices_of_their_own() -> None:
    engine = SimulationEngine(load_cluster("mi300x-8"), seconds_of)
    for gpus in (range(4), range(4, 8), range(8)):
        submission = engine.launch(engine.prepare(over(gpus, kernel(1.0))))
        engine.run()
        assert submission.makespan_s == 1.0 and sum(each.size for each in submission.ranks) == len(gpus)


def test_preparing_what_parts_nobody_is_fine_at_any_time() -> None:
    """The second all-reduce is prepared while the first moves, and shares its links from then on."""
    cluster = load_cluster("hgx-h100-8")
    traffic = traffic_of(cluster, range(8), "all_reduce", GIB)
    engine = SimulationEngine(cluster, seconds_of)
    submissions = [engine.launch(engine.prepare(over(range(8), collective("all_reduce", GIB))))]

    def later() -> Generator[simpy.Event, None, None]:
        yield engine.env.timeout(traffic.fluid_s / 2)
        assignment = Assignment.uniform(grid(8), program(collective("all_reduce", GIB, stream="two")))
        submissions.append(engine.launch(engine.prepare(assignment)))

    engine.env.process(later())
    engine.run()
    first, second = submissions
    assert first.makespan_s == pytest.approx(1.5 * traffic.fluid_s + traffic.latency_s, rel=1e-9)
    assert second.makespan_s == pytest.approx(first.makespan_s, rel=1e-9)


@pytest.mark.parametrize("stream", ["compute", "moves"])
def test_a_stream_of_both_kernels_and_communication_is_refused(stream: str) -> None:
    engine = SimulationEngine(load_cluster("mi300x-8"), seconds_of)
    mixed: list[Compute | Collective | SendReceive] = [kernel(1.0), hop(MIB, stream="compute")]
    with pytest.raises(TspsimError, match="mixes kernels and communication"):
        engine.prepare(over(range(8), *(replace(each, stream=stream) for each in mixed)))
