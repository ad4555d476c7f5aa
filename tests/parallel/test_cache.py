"""K and V of a served model: how many sessions stay resident, against published arithmetic."""

from __future__ import annotations

import pytest

from tspsim.model import load_model
from tspsim.parallel import Plan
from tspsim.parallel.cache import cache_bytes_per_token, cache_shards, resident_sessions

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
