"""Programs of steps that are put together from those written before are those that would have been written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tspsim.scenario import load
from tspsim.serving.flat import things_of
from tspsim.serving.programs import StepPrograms
from tspsim.serving.work import Chunk, Work
from tspsim.steps import Speculation
from tspsim.studies.query import Library

LIBRARY = Library()
BUDGET = 2048
#: Attention over all, over a window, chosen beyond a length, compressed, and none at all in some layers; with drafts.
#: At least so many of 150 are put together: a window or a state is written.
MODELS = (
    ("llama-3.1-8b", 0, 20), ("gpt-oss-120b", 0, 4), ("deepseek-v3.2", 0, 20), ("deepseek-v3.2", 2, 20),
    ("deepseek-v4-pro", 0, 20), ("qwen3-next-80b-a3b", 2, 0),
)  # fmt: skip


def programs_of(model: str, drafts: int, **plan: Any) -> StepPrograms:
    work = {"model": model, "stack": "vllm", "pass": "decode", "batch": 8, "context": "1Ki"}
    asked = {"name": "s", "cluster": {"device": "b200", "nodes": 1}, "workload": work, "plans": [{"name": "P", **plan}]}
    question = LIBRARY.look_up(load(asked))
    return StepPrograms(question, question.plans[0], Speculation(drafts, "mtp") if drafts else None)


def steps(queries: int, count: int) -> Iterator[Work]:
    """Full and short ones, of few sequences, with contexts of every size and some at the lengths where layers bend:
    of some steps all contexts are within a window."""
    draw = random.Random(7)

    def context() -> int:
        return min(most, draw.choice((draw.randint(1, most), 128, 129, 2048)))

    for _ in range(count):
        most = draw.choice((127, 128, 9000))
        contexts = tuple([context() for _ in range(draw.choice((1, 4, 7)))])
        room = BUDGET - queries * len(contexts)
        asked = draw.choice((0, 0, 1, 2))
        chunks = [Chunk(size, draw.choice((0, context())), draw.random() < 0.5) for size in (700, room - 700)[:asked]]
        yield Work(tuple(chunks), contexts, queries)


@pytest.mark.parametrize(("model", "drafts", "least"), MODELS)
def test_what_is_put_together_is_what_would_be_written(model: str, drafts: int, least: int) -> None:
    programs = programs_of(model, drafts, tp=8)
    together = 0
    for work in steps(1 + drafts, 150):
        (job,) = programs.of(work)
        before = programs.written
        found = programs.things_of(job)
        together += programs.written == before
        assert [thing.does for thing in found] == [thing.does for thing in things_of(programs._few_of(job))], work
    assert together >= least
