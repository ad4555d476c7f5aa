"""Programs of steps that differ in rows alone: each is the one that would be written."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from helpers.draws import draws

from tspsim.parallel import Captured, Job
from tspsim.scenario import load
from tspsim.serving.costs import costs_of
from tspsim.serving.programs import StepPrograms
from tspsim.serving.work import StepWork
from tspsim.steps import PromptChunk, Speculation
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
        works.append(StepWork(pieces, (mean + 1,) * (batch // 3) + (mean,) * (batch - batch // 3), programs.query_len))
    return works


def assert_alike(programs: StepPrograms, job: Job) -> None:
    """What an earlier step's program becomes stands where it would if it were written, and does the same."""
    (found, layout), (written, other) = programs.laid_out(job), programs.written_out(job)[0]
    assert layout is other
    assert [each.key for each in found] == [each.key for each in written]


@pytest.mark.in_turn(5)
@draws(16, 50)
@pytest.mark.parametrize(("model", "plan", "speculation"), CASES, ids=str)
def test_a_program_of_other_rows_is_the_one_that_would_be_written(
    model: str, plan: dict[str, Any], speculation: Speculation | None, count: int
) -> None:
    """Contexts below windows and beyond; short ones first, so that what they say is not taken for long ones."""
    programs = programs_of(model, plan, speculation)
    for work in (*some_works(programs, 4 * count // 5, 100), *some_works(programs, count, 6000)):
        for job in programs.of(work):
            assert_alike(programs, job)


@pytest.mark.in_turn(5)
@draws(60, 150)
@pytest.mark.parametrize("model", ["gpt-oss-120b", "deepseek-v4-pro", "deepseek-v3.2", "qwen3-next-80b-a3b"])
def test_a_program_of_other_rows_is_the_one_that_would_be_written_where_attention_bends(model: str, count: int) -> None:
    """Contexts that fill a window, or what is chosen, exactly, and one token fewer and more."""
    programs, draw = programs_of(model, {"tp": 8}, None), random.Random(7)
    for _ in range(count):
        most = draw.choice((127, 128, 9000))
        contexts = [min(most, draw.choice((draw.randint(1, most), 128, 129, 2048))) for _ in range(draw.choice((1, 4)))]
        sizes = ((), (), (700,), (700, 1300))[draw.randrange(4)]
        pieces = tuple([PromptChunk(size, draw.choice((0, contexts[0])), draw.random() < 0.5) for size in sizes])
        (job,) = programs.of(StepWork(pieces, tuple(contexts), 1))
        assert_alike(programs, job)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("model", "plan", "speculation"), CASES[:6], ids=str)
def test_a_step_that_is_laid_out_takes_what_the_engine_finds(
    model: str, plan: dict[str, Any], speculation: Speculation | None
) -> None:
    programs = programs_of(model, plan, speculation)
    for work in some_works(programs, 12, 6000):
        (job,) = programs.of(work)
        assert programs.seconds([job]) == programs.price(job).seconds
        assert programs.seconds([job]) == pytest.approx(programs.simulated(job).seconds, rel=1e-9)


def test_most_programs_are_not_written() -> None:
    programs = programs_of("kimi-k2.6", {"tp": 8}, DRAFTING)
    works = [StepWork((PromptChunk(5, 0),), (context,) * 16, programs.query_len) for context in range(1000, 1200)]
    for work in works:
        programs.seconds(programs.of(work))
    assert programs.written == 4  # one padded for prefill kernels and one not; once short and once with all layers


def test_what_experts_get_in_the_mean_is_a_number_of_a_step() -> None:
    programs = programs_of("kimi-k2.6", {"tp": 4, "dp": 2, "ep": 8}, None)
    for context in (100, 3000):
        for share in (1.0, 2.0):
            assert_alike(programs, programs.decoding((context,) * 6, share))
    assert programs.experts_s(12, Captured.WHOLE) > programs.experts_s(6, Captured.WHOLE)


@pytest.mark.parametrize(
    ("plan", "alone"), [({"tp": 8}, True), ({"tp": 8, "dcp": 4}, False), ({"sp": 8}, False)], ids=str
)
def test_a_step_whose_ranks_share_contexts_is_written_every_time(plan: dict[str, Any], alone: bool) -> None:
    """Exchanges between these ranks are as long as the rows say."""
    programs = programs_of("kimi-k2.6", plan, None)
    programs.laid_out(programs.decoding((1000,) * 8))
    written = programs.written
    programs.laid_out(programs.decoding((2000,) * 8))
    assert (programs.written == written) is alone


def test_things_that_are_equal_by_chance_in_one_batch_are_not_taken_for_the_same_in_another() -> None:
    """Of 16 sequences of GLM-5.1 with drafts some kernels of both passes take the same, of 100 they do not: the tables
    of decoding were 2.6e-7 off."""
    programs = programs_of("glm-5.1", {"tp": 8}, Speculation(1, 1.8, "mtp"))
    tables = costs_of(programs.question, programs.plan, speculation=programs.speculation)._decodes
    for batch in (16, 100):
        exact = programs.simulated(programs.decoding((2048,) * batch)).seconds
        assert tables._seconds((2048,) * batch) == pytest.approx(exact, rel=1e-9)


def test_a_step_with_a_short_piece_is_priced_once_in_each_of_two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    programs, priced = programs_of("kimi-k2.6", {"tp": 8}, None), list[Job]()
    price = StepPrograms._job_s
    monkeypatch.setattr(StepPrograms, "_job_s", lambda self, job: priced.append(job) or price(self, job))
    programs.together_s(StepWork((PromptChunk(5, 0),), (1000,) * 9))
    assert [job.rows[0][0] for job in priced] == [5, 17]


def test_tables_of_parts_are_left_where_a_program_has_other_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is priced another way then."""
    programs = programs_of("llama-3.1-8b", {"tp": 4}, None)
    cost, work = costs_of(programs.question, programs.plan), StepWork((PromptChunk(2000, 0),), (1000,) * 9)
    assert cost._mixed.seconds(work) is not None
    shape = next(shape for shape in cost._mixed._plain_shapes.values() if shape)
    monkeypatch.setattr(shape.measured, "layout", replace(shape.layout))
    longer = StepWork((PromptChunk(9001, 0),), (1000,) * 9)
    assert cost._mixed.seconds(longer) is None
    assert cost.seconds([longer]) == pytest.approx(cost.exact(longer).seconds, rel=2e-3)
