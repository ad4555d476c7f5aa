"""Bytes a rank receives and did not hold, in one layer's forward, read from the transfers that were simulated."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from helpers.engine import architecture, job_of, latent, model_file, moe, programs_of, question

import tspsim
from tspsim.model import Architecture, load_model
from tspsim.parallel import CONTEXT_METHODS
from tspsim.program import Collective

MIB = 2**20
KI = 1024

TP8 = {"name": "TP8", "tp": 8}
SP8 = {"name": "SP8", "sp": 8}
TP4_SP2 = {"name": "TP4-SP2", "tp": 4, "sp": 2}
TP2_SP4 = {"name": "TP2-SP4", "tp": 2, "sp": 4}
TSP8 = {"name": "TSP8", "tsp": 8}
WORD_BY_WORD = {**TSP8, "name": "TSP8-published", "tsp_schedule": "published"}
PUBLISHED = (TP8, SP8, TP2_SP4, TP4_SP2, TSP8)

#: MiB a layer a rank, bf16, B = 1, h = 4096, eight GPUs a replica; plans in the order of PUBLISHED.
TABLE = {
    16: (448, 224, 160, 224, 672),
    32: (896, 448, 320, 448, 896),
    64: (1792, 896, 640, 896, 1344),
    128: (3584, 1792, 1280, 1792, 2240),
}

#: Shapes that tell the letters of the formulas apart: g = 1, 4 and 8, F = 4 and 3.5, a = h and not, gated or not.
SHAPES = {
    "multi-head": architecture(1024),
    "grouped": architecture(1024, heads=32, kv_heads=8, head_dim=32, ffn=3584),
    "few key/value heads": architecture(1024, heads=64, kv_heads=8, head_dim=16),
    "wide attention": architecture(640, heads=16, kv_heads=8, head_dim=64, ffn=3200),
    "no gate": architecture(1024, gated=False),
    "no gate, grouped": architecture(1024, kv_heads=8, gated=False),
}


def moved(model: str, *plans: Mapping[str, Any], **work: Any) -> list[Mapping[str, float]]:
    """Volumes by part of each plan, from a simulation."""
    result = tspsim.simulate(question(model, plans, **work))
    return [result.plan(str(plan["name"])).communication_bytes_per_layer for plan in plans]


def totals(model: str, *plans: Mapping[str, Any], **work: Any) -> list[float]:
    return [volumes["total"] for volumes in moved(model, *plans, **work)]


# What one rank receives, in bytes (two an element), as the closed forms have it: β = 2, KV/T of at least one head.


def received(model: Architecture, plan: Mapping[str, Any], tokens: int) -> tuple[Fraction, Fraction]:
    """(attention, MLP) of a layer, by the letters: h, a = H·d, c = KV·d, f; T, Σ, D; n = B·S tokens."""
    h, a, f = model.hidden, model.attention_width, model.ffn
    t, s, d = (plan.get(axis, 1) for axis in ("tp", "sp", "tsp"))
    n = Fraction(tokens)
    if d > 1:
        groups = plan.get("head_groups", d)
        c = groups * max(1, model.kv_heads // groups) * model.head_dim
        attention = (2 * h * (a + c) + 2 * n * c) * Fraction(d - 1, d)
        return 2 * attention, 2 * (3 if model.gated else 2) * h * f * Fraction(d - 1, d)
    c = max(1, model.kv_heads // t) * model.head_dim
    reduced = 2 * Fraction(t - 1, t) * n * h / s
    if plan.get("exchange") == "ulysses":
        exchanged = (2 * Fraction(a, t) + 2 * c) * n / s * Fraction(s - 1, s)
    else:
        exchanged = 2 * n * c * Fraction(s - 1, s)
    return 2 * (reduced + exchanged), 2 * reduced


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("sequence", TABLE)
def test_volumes_equal_the_table_to_the_byte(sequence: int) -> None:
    expected = [mebibytes * MIB for mebibytes in TABLE[sequence]]
    assert totals("tsp-8b", *PUBLISHED, sequence=sequence * KI) == expected


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sequences", [1, 3])
def test_volumes_follow_the_closed_forms_for_every_shape(shape: str, sequences: int, tmp_path: Path) -> None:
    model = SHAPES[shape]
    found = moved(model_file(tmp_path, model), *PUBLISHED, sequence=2048, sequences_per_replica=sequences)
    for plan, volumes in zip(PUBLISHED, found, strict=True):
        attention, mlp = received(model, plan, 2048 * sequences)
        assert (volumes["attention"], volumes["mlp"]) == (attention, mlp), plan["name"]
        assert volumes["total"] == attention + mlp, plan["name"]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("shape", SHAPES)
def test_how_sequence_shards_exchange_changes_the_bytes_only_for_ulysses(shape: str, tmp_path: Path) -> None:
    model = SHAPES[shape]
    mesh = {"tp": 2, "sp": 4}
    gathered = {"name": "gathered", **mesh}
    ring = {"name": "ring", **mesh, "exchange": "ring"}
    in_turn = {"name": "ring in turn", **mesh, "exchange": "ring", "overlap": False}
    contiguous = {"name": "contiguous", **mesh, "exchange": "ring", "partition": "contiguous"}
    ulysses = {"name": "ulysses", **mesh, "exchange": "ulysses"}
    first, *same, heads = moved(
        model_file(tmp_path, model), gathered, ring, in_turn, contiguous, ulysses, sequence=2048
    )
    assert same == [first] * 3
    assert heads["attention"] == received(model, ulysses, 2048)[0]
    assert heads["mlp"] == first["mlp"]


def test_sequence_regions_and_overlap_move_the_same_bytes() -> None:
    plain = {"name": "TP8", "tp": 8}
    regions = {"name": "regions", "tp": 8, "sequence_regions": True}
    chunks = {"name": "overlapped", "tp": 8, "overlap": True}
    both = {"name": "both", "tp": 8, "sequence_regions": True, "overlap": True}
    folded = {"name": "TSP8", "tsp": 8}
    exposed = {"name": "exposed", "tsp": 8, "overlap": False}
    found = moved("tsp-8b", plain, regions, chunks, both, folded, exposed, sequence=16 * KI)
    assert found[:4] == [found[0]] * 4
    assert found[4] == found[5]


def test_which_algorithm_moves_the_data_does_not_change_what_a_rank_receives() -> None:
    plans = [
        {"name": f"{kind} by {algorithm}", **degrees, "algorithms": {kind: algorithm}}
        for degrees, kind in (({"tp": 8}, "all_reduce"), ({"sp": 8}, "all_gather"), ({"tsp": 8}, "broadcast"))
        for algorithm in ("ring", "multi_ring", "direct")
    ]
    found = moved("tsp-8b", *plans, sequence=16 * KI)
    for same in (found[0:3], found[3:6], found[6:9]):
        assert same == [same[0]] * 3


def test_key_value_heads_are_replicated_once_there_are_more_shards_than_heads(tmp_path: Path) -> None:
    model = architecture(1024, heads=16, kv_heads=2, head_dim=64)
    path = model_file(tmp_path, model)
    plans = (TP8, SP8, TP2_SP4, TP4_SP2, WORD_BY_WORD)
    for plan, volumes in zip(plans, moved(path, *plans, sequence=2048), strict=True):
        assert volumes["attention"] == received(model, plan, 2048)[0], plan["name"]
    # Each of the eight steps gathers one whole head's K and V: four times what the two heads have.
    folded, whole = moved(path, WORD_BY_WORD, SP8, sequence=2048)
    weights = 2 * 1024 * (2 * 1024 + 2 * 8 * 64) * Fraction(7, 8)
    assert folded["attention"] - weights == 4 * whole["attention"]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("transport", ["ring", "multi_ring", "gather"])
def test_no_group_of_heads_without_a_head_of_its_own_means_nothing_is_replicated(
    transport: str, tmp_path: Path
) -> None:
    """With as many groups as key/value heads or fewer, weights and K and V are moved once, as with sequence shards."""
    model = architecture(1024, heads=16, kv_heads=2, head_dim=64)
    plans = [
        {"name": f"{groups}", "tsp": 8, "head_groups": groups, "weight_transport": transport} for groups in (1, 2, 4, 8)
    ]
    *found, whole = moved(model_file(tmp_path, model), *plans, SP8, sequence=2048)
    for plan, volumes in zip(plans, found, strict=True):
        assert volumes["attention"] == received(model, plan, 2048)[0], plan["name"]
    attention = [volumes["attention"] for volumes in found]
    assert attention[0] == attention[1] < attention[2] < attention[3]
    weights = 2 * 1024 * (2 * 1024 + 2 * 2 * 64) * Fraction(7, 8)
    assert attention[0] - weights == whole["attention"]
    assert len({volumes["mlp"] for volumes in found}) == 1


def test_what_is_chosen_replicates_no_key_value_heads(tmp_path: Path) -> None:
    path = model_file(tmp_path, architecture(1024, heads=16, kv_heads=2, head_dim=64))
    chosen, published = moved(path, TSP8, WORD_BY_WORD, sequence=2048)
    assert chosen["attention"] < published["attention"] and chosen["mlp"] == published["mlp"]


def test_a_training_step_reports_the_volumes_of_its_forward() -> None:
    forward = totals("tsp-8b", TSP8, TP8, TP4_SP2, sequence=16 * KI)
    for recomputation in ("none", "full"):
        plans = [{**plan, "recomputation": recomputation} for plan in (TSP8, TP8, TP4_SP2)]
        assert totals("tsp-8b", *plans, sequence=16 * KI, pass_="training") == forward


def test_volumes_do_not_depend_on_what_joins_the_gpus() -> None:
    found = [totals("tsp-8b", TSP8, TP8, TP2_SP4, sequence=32 * KI, cluster=name) for name in ("mi300x-8", "h100-2x8")]
    assert found[0] == found[1]


# The break-even of TSP and TP.


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("hidden", "degree"), [(512, 2), (512, 8), (1024, 4), (4096, 2), (4096, 8)])
def test_tsp_moves_fewer_bytes_than_tp_exactly_when_bs_exceeds_8h(hidden: int, degree: int, tmp_path: Path) -> None:
    model = model_file(tmp_path, architecture(hidden, layers=1))
    plans = {"name": "TSP", "tsp": degree}, {"name": "TP", "tp": degree}
    # The nearest sequences that zigzag order can cut: one step of two chunks a rank below and above.
    for tokens in (8 * hidden - 2 * degree, 8 * hidden, 8 * hidden + 2 * degree):
        folded, tensor = totals(model, *plans, sequence=tokens)
        assert (folded < tensor) == (tokens > 8 * hidden)
        assert (folded == tensor) == (tokens == 8 * hidden)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("sequences", [2, 4])
def test_the_break_even_counts_the_tokens_of_all_sequences(sequences: int, tmp_path: Path) -> None:
    model = model_file(tmp_path, architecture(1024, layers=1))
    for sequence in (8192 // sequences - 16, 8192 // sequences, 8192 // sequences + 16):
        folded, tensor = totals(model, TSP8, TP8, sequence=sequence, sequences_per_replica=sequences)
        assert (folded < tensor) == (sequence * sequences > 8 * 1024)
        assert (folded == tensor) == (sequence * sequences == 8 * 1024)


def test_without_a_gate_the_break_even_is_6h(tmp_path: Path) -> None:
    model = model_file(tmp_path, architecture(1024, layers=1, gated=False))
    for tokens in (6 * 1024 - 16, 6 * 1024, 6 * 1024 + 16):
        folded, tensor = totals(model, TSP8, TP8, sequence=tokens)
        assert (folded < tensor) == (tokens > 6 * 1024)
        assert (folded == tensor) == (tokens == 6 * 1024)


# With grouped-query attention K and V are small: thresholds of Llama-3.1-8B (g = 4, F = 3.5, h = 4096).


def threshold_against_tp(model: Architecture) -> Fraction:
    """[(2 + 2/g) + 3F]·h / (4 − 2/g) tokens."""
    g, width = Fraction(model.heads, model.kv_heads), Fraction(model.ffn, model.hidden)
    return ((2 + 2 / g) + 3 * width) * model.hidden / (4 - 2 / g)


def threshold_against_tp_sp(model: Architecture, tp: int, sp: int) -> Fraction:
    """[(2 + 2/g) + 3F]·h·(D−1) / [(T−1)·(4 − 2Σ/g)] tokens, where Σ < 2g."""
    g, width = Fraction(model.heads, model.kv_heads), Fraction(model.ffn, model.hidden)
    assert sp < 2 * g
    return ((2 + 2 / g) + 3 * width) * model.hidden * (tp * sp - 1) / ((tp - 1) * (4 - 2 * sp / g))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("rival", "tokens"), [(TP8, 15_213), (TP4_SP2, 41_415), (TP2_SP4, 186_368)], ids=["TP8", "TP4-SP2", "TP2-SP4"]
)
def test_llama_moves_fewer_bytes_folded_from_the_threshold_on(rival: dict[str, Any], tokens: int) -> None:
    llama = load_model("llama-3.1-8b")
    threshold = (
        threshold_against_tp_sp(llama, rival["tp"], rival["sp"]) if "sp" in rival else threshold_against_tp(llama)
    )
    assert int(threshold) == tokens
    # Sixteen tokens are the grain of zigzag order on eight ranks.
    for sequence in (tokens // 16 * 16, tokens // 16 * 16 + 16):
        folded, other = totals("llama-3.1-8b", TSP8, rival, sequence=sequence)
        assert (folded < other) == (sequence > threshold)
        assert (folded == other) == (sequence == threshold)


def test_llama_moves_about_half_of_tp4_sp2_at_128k() -> None:
    folded, mesh = totals("llama-3.1-8b", TSP8, TP4_SP2, sequence=128 * KI)
    assert folded / mesh == pytest.approx(0.5, abs=0.05)


def test_with_multi_head_attention_tsp_never_moves_fewer_bytes_than_tp_beside_sp() -> None:
    for sequence in (16 * KI, 128 * KI, 1024 * KI):
        folded, *meshes = totals("tsp-8b", TSP8, TP4_SP2, TP2_SP4, sequence=sequence)
        assert folded > max(meshes)


# Experts.


def dispatched(model: Architecture, ep: int, tokens: int) -> float:
    """Bytes that a rank receives in dispatch and combine of one layer: 2·n·D(N, k)·h·β·(N − 1)/N."""
    assert model.experts is not None
    copies = ep * (1 - (1 - 1 / ep) ** model.experts.topk)
    return 2 * round(2 * model.hidden * tokens * copies) * (ep - 1) / ep


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("plan", "shards"),
    [
        ({"ep": 8}, 1), ({"sp": 8, "ep": 8}, 8), ({"sp": 4, "ep": 8}, 4), ({"tsp": 8, "ep": 8}, 8),
        ({"tsp": 8, "ep": 4}, 8),
    ],
    ids=str,
)  # fmt: skip
def test_tokens_travel_to_experts_and_back_in_their_closed_form(
    plan: dict[str, Any], shards: int, tmp_path: Path
) -> None:
    model = moe(1024, count=16, topk=4)
    found = moved(model_file(tmp_path, model), {"name": "experts", **plan}, sequence=2048)[0]
    assert found["mlp"] == pytest.approx(dispatched(model, plan["ep"], 2048 // shards), rel=1e-12)
    dense = received(model, plan, 2048)[0] if plan.keys() - {"ep"} else 0
    assert found["attention"] == dense


def test_sequence_regions_send_each_token_once(tmp_path: Path) -> None:
    """Each tensor-parallel rank sends its own 1/T of the tokens; the shared experts' rows are gathered and summed."""
    model = moe(1024, count=16, topk=4, shared_width=512)
    plan = {"name": "experts", "tp": 4, "ep": 8, "sequence_regions": True}
    found = moved(model_file(tmp_path, model), plan, sequence=2048)[0]
    shared = 2 * 2 * Fraction(3, 4) * 2048 * 1024
    assert found["mlp"] == pytest.approx(dispatched(model, 8, 512) + shared, rel=1e-12)


