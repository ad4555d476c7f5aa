"""Turns that are not run: the same timeline to the bit as when all are, and what is not steady is run in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from unittest.mock import patch

import numpy as np
import pytest
from helpers.draws import in_turn
from helpers.engine import collective, grid, hop, kernel, seconds_of, sleep
from helpers.strategies import CLUSTERS, FLAWED, INTERFERENCE, SIZES, machines
from hypothesis import given, settings
from hypothesis import strategies as st

from tspsim.engine import steady
from tspsim.engine.core import DeadlockError, Interference, Submission
from tspsim.engine.instances import Assignment
from tspsim.hardware import Costs
from tspsim.network import Cluster
from tspsim.operators.batch import BatchQuantity
from tspsim.parallel import build_mesh
from tspsim.program import Compute, ExpertExchange, Instruction, Launch, Program, Repeat
from tspsim.program.instructions import Mesh, content
from tspsim.scenario import load
from tspsim.step import simulation
from tspsim.step.simulation import look_up


@pytest.fixture(autouse=True)
def always_worth_it() -> Iterator[None]:
    """Programs of tests are short."""
    with patch.object(steady, "LEAST_INSTRUCTIONS", 0):
        yield


def both(
    cluster: Cluster,
    programs: tuple[Program, ...],
    mesh: Mesh,
    *,
    interference: Interference | None = None,
    slowness: dict[int, float] | None = None,
    every_rank: bool = False,
) -> tuple[Submission, Submission]:
    """The runs with some turns and with every turn."""
    role_of = mesh.positions["x"] % len(programs)
    some, every = (
        steady.execute(
            cluster,
            seconds_of,
            Assignment(mesh, programs, role_of, slowness or {}),
            interference=interference,
            every_rank=every_rank,
            every_iteration=every_iteration,
        )
        for every_iteration in (False, True)
    )
    return some, every


def assert_same(some: Submission, every: Submission) -> None:
    """Every row to the bit, every label, every use of a channel."""
    for one, other in zip(some.timeline.columns().values(), every.timeline.columns().values(), strict=True):
        assert one.tobytes() == other.tobytes()
    assert list(some.timeline.labels) == list(every.timeline.labels)
    assert some.makespan_s == every.makespan_s and some.instructions == every.instructions
    assert list(some.system.uses().values()) == list(every.system.uses().values())
    assert [each.tolist() for each in some.system.link_loads()] == [each.tolist() for each in every.system.link_loads()]


def ran(submission: Submission) -> int:
    """Instructions that the engine ran."""
    return sum(len(each.rank.done) for each in submission.ranks)


LENGTHS = st.sampled_from([0.0, 1e-5, 2e-4, 1e-3, 5e-3, 0.3])


@st.composite
def bodies(draw: st.DrawFn, most: int = 6) -> list[Instruction]:
    """A layer: kernels, collectives and hops; waits reach back inside it, and into the layers before."""
    body: list[Instruction] = []
    for index in range(draw(st.integers(1, most))):
        after = sorted(draw(st.sets(st.integers(-4, index - 1), max_size=2)))
        stream = f"moves {draw(st.integers(1, 2))}"
        what = draw(st.sampled_from(["kernel", "collective", "hop"]))
        if what == "kernel":
            body.append(replace(kernel(draw(LENGTHS), after=after), layer=0))
        elif what == "collective":
            kind = draw(st.sampled_from(["all_gather", "all_reduce", "all_to_all"]))
            axis = draw(st.sampled_from("xy"))
            body.append(replace(collective(kind, draw(SIZES), axis=axis, after=after, stream=stream), layer=0))
        else:
            axis = draw(st.sampled_from("xy"))
            body.append(replace(hop(draw(SIZES), axis=axis, after=after, stream=stream), layer=0))
    return body


@st.composite
def layered(draw: st.DrawFn) -> tuple[Program, ...]:
    """One or two roles of the same shape: something, layers, something, more layers, all of it for each micro-batch."""
    repeats = [(draw(bodies()), draw(st.sampled_from([1, 7, 20]))) for _ in range(draw(st.integers(1, 2)))]
    batches = draw(st.sampled_from([1, 1, 2, 15]))
    streams = [f"moves {number}" for number in (1, 2)]
    roles = []
    for _ in range(draw(st.integers(1, 2))):
        scale = draw(st.sampled_from([1.0, 1.0, 1.7]))
        items: list[Instruction | Repeat] = []
        for _ in range(batches):
            items.append(kernel(1e-4 * scale))
            for body, times in repeats:
                stretched = tuple(
                    kernel(each.operators[0].hbm_bytes * scale, after=each.after) if isinstance(each, Compute) else each
                    for each in body
                )
                items += [Repeat(stretched, times), collective("all_reduce", 10**6, stream=streams[0])]
        before = sum(len(item.body) * item.times if isinstance(item, Repeat) else 1 for item in items)
        items.append(kernel(2e-3, after=[before - 1]))
        roles.append(Program(f"role {len(roles)}", tuple(items)))
    return tuple(roles)


@settings(max_examples=25, deadline=None)
@given(
    machines(*CLUSTERS, *FLAWED),
    layered(),
    INTERFERENCE,
    st.dictionaries(st.integers(0, 7), st.sampled_from([1.5, 3.0]), max_size=1),
    st.booleans(),
)
def test_some_turns_say_what_all_would(
    machine: tuple[str, Mesh],
    programs: tuple[Program, ...],
    interference: Interference,
    slowness: dict[int, float],
    every_rank: bool,
) -> None:
    cluster, mesh = (CLUSTERS | FLAWED)[machine[0]], machine[1]
    assert_same(*both(cluster, programs, mesh, interference=interference, slowness=slowness, every_rank=every_rank))


def test_of_many_layers_six_are_run() -> None:
    body = (kernel(1e-3), collective("all_gather", 10**8, after=[0]), kernel(1e-3, after=[1]))
    layers = Program("all ranks", (kernel(1e-3), Repeat(body, 100), kernel(1e-3)))
    some, every = both(CLUSTERS["mi300x-8"], (layers,), grid(2, 4))
    assert_same(some, every)
    assert (ran(some), ran(every)) == (2 + 3 * steady.SIMULATED_ITERATIONS, 2 + 3 * 100)


def test_micro_batches_around_layers_are_cut_too() -> None:
    body = (kernel(1e-3), collective("all_gather", 10**8, after=[0]))
    batch = (kernel(1e-4), Repeat(body, 50), Repeat(body, 40))
    some, every = both(CLUSTERS["mi300x-8"], (Program("all ranks", (*batch * 30, kernel(1e-3))),), grid(2, 4))
    assert_same(some, every)
    assert ran(some) == steady.SIMULATED_ITERATIONS * (1 + 4 * steady.SIMULATED_ITERATIONS) + 1


def test_a_queue_that_grows_is_not_steady_and_run_in_full() -> None:
    """What moves takes longer than the kernels that issue it: each turn ends later behind its kernels."""
    body = (kernel(1e-4), collective("all_gather", 10**9, after=[0]))
    some, every = both(CLUSTERS["mi300x-8"], (Program("all ranks", (Repeat(body, 60), kernel(1e-3))),), grid(2, 4))
    assert_same(some, every)
    assert ran(some) == ran(every)


def test_what_runs_beside_the_turns_keeps_them_from_being_cut() -> None:
    """A transfer from before the layers shares their links while they run; only after it has ended they are steady."""
    body = (kernel(1e-4), collective("all_gather", 10**8, after=[0]), kernel(1e-4, after=[1]))
    beside = collective("all_reduce", 10**11, axis="y", stream="beside")
    some, every = both(CLUSTERS["mi300x-8"], (Program("all ranks", (beside, Repeat(body, 60))),), grid(2, 4))
    assert_same(some, every)
    assert ran(some) == ran(every)


def test_replicas_at_different_paces_are_cut_each_at_its_own() -> None:
    body = (kernel(1e-3), collective("all_gather", 10**8, after=[0]), kernel(1e-3, after=[1]))
    cluster = CLUSTERS["mi300x-2x8"]
    mesh = grid(2, 8)
    some, every = both(cluster, (Program("all ranks", (Repeat(body, 50),)),), mesh, slowness={3: 1.5})
    assert_same(some, every)
    assert ran(some) == ran(every) * steady.SIMULATED_ITERATIONS // 50


def test_programs_that_wait_for_each_other_are_told_as_ever() -> None:
    """Half of the ranks enter their collectives in the other order."""
    there = (collective("all_gather", 1000, stream="a"), collective("all_reduce", 1000, stream="a"))
    orders = tuple(Program("a rank", (Repeat(body, 50),)) for body in (there, there[::-1]))
    for each in both(CLUSTERS["mi300x-8"], orders, grid(2, 4)):
        with pytest.raises(DeadlockError, match="wait for each other"):
            _ = each.makespan_s


@pytest.mark.parametrize(
    ("name", "overrides", "plans"),
    in_turn(
        [
            ("tsp-vs-tpsp-8x-mi300x", ["workload.sequence=32Ki"], slice(None)),
            ("dead-link-mi300x", ["workload.sequence=32Ki"], slice(None)),
            ("slow-gpu-mi300x", ["workload.sequence=32Ki"], slice(None)),
            ("tsp-memory-8x-mi300x", ["workload.sequence=16Ki"], slice(None)),
            # With micro-batches around the layers, of TP8.
            ("tsp-memory-8x-mi300x", ["workload.sequence=16Ki", "workload.sequences_per_replica=8"], slice(1, 2)),
        ]
    ),
)
def test_shipped_scenarios_are_the_same_to_the_bit(name: str, overrides: list[str], plans: slice) -> None:
    asked = look_up(load(name, overrides))
    saved = []
    for plan in asked.plans[plans]:
        mesh = build_mesh(plan, asked.cluster.gpus, asked.cluster.gpus_per_node)
        some, every = (
            simulation.run(asked, mesh, asked.job(plan), Costs(asked.device), every_rank=False, every_iteration=whole)
            for whole in (False, True)
        )
        assert_same(some, every)
        saved.append(ran(every) / ran(some))
    assert min(saved) > 3.0


def test_folded_ranks_and_folded_turns_are_every_rank_and_every_iteration_to_the_bit() -> None:
    asked = look_up(load("tsp-vs-tpsp-8x-mi300x", ["workload.sequence=32Ki"]))
    plan = asked.plans[0]
    mesh = build_mesh(plan, asked.cluster.gpus, asked.cluster.gpus_per_node)
    folded, whole = (
        simulation.run(asked, mesh, asked.job(plan), Costs(asked.device), every_rank=every, every_iteration=every)
        for every in (False, True)
    )
    assert folded.makespan_s == whole.makespan_s
    mine, theirs = folded.timeline.columns(), whole.timeline.columns()
    kept = np.isin(theirs["rank"], mine["rank"])
    assert mine["end_s"].tobytes() == theirs["end_s"][kept].tobytes()


@pytest.mark.parametrize("each", [kernel(1.0), collective("broadcast", 1000), hop(1000), Launch("go", 1e-6)])
def test_instructions_of_the_same_content_differ_in_layer_and_waits_alone(each: Instruction) -> None:
    """A field that is added to an instruction has to be added to its content, unless it changes nothing that is done:
    what its size is a function of does not."""
    others = {
        "operators": (sleep(2.0),), "kind": "all_to_all", "axis": "y", "size_bytes": 7, "root": 1, "algorithm": "ring",
        "tokens": ExpertExchange(1.0, 2.0, 3, 4), "name": "other", "part": "other", "stream": "other", "to": 3,
        "source": 3, "slices": 2, "host_s": 2e-6, "wrap": not getattr(each, "wrap", True),
    }  # fmt: skip
    for field in fields(each):
        if field.name in ("layer", "after", "sized_by"):
            quantity = BatchQuantity.ROWS
            same = {"layer": 3, "after": (0,), "sized_by": (quantity,) if isinstance(each, Compute) else quantity}
            changed = replace(each, **{field.name: same[field.name]})
            assert content(changed) == content(each)
        else:
            assert content(replace(each, **{field.name: others[field.name]})) != content(each), field.name
