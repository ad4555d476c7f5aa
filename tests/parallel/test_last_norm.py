"""Which tokens of a serving pass the norm before the head is of: a fact of the engine."""

from __future__ import annotations

import pytest

import tspsim
from tspsim.operators import Gemm, MemoryBound
from tspsim.step.question import look_up
from tspsim.traces.simulated import Simulated

PROMPTS, TOKENS = 4, 512


@pytest.mark.parametrize(
    ("stack", "rows"), [("sglang", PROMPTS * TOKENS), ("vllm", PROMPTS * TOKENS), ("ideal", PROMPTS)]
)
def test_engines_norm_all_tokens_and_take_the_last_ones_behind(stack: str, rows: int) -> None:
    work = {"model": "qwen3-8b", "pass": "prefill", "batch": PROMPTS, "context": TOKENS, "stack": stack}
    asked = {"name": "m", "cluster": "mi300x-8", "workload": work, "plans": [{"name": "TP1", "tp": 1}]}
    question = look_up(tspsim.load(asked))
    lane = Simulated(question, question.plans[0]).lane(0)
    head = {item.name: item.operator for item in lane.operations if item.part == "head"}
    norm, product = head["add + norm"], head["language-model head"]
    assert isinstance(norm, MemoryBound)
    assert isinstance(product, Gemm)
    assert (norm.rows, product.m) == (rows, PROMPTS)
