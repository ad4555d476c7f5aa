"""The two that follow a program in time: a path through one rank (a lower bound) and the engine's run of all ranks."""

from __future__ import annotations

import pytest
from helpers.engine import collective, grid, kernel, play, seconds_of
from helpers.strategies import CLUSTERS, INTERFERENCE, programs
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.engine.core import Interference
from tspsim.program import Compute, Instruction, Launch, Program, Repeat
from tspsim.program.excerpts import split_after_layers
from tspsim.program.instructions import Mesh, orders, waits_for_all
from tspsim.step.paths.groups import RankGroups
from tspsim.step.paths.kernels import KernelTimes
from tspsim.step.paths.parts import TaskParts
from tspsim.step.paths.walk import TimedInstruction, TimedTask, Walk, walk

LENGTHS = st.sampled_from([0.0, 1e-5, 2e-4, 1e-3, 5e-3])
#: Sums of floats in another order.
NEAR = 1e-9


def alone(number: int, seconds: float, after: set[int]) -> Instruction:
    """A kernel, or what a stream of its own does beside kernels and shares with nobody."""
    waits = tuple(sorted(after))
    return kernel(seconds, after=waits) if not number else Launch("x", seconds, after=waits, stream=f"host {number}")


@st.composite
def solitary(draw: st.DrawFn) -> Program:
    """A program that meets nobody: some instructions, a body that repeats and waits for its earlier turns, others."""
    items: list[Instruction | Repeat] = []
    length = 0
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(0, 3))):
            after = draw(st.sets(st.integers(0, length - 1), max_size=2)) if length else set[int]()
            items.append(alone(draw(st.integers(0, 2)), draw(LENGTHS), after))
            length += 1
        turns, size = draw(st.integers(1, 12)), draw(st.integers(1, 5))
        waits = [draw(st.sets(st.integers(-2 * size, place - 1), max_size=2)) for place in range(size)]
        body = [alone(draw(st.integers(0, 2)), draw(LENGTHS), after) for after in waits]
        items.append(Repeat(tuple(body), turns, continues=draw(st.booleans())))
        length += turns * size
    return Program("alone", tuple(items))


def timed(step: Instruction, after: tuple[int, ...]) -> TimedInstruction:
    if isinstance(step, Compute):
        return TimedInstruction(step.stream, sum(map(seconds_of, step.operators)), after, True)
    assert isinstance(step, Launch)
    return TimedInstruction(step.stream, step.host_s, after, False)


def paths_of(program: Program, mesh: Mesh, name: str) -> Walk:
    """The walk of rank 0."""
    cluster = CLUSTERS[name]
    parts = TaskParts(cluster, KernelTimes(cluster, seconds_of, 1e15))
    return walk(parts.compile(program, RankGroups(mesh, 0, cluster)).task, from_zero=True)


@settings(max_examples=90, deadline=None)
@given(solitary())
def test_a_rank_that_meets_nobody_ends_where_its_path_ends(program: Program) -> None:
    submission = play(CLUSTERS["mi300x-8"], program, grid(8), every_rank=False)
    path = walk(TimedTask(tuple(timed(step, after) for step, _, after in program.unrolled())), from_zero=True)
    assert path.last_s == pytest.approx(submission.makespan_s, rel=NEAR, abs=1e-15)
    ends, labels = submission.timeline.columns()["end_s"].tolist(), submission.timeline.labels
    kernels = [end_s for end_s, label in zip(ends, labels, strict=True) if label.is_compute]
    assert path.end_s == pytest.approx(max(kernels, default=0.0), rel=NEAR, abs=1e-15)
    # With turns left out, and waits for earlier ones, it is never longer.
    shorter = paths_of(program, grid(8), "mi300x-8")
    assert shorter.last_s <= submission.makespan_s * (1 + NEAR)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(CLUSTERS)), st.sampled_from([2, 4]), programs(), INTERFERENCE)
def test_no_rank_ends_before_its_path(
    name: str, inner: int, chosen: tuple[Program, ...], interference: Interference
) -> None:
    cluster = CLUSTERS[name]
    mesh = grid(cluster.gpus // inner, inner)
    submission = play(cluster, chosen, mesh, interference=interference, every_rank=False)
    assert paths_of(chosen[0], mesh, name).last_s <= submission.makespan_s * (1 + NEAR)


@settings(max_examples=50, deadline=None)
@given(solitary())
def test_what_ends_before_an_instruction_begins_in_the_engine_is_what_the_rule_says(program: Program) -> None:
    submission = play(CLUSTERS["mi300x-8"], program, grid(8), every_rank=False)
    columns = submission.timeline.columns()
    starts, ends = columns["start_s"].tolist(), columns["end_s"].tolist()
    issued = [(step.stream, after) for step, _, after in program.unrolled()]
    for place, before in enumerate(orders(issued)):
        # Each begins at once when they have ended: no other wait delays it here.
        assert starts[place] == pytest.approx(max((ends[index] for index in before), default=0.0), abs=1e-15)
        if waits_for_all(issued, place):
            assert starts[place] >= max(ends[:place], default=0.0)


def test_a_program_parts_where_a_meeting_waits_for_all_behind_its_layers() -> None:
    layer = Repeat((kernel(1.0), collective("all_reduce", 8, after=[0])), 3)
    behind = (kernel(2.0, after=[5]), collective("all_reduce", 8, after=[6]), kernel(3.0, after=[7]))
    before, rest = split_after_layers(Program("all", (layer, *behind)))
    assert before.items == (layer, behind[0]) and rest is not None
    assert [step.after for step in rest.items if not isinstance(step, Repeat)] == [(), (0,)]
    # Before one that does not wait for the kernel behind layers, something else may still run.
    early = (kernel(2.0), collective("all_reduce", 8, after=[5]))
    assert split_after_layers(Program("all", (layer, *early)))[1] is None
