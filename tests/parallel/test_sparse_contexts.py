"""Sparse attention whose contexts ranks share: who knows the best tokens, bytes received, memory, folding, laws."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine import LATENT, architecture, model_file, question

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.model import Architecture
from tspsim.model.parts import CompressedAttention, IndexerSpec
from tspsim.operators import Indexer, SparseAttention, TopK
from tspsim.parallel import DECODE_EXCHANGES, DECODE_FORMS, INDEX_EXCHANGES, Job, build_mesh, scheme_of
from tspsim.parallel.cache import sequence_bytes
from tspsim.step.bound import bounds
from tspsim.step.paths import LowerBound
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan, scheduled

KI, TOPK, INDEX_DIM = 1024, 64, 32
#: Every second layer takes the choice of the one before it.
CHOSEN = architecture(
    1024, layers=4, heads=16, head_dim=56, latent=LATENT, attention="dsa", vocab=32000,
    indexing=IndexerSpec(4, INDEX_DIM, TOPK, every=2),
)  # fmt: skip
#: The window alone, entries of four tokens with an indexer, and of 128 without.
COMPRESSED = architecture(
    1024, layers=3, heads=16, kv_heads=1, head_dim=64, attention="csa", vocab=32000,
    compressed=CompressedAttention(256, 32, 8, 64, (0, 4, 128)), indexing=IndexerSpec(4, INDEX_DIM, TOPK),
)  # fmt: skip
MODELS = {"dsa": CHOSEN, "csa": COMPRESSED}
AWAY, BATCH, CONTEXT = Fraction(7, 8), 8, 4096


def answers(model: str, *plans: Mapping[str, Any], pass_: str = "decode", **work: Any) -> list[Any]:
    usual = {"batch": BATCH, "context": CONTEXT} if pass_ != "prefill" else {"sequence": CONTEXT}
    result = tspsim.simulate(question(model, plans, pass_=pass_, **{**usual, **work}))
    return [result.plan(str(plan["name"])) for plan in plans]


def job(model: str, plan: Mapping[str, Any], *, pass_: str = "decode", **work: Any) -> Job:
    usual = {"batch": BATCH, "context": CONTEXT} if pass_ != "prefill" else {"sequence": CONTEXT}
    asked = look_up(tspsim.load(question(model, [plan], pass_=pass_, **{**usual, **work})))
    return asked.job(asked.plans[0])


DCP = [{"name": f"dcp {name}", "tp": 8, "dcp": 8, "index_exchange": name} for name in INDEX_EXCHANGES.names()]
SHARED = [
    *DCP,
    {"name": "dcp 4", "tp": 8, "dcp": 4, "decode_exchange": "gather_scatter"},
    {"name": "around", "tp": 8, "dcp": 8, "decode_exchange": "ring"},
    {"name": "halves", "tp": 8, "dcp": 8, "decode_exchange": "hop_b", "index_exchange": "scores"},
    {"name": "helix", "tp": 8, "kvp": 4},
    {"name": "sp", "tp": 2, "sp": 4},
    *({"name": f"tsp {name}", "tsp": 8, "decode_form": name} for name in DECODE_FORMS.names()),
]
PROMPTS = [
    {"name": "sp", "sp": 8},
    {"name": "sp beside tp", "tp": 2, "sp": 4},
    {"name": "sp, scored meanwhile", "sp": 8, "overlap": True},
    {"name": "contiguous", "sp": 8, "partition": "contiguous"},
    {"name": "tsp", "tsp": 8},
    {"name": "tsp in turn", "tsp": 8, "overlap": False},
    {"name": "tsp as published", "tsp": 8, "tsp_schedule": "published"},
]


# --- who knows the best -----------------------------------------------------------------------------------------


def test_the_best_of_every_part_hold_the_best_of_all_and_a_rank_has_its_share_of_them() -> None:
    """Plain selection: k of each of p interleaved parts contain the k best of all; a p-th of those is on a rank in the
    mean; the union of the parts' own best is up to p·k."""
    random, ranks, topk, tokens, queries = np.random.default_rng(7), 8, 256, 8192, 200
    owned, union = [], []
    for _ in range(queries):
        scores = random.normal(size=tokens)
        best = set(np.argsort(scores)[-topk:].tolist())
        parts = [np.arange(rank, tokens, ranks) for rank in range(ranks)]
        candidates = [part[np.argsort(scores[part])[-topk:]] for part in parts]
        assert best <= set(np.concatenate(candidates).tolist())
        owned.append([len(best & set(part.tolist())) for part in parts])
        union.append(sum(map(len, candidates)))
    rows = ((1, tokens - 1, queries),)
    exact = SparseAttention(rows, 1, 64, 64, topk, shards=ranks)
    apart = SparseAttention(rows, 1, 64, 64, topk, shards=ranks, apart=True)
    assert exact.pairs == pytest.approx(np.mean(np.sum(owned, axis=0)))
    assert apart.pairs * ranks == sum(union)


