"""Data parallelism: what replicas sum and gather in a step, in closed form, and what stands whole meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from helpers.engine import architecture, job_of, moe, question
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.parallel import Job, scheme_of, write_program
from tspsim.parallel.rank_groups import ranks_along
from tspsim.parallel.stack import Stack
from tspsim.parallel.state.memory import stage_memory
from tspsim.program import Collective

EAGER = Stack("eager", overlap_gradients=False, overlap_weights=False)


def step_of(
    zero: int, *, dp: int = 4, micro_batches: int = 1, pp: int = 1, vocab: int = 1024, tied: bool = False,
    shard_group: int | None = None, stack: Stack | None = None, schedule: str = "1f1b",
) -> Job:  # fmt: skip
    """A training step of four layers, one sequence a micro-batch."""
    model = architecture(512, layers=4, vocab=vocab, tied_embeddings=tied)
    job = job_of(
        model, pass_="training", dp=dp, sequences=micro_batches, zero=zero, shard_group=shard_group, schedule=schedule
    )
    plan = replace(job.plan, degrees={**job.plan.degrees, "pp": pp})
    return replace(job, plan=plan, work=replace(job.work, stack=stack or job.work.stack))


def moved(job: Job) -> Counter[tuple[str, str, str]]:
    """Bytes of the collectives of all stages' ranks, by stream, kind and axis; without the norm's four."""
    sizes: Counter[tuple[str, str, str]] = Counter()
    for stage in range(job.plan.pp):
        for each in write_program(scheme_of(job.plan), job, {"pp": stage}).unrolled():
            instruction = each.instruction
            if isinstance(instruction, Collective) and instruction.name != "gradient norm":
                sizes[instruction.stream, instruction.kind, instruction.axis] += instruction.size_bytes
    return sizes


@settings(deadline=None, max_examples=60)
@given(
    zero=st.integers(0, 3), micro_batches=st.integers(1, 4), dp=st.sampled_from((2, 8)), pp=st.sampled_from((1, 2)),
    vocab=st.sampled_from((0, 1024)), tied=st.booleans(), stack=st.sampled_from((None, EAGER)),
)  # fmt: skip
def test_a_step_sums_and_gathers_every_parameter_as_often_as_zero_says(
    zero: int, micro_batches: int, dp: int, pp: int, vocab: int, tied: bool, stack: Stack | None
) -> None:
    """Ψ parameters of β = 2 bytes, g micro-batches. Gradients: βΨ all-reduced (0) or scattered (1) once, from 2 on g
    times. Weights: βΨ gathered once (1, 2); with 3 a layer's twice a micro-batch and a table's once."""
    job = step_of(zero, dp=dp, micro_batches=micro_batches, pp=pp, vocab=vocab, tied=tied, stack=stack)
    model = job.model
    layers = 2 * sum(model.block_parameters(block) for block in model.blocks)
    # A tied table stands on both ends of a pipeline.
    tables = 2 * model.parameters_outside_layers * (pp if tied else 1)
    sums = layers + tables
    expected = {
        0: {("gradients", "all_reduce", "dp"): sums},
        1: {("gradients", "reduce_scatter", "dp"): sums, ("parameters", "all_gather", "dp"): sums},
        2: {("gradients", "reduce_scatter", "dp"): micro_batches * sums, ("parameters", "all_gather", "dp"): sums},
        3: {
            ("gradients", "reduce_scatter", "dp"): micro_batches * sums,
            ("parameters", "all_gather", "dp"): micro_batches * (2 * layers + tables),
        },
    }
    assert moved(job) == expected[zero]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_groups_that_divide_state_scatter_inside_and_sum_their_shares_across(zero: int) -> None:
    """Hybrid sharding over groups of 2 of 8: βΨ scattered inside, βΨ/2 all-reduced between the four groups."""
    job = step_of(zero, dp=8, micro_batches=3, shard_group=2)
    sizes, whole, times = moved(job), 2 * job.model.parameters, 1 if zero == 1 else 3
    assert sizes["gradients", "reduce_scatter", "shard"] == times * whole
    assert sizes["gradients", "all_reduce", "replicate"] == times * whole / 2
    assert not [axis for _, _, axis in sizes if axis == "dp"]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_tables_are_gathered_ahead_of_the_kernels_that_read_them(zero: int) -> None:
    """The first micro-batch's lookup waits for the embedding, its head for the head's weights."""
    program = write_program(scheme_of(step_of(zero).plan), step_of(zero, micro_batches=2))
    names = [each.instruction.name for each in program.unrolled()]
    for table, first in (("embedding weights", "embedding lookup"), ("head weights", "language-model head")):
        gathered, here = names.index(f"gather {table}"), names.index(f"{table} here")
        assert gathered < here < names.index(first)
        assert list(program.unrolled())[here].after == (gathered,)
        assert names.count(f"gather {table}") == (2 if zero == 3 else 1)


def test_whole_gradients_stay_with_stage_1_and_one_stands_with_stage_2() -> None:
    """Of Ψ parameters β·Ψ/d stay, and one layer's is whole on its way; or a table's, when no layer is at work."""
    jobs = [step_of(zero, vocab=64_000) for zero in (1, 2, 3)]
    one, two, three = (stage_memory(job, scheme_of(job.plan).residency, 0) for job in jobs)
    model, layer = jobs[0].model, jobs[0].model.block_parameters(jobs[0].model.block(0))
    table = model.parameters_outside_layers / 2
    assert table > layer > table / 8
    assert one["gradients"] == 2 * model.parameters
    assert two["gradients"] == three["gradients"] == 2 * model.parameters / 4
    assert "whole_gradients" not in one
    assert two["whole_gradients"] == 2 * table - two["workspace"]
    assert three["gathered_weights"] == (2 + 2) * table - three["workspace"]
    small = stage_memory(step_of(3, vocab=1024), scheme_of(jobs[0].plan).residency, 0)
    assert small["gathered_weights"] == 6 * layer


@pytest.mark.parametrize("zero", [0, 2])
def test_a_zero_bubble_schedule_makes_the_heads_gradient_where_the_head_is(zero: int) -> None:
    """Layers' weight gradients are put off, the head's is not, and none is lost."""
    plain, later = (step_of(zero, pp=2, micro_batches=4, schedule=schedule) for schedule in ("1f1b", "zb-h1"))
    flops = []
    for job in (plain, later):
        programs = [write_program(scheme_of(job.plan), job, {"pp": stage}) for stage in range(2)]
        operators = [
            operator
            for program in programs
            for each in program.unrolled()
            for operator in getattr(each.instruction, "operators", ())
        ]
        flops.append(sum(operator.flops for operator in operators))
    assert flops[0] == flops[1]
    assert moved(plain) == moved(later)


# Hybrid sharding beside expert groups.


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize(
    ("plan", "copies", "shards"),
    [
        ({"dp": 8, "ep": 2, "shard_group": 4}, 4, 2),  # two of the four copies in a shard group
        ({"dp": 8, "ep": 4, "shard_group": 4}, 2, 1),  # a shard group is an expert group: one copy in each
        ({"dp": 8, "ep": 4, "shard_group": 2}, 2, 1),  # an expert group is two shard groups
        ({"sp": 2, "dp": 4, "ep": 2, "shard_group": 4}, 4, 2),
        ({"tsp": 2, "dp": 4, "ep": 2, "shard_group": 2}, 4, 2),
        ({"tp": 4, "dp": 2, "ep": 2, "shard_group": 2, "sequence_regions": True}, 4, 4),
        ({"dp": 8, "shard_group": 4}, 8, 4),  # all experts on every rank
        ({"tsp": 2, "dp": 4, "shard_group": 2}, 8, 4),
    ],
    ids=str,
)
def test_experts_are_divided_as_far_as_a_shard_group_holds_their_copies(
    plan: dict[str, int], copies: int, shards: int, zero: int
) -> None:
    """Of X parameters of experts on a rank, of c copies of which s stand in a group: state X/s; gradients X scattered
    over s and X/s summed over c/s."""
    model = moe(layers=2)
    job = job_of(model, pass_="training", zero=zero, recomputation="full", **plan)
    ranks = 8 // copies
    routed = model.layers * model.routed_parameters_per_layer / ranks
    router = model.layers * model.router_parameters if plan.get("tp", 1) > 1 else 0  # whole on every rank of tp
    others = (model.parameters - routed * ranks - router) / (plan.get("tp", 1) * plan.get("tsp", 1)) + router
    parts = stage_memory(job, scheme_of(job.plan).residency, 0)
    assert parts["optimizer_state"] == pytest.approx(12 * (others / plan["shard_group"] + routed / shards))
    sizes: Counter[tuple[int, str]] = Counter()
    for (stream, kind, axis), size in moved(job).items():
        if stream == "gradients":
            sizes[ranks_along(job, axis), kind] += size
    expected: Counter[tuple[int, str]] = Counter()
    groups = job.copies
    for held, of, divided in ((others, groups, plan["shard_group"]), (routed, copies, shards)):
        if divided > 1:
            expected[divided, "reduce_scatter"] += 2 * held
        if divided < of:
            expected[of // divided, "all_reduce"] += 2 * held / divided
    if router:  # and two norms a layer, each of a part of the tokens
        partial = router + model.layers * 2 * model.hidden
        expected[plan["tp"], "all_reduce"] += 2 * partial / (plan["shard_group"] if zero == 3 else 1)
    assert sizes == expected


def test_expert_groups_and_shard_groups_fit_into_each_other_or_are_refused() -> None:
    with pytest.raises(InputError, match="shard_group: groups of 3 ranks of dp that divide state and"):
        job_of(moe(), pass_="training", dp=12, ep=4, zero=1, shard_group=3)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", [{"ep": 4, "shard_group": 8}, {"ep": 8, "shard_group": 4, "pp": 2}], ids=str)
def test_every_rank_of_a_hybrid_plan_with_experts_is_the_folded_answer(plan: dict[str, int]) -> None:
    asked = question(
        "qwen3-30b-a3b", [{"name": "P", "zero": 1, **plan}], cluster="h200-2x8", pass_="training", sequence=2048,
        sequences_per_replica=2,
    )  # fmt: skip
    folded, whole = (tspsim.simulate(asked, every_rank=every).plan("P") for every in (False, True))
    assert folded.ran, folded.error
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)


@pytest.mark.parametrize("pp", [1, 2])
def test_whole_sums_of_zero_1_are_one_all_reduce_after_the_last_backward(pp: int) -> None:
    """As many bytes as without ZeRO, in one call, behind all kernels of the backward; other levels stay."""
    whole, usual = (replace(EAGER, sums_whole=sums, overlap_gradients=True) for sums in (True, False))
    job = step_of(1, pp=pp, micro_batches=2, stack=whole)
    sums = {key: size for key, size in moved(job).items() if key[0] == "gradients"}
    assert {kind for _, kind, _ in sums} == {"all_reduce"}
    without = moved(step_of(0, pp=pp, micro_batches=2, stack=usual))
    assert sums == {key: size for key, size in without.items() if key[0] == "gradients"}
    for stage in range(pp):
        steps = list(write_program(scheme_of(job.plan), job, {"pp": stage}).unrolled())
        names = [each.instruction.name for each in steps]
        assert names.count("sum gradients") == 1
        last = max(index for index, name in enumerate(names) if "backward" in name)
        assert last < names.index("sum gradients")
    for zero in (0, 2, 3):
        assert moved(step_of(zero, pp=pp, stack=whole)) == moved(step_of(zero, pp=pp, stack=usual))


def test_slices_of_gathered_weights_cost_the_host_a_time_for_every_layer_and_replica() -> None:
    for dp, pp in ((4, 1), (8, 2)):
        job = step_of(1, dp=dp, pp=pp, stack=replace(EAGER, slices_s=1e-3))
        for stage in range(pp):
            steps = [each.instruction for each in write_program(scheme_of(job.plan), job, {"pp": stage}).unrolled()]
            copied = [step.host_s for step in steps if step.name == "copy slices of weights"]
            assert copied == [pytest.approx(1e-3 * dp * 4 / pp)]
