"""A serving step may be stated with `batch`, `context` and `chunk` alone, whatever the step is."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError


def workload(**stated: Any) -> Any:
    asked = {"name": "s", "cluster": "mi300x-8", "plans": [{"name": "P", "tp": 8}]}
    return tspsim.load({**asked, "workload": {"model": "llama-3.1-8b", **stated}}).workload


@pytest.mark.parametrize(
    ("spelt", "meant"),
    [
        (
            {"pass": "mixed", "batch": 8, "context": "4Ki", "chunk": 512},
            {"pass": "mixed", "batch": 8, "context": "4Ki", "sequence": 512},
        ),
        (
            {"pass": "prefill", "batch": 2, "context": "4Ki", "chunk": "1Ki"},
            {"pass": "prefill", "sequences_per_replica": 2, "sequence": "4Ki", "chunk": "1Ki"},
        ),
    ],
)
def test_batch_context_and_chunk_say_how_much_a_step_is(spelt: dict[str, Any], meant: dict[str, Any]) -> None:
    assert workload(**spelt) == workload(**meant)


@pytest.mark.parametrize(
    "stated",
    [
        {"pass": "mixed", "batch": 8, "context": "4Ki", "chunk": 512, "sequence": 512},
        {"pass": "prefill", "sequence": "4Ki", "sequences_per_replica": 2, "batch": 2},
        {"pass": "prefill", "batch": 2},
        {"pass": "decode", "batch": 2, "context": "4Ki", "chunk": 1},
    ],
)
def test_two_spellings_of_one_key_are_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"workload\.(chunk|batch|sequence): is"):
        workload(**stated)
