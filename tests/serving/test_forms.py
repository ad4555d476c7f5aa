"""Programs that are put together from others are those that would be written."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tspsim.scenario import load
from tspsim.serving.flat import things_of
from tspsim.serving.programs import StepPrograms
from tspsim.serving.work import PromptChunk, StepWork
from tspsim.steps import Speculation
from tspsim.studies.query import Library

LIBRARY = Library()
DRAFTING = Speculation(3, 2.6, "eagle")
CASES: tuple[tuple[str, dict[str, Any], Speculation | None], ...] = (
    ("kimi-k2.6", {"tp": 8}, None), ("kimi-k2.6", {"tp": 8}, DRAFTING), ("kimi-k2.6", {"tp": 8, "dcp": 4}, None),
    ("glm-5.1", {"tp": 8}, Speculation(3, 2.6, "mtp")), ("deepseek-v3.2", {"tp": 8}, None),
    ("gpt-oss-120b", {"tp": 4}, None), ("llama-3.1-8b", {"tp": 4, "pp": 2}, None), ("llama-3.1-8b", {"tsp": 8}, None),
)  # fmt: skip


def programs_of(model: str, plan: dict[str, Any], speculation: Speculation | None) -> StepPrograms:
    work = {"model": model, "stack": "vllm", "pass": "decode", "batch": 8, "context": "1Ki"}
    cluster = {"device": "mi355x", "nodes": 1}
    asked = LIBRARY.look_up(load({"name": "s", "cluster": cluster, "workload": work, "plans": [{"name": "P", **plan}]}))
    return StepPrograms(asked, asked.plans[0], speculation)


def some_works(programs: StepPrograms, count: int, longest: int) -> list[StepWork]:
    """Sequences that decode, alone or beside pieces of prompts, most of them of a few tokens."""
    draw, works = random.Random(3), []
    for _ in range(count):
        batch, mean = draw.randint(1, 24), draw.randint(1, longest)
        sizes = draw.choice([(), (draw.randint(1, 16),), (draw.randint(1, 16),), (draw.randint(1, 16), 512)])
        pieces = [PromptChunk(size, draw.choice([0, draw.randint(1, longest)]), draw.random() < 0.7) for size in sizes]
        works.append(StepWork(pieces, (mean + 1,) * (batch // 3) + (mean,) * (batch - batch // 3), programs.queries))
    return works


@pytest.mark.parametrize(("model", "plan", "speculation"), CASES, ids=str)
@pytest.mark.parametrize("longest", [100, 6000])
def test_a_program_put_together_is_the_one_that_would_be_written(
    model: str, plan: dict[str, Any], speculation: Speculation | None, longest: int
) -> None:
    """Contexts below windows and beyond; short ones first, so that what they say is not taken for long ones."""
    programs = programs_of(model, plan, speculation)
    for work in (*some_works(programs, 40, 100), *some_works(programs, 80, longest)):
        for job in programs.of(work):
            whole = things_of(programs._few_of(job))
            assert [each.does for each in programs.things_of(job)] == [each.does for each in whole]


@pytest.mark.parametrize("model", ["gpt-oss-120b", "deepseek-v4-pro", "deepseek-v3.2", "qwen3-next-80b-a3b"])
def test_a_program_put_together_is_the_one_that_would_be_written_where_attention_bends(model: str) -> None:
    """Contexts that fill a window, or what is chosen, exactly, and one token fewer and more."""
    programs, draw = programs_of(model, {"tp": 8}, None), random.Random(7)
    for _ in range(150):
        most = draw.choice((127, 128, 9000))
        contexts = [min(most, draw.choice((draw.randint(1, most), 128, 129, 2048))) for _ in range(draw.choice((1, 4)))]
        sizes = ((), (), (700,), (700, 1300))[draw.randrange(4)]
        pieces = tuple([PromptChunk(size, draw.choice((0, contexts[0])), draw.random() < 0.5) for size in sizes])
        (job,) = programs.of(StepWork(pieces, tuple(contexts), 1))
        whole = things_of(programs._few_of(job))
        assert [each.does for each in programs.things_of(job)] == [each.does for each in whole], contexts


@pytest.mark.parametrize(("model", "plan", "speculation"), CASES[:6], ids=str)
def test_a_step_whose_order_is_known_takes_to_the_bit_what_a_walk_finds(
    model: str, plan: dict[str, Any], speculation: Speculation | None
) -> None:
    programs = programs_of(model, plan, speculation)
    for work in some_works(programs, 100, 6000):
        (job,) = programs.of(work)
        assert programs.seconds([job]) == programs.price(job).seconds


def test_most_programs_are_not_written() -> None:
    programs = programs_of("kimi-k2.6", {"tp": 8}, DRAFTING)
    works = [StepWork((PromptChunk(5, 0),), (context,) * 16, programs.queries) for context in range(1000, 1200)]
    for work in works:
        programs.seconds(programs.of(work))
    assert programs.written < 25
