"""Every stream of a rank is a SimPy process in SimPy's own environment, and yields its kernels and collectives."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import simpy
from helpers.engine import collective, grid, kernel, play, program, seconds_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.engine.core import SimulationEngine, Submission
from tspsim.engine.instances import Assignment
from tspsim.network import collective as traffic_of
from tspsim.network import load_cluster
from tspsim.network.fluid import Transfer
from tspsim.program import Program

MIB = 2**20
NODE = "hgx-h100-8"
#: A kernel, a collective that waits for it, and a kernel beside that.
LAYER = program(kernel(1e-3), collective("all_reduce", 64 * MIB, after=[0]), kernel(1e-3))


def launched(layer: Program = LAYER) -> tuple[SimulationEngine, Submission]:
    """A program on all ranks of a node, its processes registered and nothing run."""
    engine = SimulationEngine(load_cluster(NODE), seconds_of, every_rank=True)
    return engine, engine.launch(engine.prepare(Assignment.uniform(grid(8), layer)))


def test_every_stream_is_a_process_of_simpys_own_environment() -> None:
    engine, submission = launched()
    assert type(engine.env) is simpy.Environment
    assert {type(process) for process in submission.processes} == {simpy.Process}
    assert sorted(process.name for process in submission.processes) == ["kernels"] * 8 + ["transfers"] * 8
    engine.run()
    assert not any(process.is_alive for process in submission.processes)


def test_kernels_that_end_together_and_ranks_that_meet_wait_for_one_event() -> None:
    engine, submission = launched()
    computing, moving = submission.processes[:8], submission.processes[8:]
    engine.env.run(until=0.5e-3)
    (end,) = {process.target for process in computing}
    assert isinstance(end, simpy.Timeout) and end.value == 1e-3
    engine.env.run(until=1.01e-3)
    (transfer,) = {process.target for process in moving}
    assert isinstance(transfer, Transfer) and not transfer.triggered
    engine.run()
    assert transfer.processed and transfer.value in submission.timeline.columns()["end_s"]


def test_a_run_is_run_by_any_of_simpys_ways_alike() -> None:
    """Until a time, until an event, or event by event."""
    times = []
    for steps in (False, True):
        engine, submission = launched()
        if steps:
            engine.env.run(until=1.2e-3)
            assert engine.env.now == 1.2e-3
            engine.env.run(until=submission.done)
        else:
            while not submission.done.processed:
                engine.env.step()
        times.append(submission.timeline.columns()["end_s"].tolist())
    assert times[0] == times[1]


def test_what_goes_wrong_in_a_stream_ends_the_run() -> None:
    engine, _ = launched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.machine.fluid, "arrive", None)
        with pytest.raises(TypeError, match="not callable"):
            engine.run()


Layer = tuple[float, float, int]


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([0.0, 1e-4, 3e-4]), st.just(2e-4), st.integers(0, 2)), min_size=3, max_size=3
        ),
        min_size=2,
        max_size=2,
    )
)
def test_streams_do_what_a_plain_simpy_model_does(roles: list[list[Layer]]) -> None:
    """Held against the same layers written with SimPy's timeouts and events alone: kernels before and beside an
    all-reduce, which the kernels of some layer further on wait for; even and odd ranks have other kernels."""
    cluster = load_cluster(NODE)
    traffic = traffic_of(cluster, range(8), "all_reduce", MIB)
    moving_s = traffic.latency_s + traffic.fluid_s
    programs, ahead = [], [layer[2] for layer in roles[0]]
    for role in roles:
        instructions = []
        for number, (before_s, beside_s, _) in enumerate(role):
            waits = [3 * other + 1 for other in range(number) if other + ahead[other] + 1 == number]
            instructions.append(kernel(before_s, after=waits))
            instructions.append(collective("all_reduce", MIB, after=[3 * number]))
            instructions.append(kernel(beside_s))
        programs.append(program(*instructions))
    found = play(cluster, programs, grid(8)).makespan_s

    env = simpy.Environment()
    ended = [[[env.event() for _ in range(2)] for _ in role] for role in (roles[rank % 2] for rank in range(8))]
    moved, missing = [env.event() for _ in ahead], [8] * len(ahead)

    def compute(rank: int) -> Generator[simpy.Event, None, None]:
        for number, (before_s, beside_s, _) in enumerate(roles[rank % 2]):
            for other in range(number):
                if other + ahead[other] + 1 == number:
                    yield ended[rank][other][1]
            yield env.timeout(before_s)
            ended[rank][number][0].succeed()
            yield env.timeout(beside_s)

    def communicate(rank: int) -> Generator[simpy.Event, None, None]:
        for number in range(len(ahead)):
            yield ended[rank][number][0]
            missing[number] -= 1
            if not missing[number]:
                env.process(move(number))
            yield moved[number]
            ended[rank][number][1].succeed()

    def move(number: int) -> Generator[simpy.Event, None, None]:
        yield env.timeout(moving_s)
        moved[number].succeed()

    for rank in range(8):
        env.process(compute(rank))
        env.process(communicate(rank))
    env.run()
    assert found == pytest.approx(env.now, rel=1e-12)
