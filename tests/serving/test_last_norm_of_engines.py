"""The last norm is of all tokens of a pass in every shipped engine whose sources were read."""

from __future__ import annotations

import pytest

from tspsim.scenario import load
from tspsim.step.question import look_up
from tspsim.traces.simulated import Operation, Simulated


def operations(stack: str, device: str) -> list[Operation]:
    scenario = {
        "name": "n", "cluster": {"device": device, "nodes": 1},
        "workload": {"model": "llama-3.1-8b", "pass": "prefill", "stack": stack, "batch": 4, "sequence": 2048},
        "plans": [{"name": "P", "tp": 1}],
    }  # fmt: skip
    question = look_up(load(scenario))
    return list(Simulated(question, question.plans[0]).lane(0).operations)


@pytest.mark.parametrize(
    ("stack", "device", "tokens"),
    [("vllm", "h100", 8192), ("sglang", "h100", 8192), ("trtllm", "h100", 8192), ("atom", "mi300x", 8192),
     ("ideal", "h100", 4)],
)  # fmt: skip
def test_tokens_of_the_last_norm(stack: str, device: str, tokens: int) -> None:
    """Norm of all hidden states in the model, the last token of each sequence behind it: the file of each is in its
    stack. An ideal engine norms what it samples from."""
    norm, head = [item for item in operations(stack, device) if item.kind in ("norm", "gemm")][-2:]
    assert norm.kind == "norm" and head.operator is not None and head.operator.role == "head"
    assert getattr(norm.operator, "rows", None) == tokens
    assert head.sizes is not None and head.sizes[0] == 4
