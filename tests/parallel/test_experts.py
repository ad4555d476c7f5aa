"""Experts and latent attention under every scheme: work, bytes and order against closed forms."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.bounds import run_below_bounds
from helpers.draws import in_turn
from helpers.engine import (
    LATENT,
    architecture,
    job_of,
    latent,
    model_file,
    moe,
    programs_of,
    question,
    replica_flops,
)
from helpers.gates import experts_drawn, places_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError
from tspsim.model import Architecture, Experts
from tspsim.model.layer import LayerShard
from tspsim.network import ExpertExchange, collective, exchange_experts, load_cluster
from tspsim.parallel import ExpertRouting, Job
from tspsim.parallel.dispatch import distinct_ranks
from tspsim.parallel.pipeline import interleaved_micro_batches
from tspsim.program import Collective, Compute, Program, Repeat
from tspsim.step.question import look_up
from tspsim.steps import BACKWARD, FORWARD, Task

#: Ways to spread one replica, or with ep beyond it several.
PLANS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp": {"tp": 4},
    "tp, sequence regions": {"tp": 4, "sequence_regions": True},
    "tp, overlapped": {"tp": 4, "overlap": True},
    "sp": {"sp": 4},
    "sp, ring": {"sp": 4, "exchange": "ring"},
    "tsp": {"tsp": 4},
    "tsp, in turn": {"tsp": 4, "overlap": False},
    "ep over replicas": {"dp": 8, "ep": 8},
    "ep over sequence shards": {"sp": 4, "ep": 4, "dp": 2},
    "ep over half the shards": {"sp": 4, "ep": 2},
    "ep over tp": {"tp": 4, "ep": 4, "sequence_regions": True},
    "ep over tp and replicas": {"tp": 2, "ep": 8, "dp": 4, "sequence_regions": True},
    "ep over tp and sequence shards": {"tp": 2, "sp": 2, "ep": 4, "sequence_regions": True},
    "ep over tsp": {"tsp": 4, "ep": 4},
    "ep over tsp and replicas": {"tsp": 4, "ep": 8, "dp": 2},
    "ep over tsp, in turn": {"tsp": 4, "ep": 4, "overlap": False},
    "ep, shared experts beside": {
        "tp": 2, "ep": 8, "dp": 4, "sequence_regions": True, "expert_overlap": "shared_experts"
    },
    "ep over tsp, shared experts beside": {"tsp": 4, "ep": 4, "expert_overlap": "shared_experts"},
}  # fmt: skip
MODELS = {
    "experts": moe(),
    "shared experts": moe(shared_width=256),
    "two kinds of layer": moe(layers=4, first_dense=1, ffn=1024, shared_width=128),
    "every other layer": moe(layers=4, every=2, ffn=1024),
    "latent attention": latent(),
    "latent attention, queries direct": latent(widths=replace(LATENT, q_rank=0)),
    "windows": architecture(512, layers=4, window=96, full_every=2),
}


@pytest.fixture(params=PLANS)
def switches(request: pytest.FixtureRequest) -> dict[str, Any]:
    return PLANS[request.param]


#: Of models and plans half, so that every model meets every other plan and every plan every other model.
HALF = pytest.mark.parametrize(
    ("model", "switches"),
    [
        pytest.param(model, switches, id=f"{of}-{name}")
        for number, (of, model) in enumerate(MODELS.items())
        for place, (name, switches) in enumerate(PLANS.items())
        if (number + place) % 2
    ],
)


def fitting(model: Architecture, switches: dict[str, Any]) -> dict[str, Any]:
    """The plan without expert groups where the model has no experts."""
    return switches if model.experts else {name: value for name, value in switches.items() if name != "ep"}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("model", [model for model in MODELS.values() if not model.window], ids=list(MODELS)[:-1])
def test_a_replicas_forward_has_the_models_flops(switches: dict[str, Any], model: Architecture) -> None:
    job = job_of(model, **fitting(model, switches))
    expected = job.work.tokens_per_replica * model.forward_flops_per_token(job.work.sequence)
    repeated = job.plan.tp if job.plan.ep == 1 or not job.plan.sequence_regions else 1
    if model.experts:  # without expert groups every tensor-parallel rank chooses the experts of all its tokens
        router = 2 * model.hidden * model.experts.count * sum(block.experts for block in model.blocks)
        expected += (repeated - 1) * router * job.work.tokens_per_replica
    if model.latent and not job.plan.sequence_regions:  # and makes all of their latents
        down = 2 * model.hidden * model.latent.down_width * model.layers
        expected += (job.plan.tp - 1) * down * job.work.tokens_per_replica
    assert replica_flops(job) == expected


@pytest.mark.in_turn(5)
@HALF
def test_the_backward_has_twice_the_forwards_products_and_full_recomputation_one_forward_more(
    switches: dict[str, Any], model: Architecture
) -> None:
    plan = fitting(model, switches)
    forward = job_of(model, **plan)
    none, full = (job_of(model, pass_="training", **plan, recomputation=policy) for policy in ("none", "full"))
    assert replica_flops(none, "gemm") == 3 * replica_flops(forward, "gemm")
    assert replica_flops(none, "attention") == 3.5 * replica_flops(forward, "attention")
    assert replica_flops(full) - replica_flops(none) == replica_flops(forward)


@pytest.mark.in_turn(5)
@HALF
def test_cheap_recomputation_makes_heads_again_and_no_other_product(
    switches: dict[str, Any], model: Architecture
) -> None:
    plan = fitting(model, switches)
    none, cheap = (job_of(model, pass_="training", **plan, recomputation=policy) for policy in ("none", "cheap"))
    tokens, heads = none.work.tokens_per_replica, 0
    if model.latent:
        whole = LayerShard(model, 1)
        heads = model.layers * sum(product.flops for product in whole.projections(tokens))
    assert replica_flops(cheap, "gemm") - replica_flops(none, "gemm") == heads
    assert replica_flops(cheap, "attention") == replica_flops(none, "attention")
    moved = [Counter(move.name for move in communications(programs_of(job)[0])) for job in (none, cheap)]
    # Latents of own tokens are gathered before heads are made of them again.
    again = {"gather latents again": model.layers} if model.latent and cheap.regions else {}
    assert moved[1] - moved[0] == again and not moved[0] - moved[1]


def test_zero_bubble_puts_off_exactly_the_weights_gradients() -> None:
    model = moe(layers=4, shared_width=256, first_dense=1, ffn=1024)
    plain, later = (
        job_of(model, pass_="training", dp=4, ep=4, schedule=schedule, recomputation="none")
        for schedule in ("1f1b", "zb-h1")
    )
    assert replica_flops(plain) == replica_flops(later)


def communications(program: Program) -> list[Any]:
    return [each.instruction for each in program.unrolled() if not isinstance(each.instruction, Compute)]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("pass_", ["forward", "training"])
@HALF
def test_programs_are_in_order(switches: dict[str, Any], model: Architecture, pass_: str) -> None:
    """Waits are for earlier instructions, kernels and communication do not share a stream, ranks ask for the same."""
    programs = programs_of(job_of(model, pass_=pass_, **fitting(model, switches)))
    for program in programs:
        for index, issued in enumerate(program.unrolled()):
            assert all(0 <= other < index for other in issued.after)
            assert isinstance(issued.instruction, Compute) == (issued.instruction.stream == "compute")
    for one, other in pairwise(programs):
        assert communications(one) == communications(other)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", ["two kinds of layer", "every other layer", "windows"])
def test_layers_written_out_are_those_repeated(name: str, switches: dict[str, Any]) -> None:
    """Layers of one kind, written one after the other, wait for the same as when they are repeated."""
    model = architecture(512, layers=3)
    job = job_of(model, pass_="training", **fitting(model, switches))
    mixed = job_of(MODELS[name], pass_="training", **fitting(MODELS[name], switches))
    assert any(isinstance(item, Repeat) for item in programs_of(job)[0].items)
    layers = [each.layer for each in programs_of(mixed)[0].unrolled() if each.layer >= 0]
    turns = [layer for layer, after in pairwise([*layers, -1]) if layer != after]
    assert turns == [0, 1, 2, 3, 2, 1, 0]


# Bytes.


def moved(job: Job, name: str) -> list[int]:
    return [move.size_bytes for move in communications(programs_of(job)[0]) if move.name == name]


def test_distinct_ranks_of_a_token() -> None:
    """D(N, k) = N(1 − (1 − 1/N)^k): one expert is on one rank, and no token goes to more ranks than it has experts."""
    assert distinct_ranks(16, Experts(64, 1, 256)) == pytest.approx(1.0)
    assert distinct_ranks(2, Experts(64, 2, 256)) == 1.5
    for ranks in (2, 8, 64, 1024):
        for topk in (1, 2, 8):
            assert 1.0 - 1e-12 <= distinct_ranks(ranks, Experts(1024, topk, 256)) <= min(ranks, topk)


def test_a_token_reaches_the_places_of_its_best_groups() -> None:
    """As counted over the published gate with other draws: groups are kept for their best experts, so that nearly each
    kept one has some, and no expert is chosen twice."""
    experts, chosen = Experts(256, 8, 256, groups=8, kept_groups=4), experts_drawn(5_000, seed=7)
    for places in (1, 2, 4, 8, 16, 64, 256):
        assert distinct_ranks(places, experts) == pytest.approx(places_of(chosen, places), rel=0.01)
    assert distinct_ranks(256, experts) == 8.0


@pytest.mark.parametrize(
    "plan",
    [
        {"dp": 8, "ep": 8}, {"sp": 4, "ep": 4}, {"tsp": 4, "ep": 4}, {"tsp": 4, "ep": 2},
        {"tp": 4, "ep": 4, "sequence_regions": True}, {"tp": 2, "sp": 2, "ep": 8, "dp": 2, "sequence_regions": True},
    ],
    ids=str,
)  # fmt: skip
def test_dispatch_and_combine_move_their_closed_form(plan: dict[str, Any]) -> None:
    """A rank holds n·D(N, k)·h elements before each of the two all-to-alls; training has two of gradients more."""
    model = moe(layers=3)
    shards = plan.get("tp", 1) * plan.get("sp", 1) * plan.get("tsp", 1)
    assert model.experts is not None
    size = round(2 * model.hidden * 1024 / shards * distinct_ranks(plan["ep"], model.experts))
    forward = job_of(model, **plan)
    assert moved(forward, "dispatch") == moved(forward, "combine") == [size] * 3
    training = job_of(model, pass_="training", **plan)
    for name in ("dispatch", "combine"):
        assert moved(training, name) == [size] * 6, "and again with full recomputation"
        assert moved(training, f"{name} gradients") == [size] * 3
    every = [move for move in communications(programs_of(training)[0]) if move.axis == "ep"]
    assert len(every) == 18 and all(isinstance(move, Collective) and move.kind == "all_to_all" for move in every)


def test_a_copy_for_each_expert_travels_where_the_dispatcher_knows_no_ranks() -> None:
    plan = {"dp": 8, "ep": 8}
    job = job_of(moe(), pass_="training", **plan, expert_dispatch="experts")
    assert set(moved(job, "dispatch") + moved(job, "combine gradients")) == {2 * 512 * 1024 * 2}
    assert {move.algorithm for move in communications(programs_of(job)[0])} == {None}
    assert replica_flops(job) == replica_flops(job_of(moe(), pass_="training", **plan))


def test_links_carry_the_librarys_rows_by_a_plain_all_to_all() -> None:
    library, links = (job_of(moe(), dp=8, ep=8, expert_dispatch=way) for way in ("ranks", "links"))
    assert moved(links, "dispatch") == moved(library, "dispatch")
    assert {move.algorithm for move in communications(programs_of(links)[0])} == {None}


def test_gradients_of_experts_are_summed_over_the_ranks_that_hold_the_same() -> None:
    model = moe(layers=1, shared_width=256)
    job = job_of(model, pass_="training", tp=2, sp=2, dp=4, ep=4, sequence_regions=True)
    sums = {
        move.axis: move.size_bytes for move in communications(programs_of(job)[0]) if move.name == "sum layer gradients"
    }
    routed = 8 * 3 * 512 * 256
    others, router = model.parameters - routed, 8 * 512
    assert sums == {"edp": 2 * routed / 4, "dp+sp": 2 * (others + router) / 2}


def test_without_expert_groups_gradients_are_summed_where_the_others_are() -> None:
    model = moe(layers=1)
    job = job_of(model, pass_="training", tp=2, dp=4)
    sums = [(move.axis, move.size_bytes) for move in communications(programs_of(job)[0]) if "sum layer" in move.name]
    assert sums == [("dp", model.parameters + 8 * 512)]  # the router's are on both ranks of tp


def test_latents_are_gathered_between_sequence_regions() -> None:
    """Each rank makes the latents of its own tokens; q_rank + kv_rank + rope_dim elements travel instead of h."""
    model = latent(layers=1)
    job = job_of(model, pass_="training", tp=4, sequence_regions=True, recomputation="none")
    assert moved(job, "gather for QKV") == [2 * 1024 * (192 + 128 + 16)]
    assert moved(job, "sum d attention") == [2 * 1024 * (192 + 128 + 16)]
    assert moved(job, "gather for MLP") == [2 * 1024 * 512]


# Load.


def test_the_busiest_rank_sets_rows_and_bytes() -> None:
    shares = (4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0)
    skewed = ExpertRouting("measured", shares=shares)
    even, uneven = (job_of(moe(), dp=4, ep=4, routing=routing) for routing in (ExpertRouting(), skewed))
    assert max(skewed.rank_loads(8, 4)) == pytest.approx(5 / 3)
    assert moved(uneven, "dispatch")[0] == pytest.approx(moved(even, "dispatch")[0] * 5 / 3, abs=1)
    capped = job_of(moe(), dp=4, ep=4, routing=ExpertRouting("measured", shares=shares, capacity_factor=1.0))
    assert moved(capped, "dispatch")[0] < moved(uneven, "dispatch")[0]


@pytest.mark.parametrize("load", ["zipf", "dirichlet"])
def test_a_drawn_load_is_the_same_for_a_seed_and_grows_with_its_skew(load: str) -> None:
    loads = [max(ExpertRouting(load, skew=skew, seed=3).rank_loads(64, 8)) for skew in (0.0, 0.3, 1.0)]
    assert loads[0] == pytest.approx(1.0) and loads == sorted(loads) and loads[2] > 1.2
    assert ExpertRouting(load, skew=0.5, seed=3) == ExpertRouting(load, skew=0.5, seed=3)
    three, four = (max(ExpertRouting(load, skew=0.5, seed=seed).rank_loads(64, 8)) for seed in (3, 4))
    assert three != four


# Refusals.


@pytest.mark.parametrize(
    ("model", "plan", "says"),
    [
        (architecture(512), {"dp": 2, "ep": 2}, r"ep: 2 spreads experts, but tiny has none; leave ep out"),
        (moe(), {"dp": 3, "ep": 3}, r"ep: 3 does not divide the 8 experts"),
        (moe(), {"sp": 4, "dp": 3, "ep": 8}, r"ep: 8 ranks cannot be taken from sp 4 x dp 3"),
        (moe(), {"tp": 2, "ep": 2}, r"ep: beside tp needs sequence_regions: true"),
        (moe(shared_width=254), {"tsp": 4}, r"tsp: 4 does not divide the 254 columns of the shared experts"),
        (moe(width=254), {"tp": 4}, r"tp: 4 does not divide the 254 columns of an expert of tiny; set ep"),
    ],
)
def test_what_cannot_be_spread_is_refused_with_the_remedy(model: Architecture, plan: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        job_of(model, **plan)


# Modules for further tokens.


@pytest.mark.in_turn(5)
def test_a_module_for_a_further_token_is_one_layer_a_projection_and_the_head_again(switches: dict[str, Any]) -> None:
    model = replace(moe(layers=3, vocab=1000), multi_token=1)
    plain = job_of(model, pass_="training", **switches, recomputation="none")
    further = replace(plain, work=replace(plain.work, multi_token=True))
    layer = replica_flops(job_of(moe(layers=1), pass_="training", **switches, recomputation="none"))
    bare = replica_flops(job_of(moe(layers=3), pass_="training", **switches, recomputation="none"))
    join = 3 * 2 * 2 * 512**2 * 1024 * (plain.plan.tp if not plain.plan.sequence_regions else 1)
    head = replica_flops(plain) - bare
    assert replica_flops(further) - replica_flops(plain) == layer + join + head


def test_a_module_for_a_further_token_is_no_part_of_the_models_own_layers() -> None:
    model = replace(moe(layers=3, vocab=1000), multi_token=1)
    job = job_of(model, pass_="training", dp=4, ep=4)
    job = replace(job, work=replace(job.work, multi_token=True))
    layers = {each.layer for each in programs_of(job)[0].unrolled() if each.instruction.part in ("attention", "mlp")}
    assert layers == {0, 1, 2}
    assert any("further token" in each.instruction.part for each in programs_of(job)[0].unrolled())


# The whole way: through the front door, under the physical ceilings.


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 8}, {"sp": 4, "ep": 16}, {"tsp": 8, "ep": 8, "tsp_schedule": "published"}, {"ep": 16, "zero": 1},
        {"pp": 2, "ep": 8}, {"tp": 2, "ep": 16, "sequence_regions": True},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", in_turn(["deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b"], 3))
def test_no_plan_passes_its_bound(name: str, plan: dict[str, Any]) -> None:
    """Forward or training, in turn over the degrees."""
    pass_ = ("forward", "training")[(len(name) + sum(each for each in plan.values() if isinstance(each, int))) % 2]
    asked = tspsim.load(question(name, [{"name": "P", **plan}], cluster="mi300x-2x8", pass_=pass_, sequence=4096))
    (found,) = run_below_bounds(look_up(asked))
    assert found.ran == found.memory.fits


@settings(max_examples=7, deadline=None)
@given(
    name=st.sampled_from(["mixtral-8x7b", "moonlight-16b-a3b"]),
    plan=st.sampled_from([{"ep": 8}, {"tp": 8}, {"tsp": 8, "ep": 8, "tsp_schedule": "published"}]),
    load=st.sampled_from(["balanced", "zipf", "dirichlet"]),
    skew=st.floats(0.0, 2.0),
    capacity_factor=st.one_of(st.none(), st.floats(0.001, 4.0)),
    pass_=st.sampled_from(["forward", "training"]),
)
@example("mixtral-8x7b", {"ep": 8}, "balanced", 0.0, 0.01, "forward")
@example("moonlight-16b-a3b", {"ep": 8}, "zipf", 0.5, 0.01, "forward")
@example("mixtral-8x7b", {"ep": 8}, "dirichlet", 5e-324, None, "forward")
def test_dropped_tokens_are_no_work(
    name: str, plan: dict[str, Any], load: str, skew: float, capacity_factor: float | None, pass_: str
) -> None:
    routing = {"load": load, "skew": skew * (load != "balanced"), "capacity_factor": capacity_factor}
    workload = {"cluster": "mi300x-8", "pass_": pass_, "sequence": 32768, "routing": routing}
    (found,) = run_below_bounds(look_up(tspsim.load(question(name, [{"name": "P", **plan}], **workload))))
    assert found.ran == found.memory.fits
    if found.ran:
        assert found.mfu <= 1.0
        assert any("dropped" in note for note in found.notes) == (found.dropped_share > 0.0)


def test_a_rate_with_dropped_tokens_says_so() -> None:
    routing = {"load": "zipf", "skew": 0.5, "capacity_factor": 1.0}
    asked = question("moonlight-16b-a3b", [{"name": "P", "ep": 8}], sequence=8192, routing=routing)
    found = tspsim.simulate(asked).plan("P")
    assert found.to_json()["dropped_share"] == pytest.approx(0.208, abs=0.001)
    assert any("20.8 %" in note for note in found.notes)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", [{"ep": 16}, {"tp": 2, "ep": 8, "sequence_regions": True}, {"tsp": 4, "ep": 8}])
def test_folding_gives_the_time_of_every_rank(plan: dict[str, Any], tmp_path: Path) -> None:
    model = model_file(tmp_path, moe(1024, layers=3, count=16, topk=4, shared_width=512, first_dense=1, ffn=2048))
    asked = tspsim.load(question(model, [{"name": "P", **plan}], cluster="mi300x-2x8", pass_="training", sequence=2048))
    folded, whole = (tspsim.simulate(asked, every_rank=every).plan("P") for every in (False, True))
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert sum(each.size for each in folded.classes) == len(whole.classes) == 16


def test_a_more_uneven_load_is_never_faster() -> None:
    plans = [{"name": "P", "ep": 8}]
    times = []
    for skew in (0.0, 0.3, 0.8):
        routing = {"load": "zipf", "skew": skew, "seed": 1}
        asked = question("qwen3-30b-a3b", plans, sequence=4096, routing=routing)
        times.append(tspsim.simulate(asked).plan("P").step_time_s)
    assert times == sorted(times) and times[-1] > times[0]


def test_a_dispatch_of_a_step_is_the_librarys_own_where_the_node_has_one() -> None:
    """Two nodes of H100 with their expert-parallel library; a node without one moves the same bytes all to all."""
    tokens = ExpertExchange(4096.0, 4096.0, 128, 8)
    cluster = load_cluster("h100-2x8")
    asked = collective(cluster, range(16), "all_to_all", 1.0, algorithm="dispatch", exchange=tokens)
    own = exchange_experts(cluster, range(16), "dispatch", tokens)
    assert (asked.algorithm, asked.latency_s, asked.fluid_s) == (own.algorithm, own.latency_s, own.fluid_s)
    job = job_of(moe(), dp=4, ep=4)
    sent = [move for move in communications(programs_of(job)[0]) if move.axis == "ep"]
    assert {(move.algorithm, move.tokens) for move in sent} == {
        (phase, ExpertExchange(1024.0, 1024.0, 8, 2)) for phase in ("dispatch", "combine")
    }
    bare = load_cluster("hgx-a100-80gb-8")
    size = 2.0**26
    fallen, plain = (
        collective(bare, range(8), "all_to_all", size, algorithm=name, exchange=tokens if name else None)
        for name in ("dispatch", None)
    )
    assert (fallen.algorithm, fallen.fluid_s) == (plain.algorithm, plain.fluid_s)


# Interleaved micro-batches.


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(1, 1, 4), (2, 1, 8), (4, 1, 6), (4, 2, 8), (4, 2, 4)])
def test_interleaving_stages_visit_every_micro_batch_and_never_interleave_one_with_itself(
    stages: int, chunks: int, micro_batches: int
) -> None:
    for stage in range(stages):
        tasks = interleaved_micro_batches(stages, stage, micro_batches, chunks)
        visits = [Task(kind, i, c) for kind in (FORWARD, BACKWARD) for i in range(micro_batches) for c in range(chunks)]
        assert sorted(task._replace(beside=False) for task in tasks) == sorted(visits)
        plain = [task._replace(beside=False) for task in tasks]
        for visit in visits[: len(visits) // 2]:
            assert plain.index(visit) < plain.index(visit._replace(kind=BACKWARD))
        for first, second in pairwise(tasks):
            if first.beside:
                assert (first.kind, second.kind) == (FORWARD, BACKWARD)
                assert (first.micro_batch, first.chunk) != (second.micro_batch, second.chunk)
        assert not tasks[-1].beside


def interleaved_job(**plan: Any) -> Job:
    model = moe(layers=4, shared_width=256, first_dense=1, ffn=1024, vocab=1000)
    return job_of(model, pass_="training", dp=4, ep=4, sequences=4, **plan)


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_interleaving_keeps_the_work_the_bytes_and_the_order_of_each_task(recomputation: str) -> None:
    ways = "shared_experts", "micro_batches"
    plain, other = (interleaved_job(recomputation=recomputation, expert_overlap=way) for way in ways)
    assert replica_flops(plain) == replica_flops(other)
    one, two = (programs_of(job)[0] for job in (plain, other))
    assert sorted(map(repr, (move.name for move in communications(one)))) == sorted(
        map(repr, (move.name for move in communications(two)))
    )
    for index, issued in enumerate(two.unrolled()):
        assert all(0 <= waited < index for waited in issued.after)


def test_between_a_dispatch_and_its_experts_kernels_of_the_other_task_run() -> None:
    issued = [each.instruction for each in programs_of(interleaved_job(expert_overlap="micro_batches"))[0].unrolled()]
    hidden = 0
    for index, instruction in enumerate(issued):
        if isinstance(instruction, Collective) and instruction.tokens and instruction.part.startswith("mlp"):
            waiting = next(i for i in range(index, len(issued)) if index in issued[i].after)
            between = [each for each in issued[index + 1 : waiting] if isinstance(each, Compute)]
            hidden += any(kernel.operators for kernel in between)
    exchanges = sum(isinstance(each, Collective) and each.tokens is not None for each in issued)
    assert hidden > exchanges / 2


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("micro_batches", "chunks"), [(1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (7, 1), (9, 1), (4, 2), (8, 2), (12, 2)]
)
def test_interleaving_stages_never_wait_in_a_ring(micro_batches: int, chunks: int, tmp_path: Path) -> None:
    model = model_file(tmp_path, moe(layers=8))
    plan = {"name": "P", "pp": 4, "vpp": chunks, "ep": 4, "expert_overlap": "micro_batches"}
    asked = question(
        model, [plan], cluster="h100-2x8", pass_="training", sequence=1024, sequences_per_replica=micro_batches
    )
    assert tspsim.simulate(asked).plan("P").step_time_s > 0.0


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", [{"pp": 2, "ep": 8}, {"pp": 4, "vpp": 2, "ep": 4}, {"ep": 16}], ids=str)
def test_interleaved_micro_batches_are_faster_where_exchanges_are_exposed(plan: dict[str, Any], tmp_path: Path) -> None:
    model = model_file(tmp_path, moe(2048, layers=8, count=32, topk=8, width=1024))
    plans = [{"name": overlap, "expert_overlap": overlap, **plan} for overlap in ("none", "micro_batches")]
    asked = question(model, plans, cluster="h100-2x8", pass_="training", sequence=4096, sequences_per_replica=8)
    plain, hidden = (tspsim.simulate(asked).plan(name) for name in ("none", "micro_batches"))
    assert hidden.step_time_s < plain.step_time_s
    exposed = [each.breakdown_s["exposed_communication"]["all_to_all"] for each in (plain, hidden)]
    assert exposed[1] < 0.75 * exposed[0]
