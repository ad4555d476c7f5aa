"""TSP's schedules and the rings of sequence shards: the same work and bytes whichever way, and never in a buffer's way.

How weights travel, in how many pieces and groups of heads, and what overlapped gathers are cut by, changes when bytes
move and over which links; not how many, nor what is multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.draws import in_turn
from helpers.engine import architecture, job_of, model_file, programs_of, question, replica_flops
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.network import collective, load_cluster
from tspsim.network.collectives.multi_ring import hamiltonian_cycles
from tspsim.operators import MemoryBound
from tspsim.parallel import Job, rings
from tspsim.parallel.builder import ProgramBuilder
from tspsim.program import RING_SHIFT, Collective, Compute, Program
from tspsim.step.bound import plan_bound
from tspsim.step.result import PlanResult
from tspsim.step.simulation import Question, look_up, run_plan

NEAR = 1e-9
#: Sixteen key/value heads: as many as the longest folded axis here.
MODEL = architecture(1024, layers=2, heads=16, vocab=1024)
WAYS: dict[str, dict[str, Any]] = {
    "ring": {"weight_transport": "ring"},
    "multi_ring": {"weight_transport": "multi_ring"},
    "gather 1": {"weight_transport": "gather", "mlp_pieces": 1},
    "gather 2": {"weight_transport": "gather", "mlp_pieces": 2},
    "gather 4": {"weight_transport": "gather", "mlp_pieces": 4},
}
PUBLISHED = {"weight_transport": "ring", "overlap_by": "heads"}


def variants(degree: int) -> dict[str, dict[str, Any]]:
    """Every schedule of TSP at a degree, by name; the published one is ``ring``, ``degree`` groups, by heads."""
    return {
        f"{way} g{groups} {by}": {"tsp": degree, "head_groups": groups, "overlap_by": by, **switches}
        for way, switches in WAYS.items()
        for groups in range(1, degree + 1)
        if degree % groups == 0
        for by in ("heads", "blocks")
    }


def some_of(degree: int, every: int) -> dict[str, dict[str, Any]]:
    """one in so many of them, with all ways to travel and both to cut among them."""
    whole = variants(degree)
    some = dict(list(whole.items())[::every])
    for key in ("weight_transport", "overlap_by"):
        assert {plan[key] for plan in some.values()} == {plan[key] for plan in whole.values()}
    return some


#: Schedules of sequence shards that do the same work: K and V gathered, or round one ring or several.
SEQUENCE: dict[str, dict[str, Any]] = {
    "gathered": {},
    "gathered, by heads": {"overlap": True, "overlap_by": "heads"},
    "gathered, by blocks": {"overlap": True, "overlap_by": "blocks"},
    "gathered, by three blocks": {"overlap": True, "overlap_by": "blocks", "overlap_chunks": 3},
    "ring": {"exchange": "ring"},
    "multi_ring": {"exchange": "ring", "context_transport": "multi_ring"},
    "multi_ring in turn": {"exchange": "ring", "context_transport": "multi_ring", "overlap": False},
}


def asked(
    folder: Path,
    plans: Mapping[str, Mapping[str, Any]],
    *,
    cluster: str = "mi300x-8",
    sequence: int = 4096,
    **work: Any,
) -> Question:
    named = [{"name": name, **plan} for name, plan in plans.items()]
    path = model_file(folder, MODEL)
    return look_up(tspsim.load(question(path, named, cluster=cluster, sequence=sequence, **work)))


# What moves, and how fast: simulated.


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("degree", "cluster"), [(2, "mi300x-8"), (4, "mi300x-8"), (8, "mi300x-8"), (8, "hgx-h100-8"), (16, "mi300x-2x8")]
)
def test_every_schedule_moves_the_published_bytes_and_passes_no_bound(
    degree: int, cluster: str, tmp_path: Path
) -> None:
    """To the byte, where every group has key/value heads of its own. Of sixteen shards, and behind a switch, some:
    all ways to travel and both to cut."""
    every = 1 if degree < 8 else 3 if degree == 8 else 7
    found = asked(tmp_path, some_of(degree, every), cluster=cluster)
    published: Mapping[str, float] | None = None
    for plan in reversed(found.plans):
        result = run_plan(found, plan)
        assert result.ran and 0.0 < result.mfu <= 1.0
        published = (
            published or run_plan(found, replace(plan, **PUBLISHED, head_groups=degree)).communication_bytes_per_layer
        )
        assert result.communication_bytes_per_layer == published, plan.name
        bound = plan_bound(found, found.job(plan))
        assert result.tokens_per_s <= bound.tokens_per_s, plan.name
        assert result.block_forward_tokens_per_s <= bound.block_tokens_per_s, plan.name
        assert all(use.peak <= 1.0 + 1e-12 for use in result.links), plan.name


def assert_alike(folded: PlanResult, whole: PlanResult) -> None:
    """One rank a class says what every rank says."""
    assert sum(entry.size for entry in folded.classes) == len(whole.classes) == folded.gpus
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=NEAR), folded.name
    assert folded.communication_bytes_per_layer == whole.communication_bytes_per_layer
    exposed, expected = folded.breakdown_s["exposed_communication"], whole.breakdown_s["exposed_communication"]
    assert exposed == pytest.approx(expected, rel=NEAR, abs=NEAR * whole.step_time_s)
    assert [use.carried_bytes for use in folded.links] == pytest.approx(
        [use.carried_bytes for use in whole.links], rel=NEAR
    )


@pytest.mark.parametrize("pass_", ["forward", "training"])
@pytest.mark.parametrize(("degree", "cluster"), in_turn([(8, "mi300x-8"), (16, "mi300x-2x8")]))
def test_folded_equals_every_rank_for_every_schedule(degree: int, cluster: str, pass_: str, tmp_path: Path) -> None:
    """While training, and over two nodes, some of them, with all ways to travel and both to cut."""
    every = {(8, "forward"): 5, (8, "training"): 9, (16, "forward"): 11, (16, "training"): 17}[degree, pass_]
    found = asked(tmp_path, some_of(degree, every), cluster=cluster, pass_=pass_)
    for plan in found.plans:
        assert_alike(run_plan(found, plan), run_plan(found, plan, every_rank=True))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["forward", "training"])
@pytest.mark.parametrize(("degree", "cluster"), [(8, "mi300x-8"), (16, "mi300x-2x8")])
def test_folded_equals_every_rank_for_every_exchange_of_sequence_shards(
    degree: int, cluster: str, pass_: str, tmp_path: Path
) -> None:
    plans = {name: {"sp": degree, **switches} for name, switches in SEQUENCE.items()}
    plans["contiguous"] = {**plans["multi_ring"], "partition": "contiguous"}
    if (degree, pass_) != (8, "forward"):
        plans = dict(list(plans.items())[degree % 3 :: 2])
    found = asked(tmp_path, plans, cluster=cluster, pass_=pass_)
    results = [run_plan(found, plan) for plan in found.plans]
    for plan, result in zip(found.plans, results, strict=True):
        assert_alike(result, run_plan(found, plan, every_rank=True))
        # Three blocks do not divide the bytes: a rank receives a byte more or less.
        near = pytest.approx(results[0].communication_bytes_per_layer, abs=2 if plan.overlap_chunks == 3 else 0)
        assert result.communication_bytes_per_layer == near, plan.name


def test_the_mlps_weights_load_all_links_of_a_mesh_alike_and_round_one_ring_eight() -> None:
    """Shards of a rank come round: 56 links of a node with a seventh each, or 8 links with all of it."""
    cluster = load_cluster("mi300x-8")
    loads: dict[int, float] = {}
    (program, *_) = programs_of(job_of(architecture(1024, heads=16, layers=1), tsp=8, weight_transport="multi_ring"))
    hops = [issued.instruction for issued in program.unrolled() if issued.instruction.name.startswith("MLP weights")]
    assert len(hops) == 7
    for hop in hops:
        assert isinstance(hop, Collective) and hop.kind == RING_SHIFT
        traffic = collective(cluster, range(8), hop.kind, hop.size_bytes, algorithm=hop.algorithm)
        for link, size in zip(traffic.links, traffic.link_bytes, strict=True):
            loads[link] = loads.get(link, 0.0) + size
    shard = 2 * 3 * 1024 * 4096 / 8
    assert len(loads) == 56
    assert list(loads.values()) == pytest.approx([7 * shard / 7] * 56, rel=1e-12)


# What is multiplied: read from the programs.


def uncausal(job: Job) -> Job:
    return replace(job, work=replace(job.work, causal=False))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("partition", ["zigzag", "contiguous"])
@pytest.mark.parametrize(("degree", "here"), [(2, 2), (4, 4), (8, 8), (16, 8)])
def test_every_schedule_has_the_models_flops(degree: int, here: int, partition: str) -> None:
    """1,056 tokens: chunks of 33 are cut into four slices that are not equal. What sees all tokens is the same in both
    partitions."""
    switches = {"sequence": 1056, "sequences": 2, "partition": partition, "together": {"tsp": here}}
    for name, variant in some_of(degree, 1 if degree < 8 else 3).items():
        job = job_of(MODEL, **switches, **variant)
        for work in (job, uncausal(job)) if (partition == "zigzag" and degree < 16) else (job,):
            tokens = work.work.tokens_per_replica
            flops = tokens * MODEL.forward_flops_per_token(1056, causal=work.work.causal)
            assert replica_flops(work) == pytest.approx(flops, rel=1e-12), name


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
def test_training_multiplies_as_much_in_every_schedule(recomputation: str) -> None:
    bare = replace(MODEL, vocab=0)
    found = {
        name: replica_flops(
            job_of(bare, pass_="training", recomputation=recomputation, sequence=1056, **variant), "gemm"
        )
        for name, variant in variants(4).items()
    }
    forward = replica_flops(job_of(bare, sequence=1056, tsp=4), "gemm")
    assert set(found.values()) == {forward * (4 if recomputation == "full" else 3)}
    attended = {
        replica_flops(
            job_of(bare, pass_="training", recomputation=recomputation, sequence=1056, **variant), "attention"
        )
        for variant in variants(4).values()
    }
    forward = replica_flops(job_of(bare, sequence=1056, tsp=4), "attention")
    assert max(attended) == pytest.approx(min(attended), rel=1e-12)
    assert max(attended) == pytest.approx(forward * (3.5 if recomputation == "none" else 4.5), rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(SEQUENCE)),
    st.sampled_from([(2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (8, 4), (16, 8), (12, 4), (6, 1)]),
    st.integers(1, 40),
    st.integers(1, 3),
    st.sampled_from(["zigzag", "contiguous"]),
    st.booleans(),
    st.sampled_from(["forward", "training"]),
)
def test_sequence_shards_attend_every_pair_once_however_blocks_are_cut(
    name: str, shards: tuple[int, int], chunk: int, sequences: int, partition: str, causal: bool, pass_: str
) -> None:
    """Also where the tokens of a chunk are fewer than the rings, or do not divide by them."""
    degree, here = shards
    sequence = 2 * degree * chunk
    switches = {"sp": degree, "partition": partition, "together": {"sp": here}, "recomputation": "none"}
    job = job_of(MODEL, sequence=sequence, sequences=sequences, pass_=pass_, **switches, **SEQUENCE[name])
    job = job if causal else uncausal(job)
    whole = replace(job, plan=replace(job.plan, exchange="all_gather", overlap=None))
    assert replica_flops(job, "attention") == pytest.approx(replica_flops(whole, "attention"), rel=1e-12)
    assert replica_flops(job, "gemm") == replica_flops(whole, "gemm")


# Whose blocks a rank holds.


@st.composite
def axes(draw: st.DrawFn) -> Job:
    """A sequence axis over whole nodes of one to eight ranks."""
    here, nodes = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    degree = max(2, here * nodes)
    here = min(here, degree) if degree % here == 0 else degree
    return job_of(MODEL, sequence=2 * degree, sp=degree, together={"sp": here})


@given(axes(), st.data())
def test_a_rank_meets_every_part_of_every_other_block_once(job: Job, data: st.DataObject) -> None:
    degree, here = job.plan.sp, job.plan.node_ranks("sp")
    position = data.draw(st.integers(0, degree - 1))
    parts = len(hamiltonian_cycles(here)) if here > 1 else 1
    held = [rings.owners(job, "sp", position, step) for step in range(degree)]
    assert held[0] == (position,) * parts
    for part in range(parts):
        assert sorted(owners[part] for owners in held) == list(range(degree))


@given(axes(), st.data())
def test_what_a_rank_gets_is_what_the_one_before_it_held(job: Job, data: st.DataObject) -> None:
    """Its predecessor on every cycle a step before, or the rank in its place of the node before a round before."""
    degree, here = job.plan.sp, job.plan.node_ranks("sp")
    position, step = data.draw(st.integers(0, degree - 1)), data.draw(st.integers(1, degree - 1))
    before = step - rings.lead(job, "sp", step)
    if rings.by_rail(job, "sp", step):
        assert rings.owners(job, "sp", position, step) == rings.owners(job, "sp", (position - here) % degree, before)
        return
    first, place = position // here * here, position % here
    for part, cycle in enumerate(hamiltonian_cycles(here)):
        previous = first + cycle[cycle.index(place) - 1]
        assert rings.owners(job, "sp", position, step)[part] == rings.owners(job, "sp", previous, before)[part]


# Buffers.


def written(count: int, a_layer: int, layers: int, *, apart: bool) -> Program:
    """Layers that bring ``a_layer`` things each and use them in order, all moves written before the uses."""
    script = ProgramBuilder("all", job_of(architecture(512)))

    def layer() -> None:
        buffers = script.buffers("weights", count, a_layer)
        for number in range(a_layer):
            moved = script.collective("all_gather", "tsp", 8, f"move {number}", stream="weights")
            buffers.fill(number, moved)
            buffers.used(number, script.compute(f"use {number}", MemoryBound("use", 1.0), after=[moved]))

    if not apart:
        script.begin_layers()
        layer()
        script.repeat(script.end_layers(layers))
        return script.program()
    script.begin_run()
    for number in range(layers):
        script.begin_layers(number)
        layer()
        script.end_layer()
    return script.program()


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_a_filling_waits_for_the_use_of_the_one_that_had_its_buffer(
    count: int, a_layer: int, layers: int, apart: bool
) -> None:
    """``count`` fillings before, over the border of one layer, two, or more; the first ``count`` wait for nothing."""
    issued = list(written(count, a_layer, layers, apart=apart).unrolled())
    uses = [index for index, entry in enumerate(issued) if isinstance(entry.instruction, Compute)]
    moves = [entry for entry in issued if isinstance(entry.instruction, Collective)]
    assert len(moves) == len(uses) == a_layer * layers
    for filling, move in enumerate(moves):
        assert list(move.after) == ([uses[filling - count]] if filling >= count else []), filling


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_weights_of_a_layer_set_out_before_the_layer_before_is_done_and_not_before_their_buffers_are_free(
    way: str, groups: int
) -> None:
    """In a run of equal layers the first weights of one wait for uses of the layer before (of that before it, where a
    piece is the whole MLP and there are two buffers), those of the attention never for its last kernel."""
    job = job_of(replace(MODEL, layers=4, vocab=0), tsp=4, head_groups=groups, **WAYS[way])
    issued = list(programs_of(job)[0].unrolled())
    last = {entry.layer: index for index, entry in enumerate(issued) if isinstance(entry.instruction, Compute)}
    for entry in issued:
        instruction = entry.instruction
        if isinstance(instruction, Compute) or instruction.stream != "weights" or entry.layer < 2:
            continue
        before = [issued[index] for index in entry.after]
        whole = way == "gather 1" and instruction.part == "mlp"
        assert {entry.layer - other.layer for other in before} <= ({2} if whole else {0, 1})
        if instruction.part == "attention":
            assert before and last[entry.layer - 1] not in entry.after
