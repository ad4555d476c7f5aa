"""Laws of what steps cost, on every path that answers: more work is never faster, and a batch has one price.

The paths are tables of decoding, tables of the parts of steps with prompts, programs that are written for pieces so
short that decode kernels take them, ratios where streams overlap, prompts whose tokens ranks divide, and pipelines.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.draws import draws, in_turn

from tspsim.model.attention import MOST_DECODED
from tspsim.parallel import Captured
from tspsim.scenario import load
from tspsim.serving.costs import ProgramCosts, costs_of
from tspsim.serving.sampled import BAR
from tspsim.serving.tables import EPSILON
from tspsim.serving.work import StepWork
from tspsim.steps import PromptChunk, Speculation
from tspsim.studies.query import Library

LIBRARY = Library()
#: Model, plan, what is verified, and how far a table may be from a program.
PATHS: tuple[tuple[str, dict[str, Any], Speculation | None, float], ...] = (
    ("kimi-k2.6", {"tp": 8}, None, 1.5 * EPSILON),
    ("kimi-k2.6", {"tp": 8}, Speculation(3, 2.6, "eagle"), 1.5 * EPSILON),
    ("gpt-oss-120b", {"tp": 4}, None, 1.5 * EPSILON),
    ("llama-3.1-8b", {"tp": 4, "pp": 2}, None, 1.5 * EPSILON),
    ("llama-3.1-8b", {"tsp": 8}, None, 1.5 * BAR),
    ("kimi-k2.6", {"dp": 8, "ep": 8, "expert_overlap": "shared_experts"}, None, BAR),
)


def cost_of(model: str, plan: dict[str, Any], speculation: Speculation | None) -> ProgramCosts:
    work = {"model": model, "stack": "vllm", "pass": "decode", "batch": 8, "context": "1Ki"}
    cluster = {"device": "mi355x", "nodes": 1}
    asked = LIBRARY.look_up(load({"name": "s", "cluster": cluster, "workload": work, "plans": [{"name": "P", **plan}]}))
    return costs_of(asked, asked.plans[0], speculation=speculation)


def some_works(queries: int, count: int) -> Iterator[StepWork]:
    """Decoding alone, pieces short and long beside it, and prompts alone."""
    draw = random.Random(11)
    for _ in range(count):
        batch = draw.choice((0, 1, 8, 33))
        context = draw.randint(700, 6000)
        sizes = (5, MOST_DECODED, MOST_DECODED + 1, 700)
        pieces = [
            PromptChunk(draw.choice(sizes), draw.choice((0, 512))) for _ in range(draw.randint(0 if batch else 1, 2))
        ]
        yield StepWork(pieces, (context,) * batch, queries)


def with_more(work: StepWork) -> Iterator[StepWork]:
    """One sequence more, longer contexts, longer pieces that the same kernels take, one piece more, longer prompts
    before them."""
    pieces, contexts, queries = work.chunks, work.contexts, work.query_len
    yield StepWork(pieces, (*contexts, contexts[0] if contexts else 900), queries)
    yield StepWork((*pieces, PromptChunk(900, 0)), contexts, queries)
    if contexts:
        yield StepWork(pieces, [2 * context for context in contexts], queries)
    if pieces:
        longer = [
            5 if each.query_tokens + 5 <= MOST_DECODED else 40 * (each.query_tokens > MOST_DECODED) for each in pieces
        ]
        sizes = [each.query_tokens + more for each, more in zip(pieces, longer, strict=True)]
        yield StepWork(
            [each._replace(query_tokens=n) for each, n in zip(pieces, sizes, strict=True)], contexts, queries
        )
        yield StepWork([each._replace(context_tokens=each.context_tokens + 600) for each in pieces], contexts, queries)


@draws(4, 8)
@pytest.mark.parametrize(("model", "plan", "speculation", "error"), in_turn(PATHS), ids=str)
def test_a_batch_has_one_price_whichever_path_answers(
    model: str, plan: dict[str, Any], speculation: Speculation | None, error: float, count: int
) -> None:
    """A table and the program, within what tables may be off; a step alone and the first of a run, to the bit."""
    cost = cost_of(model, plan, speculation)
    for work in some_works(cost.programs.query_len, count):
        seconds = cost.seconds([work])
        exact = sum(cost.programs.price(job).seconds for job in cost.programs.of(work))
        assert seconds == pytest.approx(exact, rel=error), work
        if not work.chunks:
            assert cost.decode_each_s([work], 2)[0] == seconds


@draws(4, 8)
@pytest.mark.parametrize(("model", "plan", "speculation", "error"), in_turn(PATHS), ids=str)
def test_more_work_is_never_faster_on_any_path(
    model: str, plan: dict[str, Any], speculation: Speculation | None, error: float, count: int
) -> None:
    """By more than tables may be off, whichever path answers for the less and whichever for the more."""
    cost = cost_of(model, plan, speculation)
    for work in some_works(cost.programs.query_len, count):
        least_s = cost.seconds([work]) * (1.0 - 2.0 * error)
        for more in with_more(work):
            assert cost.seconds([more]) >= least_s, (work, more)


def test_a_short_prompt_is_read_in_the_faster_of_two_ways() -> None:
    """Ranks that divide its tokens gather all weights for them; a pass that reads it as beside a decode does not."""
    cost = cost_of("llama-3.1-8b", {"tsp": 8}, None)
    for tokens, divides in ((700, False), (8192, True)):
        work = StepWork((PromptChunk(tokens, 0),))
        together, divided = cost.programs.together(work), cost.programs.divided(*work.chunks)
        ways = [cost.programs.seconds(way) for way in (together, divided)]
        assert (ways[1] < ways[0]) is divides
        assert cost.seconds([work]) == pytest.approx(min(ways), rel=EPSILON)


@pytest.mark.parametrize("path", (PATHS[0], PATHS[2], PATHS[3], PATHS[4]), ids=str)
def test_a_piece_one_token_too_long_for_decode_kernels_is_not_faster(
    path: tuple[str, dict[str, Any], Speculation | None, float],
) -> None:
    """Beside a longer piece: those that prefill kernels take are one kernel a layer, which a shorter one joins where
    that takes less."""
    cost = cost_of(*path[:3])
    shorter, longer = (StepWork((PromptChunk(700, 0), PromptChunk(MOST_DECODED + more, 512))) for more in (0, 1))
    assert cost.seconds([longer]) >= cost.seconds([shorter]) * (1.0 - 2.0 * path[3])


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("path", PATHS[:3], ids=str)
def test_a_short_piece_is_never_faster_for_a_token_more(
    path: tuple[str, dict[str, Any], Speculation | None, float],
) -> None:
    """Every pass in pieces is padded to the graph that it runs as, whichever rows it has. A piece of as many tokens as
    sequences verify is no other: vLLM replays the whole graph for it (``_is_uniform_decode``)."""
    cost = cost_of(*path[:3])
    for batch in (0, 8, 60):
        works = [StepWork((PromptChunk(n, 512),), (3000,) * batch, cost.programs.query_len) for n in range(1, 17)]
        jobs = [cost.programs.together(work)[0] for work in works]
        pieces = [cost.seconds([work]) for work, job in zip(works, jobs, strict=True) if job.capture is Captured.PIECES]
        assert len(pieces) == 15 and pieces == sorted(pieces)
