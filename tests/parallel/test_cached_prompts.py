"""Prompts whose tokens ranks divide, behind contexts that they divide as well."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, latent, model_file, moe, programs_of, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.operators import Attention
from tspsim.parallel import CONTEXT_METHODS, Job, scheme_of
from tspsim.parallel.partition import block_segments, local_segments, sliced_segments
from tspsim.program import Compute
from tspsim.step.question import look_up

GROUPED = architecture(1024, heads=16, kv_heads=8, head_dim=64, vocab=32000)
LATENTS = latent(1024, heads=16)
SP = [{"name": name, "tp": 2, "sp": 4, "exchange": name} for name in CONTEXT_METHODS.names()]
BLOCKS = {"name": "blocks", "sp": 8, "overlap": True, "overlap_by": "blocks"}
TSP = [
    {"name": "published", "tsp": 8, "tsp_schedule": "published"},
    {"name": "two groups", "tsp": 8, "head_groups": 2, "weight_transport": "gather", "mlp_pieces": 2},
    {"name": "by blocks", "tsp": 8, "head_groups": 1, "overlap_by": "blocks", "weight_transport": "gather"},
    {"name": "in turn", "tsp": 8, "overlap": False},
]
EVERY = [*SP, BLOCKS, *TSP]
#: Those whose keys and values come to the queries; the others' stay, cached or not.
BRINGING = [plan for plan in EVERY if plan.get("exchange") != "token_ring"]


def prefill(model: str, *plans: Mapping[str, Any], sequence: int = 4096, **work: Any) -> list[Any]:
    result = tspsim.simulate(question(model, plans, pass_="prefill", sequence=sequence, **work))
    return [result.plan(str(plan["name"])) for plan in plans]


def job_of_plan(model: str, plan: Mapping[str, Any], sequence: int = 4096, **work: Any) -> Job:
    asked = look_up(tspsim.load(question(model, [plan], pass_="prefill", sequence=sequence, **work)))
    return asked.job(asked.plans[0])


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", EVERY, ids=lambda plan: plan["name"])
def test_a_prompt_without_a_cache_moves_what_a_forward_pass_does(plan: dict[str, Any], tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)
    (read,) = prefill(path, plan)
    (passed,) = tspsim.simulate(question(path, [plan], sequence=4096)).plans
    assert read.communication_bytes_per_layer == passed.communication_bytes_per_layer


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", BRINGING, ids=lambda plan: plan["name"])
@pytest.mark.parametrize("kept", [("bf16", 2), ("fp8", 1)], ids=str)
def test_the_cached_part_comes_in_the_cache_s_type(plan: dict[str, Any], kept: tuple[str, int], tmp_path: Path) -> None:
    """(p − 1)/p of K and V of a rank's heads; after Ulysses' all-to-all of the heads that it attends."""
    path, (dtype, element), cached = model_file(tmp_path, GROUPED), kept, 8192
    work = {"precision": {"kv": dtype}}
    without, behind = (prefill(path, plan, cached=tokens, **work)[0] for tokens in (0, cached))
    ranks, heads = plan.get("sp", 8), 8 // plan.get("tp", 1)
    heads = heads // ranks if plan.get("exchange") == "ulysses" else heads
    more = Fraction(ranks - 1, ranks) * cached * 2 * heads * 64 * element
    volumes = [each.communication_bytes_per_layer for each in (without, behind)]
    assert volumes[1]["attention"] - volumes[0]["attention"] == more
    assert volumes[1]["mlp"] == volumes[0]["mlp"]
    assert behind.step_time_s > without.step_time_s
    told = scheme_of(job_of_plan(path, plan).plan).received(job_of_plan(path, plan, cached=cached, **work), False)
    assert sum(each.bytes for each in told) == pytest.approx(volumes[1]["total"], rel=1e-12)


def test_queries_that_travel_meet_cached_keys_where_they_are(tmp_path: Path) -> None:
    for shape in (GROUPED, LATENTS):
        path = model_file(tmp_path, shape)
        (plan,) = (plan for plan in EVERY if plan not in BRINGING)
        without, behind = (prefill(path, plan, cached=tokens)[0] for tokens in (0, 8192))
        assert behind.communication_bytes_per_layer == without.communication_bytes_per_layer
        assert behind.step_time_s > without.step_time_s


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", BRINGING, ids=lambda plan: plan["name"])
def test_cached_latents_come_once_and_are_expanded_again(plan: dict[str, Any], tmp_path: Path) -> None:
    path, cached = model_file(tmp_path, LATENTS), 8192
    without, behind = (prefill(path, plan, cached=tokens)[0] for tokens in (0, cached))
    assert LATENTS.latent is not None
    ranks = plan.get("sp", 8)
    more = Fraction(ranks - 1, ranks) * cached * 2 * LATENTS.latent.cache_width
    found = [each.communication_bytes_per_layer["attention"] for each in (without, behind)]
    assert found[1] - found[0] == more


@pytest.mark.parametrize("plan", EVERY, ids=lambda plan: plan["name"])
def test_every_query_meets_the_whole_cached_context_once(plan: dict[str, Any], tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)

    def pairs(cached: int) -> float:
        programs = programs_of(job_of_plan(path, plan, cached=cached))
        kernels = [
            operator
            for program in programs
            for issued in program.unrolled()
            if isinstance(issued.instruction, Compute)
            for operator in issued.instruction.operators
            if isinstance(operator, Attention)
        ]
        return sum(operator.flops for operator in kernels)

    heads = 16 // plan.get("tp", 1)
    assert pairs(8192) - pairs(0) == GROUPED.layers * 4.0 * heads * 64 * 4096 * 8192


@pytest.mark.parametrize("partition", ["zigzag", "contiguous"])
def test_pieces_of_a_shard_see_what_is_cached_whole(partition: str) -> None:
    for position in range(4):
        blocks = [block_segments(partition, 1024, 4, position, owner, 1, True, 512) for owner in range(4)]
        whole = local_segments(partition, 1024, 4, position, 1, True, 512)
        own = blocks[position][0]
        others = [(owner, part, 3) for owner in range(4) if owner != position for part in range(3)]
        sliced = sliced_segments(partition, 1024, 4, position, others, 1, True, 512)
        score = sum(q * kv for pieces, _ in blocks for q, kv in pieces) - 256 * 256 // 2
        causal = sum(q * kv - q * q // 2 for q, kv in whole)
        assert score == causal == sum(q * kv for q, kv in sliced) + own[0][0] * own[0][1] - 256 * 256 // 2


def test_chunks_read_a_prompt_no_faster_than_at_once(tmp_path: Path) -> None:
    """Each but the first meets the ones before in the cache; nothing of it is free."""
    path = model_file(tmp_path, GROUPED)
    whole, chunked = prefill(path, *EVERY), prefill(path, *EVERY, chunk=1024)
    for once, pieces in zip(whole, chunked, strict=True):
        assert pieces.step_time_s >= once.step_time_s, once.name


def test_chunks_of_a_prompt_follow_each_other_with_their_own_contexts(tmp_path: Path) -> None:
    path, plan = model_file(tmp_path, GROUPED), {"name": "P", "sp": 8}
    (whole,) = prefill(path, plan, chunk=1024)
    apart = [prefill(path, plan, sequence=1024, cached=cached)[0].step_time_s for cached in (0, 1024, 2048, 3072)]
    # One pass puts out a token, the others of four go without the head.
    assert whole.step_time_s == pytest.approx(sum(apart), rel=0.2) and whole.step_time_s < sum(apart)


def test_what_is_cached_stands_before_the_sequence_and_is_no_part_of_it(tmp_path: Path) -> None:
    """A prompt of 4Ki of which 3Ki are cached: as much in the cache as of the whole, a quarter of the tokens read."""
    path, plan = model_file(tmp_path, GROUPED), {"name": "P", "tp": 8}
    (whole,), (behind,) = prefill(path, plan), prefill(path, plan, sequence=1024, cached=3072)
    assert behind.memory.parts["kv_cache"] == whole.memory.parts["kv_cache"]
    assert 4 * behind.tokens_per_step == whole.tokens_per_step
    assert behind.step_time_s < whole.step_time_s


@pytest.mark.parametrize("ep", [1, 8])
def test_experts_fold_beside_prompts(ep: int, tmp_path: Path) -> None:
    model = moe(1024, count=16, topk=4, shared_width=512, kv_heads=8)
    assert prefill(model_file(tmp_path, model), {"name": "P", "tsp": 8, "ep": ep}, cached=1024)[0].ran


def test_a_chunk_that_shards_do_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="need chunks that are a multiple of 16, not 1000"):
        job_of_plan(model_file(tmp_path, GROUPED), {"name": "P", "sp": 8}, sequence=4096, chunk=1000)


@pytest.mark.parametrize(("dtype", "element"), [("bf16", 2), ("fp8", 1), ("nvfp4", Fraction(9, 16))])
def test_weights_travel_in_the_type_they_are_kept_in(dtype: str, element: Fraction, tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)
    cluster = "b200-2x8"
    plan = {"name": "P", "tsp": 8, "dp": 2, "head_groups": 2, "weight_transport": "gather", "mlp_pieces": 2}
    (read,) = prefill(path, plan, cluster=cluster, precision={"weights": dtype})
    assert read.communication_bytes_per_layer["mlp"] == Fraction(7, 8) * 3 * 1024 * GROUPED.ffn * element
