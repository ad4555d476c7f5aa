"""Sequences of models with windows take their windows however short they are."""

from __future__ import annotations

from pathlib import Path

import pytest

import tspsim
from tspsim.serving.answer import deployment_of
from tspsim.serving.deployment import Deployment
from tspsim.step.question import look_up

WIDE = """
name: wide
layers: 12
hidden: 2048
attention: {heads: 16, kv_heads: 8, head_dim: 128, window: 4096, full_every: %d}
mlp: {width: 8192, gated: true}
embedding: {vocab: 32000, tied: false}
max_context: 128Ki
source: made up
"""


def served(model: str, prompt: int, output: int, **engine: int) -> Deployment:
    question = look_up(
        tspsim.load(
            {
                "name": "windows", "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 1},
                "workload": {"model": model, "stack": "vllm", "engine": engine},
                "traffic": {
                    "arrivals": {"kind": "closed", "concurrency": 2}, "prompt": prompt, "output": output, "requests": 4,
                },
                "plans": [{"name": "one", "tp": 1}],
            }
        )
    )  # fmt: skip
    return deployment_of(question, question.plans[0])


@pytest.mark.parametrize("every", [0, 6])
@pytest.mark.parametrize("length", [3000, 8000, 60_000])
def test_caches_hold_as_many_sequences_as_memory_does(every: int, length: int, tmp_path: Path) -> None:
    """Sequences of 3,000 tokens were counted as a part of one of 128Ki: windows of all layers, eight times too many."""
    path = tmp_path / "wide.yaml"
    path.write_text(WIDE % every)
    deployment = served(str(path), length - 100, 100)
    capacity = deployment.costs.capacity
    room = sum(stage.budget.size_bytes for stage in capacity.stages)
    per_layer = 2 * 8 * 128 * 2  # K and V of a token in bf16
    windowed, full = (12, 0) if every == 0 else (10, 2)
    sequence = per_layer * (windowed * min(length, 4096) + full * length)
    assert deployment.engine.kv_tokens == pytest.approx(room / sequence * length, rel=0.01)
    assert deployment.cache(length).sessions == pytest.approx(room / sequence, rel=0.01)


def test_stated_blocks_and_tokens_stay(tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text(WIDE % 6)
    assert served(str(path), 900, 100, kv_tokens=5000).engine.kv_tokens == 5000
    assert served(str(path), 900, 100, num_gpu_blocks=100).engine.kv_tokens == 1600
