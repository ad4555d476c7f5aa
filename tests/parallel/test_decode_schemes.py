"""Steps that decode on shared contexts: bytes received, read from simulated transfers; memory; folding; refusals."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from helpers.engine import LATENT, architecture, latent, model_file, moe, question

import tspsim
from tspsim.answer import schema
from tspsim.base.errors import InputError
from tspsim.hardware import Costs
from tspsim.model import Architecture, load_model
from tspsim.model.parts import WeightClass
from tspsim.parallel import DECODE_EXCHANGES, DECODE_FORMS, Job, Plan, build_mesh, scheme_of
from tspsim.parallel.cache import sequence_bytes
from tspsim.parallel.decode import DecodeExchange
from tspsim.parallel.rank_groups import expert_ranks
from tspsim.parallel.state.capacity import capacity_of
from tspsim.parallel.state.served import layer_weight_bytes, round_robin
from tspsim.step.bound import bounds
from tspsim.step.paths import LowerBound
from tspsim.step.question import look_up
from tspsim.step.simulation import run_plan, scheduled

KI = 1024
#: KV heads fewer than ranks, as many, and one latent for all.
GROUPED = architecture(1024, heads=16, kv_heads=2, head_dim=64, vocab=32000)
MANY = architecture(1024, heads=16, kv_heads=8, head_dim=64)
LATENTS = latent(1024, heads=16)
MODELS = {"grouped": GROUPED, "as many heads": MANY, "latent": LATENTS}
TP8 = {"name": "TP8", "tp": 8}
TREE = {"name": "tree", "tsp": 8}

#: (axis keys, heads attended on a rank of 16, ranks that share a context, queries are gathered, all heads stay).
LAYOUTS: dict[str, tuple[dict[str, Any], int, int, bool, bool]] = {
    "dcp": ({"tp": 8, "dcp": 8}, 16, 8, True, False),
    "dcp in part": ({"tp": 8, "dcp": 4}, 8, 4, True, False),
    "kvp": ({"tp": 8, "kvp": 4}, 8, 4, False, False),
    "sp": ({"tp": 2, "sp": 4}, 8, 4, False, True),
    "tsp": ({"tsp": 8}, 16, 8, True, False),
}


def decode(model: str, *plans: Mapping[str, Any], batch: int = 8, context: Any = 4096, **work: Any) -> list[Any]:
    """Each plan's answer."""
    work = {"pass_": "decode", **work}
    asked = question(model, plans, batch=batch, context=context, **work)
    result = tspsim.simulate(asked)
    return [result.plan(str(plan["name"])) for plan in plans]


def job(model: str, plan: Mapping[str, Any], *, batch: int = 8, context: Any = 4096, **work: Any) -> Job:
    asked = look_up(tspsim.load(question(model, [plan], **{"pass_": "decode", **work}, batch=batch, context=context)))
    return asked.job(asked.plans[0])


