"""A rank's weights while it serves, counted by hand: what tensor parallelism does not divide is on every rank."""

from __future__ import annotations

import pytest

import tspsim


def weights(model: str, plan: dict[str, int], gpus: int, device: str = "gb200") -> float:
    asked = {
        "name": "weights", "cluster": {"device": device, "nodes": 1, "gpus_per_node": gpus},
        "workload": {"model": model, "pass": "decode", "batch": 8, "context": 1024},
        "plans": [{"name": "one", **plan}],
    }  # fmt: skip
    return tspsim.simulate(asked).plans[0].memory.parts["weights"]


@pytest.mark.parametrize("ranks", [4, 8, 16, 64])
def test_more_ranks_than_heads_repeat_keys_and_values(ranks: int) -> None:
    """Llama-3.1-405B: 8 heads of K and V. 64 ranks keep 13.6 GB each, where 12.7 was an even share."""
    layers, hidden, width, vocab, queries, head = 126, 16384, 53248, 128256, 128, 128
    kept = hidden * (2 * queries * head + 3 * width) / ranks + 2 * hidden * head * max(1, 8 // ranks)
    elements = layers * (kept + 2 * hidden / ranks) + 2 * hidden * vocab / ranks
    assert weights("llama-3.1-405b", {"tp": ranks}, ranks) == pytest.approx(2 * elements, rel=1e-4)


def test_a_router_is_on_every_rank() -> None:
    """Qwen3-30B-A3B: 128 columns, and four heads of K and V on eight ranks."""
    layers, hidden, width, vocab = 48, 2048, 768, 151936
    kept = hidden * (2 * 32 * 128 + 128 * 3 * width) / 8 + hidden * (2 * 128 + 128)
    elements = layers * kept + 2 * hidden * vocab / 8
    assert weights("qwen3-30b-a3b", {"tp": 8}, 8, "h200") == pytest.approx(2 * elements, rel=2e-4)
    folded = weights("qwen3-30b-a3b", {"tsp": 8, "ep": 8}, 8, "h200")
    whole = layers * (hidden * (2 * 32 * 128 + 2 * 4 * 128 + 128 * 3 * width + 128)) + 2 * hidden * vocab
    assert folded == pytest.approx(2 * whole / 8, rel=2e-4)
