"""What the size of an instruction of a serving step depends on: steps that have as much of it have the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest

from tspsim.model.attention.base import attended, decoded, prefilled, tokens_of
from tspsim.operators import BatchQuantity, DecodeAttention
from tspsim.parallel import Job
from tspsim.program.layout import StageCall
from tspsim.scenario import load
from tspsim.serving.costs import costs_of
from tspsim.serving.programs import StepPrograms
from tspsim.serving.row_consumers import consumer_of
from tspsim.serving.work import StepWork
from tspsim.steps import PromptChunk, Speculation
from tspsim.studies.query import Library

LIBRARY = Library()
CASES: tuple[tuple[str, dict[str, Any], Speculation | None], ...] = (
    ("kimi-k2.6", {"tp": 4, "dp": 2, "ep": 8}, None), ("kimi-k2.6", {"tp": 8, "dcp": 4}, None),
    ("kimi-k2.6", {"sp": 8, "decode_exchange": "ring"}, None), ("kimi-k2.6", {"tp": 8}, Speculation(3, 2.6, "ngram")),
    ("deepseek-v3.2", {"tp": 8, "dcp": 8, "index_exchange": "scores"}, None), ("deepseek-v4-pro", {"tp": 8}, None),
    ("gpt-oss-120b", {"tp": 4, "dp": 2}, None), ("qwen3-next-80b-a3b", {"tp": 8}, None),
    ("llama-4-scout", {"tp": 8}, None), ("kimi-linear-48b", {"tsp": 8}, None),
)  # fmt: skip


def programs_of(
    model: str, plan: dict[str, Any], speculation: Speculation | None = None, stack: str = "vllm"
) -> StepPrograms:
    work = {"model": model, "stack": stack, "pass": "decode", "batch": 8, "context": "1Ki"}
    cluster = {"device": "mi355x", "nodes": 1}
    asked = LIBRARY.look_up(load({"name": "s", "cluster": cluster, "workload": work, "plans": [{"name": "P", **plan}]}))
    return StepPrograms(asked, asked.plans[0], speculation)


def some_works(queries: int) -> Iterator[StepWork]:
    """Some of as many tokens, as many sequences, the same prompts, or as long ones; at most one has cached tokens."""
    prompts = (
        ((900, 0), (100, 64)),
        ((960, 64),),
        ((700, 0), (300, 64)),
        ((700, 0), (260, 64)),
        ((968, 96),),
        ((1960, 0), (300, 96)),
    )
    for pieces, ends, (batch, context) in product(prompts, (0, 1), ((40, 4096), (40, 8192), (50, 4096))):
        sizes = [size + (50 - batch) * queries * (number == 0) for number, (size, _) in enumerate(pieces)]
        for own in {tuple(sizes), tuple(size for size, _ in pieces)}:
            chunks = [
                PromptChunk(q, cached, n < ends) for n, (q, (_, cached)) in enumerate(zip(own, pieces, strict=True))
            ]
            yield StepWork(chunks, (context,) * batch, queries)


def amount(quantity: BatchQuantity, job: Job) -> object:
    """How much of a quantity a pass has."""
    prompts = prefilled(job.rows)
    return {
        BatchQuantity.TOKENS: job.tokens,
        BatchQuantity.OUTPUTS: job.head_tokens,
        BatchQuantity.DECODING: decoded(job.rows),
        BatchQuantity.READ: tokens_of(prompts),
        BatchQuantity.CACHED: sum(context * count for _, context, count in prompts),
        BatchQuantity.LENGTHS: sum((queries + context) * count for queries, context, count in prompts),
        BatchQuantity.PROMPTS: prompts,
        BatchQuantity.BENT_PROMPTS: prompts,
        BatchQuantity.ROWS: job.rows,
    }[quantity]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(("model", "plan", "speculation"), CASES, ids=str)
def test_steps_with_as_much_of_a_quantity_have_the_same_instructions_of_it(
    model: str, plan: dict[str, Any], speculation: Speculation | None
) -> None:
    # One norms the sampled tokens alone, the other all.
    stack = "ideal" if model.startswith("qwen") else "vllm"
    programs = programs_of(model, plan, speculation, stack)
    compared, unlike, written = Counter[BatchQuantity](), set[BatchQuantity](), []
    for work in some_works(programs.query_len):
        (job,) = programs.together(work)
        calls, layout = programs.laid_out(job)
        quantities = programs.quantities(job)
        written.append((job, layout, [call.key for call in calls], quantities))
        for call, quantity in zip(calls, quantities, strict=True):
            consumer = consumer_of(call, quantity, decodes=True)
            if consumer is not None:
                assert consumer.field is not None
                rows = prefilled(job.rows) if consumer.of_prompts else attended(job.rows)
                assert StageCall(consumer.over()(consumer.field.of(rows)), call.stage).key == call.key
            else:
                assert quantity is not BatchQuantity.ROWS
    for (job, layout, does, quantities), (other, other_layout, others, same) in combinations(written, 2):
        assert layout is other_layout and quantities == same
        for quantity in set(quantities):
            alike = amount(quantity, job) == amount(quantity, other)
            own = [(a, b) for a, b, by in zip(does, others, quantities, strict=True) if by is quantity]
            if alike and job.rows != other.rows:
                compared[quantity] += 1
                assert all(a == b for a, b in own), quantity
            elif not alike and any(a != b for a, b in own):
                unlike.add(quantity)
    assert unlike == set(quantities) >= {BatchQuantity.TOKENS, BatchQuantity.OUTPUTS}
    assert set(compared) == set(quantities) - {BatchQuantity.ROWS}
    assert (BatchQuantity.ROWS in quantities) is (model == "deepseek-v4-pro")


def test_prompts_that_are_read_in_chunks_are_priced_in_chunks() -> None:
    """Those of Llama 4 are longer than any typical step: behind 60,000 tokens the table was 45 % too slow."""
    programs = programs_of("llama-4-scout", {"tp": 8})
    cost = costs_of(programs.question, programs.plan)
    for pieces in (((2000, 60_000),), ((2000, 7000),), ((12_000, 0),), ((2000, 60_000), (3000, 0))):
        work = StepWork([PromptChunk(*piece) for piece in pieces], (4096,) * 9)
        assert cost._mixed.seconds(work) is not None
        assert cost.seconds([work]) == pytest.approx(cost.exact(work).seconds, rel=2e-3), pieces


def test_an_operator_of_which_nobody_says_what_it_reads_has_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step has the price of its program."""
    monkeypatch.setattr(DecodeAttention, "reads", BatchQuantity.ROWS)
    programs = programs_of("llama-3.1-8b", {"tp": 2})
    cost, work = costs_of(programs.question, programs.plan), StepWork((PromptChunk(2000, 0),), (1000,) * 9)
    assert cost._mixed.seconds(work) is None
    assert cost.seconds([work]) == pytest.approx(cost.exact(work).seconds, rel=1e-9)
