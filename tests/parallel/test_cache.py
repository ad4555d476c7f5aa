"""K and V of a served model: how many sessions stay resident, against published arithmetic."""

from __future__ import annotations

import pytest

from tspsim.model import load_model
from tspsim.parallel import Plan
from tspsim.parallel.cache import cache_bytes_per_token, cache_shards, resident_sessions, sequence_bytes

GB = 1e9


@pytest.mark.parametrize(
    ("axis", "memory_gb", "sessions"),
    [("tsp", 288, 183.9), ("tsp", 192, 100.5), ("tsp", 180, 90.1), ("tp", 288, 23.0), ("tp", 180, 11.3)],
)
def test_kimi_sessions_of_256k_tokens_on_eight_gpus(axis: str, memory_gb: float, sessions: float) -> None:
    """610 GB of weights, a cache in FP8: divided by tokens, or replicated under plain tensor parallelism."""
    found = resident_sessions(
        load_model("kimi-k2"),
        Plan("serve", {axis: 8}),
        memory_bytes=memory_gb * GB,
        weight_bytes=610 * GB,
        context=262_144,
        element_bytes=1.0,
    )
    assert round(found, 1) == sessions


def test_a_latent_cache_is_divided_by_tokens_alone_and_a_grouped_one_by_heads_up_to_their_number() -> None:
    kimi, llama = load_model("kimi-k2"), load_model("llama-3.1-70b")
    assert cache_bytes_per_token(kimi, Plan("p", {"tp": 8}), 1.0) == 35_136
    assert cache_bytes_per_token(kimi, Plan("p", {"tp": 2, "sp": 4}), 1.0) == 35_136 / 4
    assert cache_bytes_per_token(kimi, Plan("p", {"tsp": 8}), 1.0) == 35_136 / 8
    assert [cache_shards(llama, Plan("p", {"tp": tp})) for tp in (1, 4, 8, 16)] == [1, 4, 8, 8]


def test_what_does_not_fit_holds_no_session() -> None:
    plan, model = Plan("p", {"tp": 2}), load_model("kimi-k2")
    assert resident_sessions(model, plan, memory_bytes=GB, weight_bytes=610 * GB, context=1, element_bytes=1.0) == 0.0


def test_windowed_layers_let_more_sessions_stay() -> None:
    plan, model = Plan("p", {"tp": 1}), load_model("gpt-oss-120b")
    short, long = (
        resident_sessions(model, plan, memory_bytes=80 * GB, weight_bytes=65 * GB, context=n, element_bytes=2.0)
        for n in (1024, 128 * 1024)
    )
    assert short / long == pytest.approx(128 * (36_864) / (36_864 * (1 + 1 / 8)), rel=0.01)


def test_a_sequence_on_a_rank_is_what_its_kinds_keep() -> None:
    """Latents and indexers' keys stand on every tensor-parallel rank and are divided by tokens; heads of K, V and of
    states are divided by ranks."""
    sparse, hybrid, context = load_model("deepseek-v3.2"), load_model("qwen3.5-397b-a17b"), 1 << 16
    whole = sequence_bytes(sparse, Plan("p", {"tp": 8}), context, "fp8_ds_mla")
    assert whole == pytest.approx(48_068 * context)
    assert sequence_bytes(sparse, Plan("p", {"tsp": 8}), context, "fp8_ds_mla") == pytest.approx(whole / 8)
    assert sequence_bytes(sparse, Plan("p", {"tp": 2, "pp": 4}), context, "fp8_ds_mla") == pytest.approx(whole / 4)
    state = hybrid.sequence_bytes("fp8")
    growing = 15 * 2 * 2 * 256 * context
    assert sequence_bytes(hybrid, Plan("p", {"tp": 1}), context, "fp8") == growing + state
    assert sequence_bytes(hybrid, Plan("p", {"tp": 8}), context, "fp8") == growing / 2 + state / 8
    assert sequence_bytes(hybrid, Plan("p", {"sp": 8}), context, "fp8") == growing / 8 + state


def test_a_sequence_and_the_session_formula_agree_where_all_layers_are_alike() -> None:
    model, context = load_model("kimi-k2.6"), 262_144
    for degrees in ({"tsp": 8}, {"tp": 8}, {"tp": 2, "sp": 4}):
        plan = Plan("p", degrees)
        assert sequence_bytes(model, plan, context, "fp8") == pytest.approx(
            cache_bytes_per_token(model, plan, 1.0) * context
        )