def test_shared_experts_fold_as_a_dense_mlp_does(tmp_path: Path) -> None:
    model = moe(1024, count=16, topk=4, shared_width=512)
    found = moved(model_file(tmp_path, model), {"name": "folded", "tsp": 8, "ep": 8}, sequence=2048)[0]
    ring = 2 * 3 * 1024 * 512 * Fraction(7, 8)
    assert found["mlp"] == pytest.approx(dispatched(model, 8, 256) + ring, rel=1e-12)


def test_latent_attention_folds_its_matrices_and_exchanges_whole_heads(tmp_path: Path) -> None:
    """[projections by heads + projections to latents + keys and values of all heads] · (D − 1)/D."""
    model = latent(1024, heads=16)
    found = moved(model_file(tmp_path, model), {"name": "folded", "tsp": 8}, sequence=2048)[0]
    context = 2048 * 16 * (48 + 64)
    assert found["attention"] == 2 * (model.attention_matrix_parameters_per_layer + context) * Fraction(7, 8)


def test_latent_heads_are_as_wide_as_queries_one_way_and_as_values_the_other() -> None:
    """DeepSeek-V2 (arXiv 2405.04434), §2.1: a head's query and key have 48 elements here, its value and output 64."""
    tokens, heads = 2048 // 4, 8
    ulysses, token_ring = (
        job_of(latent(layers=1), sequence=2048, sp=4, exchange=exchange) for exchange in ("ulysses", "token_ring")
    )
    layer = token_ring.layer(1)
    assert (layer.query_width, layer.kv_width, layer.output_width) == (heads * 48, heads * (48 + 64) / 2, heads * 64)
    sizes = {
        issued.instruction.name: issued.instruction.size_bytes
        for issued in programs_of(ulysses)[0].unrolled()
        if isinstance(issued.instruction, Collective)
    }
    assert sizes["tokens to heads"] == 2 * tokens * heads * (48 + 48 + 64)
    assert sizes["heads to tokens"] == 2 * tokens * heads * 64
    queries, outputs = 2 * tokens * heads * 48, 2 * tokens * heads * 64 + 4 * tokens * heads
    assert CONTEXT_METHODS.get("token_ring").received_bytes(token_ring) == 3 * (queries + outputs)
