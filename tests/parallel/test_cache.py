"""K and V of a served model: how many sessions stay resident, against published arithmetic."""

from __future__ import annotations

import pytest

from tspsim.model import load_model
from tspsim.parallel import Plan
from tspsim.parallel.cache import sequence_bytes

GB = 1e9


@pytest.mark.parametrize(
    ("axis", "memory_gb", "sessions"),
    [("tsp", 288, 183.9), ("tsp", 192, 100.5), ("tsp", 180, 90.1), ("tp", 288, 23.0), ("tp", 180, 11.3)],
)
def test_kimi_sessions_of_256k_tokens_on_eight_gpus(axis: str, memory_gb: float, sessions: float) -> None:
    """610 GB of weights, a cache in FP8: divided by tokens, or replicated under plain tensor parallelism."""
    kept = sequence_bytes(load_model("kimi-k2"), Plan("serve", {axis: 8}), 262_144, "fp8")
    assert round((memory_gb * GB - 610 * GB / 8) / kept, 1) == sessions


def test_a_latent_cache_is_divided_by_tokens_alone_and_a_grouped_one_by_heads_up_to_their_number() -> None:
    def token_bytes(name: str, **degrees: int) -> float:
        return sequence_bytes(load_model(name), Plan("p", degrees), 1 << 16, "fp8") / (1 << 16)

    assert token_bytes("kimi-k2", tp=8) == 35_136
    assert token_bytes("kimi-k2", tp=2, sp=4) == token_bytes("kimi-k2", tp=1, sp=4) == 35_136 / 4
    assert token_bytes("kimi-k2", tsp=8) == 35_136 / 8
    whole = token_bytes("llama-3.1-70b", tp=1)
    assert [whole / token_bytes("llama-3.1-70b", tp=tp) for tp in (1, 4, 8, 16)] == [1, 4, 8, 8]


def test_windowed_layers_keep_no_more_than_their_window() -> None:
    plan, model = Plan("p", {"tp": 1}), load_model("gpt-oss-120b")
    short, long = (sequence_bytes(model, plan, context, "bf16") for context in (1024, 128 * 1024))
    assert long / short == pytest.approx((128 * 1024 + 128) / (1024 + 128))


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