def new_entries(model: Architecture, tp: int, shared: int, tokens: int) -> int:
    """Bytes of a rank's new K and V that ranks with other heads keep, of all ranks of a group."""
    if model.latent:
        return 0
    here, there = max(1, model.kv_heads // tp), max(1, model.kv_heads // (tp // shared))
    return 0 if here == there else shared * tokens * 2 * 2 * here * model.head_dim


def merged(exchange: str, model: Architecture, layout: str, tokens: int, context: int) -> Fraction:
    """Bytes of a layer's merge that a rank receives: m heads, p ranks, q and d widths; bf16 and fp32."""
    keys, m, p, gathers, keeps = LAYOUTS[layout]
    tp = keys.get("tsp", keys.get("tp"))
    d = model.latent.kv_rank if model.latent else model.head_dim
    q = d + model.latent.rope_dim if model.latent else d
    away, n = Fraction(p - 1, p), tokens
    entries = new_entries(model, tp, p, n) if "sp" not in keys and "kvp" not in keys else 0
    queries = 2 * n * m * q * gathers + entries
    if exchange == "ring":
        heads = 1 if model.latent else max(1, model.kv_heads // (tp // p if not keeps else tp))
        token = 2 * (model.latent.cache_width if model.latent else 2 * heads * model.head_dim)
        return (p - 1) * Fraction(-(-(context + 1) // p) * n * token) + away * entries
    if exchange in ("tree", "tree_fused"):
        return away * (2 * 4 * n * m * (d + 2) + queries)
    if exchange in ("all_to_all", "hop_b"):
        return away * (n * m * (2 * d + 4) + 2 * n * m * d * keeps + queries)
    return away * (p * 4 * n * m + 2 * n * m * d * (1 + keeps) + queries)


def sums(model: Architecture, layout: str, tokens: int) -> Fraction:
    """Bytes of one of the two all-reduces of all tokens' rows."""
    keys = LAYOUTS[layout][0]
    ranks = keys.get("tsp", keys.get("tp"))
    return 2 * Fraction(ranks - 1, ranks) * 2 * tokens * model.hidden


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("shape", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_exchange_moves_its_closed_form_to_the_byte(shape: str, layout: str, tmp_path: Path) -> None:
    model, keys = MODELS[shape], LAYOUTS[layout][0]
    path = model_file(tmp_path, model)
    plans = [{"name": name, **keys, "decode_exchange": name} for name in DECODE_EXCHANGES.names()]
    for plan, found in zip(plans, decode(path, *plans), strict=True):
        expected = merged(plan["name"], model, layout, 8, 4096) + sums(model, layout, 8)
        if layout == "tsp" and model.latent:
            expected += Fraction(7, 8) * 2 * 8 * model.latent.down_width
        volumes = found.communication_bytes_per_layer
        assert volumes["attention"] == expected, plan["name"]
        assert volumes["mlp"] == sums(model, layout, 8)
        told = sum(each.bytes for each in scheme_of(job(path, plan).plan).received(job(path, plan), False))
        assert told == pytest.approx(volumes["total"], rel=1e-12)


@pytest.mark.parametrize("exchange", [name for name in DECODE_EXCHANGES.names() if name != "ring"])
def test_communication_is_equal_at_32_ki_and_1_mi(exchange: str, tmp_path: Path) -> None:
    path = model_file(tmp_path, LATENTS)
    plan = {"name": "P", "tp": 8, "dcp": 8, "decode_exchange": exchange}
    short, long = (decode(path, plan, context=context)[0] for context in (32 * KI, 1024 * KI))
    assert short.communication_bytes_per_layer == long.communication_bytes_per_layer
    assert short.step_time_s < long.step_time_s


def test_halves_of_a_batch_hide_an_all_to_all_and_cost_a_second_start() -> None:
    """So they pay for many sequences, and cost for few; one sequence has no halves."""
    plans = [{"name": name, "tp": 8, "kvp": 8, "decode_exchange": name} for name in ("all_to_all", "hop_b")]
    for batch, context, sign in ((1, 131072, 0), (8, 131072, 1), (256, 8192, -1)):
        asked = {
            "name": "hop-b", "cluster": {"device": "b200", "nodes": 1}, "plans": plans,
            "workload": {"model": "deepseek-r1", "pass": "decode", "batch": batch, "context": context,
                         "precision": {"kv": "fp8"}},
        }  # fmt: skip
        whole, halves = (plan.step_time_s for plan in tspsim.simulate(asked).plans)
        assert (halves > whole) - (halves < whole) == sign


def test_ring_moves_what_the_others_leave_where_it_is(tmp_path: Path) -> None:
    path = model_file(tmp_path, LATENTS)
    ring = {"name": "ring", "tp": 8, "dcp": 8, "decode_exchange": "ring"}
    tree = {"name": "tree", "tp": 8, "dcp": 8}
    around, merged_ = decode(path, ring, tree, context=256 * KI)
    assert around.step_time_s > 20 * merged_.step_time_s


# --- memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{"tp": 8, "dcp": 8}, {"tp": 8, "dcp": 2}, {"tp": 2, "sp": 4}, {"tsp": 8}], ids=str)
def test_a_replicated_cache_is_divided_by_the_ranks_that_share_it(keys: dict[str, Any], tmp_path: Path) -> None:
    path = model_file(tmp_path, LATENTS)
    shared = keys.get("dcp", keys.get("sp", keys.get("tsp")))
    whole, divided = decode(path, TP8, {"name": "P", **keys})
    assert divided.memory.parts["kv_cache"] * shared == pytest.approx(whole.memory.parts["kv_cache"])
    plan = job(path, {"name": "P", **keys}).plan
    assert sequence_bytes(LATENTS, plan, 4096) * shared == sequence_bytes(LATENTS, Plan("p", {"tp": 8}), 4096)


def test_sharing_contexts_divides_no_cache_that_heads_divide(tmp_path: Path) -> None:
    path = model_file(tmp_path, MANY)
    caches = [each.memory.parts["kv_cache"] for each in decode(path, TP8, {"name": "dcp", "tp": 8, "dcp": 8}, TREE)]
    assert caches == [pytest.approx(caches[0])] * 3


def test_helix_keeps_projections_on_all_ranks_of_a_context(tmp_path: Path) -> None:
    """W_q, W_k, W_v are divided by TPA = tp/kvp, the output projection and the MLP by all ranks."""
    path = model_file(tmp_path, MANY)
    plain, helix = (job(path, plan) for plan in (TP8, {"name": "helix", "tp": 8, "kvp": 4}))
    block = MANY.blocks[0]
    more = layer_weight_bytes(helix, 8, block) - layer_weight_bytes(plain, 8, block)
    assert more == pytest.approx(2 * 1024 * (1024 + 2 * 512) * (1 / 2 - 1 / 8))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("form", ["sequences", "travel"])
def test_whole_sequences_are_dealt_to_ranks(form: str, tmp_path: Path) -> None:
    path = model_file(tmp_path, MANY)
    plan = {"name": "P", "tsp": 8, "decode_form": form}
    eight, nine = (decode(path, plan, batch=batch)[0].memory.parts["kv_cache"] for batch in (8, 9))
    tree = decode(path, TREE, batch=8)[0].memory.parts["kv_cache"]
    assert eight == pytest.approx(tree) and nine == 2 * eight
    assert round_robin(((1, 4096, 12), (1, 8192, 4)), 8) == ((1, 8192, 1), (1, 4096, 1))


# --- the forms of the folded axis -----------------------------------------------------------------------------


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("keys", [{}, {"tsp_schedule": "published"}, {"overlap": False}], ids=str)
@pytest.mark.parametrize("shape", ["as many heads", "latent"])
def test_travelling_weights_are_those_of_others(shape: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """(W_a + W_f)(D − 1)/D a layer."""
    model = MODELS[shape]
    plan = {"name": "travel", "tsp": 8, "decode_form": "travel", **keys}
    volumes = decode(model_file(tmp_path, model), plan)[0].communication_bytes_per_layer
    attention = model.attention_matrix_parameters_per_layer
    assert volumes["attention"] == 2 * attention * Fraction(7, 8)
    assert volumes["mlp"] == 2 * 3 * model.hidden * model.ffn * Fraction(7, 8)


def test_sequences_send_heads_to_their_contexts_and_outputs_back(tmp_path: Path) -> None:
    plan = {"name": "P", "tsp": 8, "decode_form": "sequences"}
    volumes = decode(model_file(tmp_path, MANY), plan, batch=16)[0].communication_bytes_per_layer
    dealt_ = Fraction(7, 8) * 2 * 16 * (1024 + 2 * 512 + 1024) / 8
    assert volumes["attention"] == dealt_ + sums(MANY, "tsp", 16)


def test_moving_weights_never_pays_in_decode(tmp_path: Path) -> None:
    forms = [{"name": name, "tsp": 8, "decode_form": name} for name in DECODE_FORMS.names()]
    for batch in (1, 64, 512):
        tree, sequences, travel = decode("llama-3.1-8b", *forms, batch=batch, context=8 * KI, cluster="mi300x-8")
        assert min(tree.step_time_s, sequences.step_time_s) < travel.step_time_s


def test_enough_key_value_heads_never_gain_time_by_sharing_contexts() -> None:
    for context in (8 * KI, 128 * KI):
        heads, *shared = decode("llama-3.1-8b", TP8, {"name": "dcp", "tp": 8, "dcp": 8}, TREE, context=context)
        assert heads.step_time_s < min(each.step_time_s for each in shared)


def test_the_tree_of_the_folded_axis_is_tensor_parallelism_with_shared_contexts() -> None:
    shared, folded = decode("llama-3.1-8b", {"name": "dcp", "tp": 8, "dcp": 8}, TREE)
    assert folded.step_time_s == pytest.approx(shared.step_time_s, rel=1e-12)


# --- experts, states, prompts ---------------------------------------------------------------------------------


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("form", DECODE_FORMS.names())
@pytest.mark.parametrize("ep", [1, 4, 8])
def test_experts_run_beside_every_form(form: str, ep: int, tmp_path: Path) -> None:
    model = moe(1024, count=16, topk=4, shared_width=512, kv_heads=8)
    plan = {"name": "P", "tsp": 8, "ep": ep, "decode_form": form}
    found = decode(model_file(tmp_path, model), plan)[0]
    assert found.ran and found.communication_bytes_per_layer["mlp"] > 0


@pytest.mark.parametrize("ep", [1, 4, 8])
def test_folded_ranks_hold_the_same_experts_in_every_step(ep: int, tmp_path: Path) -> None:
    """An engine loads its weights once: all experts of a rank's group, whole, whatever a step does with them."""
    model = moe(1024, count=16, topk=4, kv_heads=8)
    path, plan = model_file(tmp_path, model), {"name": "P", "tsp": 8, "ep": ep}
    jobs = [job(path, {**plan, "decode_form": form}) for form in DECODE_FORMS.names()]
    asked = look_up(tspsim.load(question(path, [plan], pass_="prefill", sequence=8192)))
    jobs.append(asked.job(asked.plans[0]))
    (held,) = {layer_weight_bytes(each, 8, model.blocks[0]) for each in jobs}
    experts = dict(model.class_parameters(model.blocks[0]))[WeightClass.EXPERTS]
    assert {expert_ranks(each) for each in jobs} == {ep}
    assert held > 2.0 * experts / ep


def test_layers_that_keep_states_divide_heads_beside_shared_contexts() -> None:
    kimi = {"name": "dcp", "tp": 8, "dcp": 8}
    shared, plain = decode("kimi-linear-48b", kimi, TP8, batch=4, context=128 * KI)
    assert shared.ran and shared.memory.parts["kv_cache"] < plain.memory.parts["kv_cache"]


def test_a_mixed_step_brings_the_cached_context_of_its_prompts(tmp_path: Path) -> None:
    """(p − 1)/p of the cache behind the prompts, of a rank's heads."""
    path, tokens = model_file(tmp_path, MANY), 2048
    for plan in ({"name": "P", "tp": 8, "dcp": 8}, TREE, {"name": "P", "tp": 2, "sp": 4}):
        found = [
            decode(path, plan, pass_="mixed", sequence=512, cached=cached)[0].communication_bytes_per_layer
            for cached in (0, tokens)
        ]
        heads = 1 if "sp" not in plan else 4
        away = Fraction(3, 4) if "sp" in plan else Fraction(7, 8)
        assert found[1]["attention"] - found[0]["attention"] == away * tokens * 2 * 2 * heads * 64
        assert found[1]["mlp"] == found[0]["mlp"]


# --- what every one keeps -------------------------------------------------------------------------------------

EVERY = [
    *({"name": f"dcp {name}", "tp": 8, "dcp": 4, "decode_exchange": name} for name in DECODE_EXCHANGES.names()),
    {"name": "helix", "tp": 8, "kvp": 4},
    {"name": "sp", "tp": 2, "sp": 4},
    *({"name": f"tsp {name}", "tsp": 8, "decode_form": name} for name in DECODE_FORMS.names()),
]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("cluster", ["mi300x-8", "hgx-h100-8", "mi300x-2x8"])
def test_folded_equals_every_rank(cluster: str, tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)
    found = look_up(tspsim.load(question(path, EVERY, pass_="decode", batch=8, context=4096, cluster=cluster)))
    for plan in found.plans:
        folded, whole = run_plan(found, plan), run_plan(found, plan, every_rank=True)
        assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-12), plan.name
        assert folded.communication_bytes_per_layer == whole.communication_bytes_per_layer


def test_a_verify_step_of_no_drafts_is_a_decode_step(tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)
    once = decode(path, *EVERY)
    verified = decode(path, *EVERY, pass_="verify", speculation={"tokens": 0, "draft": "ngram"})
    assert [each.step_time_s for each in once] == [each.step_time_s for each in verified]


def test_more_sequences_never_take_less_time_and_longer_contexts_neither(tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)
    batches = [decode(path, *EVERY, batch=batch) for batch in (1, 2, 8, 9, 32, 256)]
    contexts = [decode(path, *EVERY, context=context) for context in (256, 4 * KI, 5 * KI, 256 * KI)]
    for answers in (batches, contexts):
        for plan in zip(*answers, strict=True):
            times = [each.step_time_s for each in plan]
            assert times == sorted(times), plan[0].name


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"tp": 8, "dcp": 3}, "3 does not divide tp = 8; use one of 1, 2, 4, 8"),
        ({"tp": 8, "dcp": 2, "kvp": 2}, "leave one out"),
        ({"tp": 4, "sp": 2, "dcp": 2}, "both divide contexts by tokens"),
        ({"tp": 8, "dcp": 8, "decode_exchange": "trie"}, "decode_exchange"),
        ({"tsp": 8, "dcp": 2}, "dcp is a key of tensor parallelism"),
        ({"tp": 8, "decode_form": "tree"}, "decode_form is a key of folded"),
        ({"tp": 8, "overlap": True}, "overlap"),
        ({"tp": 8, "sequence_regions": True}, "sequence_regions"),
        ({"tp": 8, "zero": 1}, "1 is of training"),
        ({"tp": 8, "recomputation": "full"}, "full is of training"),
        ({"tp": 8, "micro_batch": 1}, "leave micro_batch out"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_named(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        job(model_file(tmp_path, GROUPED), {"name": "P", **keys})
    assert said in str(error.value), error.value


def test_steps_that_decode_alone_take_no_prompts(tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)
    for keys, said in (
        ({"tp": 8, "kvp": 2}, "steps that decode alone; prompts take dcp, or sp"),
        ({"tsp": 8, "decode_form": "travel"}, "with prompts use tree"),
    ):
        with pytest.raises(InputError, match=said):
            job(path, {"name": "P", **keys}, pass_="mixed", sequence=512)


def test_a_context_beyond_the_model_s_is_refused() -> None:
    with pytest.raises(InputError, match="131073 tokens are more than the 131072"):
        job("llama-3.1-8b", TP8, context=128 * KI + 1)
    assert job("llama-3.1-8b", TP8, context=128 * KI)


def test_keys_of_decoding_are_of_steps_that_decode() -> None:
    asked = question("llama-3.1-8b", [{"name": "P", "tp": 8, "dcp": 2}], sequence=8 * KI)
    with pytest.raises(InputError, match="is of steps that serve"):
        look_up(tspsim.load(asked))


def test_everything_registered_says_what_it_is() -> None:
    assert all(each.summary for each in (*DECODE_EXCHANGES.values(), *DECODE_FORMS.values()))
    assert all(each.source for each in DECODE_EXCHANGES.values())


# --- by hand --------------------------------------------------------------------------------------------------


def attention_s(plan: Any, layer: int) -> float:
    """Seconds of a layer between its projections: kernels and exchanges of attention."""
    rows = plan.timeline.frame()
    rows = rows[(rows["layer"] == layer) & (rows["rank"] == rows["rank"].min())]
    entered = rows[rows["name"].str.startswith("norm, QKV")]["end_s"].max()
    return float(rows[rows["name"].str.startswith("output projection")]["start_s"].min() - entered)


def test_kimi_k2_s_latents_in_shards_take_half_the_time() -> None:
    """Eight sequences of 256 Ki in fp8 on eight MI300X: 1,208 MB a rank and layer replicated, 0.32 ms at four TB/s; in
    shards an eighth of the bytes but all heads' products, and four small exchanges: about 0.15 ms."""
    work = {"batch": 8, "context": 256 * KI, "precision": {"kv": "fp8"}}
    replicated, shared = decode("kimi-k2", TP8, {"name": "tree", "tp": 8, "dcp": 8}, cluster="mi300x-8", **work)
    kimi = load_model("kimi-k2")
    assert replicated.memory.parts["kv_cache"] / kimi.layers == pytest.approx(1208e6, rel=1e-3)
    assert shared.memory.parts["kv_cache"] * 8 == pytest.approx(replicated.memory.parts["kv_cache"])
    assert attention_s(replicated, 30) == pytest.approx(0.32e-3, rel=0.35)
    assert attention_s(shared, 30) == pytest.approx(0.15e-3, rel=0.35)
    assert attention_s(replicated, 30) > 1.5 * attention_s(shared, 30)


def test_latents_are_wider_than_what_leaves_them() -> None:
    """What ranks merge is still in the latent's space."""
    assert LATENTS.attention_of(LATENTS.blocks[0]).merged(LATENTS) == (LATENT.kv_rank + LATENT.rope_dim, LATENT.kv_rank)


def test_no_answer_lies_above_its_bound(tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)
    asked = question(path, EVERY, pass_="decode", batch=8, context=4096)
    ceilings = {each.name: each.tokens_per_s for each in bounds(tspsim.load(asked)).plans}
    found = look_up(tspsim.load(asked))
    for plan in found.plans:
        planned, device, cluster = scheduled(found, plan), found.device, found.cluster
        answer = run_plan(found, planned.plan)
        assert answer.tokens_per_s <= ceilings[plan.name] * (1 + 1e-9), plan.name
        bound = LowerBound(cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
        mesh = build_mesh(planned.plan, cluster.gpus, cluster.gpus_per_node)
        assert bound.step_s(planned, mesh) <= answer.step_time_s * (1 + 1e-9), plan.name


SHOUT = DecodeExchange(
    name="shout",
    summary="every rank tells all others its partial outputs",
    attend=lambda builder, partial, after: [
        builder.collective(
            "all_gather",
            partial.share.axis,
            partial.ranks * partial.rows_of(partial.heads, partial.element),
            "partial outputs to all",
            after=[builder.compute("attend", *partial.attend(), after=partial.gather(builder, after))],
        )
    ],
    received_bytes=lambda partial: (
        partial.away * (partial.ranks * partial.rows_of(partial.heads, partial.element) + partial.gathered)
    ),
    buffer_bytes=lambda partial: partial.ranks * partial.rows_of(partial.heads, partial.element),
    source="made up for a test",
)


def test_an_exchange_from_outside_is_run_told_and_remembered(tmp_path: Path) -> None:
    path = model_file(tmp_path, GROUPED)
    plan = {"name": "P", "tp": 8, "dcp": 8, "decode_exchange": "shout"}
    with pytest.raises(InputError, match="decode_exchange"):
        decode(path, plan)
    DECODE_EXCHANGES.register(SHOUT)
    try:
        (answer,) = decode(path, plan)
        told = scheme_of(job(path, plan).plan).received(job(path, plan), False)
        assert answer.settings["decode_exchange"] == "shout"
        assert answer.memory.parts["partial_attention"] == 8 * 8 * 16 * 64 * 2
        assert sum(each.bytes for each in told) == answer.communication_bytes_per_layer["total"]
        assert "shout" in str(schema.schema("scenario")["$defs"]["PlanSpec"]["properties"]["decode_exchange"])
    finally:
        DECODE_EXCHANGES.remove(SHOUT.name)


def test_shared_contexts_have_room_for_as_many_times_the_tokens(tmp_path: Path) -> None:
    path, visible = model_file(tmp_path, LATENTS), 192e9
    plain, shared = (capacity_of(job(path, plan), visible) for plan in (TP8, {"name": "dcp", "tp": 8, "dcp": 8}))
    # Beside the exchange's own buffers.
    assert shared.sessions(8 * KI) == pytest.approx(8 * plain.sessions(8 * KI), rel=1e-3)
    dealt_, folded = (
        capacity_of(job(path, {"name": "P", "tsp": 8, "decode_form": form}), visible) for form in ("sequences", "tree")
    )
    assert dealt_.sessions(8 * KI) == pytest.approx(folded.sessions(8 * KI), rel=1e-2)