@pytest.mark.parametrize("context", [16, 60, 63, 64, 100, 511, 512, 513, 4096])
@pytest.mark.parametrize("queries", [1, 4, 300])
def test_parts_add_up_to_the_whole(context: int, queries: int) -> None:
    """Of scores, keys and attended entries; and a query of the union attends no fewer, and no more than there are."""
    rows, ranks = ((queries, context, 3),), 8
    whole, part = (Indexer(rows, 4, 32, TOPK, shards=shards) for shards in (1, ranks))
    assert part.pairs * ranks == pytest.approx(whole.pairs) and part.entries * ranks == pytest.approx(whole.entries)
    one, share = (SparseAttention(rows, 4, 64, 64, TOPK, shards=shards) for shards in (1, ranks))
    apart = SparseAttention(rows, 4, 64, 64, TOPK, shards=ranks, apart=True)
    assert share.pairs * ranks == pytest.approx(one.pairs)
    most = sum(min(context + q, ranks * TOPK) for q in range(1, queries + 1)) * 3
    assert one.pairs * (1 - 1e-9) <= apart.pairs * ranks == pytest.approx(most)
    assert share.entries * ranks <= one.entries * (1 + 1e-9)


# --- bytes ------------------------------------------------------------------------------------------------------


def merged(model: Architecture, tokens: int) -> Fraction:
    """`tree` of all heads over eight ranks, queries gathered."""
    q, d = (LATENT.cache_width, LATENT.kv_rank) if model.latent else (64, 64)
    return AWAY * (8 * tokens * 16 * (d + 2) + 2 * tokens * 16 * q)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", DCP, ids=lambda plan: plan["index_exchange"])
