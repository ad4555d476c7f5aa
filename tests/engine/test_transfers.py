"""What transfers and kernels take, alone and together, by hand-written programs whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simpy
from helpers.engine import collective, grid, hop, kernel, play, program, seconds_of, sleep

from tspsim.base.errors import TspsimError
from tspsim.engine.core import DeadlockError, Interference, SimulationEngine, Submission
from tspsim.engine.instances import Assignment
from tspsim.network import collective as traffic_of
from tspsim.network import load_cluster, point_to_point
from tspsim.network.fluid import Calendar, Instant
from tspsim.program import COLLECTIVE_KINDS, Collective, Compute, Repeat, SendReceive

MIB, GIB = 2**20, 2**30
MESH, SWITCH, NODES = "mi300x-8", "hgx-h100-8", "mi300x-2x8"


def spans(submission: Submission, name: str, rank: int = 0) -> list[tuple[float, float]]:
    """(start, end) of every run of an instruction on one rank, in order."""
    columns = submission.timeline.columns()
    return [
        (start, end)
        for number, label, start, end in zip(*(columns[key].tolist() for key in columns), strict=True)
        if number == rank and submission.timeline.labels[label].name == name
    ]


# Alone.


@pytest.mark.parametrize("size_bytes", [1024, 3 * MIB, GIB])
@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
@pytest.mark.parametrize("where", [MESH, SWITCH, NODES])
def test_a_collective_alone_costs_its_latency_and_its_fluid_part_exactly(
    where: str, kind: str, size_bytes: int
) -> None:
    cluster = load_cluster(where)
    traffic = traffic_of(cluster, range(cluster.gpus), kind, size_bytes)
    submission = play(cluster, program(collective(kind, size_bytes)), grid(cluster.gpus))
    assert submission.makespan_s == traffic.fluid_s + traffic.latency_s


@pytest.mark.parametrize("where", [MESH, SWITCH, NODES])
def test_a_message_alone_costs_its_latency_and_its_fluid_part_exactly(where: str) -> None:
    cluster = load_cluster(where)
    half = cluster.gpus // 2
    sender = SendReceive("x", GIB, "message", to=half, source=None, wrap=False)
    receiver = SendReceive("x", GIB, "message", to=None, source=-half, wrap=False)
    idle = [program(role="idle")] * (half - 1)
    submission = play(cluster, [program(sender), *idle, program(receiver), *idle], grid(cluster.gpus))
    traffic = point_to_point(cluster, 0, half, GIB)
    assert traffic.fluid_s > 0.0
    assert spans(submission, "message", 0) == spans(submission, "message", half)
    assert submission.makespan_s == traffic.fluid_s + traffic.latency_s


def test_every_collective_of_a_chain_costs_what_it_costs_alone() -> None:
    cluster = load_cluster(MESH)
    chain = [collective(kind, 64 * MIB) for kind in COLLECTIVE_KINDS]
    alone = [traffic_of(cluster, range(8), kind, 64 * MIB) for kind in COLLECTIVE_KINDS]
    submission = play(cluster, program(*chain), grid(8))
    assert submission.makespan_s == pytest.approx(sum(each.latency_s + each.fluid_s for each in alone), rel=1e-12)


def test_a_plan_that_insists_on_an_algorithm_gets_it() -> None:
    cluster = load_cluster(MESH)
    ring = Collective("all_gather", "x", GIB, "gather", algorithm="ring")
    submission = play(cluster, program(ring), grid(8))
    traffic = traffic_of(cluster, range(8), "all_gather", GIB, algorithm="ring")
    assert submission.makespan_s == traffic.fluid_s + traffic.latency_s
    assert submission.makespan_s > 3 * play(cluster, program(collective("all_gather", GIB)), grid(8)).makespan_s
    assert "ring" in submission.timeline.labels[0].shape


def test_a_group_of_one_and_a_message_of_nothing_take_no_time() -> None:
    cluster = load_cluster(MESH)
    alone = program(collective("all_reduce", GIB, axis="z"), collective("all_reduce", 0), hop(0))
    assert play(cluster, alone, grid(8, 1, axes="xz")).makespan_s == 0.0


# Together.


@pytest.mark.parametrize("where", [MESH, SWITCH, NODES])
def test_two_equal_transfers_on_one_link_take_twice_the_fluid_part(where: str) -> None:
    cluster = load_cluster(where)
    both = program(hop(GIB, stream="one"), hop(GIB, stream="two"))
    submission = play(cluster, both, grid(cluster.gpus // 2, 2))
    traffic = point_to_point(cluster, 0, 1, GIB)
    assert submission.makespan_s == pytest.approx(traffic.latency_s + 2 * traffic.fluid_s, rel=1e-12)


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_two_equal_collectives_at_once_take_twice_the_fluid_part(kind: str) -> None:
    cluster = load_cluster(MESH)
    both = program(collective(kind, GIB, stream="one"), collective(kind, GIB, stream="two"))
    traffic = traffic_of(cluster, range(8), kind, GIB)
    expected = traffic.latency_s + 2 * traffic.fluid_s
    assert play(cluster, both, grid(8)).makespan_s == pytest.approx(expected, rel=1e-12)


def test_transfers_on_different_links_of_a_mesh_do_not_share() -> None:
    cluster = load_cluster(MESH)
    both = program(hop(GIB, to=1, stream="one"), hop(GIB, to=2, stream="two"))
    traffic = point_to_point(cluster, 0, 1, GIB)
    assert play(cluster, both, grid(8)).makespan_s == traffic.latency_s + traffic.fluid_s


def test_the_same_transfers_share_the_port_behind_a_switch() -> None:
    cluster = load_cluster(SWITCH)
    both = program(hop(GIB, to=1, stream="one"), hop(GIB, to=2, stream="two"))
    traffic = point_to_point(cluster, 0, 1, GIB)
    expected = traffic.latency_s + 2 * traffic.fluid_s
    assert play(cluster, both, grid(8)).makespan_s == pytest.approx(expected, rel=1e-12)


def test_a_short_transfer_beside_a_long_one_gives_its_share_back() -> None:
    """Both at half speed until the short one (1/4 of the bytes) is through; the long one then has the link."""
    cluster = load_cluster(MESH)
    both = program(hop(GIB, stream="one"), hop(GIB // 4, stream="two"))
    submission = play(cluster, both, grid(4, 2))
    long, short = (point_to_point(cluster, 0, 1, size) for size in (GIB, GIB // 4))
    ends = sorted(end for _, end in spans(submission, "hop"))
    assert ends[0] == pytest.approx(short.latency_s + 2 * short.fluid_s, rel=1e-12)
    assert ends[1] == pytest.approx(long.latency_s + long.fluid_s + short.fluid_s, rel=1e-12)


def test_a_transfer_that_joins_later_slows_only_what_is_left() -> None:
    cluster = load_cluster(MESH)
    traffic = point_to_point(cluster, 0, 1, GIB)
    wait_s = traffic.fluid_s / 2
    both = program(kernel(wait_s), hop(GIB, stream="one"), hop(GIB, stream="two", after=[0]))
    first, second = sorted(spans(play(cluster, both, grid(4, 2)), "hop"))
    assert first == pytest.approx((0.0, 1.5 * traffic.fluid_s + traffic.latency_s), rel=1e-12)
    assert second == pytest.approx((wait_s, 2.0 * traffic.fluid_s + traffic.latency_s), rel=1e-12)


def test_latency_is_not_stretched_and_holds_no_link() -> None:
    """Two small messages in turn on one stream, beside a long transfer: only their bytes cost it anything."""
    cluster = load_cluster(MESH)
    small, long = point_to_point(cluster, 0, 1, MIB), point_to_point(cluster, 0, 1, GIB)
    both = program(hop(GIB, stream="one"), hop(MIB, stream="two"), hop(MIB, stream="two"))
    submission = play(cluster, both, grid(4, 2))
    assert submission.makespan_s == pytest.approx(long.latency_s + long.fluid_s + 2 * small.fluid_s, rel=1e-12)
    ends = sorted(end for _, end in spans(submission, "hop"))
    assert ends[1] == pytest.approx(2 * (small.latency_s + 2 * small.fluid_s), rel=1e-12)


# Rendezvous, streams and waits.


def test_a_collective_begins_when_the_last_rank_arrives() -> None:
    cluster = load_cluster(MESH)
    programs = [program(kernel(0.1 * position), collective("all_gather", MIB, after=[0])) for position in range(8)]
    submission = play(cluster, programs, grid(8))
    traffic = traffic_of(cluster, range(8), "all_gather", MIB)
    for rank in range(8):
        ((start, end),) = spans(submission, "all_gather", rank)
        assert start == 0.1 * 7 and end == start + traffic.fluid_s + traffic.latency_s


def test_kernels_and_communication_run_beside_each_other_and_wait_where_told() -> None:
    cluster = load_cluster(MESH)
    traffic = traffic_of(cluster, range(8), "all_gather", GIB)
    moved_s = traffic.fluid_s + traffic.latency_s
    beside = program(kernel(3 * moved_s), collective("all_gather", GIB), kernel(1.0, after=[1]))
    assert play(cluster, beside, grid(8)).makespan_s == 3 * moved_s + 1.0
    in_turn = program(kernel(1.0), collective("all_gather", GIB, after=[0]), kernel(1.0, after=[1]))
    assert play(cluster, in_turn, grid(8)).makespan_s == pytest.approx(2.0 + moved_s, rel=1e-12)


def test_ranks_meet_in_the_order_of_their_programs_even_when_one_runs_ahead() -> None:
    """Rank 0 is ready for the second hop before rank 1 has begun the first: turns keep them apart."""
    cluster = load_cluster(MESH)
    two = [hop(MIB), hop(MIB)]
    programs = [program(*two), program(kernel(1.0), *[hop(MIB, after=[0]) for _ in two])]
    submission = play(cluster, programs, grid(4, 2))
    traffic = point_to_point(cluster, 0, 1, MIB)
    (first, second), other = spans(submission, "hop", 0), spans(submission, "hop", 1)
    assert first[0] == 1.0 and second[0] == first[1]
    assert second[1] == pytest.approx(1.0 + 2 * (traffic.latency_s + traffic.fluid_s), rel=1e-12)
    assert other == [first, second]


def test_past_the_end_of_an_axis_there_is_nobody_to_send_to() -> None:
    cluster = load_cluster(MESH)
    submission = play(cluster, program(hop(GIB, wrap=False)), grid(8))
    traffic = point_to_point(cluster, 0, 1, GIB)
    assert submission.makespan_s == traffic.fluid_s + traffic.latency_s
    assert len(submission.system.channels) == 7
    assert len(play(cluster, program(hop(GIB)), grid(8)).system.channels) == 8


def test_a_repeat_waits_for_the_turn_before_but_not_in_its_first() -> None:
    body = (kernel(1.0), collective("all_gather", 0, after=[0]), kernel(2.0, after=[-1]))
    submission = play(load_cluster(MESH), program(Repeat(body, 3)), grid(8))  # type: ignore[arg-type]
    assert submission.makespan_s == 9.0
    assert submission.instructions == 3 * 3 * 8


# Kernels and transfers that disturb each other.


def test_a_kernel_beside_a_transfer_is_slower_for_as_long_as_data_moves() -> None:
    cluster = load_cluster(MESH)
    fluid_s = traffic_of(cluster, range(8), "all_gather", GIB).fluid_s
    work = program(kernel(10 * fluid_s), collective("all_gather", GIB))
    submission = play(cluster, work, grid(8), interference=Interference(compute=2.0))
    # While data moves, half as much is computed.
    assert submission.makespan_s == pytest.approx(fluid_s + (10 * fluid_s - fluid_s / 2), rel=1e-12)


@pytest.mark.parametrize(("slowdown", "factor"), [(1.0, 1.0), (1.25, 2.0), (3.0, 3.0)])
def test_blocks_that_lack_room_beside_a_transfer_run_a_second_round(slowdown: float, factor: float) -> None:
    """A kernel with blocks on all multiprocessors takes twice as long for as long as a transfer holds some of them, and
    half an instruction of such a kernel the mean of both. Where no transfer holds any, it takes no longer."""
    cluster = load_cluster(MESH)
    fluid_s = traffic_of(cluster, range(8), "all_gather", GIB).fluid_s
    whole, half = (replace(sleep(share * fluid_s), resident=True) for share in (10.0, 5.0))
    for operators, beside in (((whole,), factor), ((half, sleep(5.0 * fluid_s)), (factor + slowdown) / 2.0)):
        work = program(Compute(operators, "kernel"), collective("all_gather", GIB))
        submission = play(cluster, work, grid(8), interference=Interference(compute=slowdown))
        assert submission.makespan_s == pytest.approx(fluid_s + 10 * fluid_s - fluid_s / beside, rel=1e-12)


@pytest.mark.parametrize(("blocks", "share"), [(1, 1.0), (2, 0.75), (4, 0.625)])
def test_a_second_round_of_fewer_blocks_a_multiprocessor_is_shorter(blocks: int, share: float) -> None:
    """Between 1/blocks of the first round, where throughput decides, and all of it, where latencies do: the middle."""
    cluster = load_cluster(MESH)
    fluid_s = traffic_of(cluster, range(8), "all_gather", GIB).fluid_s
    work = program(Compute((replace(sleep(10.0 * fluid_s), resident=blocks),), "kernel"), collective("all_gather", GIB))
    submission = play(cluster, work, grid(8), interference=Interference(compute=1.25))
    beside = (1.0 - share) * 1.25 + share * 2.0
    assert submission.makespan_s == pytest.approx(fluid_s + 10 * fluid_s - fluid_s / beside, rel=1e-12)


@pytest.mark.parametrize(("slowdown", "whole_s"), [(1.0, 10.0), (1.25, 10.0 + 3.0 - 3.0 / 1.25)])
def test_kernels_of_few_blocks_leave_the_device_to_others(slowdown: float, whole_s: float) -> None:
    """On a stream of their own they take their own time, and hold multiprocessors as a transfer does; two kernels that
    fill the device share it."""
    cluster = load_cluster(MESH)
    large, small = Compute((sleep(10.0),), "large"), replace(sleep(3.0), units=20)
    beside = play(
        cluster, program(large, Compute((small,), "small", stream="beside")), grid(8),
        interference=Interference(compute=slowdown),
    )  # fmt: skip
    assert spans(beside, "small") == [(0.0, 3.0)]
    assert beside.makespan_s == pytest.approx(whole_s, rel=1e-12)
    full = Compute((sleep(3.0),), "small", stream="beside")
    assert play(cluster, program(large, full), grid(8)).makespan_s == pytest.approx(13.0, rel=1e-12)


def test_a_transfer_beside_a_kernel_is_slower_by_the_stated_factor() -> None:
    cluster = load_cluster(MESH)
    traffic = traffic_of(cluster, range(8), "all_gather", GIB)
    work = program(kernel(10 * traffic.fluid_s), collective("all_gather", GIB))
    submission = play(cluster, work, grid(8), interference=Interference(communication=1.25))
    ((_, end),) = spans(submission, "all_gather")
    assert end == pytest.approx(1.25 * traffic.fluid_s + traffic.latency_s, rel=1e-12)


def test_alone_nothing_is_disturbed() -> None:
    cluster = load_cluster(MESH)
    work = program(kernel(1.0), collective("all_gather", GIB, after=[0]), kernel(1.0, after=[1]))
    disturbed = play(cluster, work, grid(8), interference=Interference(2.0, 2.0))
    assert disturbed.makespan_s == play(cluster, work, grid(8)).makespan_s


# The clock.


def test_a_submission_at_a_later_time_shifts_everything() -> None:
    cluster = load_cluster(MESH)
    work = program(kernel(0.25), collective("all_gather", GIB), hop(GIB, stream="two"), kernel(0.5, after=[1]))
    now, later = play(cluster, work, grid(8)), play(cluster, work, grid(8), at_s=64.0)
    assert later.makespan_s == pytest.approx(now.makespan_s, rel=1e-12)
    columns, shifted = now.timeline.columns(), later.timeline.columns()
    for key in ("rank", "label"):
        assert (columns[key] == shifted[key]).all()
    for key in ("start_s", "end_s"):
        assert shifted[key] - 64.0 == pytest.approx(columns[key], abs=1e-12)


def test_a_submission_may_be_made_while_the_clock_runs() -> None:
    cluster = load_cluster(MESH)
    engine = SimulationEngine(cluster, seconds_of)
    first = engine.launch(engine.prepare(Assignment.uniform(grid(8), program(kernel(1.0)))))
    later: list[Submission] = []

    def follow(_event: simpy.Event) -> None:
        later.append(engine.launch(engine.prepare(Assignment.uniform(grid(8), program(kernel(2.0)))), at_s=5.0))

    engine.env.timeout(3.0).callbacks.append(follow)
    engine.run()
    assert first.makespan_s == 1.0 and later[0].makespan_s == 2.0
    assert list(later[0].timeline.start_s) == [5.0] and engine.env.now == 7.0


def test_the_clock_holds_plain_numbers() -> None:
    """A numpy number in one rate would spread over all that follows, and cost half the speed."""
    cluster = load_cluster(SWITCH)
    both = program(hop(GIB, stream="one"), collective("all_gather", GIB, stream="two"))
    engine = SimulationEngine(cluster, seconds_of, every_rank=True)
    submission = engine.launch(engine.prepare(Assignment.uniform(grid(8), both)))
    engine.run()
    assert type(engine.env.now) is float
    for channel in submission.system.channels:
        assert {type(share) for share in channel.usage.values()} <= {float}


def test_an_end_that_moves_away_and_back_comes_once() -> None:
    """A transfer slowed and sped up again so that it ends when it first would have: two entries, one end."""

    class Counting:
        instant: Instant
        place: int
        ends = 0

        def end(self, _instant: simpy.Event) -> None:
            self.ends += 1
            if self.ends == 1:
                calendar.enter(self, calendar.at(env.now, 0.0), self.end)

    env = simpy.Environment()
    calendar, activity = Calendar(env), Counting()
    calendar.enter(activity, calendar.at(env.now, 2.0), activity.end)
    for delay_s in (3.0, 2.0, 2.0):
        calendar.move(activity, calendar.at(env.now, delay_s))
    env.run()
    # Its first end enters one more at the same instant, as a transfer does whose latency is lost in rounding.
    assert activity.ends == 2 and env.now == 3.0


# Programs that cannot run.


def test_programs_that_wait_for_each_other_are_a_deadlock_that_names_an_instruction() -> None:
    cluster = load_cluster(MESH)
    swapped = [
        program(collective("all_gather", MIB), collective("all_reduce", MIB)),
        program(collective("all_reduce", MIB), collective("all_gather", MIB)),
    ]
    with pytest.raises(DeadlockError, match="'all_gather' never ran") as caught:
        _ = play(cluster, swapped, grid(8)).makespan_s
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    "lonely",
    [
        collective("all_gather", 2 * MIB),
        collective("all_gather", MIB, axis="y"),
        SendReceive("x", MIB, "unheard", to=1, source=None),
        hop(MIB, to=3),
    ],
    ids=["another size", "another axis", "a message nobody receives", "another neighbour"],
)
def test_mismatched_programs_are_a_deadlock(lonely: Collective | SendReceive) -> None:
    programs = [program(collective("all_gather", MIB), kernel(1.0, after=[0])), program(lonely)]
    with pytest.raises(DeadlockError, match="never ran"):
        _ = play(load_cluster(MESH), programs, grid(2, 4)).makespan_s


def test_waiting_for_oneself_or_for_later_is_a_deadlock() -> None:
    for after in (0, 1):
        stuck = program(kernel(1.0, after=[after]), kernel(1.0))
        with pytest.raises(DeadlockError, match="'kernel' never ran"):
            _ = play(load_cluster(MESH), stuck, grid(8)).makespan_s


def test_a_stream_of_both_kernels_and_communication_is_refused() -> None:
    both = program(kernel(1.0), collective("all_gather", MIB, stream="compute"))
    with pytest.raises(TspsimError, match="'compute' of 'all ranks' mixes kernels and communication"):
        play(load_cluster(MESH), both, grid(8))


def test_kernels_of_two_streams_share_the_device() -> None:
    """Both at half speed until the short one is done; the long one then has the device to itself."""
    beside = program(kernel(1.0), replace(kernel(0.25), stream="second"))
    submission = play(load_cluster(MESH), beside, grid(8))
    assert spans(submission, "kernel") == [(0.0, 1.25), (0.0, 0.5)]