@pytest.mark.parametrize("shape", MODELS)
@pytest.mark.parametrize("speculation", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_candidates_and_merges_are_all_that_moves(
    plan: dict[str, Any], shape: str, speculation: int, tmp_path: Path
) -> None:
    """(p − 1)·n·k candidates of eight bytes, or of four, in a layer that owns an indexer: a part of the layers."""
    model, path = MODELS[shape], model_file(tmp_path, MODELS[shape])
    pass_, work = (
        ("verify", {"speculation": {"tokens": speculation, "draft": "ngram"}}) if speculation else ("decode", {})
    )
    (found,) = answers(path, plan, pass_=pass_, **work)
    n = BATCH * (1 + speculation)
    candidate = {"exact": 8, "scores": 4}.get(plan["index_exchange"], 0)
    owners = Fraction(sum(block.indexer for block in model.blocks), model.layers)
    rows = 2 * AWAY * 2 * n * model.hidden
    expected = merged(model, n) + rows + owners * 7 * n * TOPK * candidate
    assert found.communication_bytes_per_layer["attention"] == pytest.approx(float(expected), rel=1e-12)
    asked = job(path, plan, pass_=pass_, **work)
    told = sum(each.bytes for each in scheme_of(asked.plan).received(asked, False))
    assert told == pytest.approx(float(merged(model, n) + 2 * rows), rel=1e-12)  # of the layer that needs least


def test_the_folded_axis_makes_latents_and_the_indexer_s_queries_in_parts(tmp_path: Path) -> None:
    path, n = model_file(tmp_path, CHOSEN), BATCH
    (found,) = answers(path, {"name": "tree", "tsp": 8})
    made = LATENT.down_width + Fraction(1, 2) * (4 * INDEX_DIM + INDEX_DIM + 4)
    expected = merged(CHOSEN, n) + AWAY * 2 * n * (2 * 1024 + made) + Fraction(1, 2) * 7 * n * TOPK * 8
    assert found.communication_bytes_per_layer["attention"] == expected


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("plan", PROMPTS, ids=lambda plan: plan["name"])
@pytest.mark.parametrize(("kept", "element"), [("fp8", 1)])
@pytest.mark.parametrize("cached", [8192])
def test_prompts_gather_keys_and_latents_once(
    plan: dict[str, Any], kept: str, element: int, cached: int, tmp_path: Path
) -> None:
    """(p − 1)/p of S·2·(latent + key), and of what is cached in its own types: 36 bytes a key of 32."""
    path = model_file(tmp_path, CHOSEN)
    (found,) = answers(path, plan, pass_="prefill", cached=cached, precision={"kv": kept})
    tp, ranks = plan.get("tp", 1), plan.get("sp", 8)
    context = CONTEXT * 2 * (LATENT.cache_width + Fraction(INDEX_DIM, 2))
    context += cached * (LATENT.cache_width * element + Fraction(INDEX_DIM + 4, 2))
    expected = Fraction(ranks - 1, ranks) * context + 2 * Fraction(tp - 1, tp) * 2 * CONTEXT // ranks * 1024
    if "tsp" in plan:
        weights = [CHOSEN.attention_of(block).matrix_parameters(CHOSEN, block) for block in CHOSEN.blocks]
        expected += AWAY * 2 * Fraction(sum(weights), CHOSEN.layers)
    assert found.communication_bytes_per_layer["attention"] == expected


def test_compressed_prompts_gather_entries_and_the_latest_tokens_at_borders(tmp_path: Path) -> None:
    """Of S tokens S/4 and S/128 entries, S/4 keys, sixteen borders of a window of 128, and one entry more that
    overlaps."""
    (found,) = answers(model_file(tmp_path, COMPRESSED), {"name": "sp", "sp": 8}, pass_="prefill")
    entries = CONTEXT * (Fraction(64 + INDEX_DIM, 4) + Fraction(64, 128))
    borders = 16 * (3 * 128 * 64 + 4 * (4 * 64 + 4 * INDEX_DIM))
    expected = float(AWAY * 2 * (entries + borders) / 3)
    assert found.communication_bytes_per_layer["attention"] == pytest.approx(expected, rel=1e-12)


def test_a_mixed_step_brings_cached_keys_too_unless_they_stand_everywhere(tmp_path: Path) -> None:
    path, tokens = model_file(tmp_path, CHOSEN), 2048
    for name, keys in (("exact", Fraction(INDEX_DIM + 4, 2)), ("replicated", 0)):
        plan = {"name": "P", "tp": 8, "dcp": 8, "index_exchange": name}
        found = [
            answers(path, plan, pass_="mixed", sequence=512, cached=cached)[0].communication_bytes_per_layer
            for cached in (0, tokens)
        ]
        more = AWAY * tokens * (2 * LATENT.cache_width + keys)
        assert found[1]["attention"] - found[0]["attention"] == more


# --- memory -----------------------------------------------------------------------------------------------------


def test_keys_of_the_indexer_are_divided_with_the_tokens_or_stand_whole(tmp_path: Path) -> None:
    path, use = model_file(tmp_path, CHOSEN), CHOSEN.cache_uses()
    latents, keys = (CONTEXT * sum(getattr(u, name) for u in use) for name in ("token_bytes", "shared_token_bytes"))
    expected = {"exact": (latents + keys) / 8, "replicated": latents / 8 + keys}
    for plan in DCP:
        size = sequence_bytes(CHOSEN, job(path, plan).plan, CONTEXT)
        assert size == pytest.approx(expected.get(plan["index_exchange"], expected["exact"]))


# --- laws -------------------------------------------------------------------------------------------------------


def every_step(path: str, cluster: str) -> list[Any]:
    speculation = {"tokens": 2, "draft": "ngram"}
    steps = [
        ("decode", {"batch": BATCH, "context": CONTEXT}, SHARED),
        ("verify", {"batch": BATCH, "context": CONTEXT, "speculation": speculation}, SHARED[:1]),
        ("prefill", {"sequence": CONTEXT, "cached": 2048}, PROMPTS),
        ("mixed", {"batch": BATCH, "context": CONTEXT, "sequence": 512, "cached": 512}, SHARED[:1]),
    ]
    return [question(path, plans, pass_=pass_, cluster=cluster, **work) for pass_, work, plans in steps]


@pytest.mark.parametrize("shape", ["dsa", pytest.param("csa", marks=pytest.mark.slow)])
def test_folded_equals_every_rank_and_no_step_lies_below_its_bound(shape: str, tmp_path: Path) -> None:
    for asked in every_step(model_file(tmp_path, MODELS[shape]), "mi300x-8"):
        ceilings = {each.name: each.tokens_per_s for each in bounds(tspsim.load(asked)).plans}
        found = look_up(tspsim.load(asked))
        device, cluster = found.device, found.cluster
        for plan in found.plans:
            planned = scheduled(found, plan)
            folded, whole = run_plan(found, planned.plan), run_plan(found, planned.plan, every_rank=True)
            assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-12), plan.name
            assert folded.communication_bytes_per_layer == whole.communication_bytes_per_layer
            assert folded.tokens_per_s <= ceilings[plan.name] * (1 + 1e-9), plan.name
            bound = LowerBound(cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
            mesh = build_mesh(planned.plan, cluster.gpus, cluster.gpus_per_node)
            assert bound.step_s(planned, mesh) <= folded.step_time_s * (1 + 1e-9), plan.name


@pytest.mark.parametrize("shape", ["dsa", pytest.param("csa", marks=pytest.mark.slow)])
def test_more_work_is_never_faster(shape: str, tmp_path: Path) -> None:
    path, shared, prompts = model_file(tmp_path, MODELS[shape]), [*DCP, *SHARED[-3:]], [PROMPTS[2], PROMPTS[4]]
    found = [
        [answers(path, *shared, batch=batch) for batch in (1, 8, 9)],
        [answers(path, *shared, context=context) for context in (32, 80, 600, 64 * KI)],
        [answers(path, *prompts, pass_="prefill", sequence=sequence) for sequence in (256, 4 * KI)],
        [answers(path, *prompts, pass_="prefill", cached=cached) for cached in (0, 2 * KI)],
    ]
    for every in found:
        for plan in zip(*every, strict=True):
            times = [each.step_time_s for each in plan]
            assert times == sorted(times), plan[0].name


def test_choosing_among_more_candidates_takes_no_less() -> None:
    device = look_up(
        tspsim.load(question("glm-5.1", [{"name": "P", "tp": 8}], pass_="decode", batch=1, context=64))
    ).device
    for ranks in (1, 2, 4, 8):
        times = [device.time(TopK(n, ranks * 2048, 2048)).seconds for n in (1, 2, 64, 512, 4096)]
        assert times == sorted(times)
    times = [device.time(TopK(8, ranks * 2048, 2048)).seconds for ranks in (2, 4, 8, 64)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("model", "plan", "keys", "pads"),
    [
        ("llama-3.1-8b", {"tsp": 8}, {"batch": 1, "context": 1000, "pass_": "mixed"}, True),
        ("deepseek-v3", {"tp": 8}, {"pass_": "prefill"}, False),
    ],
    ids=str,
)
def test_a_seventeenth_token_of_a_prompt_makes_no_step_faster(
    model: str, plan: dict[str, Any], keys: dict[str, Any], pads: bool
) -> None:
    """Decode kernels merge the outputs of 16 tokens where ranks share contexts; padded, prefill kernels take less: on
    H200 5.51 ms with 16 tokens were more than 5.17 with 17 (Llama-3.1-8B, TSP8)."""
    one, eight, few, more = (
        tspsim.simulate(question(model, [{"name": "P", **plan}], sequence=n, cluster="hgx-h200-8", **keys)).plans[0]
        for n in (1, 8, 16, 17)
    )
    times = [each.step_time_s for each in (one, eight, few, more)]
    assert times == sorted(times)
    said = [any("run padded to 17" in note for note in each.notes) for each in (few, more)]
    assert said == [pads, False]


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"sp": 8, "exchange": "ring"}, "dsa attends the best of the whole: use all_gather"),
        ({"sp": 8, "exchange": "token_ring"}, "use all_gather"),
        ({"sp": 8, "exchange": "ulysses"}, "use all_gather"),
        ({"sp": 8, "overlap": True, "overlap_by": "blocks"}, "use heads"),
        ({"tsp": 8, "overlap_by": "blocks"}, "use heads"),
        ({"sp": 8, "index_exchange": "exact"}, "prompts on shards of tokens gather the keys themselves"),
    ],
    ids=str,
)
def test_prompts_of_the_best_of_a_context_are_not_attended_part_by_part(
    keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        job(model_file(tmp_path, CHOSEN), {"name": "P", **keys}, pass_="prefill")
    assert said in str(error.value)


def test_a_choice_is_of_models_that_choose() -> None:
    for plan in ({"tp": 8, "dcp": 8}, {"tsp": 8}, {"tsp": 8, "decode_form": "travel"}):
        with pytest.raises(InputError, match="is of models with an indexer"):
            job("llama-3.1-8b", {"name": "P", **plan, "index_exchange": "exact"})
    with pytest.raises(InputError, match="union"):
        job("glm-5.1", {"name": "P", "tp": 8, "dcp": 8, "index_exchange": "unions"})


def test_the_union_is_said_to_be_another_result() -> None:
    found = answers("glm-5.1", {"name": "P", "tp": 8, "ep": 8, "dcp": 8, "index_exchange": "union"})[0]
    assert any("another result" in note for note in found.notes)


def test_everything_registered_says_what_it_is() -> None:
    assert all(each.summary and each.source for each in INDEX_EXCHANGES.values())
    assert set(DECODE_EXCHANGES.names()) >= {"tree", "gather_scatter"}


# --- the models themselves ----------------------------------------------------------------------------------------


#: Heads, h, rank of the queries' latent, heads of the indexer.
SOLD = {"glm-5.1": (64, 6144, 2048, 32), "deepseek-v3.2": (128, 7168, 1536, 64)}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", SOLD)
@pytest.mark.parametrize("plan", [{"tp": 8, "dcp": 8}, {"tsp": 8}, {"sp": 8}], ids=["dcp", "tsp", "sp"])
def test_models_that_are_sold_move_what_their_sizes_say(plan: dict[str, Any], name: str) -> None:
    """By hand: latents of 512 + 64 and keys of 128 in every layer, 2,048 chosen with eight bytes each, rows of h or of
    the latents and the indexer's queries in two; decoding merges partial outputs by `tree`."""
    heads, hidden, rank, indexed = SOLD[name]
    pass_, work = ("prefill", {"sequence": 32 * KI}) if "sp" in plan else ("decode", {"batch": 8, "context": 32 * KI})
    plans = [{"name": "P", "ep": 8, **plan}]
    asked = question(name, plans, cluster="hgx-b300-8", pass_=pass_, precision="fp8", **work)
    found = look_up(tspsim.load(asked))
    planned = scheduled(found, found.plans[0])
    folded, whole = run_plan(found, planned.plan), run_plan(found, planned.plan, every_rank=True)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-12)
    assert folded.communication_bytes_per_layer == whole.communication_bytes_per_layer
    (ceiling,) = bounds(tspsim.load(asked)).plans
    assert folded.tokens_per_s <= ceiling.tokens_per_s
    rows = 2 * hidden
    if "tsp" in plan:
        rows += rank + 576 + indexed * 128 + 128 + indexed
    merged = 8 * 8 * heads * (512 + 2) + 2 * 8 * heads * 576
    expected = 7 / 8 * (merged + 2 * 8 * rows) + 7 * 8 * 2048 * 8
    if "sp" in plan:
        expected = 7 / 8 * 32 * KI * 2 * (576 + 128)
    assert float(folded.communication_bytes_per_layer["attention"]) == pytest.approx(expected, rel=1e-12)
