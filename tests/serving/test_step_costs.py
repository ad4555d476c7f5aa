"""Costs of an engine's steps: those of their programs where they are tabulated, within 0.2 % between, and fast."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.draws import draws, in_turn
from hypothesis import given
from hypothesis import strategies as st

from tspsim.base.errors import InputError
from tspsim.parallel.state import capacity
from tspsim.scenario import load
from tspsim.serving.costs import ProgramCosts, costs_of
from tspsim.serving.grid import Cells, KnotLine
from tspsim.serving.programs import StepPrograms
from tspsim.serving.sampled import BAR
from tspsim.serving.tables import EPSILON, KnotCurve
from tspsim.serving.work import StepCost, StepWork
from tspsim.step.simulation import run_plan, scheduled
from tspsim.steps import PromptChunk, Speculation
from tspsim.studies.query import Library

LIBRARY = Library()
#: What chains hide nothing and divide no tokens; others are left to the engine.
CHAINS: tuple[dict[str, Any], ...] = (
    {"tp": 8}, {"tp": 4}, {"tp": 4, "pp": 2}, {"tp": 2, "pp": 4}, {"tp": 8, "kvp": 4}, {"tp": 8, "dcp": 4},
    {"tp": 4, "sp": 2}, {"tsp": 8},
)  # fmt: skip
WITH_EXPERTS: tuple[dict[str, Any], ...] = (
    {"dp": 8, "ep": 8}, {"tp": 8, "ep": 8}, {"dp": 8, "ep": 8, "expert_dispatch": "low_latency"},
    {"dp": 8, "ep": 8, "expert_dispatch": "gather"}, {"tp": 2, "dp": 4, "ep": 8},
)  # fmt: skip
HIDING: tuple[dict[str, Any], ...] = (
    {"dp": 8, "ep": 8, "expert_overlap": "shared_experts"}, {"dp": 8, "ep": 8, "expert_overlap": "two_batches"},
)  # fmt: skip
STEPS: tuple[dict[str, Any], ...] = (
    {"pass": "prefill", "sequence": 4096, "sequences_per_replica": 2},
    {"pass": "prefill", "sequence": 800, "cached": 512},
    {"pass": "mixed", "sequence": 3000, "batch": 40, "context": "4Ki"},
    {"pass": "mixed", "sequence": 100, "batch": 40, "context": ["1Ki", "6Ki"]},
    {"pass": "decode", "batch": 33, "context": "4Ki"},
    {"pass": "decode", "batch": 33, "context": ["1Ki", "6Ki"]},
    {"pass": "verify", "batch": 33, "context": "4Ki", "speculation": {"tokens": 3, "draft": "eagle"}},
)
#: And one of several passes.
CHUNKED = {"pass": "prefill", "sequence": 6000, "chunk": 2048}


def question(model: str, plan: Mapping[str, Any], *, stack: str = "vllm", device: str = "", **step: Any) -> Any:
    device = device or ("b300" if stack == "trtllm" else "mi355x")
    work = {"model": model, "stack": stack, **(step or STEPS[4])}
    asked = {"name": "s", "cluster": {"device": device, "nodes": 1}, "workload": work, "plans": [{"name": "P", **plan}]}
    return LIBRARY.look_up(load(asked))


def costs(model: str, plan: Mapping[str, Any] | None = None, **keys: Any) -> ProgramCosts:
    names = {name: keys.pop(name) for name in ("speculation", "num_gpu_blocks") if name in keys}
    asked = question(model, plan or {"tp": 8}, **keys)
    return costs_of(asked, asked.plans[0], **names)


def answered() -> Iterator[tuple[str, Mapping[str, Any], str, Mapping[str, Any]]]:
    """Models, plans, stacks and steps that run: every plan meets half of the steps, and the next plan the others; both
    models meet every step and every plan that they can run, and stacks come in turn."""
    stacks = itertools.cycle(("ideal", "vllm", "sglang"))
    for number, plan in enumerate((*CHAINS, *WITH_EXPERTS, *HIDING)):
        for place, step in enumerate((*STEPS, CHUNKED)):
            if (number + place // 2) % 2:
                continue
            dense = plan in CHAINS and (number + place) % 2
            yield "llama-3.1-8b" if dense else "kimi-k2.6", plan, next(stacks), step


def random_works(cost: ProgramCosts, seed: int, count: int, lowest: int, longest: int) -> list[StepWork]:
    """Steps of all kinds."""
    draw, works = random.Random(seed), []
    queries = cost.programs.query_len
    for _ in range(count):
        batch = draw.choice([0, 1, 3, 9, 17, 33, 60, 64, 100, 200])
        contexts = [draw.randint(lowest, longest) for _ in range(batch)]
        pieces = []
        for _ in range(draw.choice([0, 1, 1, 2]) if batch else draw.choice([1, 2])):
            cached = draw.choice([0, 0, draw.randint(1, longest)])
            pieces.append(PromptChunk(draw.randint(40, 6000), cached, draw.random() < 0.8))
        works.append(StepWork(pieces, contexts, queries))
    return works


def deviations(cost: ProgramCosts, works: Sequence[StepWork]) -> np.ndarray[Any, Any]:
    exact = [sum(cost.programs.price(job).seconds for job in cost.programs.of(work)) for work in works]
    return np.abs(np.array([cost.seconds([work]) for work in works]) / np.array(exact) - 1.0)


def test_a_chain_takes_what_the_engine_finds_for_every_kind_of_plan() -> None:
    """Without the engine, to 1e-9; where streams overlap the engine is asked."""
    added_up = 0
    for model, plan, stack, step in answered():
        try:
            asked = question(model, plan, stack=stack, **step)
        except InputError:
            continue  # not every plan runs every step
        alone = run_plan(asked, asked.plans[0])
        if not alone.ran:
            continue
        programs = StepPrograms(asked, asked.plans[0], asked.work.load.speculation)
        job = scheduled(asked, asked.plans[0])
        found = programs.price(job) if programs.chain(job) else None
        assert found is not None or plan in HIDING or step["pass"] in ("prefill", "mixed"), (model, plan, stack, step)
        assert programs.price(job).seconds == pytest.approx(alone.step_time_s, rel=1e-9)
        if found is not None:
            added_up += 1
            assert sum(found.parts_s.values()) == pytest.approx(found.seconds, rel=1e-9)
    assert added_up > 25


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("stack", ["ideal", "vllm", "trtllm"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step['pass']} {len(step)}")
def test_a_step_by_its_work_is_what_a_question_about_it_answers(stack: str, step: dict[str, Any]) -> None:
    """Programs of a composition are those of the named step: prefill, decode, mixed and verify."""
    asked = question("kimi-k2.6", {"tp": 8}, stack=stack, **step)
    load_ = asked.work.load
    pieces = [PromptChunk(row.query_tokens, row.context_tokens) for row in load_.kept for _ in range(row.sequences)]
    contexts = [row.context_tokens for row in load_.decoding() for _ in range(row.sequences)]
    programs = StepPrograms(asked, asked.plans[0], load_.speculation)
    alone = run_plan(asked, asked.plans[0])
    passes = programs.of(StepWork(pieces, contexts, load_.queries))
    assert programs.seconds(passes) == pytest.approx(alone.step_time_s, rel=1e-9)


@draws(6, 16)
@pytest.mark.parametrize("stack", ["ideal", "vllm", "sglang"])
@pytest.mark.parametrize("model", in_turn(["kimi-k2.6", "llama-3.1-8b", "deepseek-v3.2", "gpt-oss-120b"]))
def test_tabulated_steps_are_exact_at_knots_and_within_the_error_between(model: str, stack: str, count: int) -> None:
    cost = costs(model, stack=stack)
    assert isinstance(cost, StepCost)
    knots = [StepWork((), (context,) * batch) for batch in (1, 16, 64) for context in (1023, 4095)]
    assert deviations(cost, knots).max() < 1e-9
    off = deviations(cost, random_works(cost, 3, count, 500, 9000))
    assert off.max() < 1.5 * EPSILON
    assert off.mean() < EPSILON / 4


@pytest.mark.in_turn(5)
@draws(10, 30)
@pytest.mark.parametrize("plan", [{"tp": 4, "pp": 2}, {"dp": 8, "ep": 8}, {"tp": 4, "ep": 4}])
def test_other_plans_stay_within_the_error_too(plan: dict[str, Any], count: int) -> None:
    cost = costs("kimi-k2.6", plan)
    assert deviations(cost, random_works(cost, 5, count, 1000, 4000)).max() < 1.5 * EPSILON


@pytest.mark.in_turn(5)
@draws(5, 12)
@pytest.mark.parametrize("plan", [{"dp": 8, "ep": 8, "expert_overlap": "shared_experts"}, {"tp": 8, "dcp": 2}])
def test_where_streams_overlap_steps_stay_within_the_bar(plan: dict[str, Any], count: int) -> None:
    cost = costs("kimi-k2.6" if "ep" in plan else "llama-3.1-8b", plan)
    assert deviations(cost, random_works(cost, 7, count, 1000, 2000)).max() < BAR


@draws(9, 25)
def test_drafts_are_made_beside_prompts(count: int) -> None:
    """A verify step with chunks: more than without drafts, and within the error of its program."""
    drafting = costs("kimi-k2.6", speculation=Speculation(3, 2.6, "eagle"))
    guessing = costs("kimi-k2.6", speculation=Speculation(3, 2.6, "ngram"))
    works = random_works(drafting, 11, count, 1000, 9000)
    assert deviations(drafting, works).max() < 1.5 * EPSILON
    assert all(drafting.seconds([work]) > guessing.seconds([work]) for work in works)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("model", ["kimi-k2.6", "gpt-oss-120b", "glm-5.1"])
def test_a_run_of_decode_steps_is_the_sum_of_its_steps_to_the_bit(model: str) -> None:
    cost = costs(model)
    for batch, shortest in ((1, 100), (37, 100), (64, 3000), (700, 1500)):
        work = StepWork((), [shortest + 7 * number for number in range(batch)])
        alone = [cost.seconds([work.later(step)]) for step in range(130)]
        assert cost.decode_each_s([work], 130).tolist() == alone
        assert cost.decode_ends_s([work], 130).tolist() == np.cumsum(alone).tolist()


def test_a_run_looks_at_its_longest_sequence_alone_as_long_as_its_steps_do() -> None:
    """The longest of some has most tokens at first; as all grow alike, it has not any more within the run."""
    asked = {
        "name": "s", "cluster": {"device": "b200", "nodes": 1, "gpus_per_node": 1},
        "workload": {
            "model": "llama-3.1-8b", "pass": "decode", "batch": 2, "context": 64, "precision": {"weights": "mxfp4"},
        },
        "plans": [{"name": "P", "tp": 1}],
    }  # fmt: skip
    looked = Library().look_up(load(asked))
    cost = costs_of(looked, looked.plans[0])
    for contexts in ((994, 210), (667, 49, 410, 639, 7793), (3000, 700), (40, 4, 4)):
        work = StepWork((), contexts)
        alone = [cost.seconds([work.later(step)]) for step in range(200)]
        np.testing.assert_allclose(cost.decode_each_s([work], 200), alone, rtol=1e-12)


@given(st.integers(1, 300), st.integers(20, 20_000), st.integers(0, 4000), st.integers(1, 400))
def test_more_work_never_takes_less_time(batch: int, context: int, tokens: int, more: int) -> None:
    cost = costs("kimi-k2.6", stack="ideal")
    pieces = (PromptChunk(tokens + 32, 0),) if tokens else ()
    least_s = cost.seconds([StepWork(pieces, (context,) * batch)]) * (1.0 - 2 * EPSILON)
    assert cost.seconds([StepWork(pieces, (context + more,) * batch)]) > least_s
    assert cost.seconds([StepWork(pieces, (context,) * (batch + more))]) > least_s
    assert cost.seconds([StepWork((PromptChunk(tokens + 32 + more, 0),), (context,) * batch)]) > least_s


def test_an_indexer_waits_for_the_longest_context() -> None:
    """Of as many tokens, unequal contexts take longer where scores are chosen from, and between equal and all as the
    longest."""
    cost = costs("deepseek-v3.2")
    equal, unequal = StepWork((), (30_000,) * 8), StepWork((), (37_000, *(29_000,) * 7))
    longest = StepWork((), (37_000,) * 8)
    assert cost.seconds([equal]) < cost.seconds([unequal]) < cost.seconds([longest])
    assert deviations(cost, [unequal]).max() < EPSILON


@pytest.mark.parametrize("model", ["llama-3.1-8b", "kimi-k2.6"])
def test_a_step_takes_no_less_than_for_its_longest_sequence_alone(model: str) -> None:
    cost = costs(model)
    for others in (1, 3, 12):
        alone = cost.decode_ends_s([StepWork(contexts=(100_000,))], 8)
        found = cost.decode_ends_s([StepWork(contexts=(100_000, *(16,) * others))], 8)
        assert np.all(found >= alone)


def test_replicas_that_share_experts_wait_for_the_busiest_and_see_all_tokens() -> None:
    cost = costs("kimi-k2.6", {"dp": 8, "ep": 8}, device="b200")
    few, many = StepWork((), (2000,) * 8), StepWork((), (2000,) * 32)
    reads = StepWork((PromptChunk(6000, 0),), (2000,) * 8)
    assert cost.seconds([few] * 8) < cost.seconds([many, *[few] * 7]) < cost.seconds([many] * 8)
    assert cost.seconds([few] * 8) < cost.seconds([reads, *[few] * 7]) < cost.seconds([reads] * 8)
    assert cost.seconds([reads, *[StepWork()] * 7]) <= cost.seconds([reads, *[few] * 7])
    works = [many, few]
    alone = [cost.seconds([work.later(step) for work in works]) for step in range(10)]
    assert cost.decode_each_s(works, 10).tolist() == alone
    assert cost.decode_ends_s(works, 10)[-1] < cost.decode_ends_s([many], 10)[-1]


def test_prompts_whose_tokens_are_divided_are_read_one_after_the_other() -> None:
    cost = costs("llama-3.1-8b", {"tsp": 8}, stack="ideal")
    assert cost.programs.divides_prompts
    one, other = PromptChunk(8192, 0), PromptChunk(1500, 512)
    together = cost.seconds([StepWork((one, other))])
    assert together == pytest.approx(cost.seconds([StepWork((one,))]) + cost.seconds([StepWork((other,))]))
    asked = question("llama-3.1-8b", {"tsp": 8}, stack="ideal", **{"pass": "prefill", "sequence": 8192})
    assert cost.seconds([StepWork((one,))]) == pytest.approx(
        run_plan(asked, asked.plans[0]).step_time_s, rel=2 * EPSILON
    )


def test_capacity_is_the_engines_unless_blocks_are_stated() -> None:
    cost = costs("kimi-k2.6")
    asked = question("kimi-k2.6", {"tp": 8})
    room = capacity.capacity_of(scheduled(asked, asked.plans[0]), asked.device.visible_memory_bytes)
    assert cost.capacity.budget == room.budget
    assert cost.capacity_tokens is not None and cost.capacity_tokens % cost.block_tokens == 0
    assert costs("kimi-k2.6", num_gpu_blocks=1000).capacity_tokens == 1000 * cost.block_tokens
    assert cost.front_end_s == asked.work.stack.engine.front_end.value


def test_costs_of_equal_content_are_the_same_object() -> None:
    """Whatever batch a question states; and other graphs share what no graph holds."""
    step = {"pass": "decode", "context": 4096}
    asked = [question("llama-3.1-8b", {"tp": 2}, **step, batch=batch) for batch in (3, 5)]
    first, second = (costs_of(each, each.plans[0]) for each in asked)
    assert first is second
    before = first.programs.written
    first.seconds([StepWork((), (3000,) * 5)])
    written = first.programs.written
    assert written > before
    first.seconds([StepWork((), (3001,) * 5)])
    assert first.programs.written == written


@draws(10, 25)
@pytest.mark.parametrize(
    ("model", "plan"),
    in_turn(
        [("kimi-k2.6", {"tp": 8}), ("glm-5.1", {"tp": 8}), ("deepseek-v3.2", {"tp": 8}), ("llama-3.1-70b", {"tp": 8})]
    ),
)
def test_sampled_steps_are_those_of_every_kernel(model: str, plan: dict[str, Any], count: int) -> None:
    asked = question(model, plan)
    cost = ProgramCosts(asked, asked.plans[0])
    assert "no step" in str(cost.check())
    for work in random_works(cost, 13, 8 * count // 5, 1000, 9000):
        cost.seconds([work])
    cost.decode_ends_s([StepWork((), (4000,) * 50)], 300)
    found = cost.check(count)
    assert found.steps == count and found.most < BAR and found.mean < BAR / 5
    assert f"{count} sampled steps" in str(found)


def test_parts_and_ranges_of_a_step() -> None:
    cost = costs("kimi-k2.6")
    work = StepWork((PromptChunk(3000, 0),), (4000,) * 40)
    parts = cost.breakdown(work)
    assert {"attention", "experts", "products", "all_reduce", "host"} <= parts.keys()
    assert sum(parts.values()) == pytest.approx(cost.exact(work).seconds)
    low, high = cost.range_of(work)
    assert 0.5 < low < 1.0 < high < 2.0


def test_curves_cells_and_lines_do_not_depend_on_what_was_asked_before() -> None:
    def rough(x: int) -> float:
        return 100.0 + x + 30.0 * (x > 700) + (x - 300) ** 2 / 5000

    every = np.arange(1.0, 3000.0)
    once, bit_by_bit = KnotCurve(rough, (700, 701)), KnotCurve(rough, (700, 701))
    for x in (2900, 5, 800, 650, 1500):
        bit_by_bit(np.array([x]))
    np.testing.assert_array_equal(once(every), bit_by_bit(every))
    exact = np.array([rough(int(x)) for x in every])
    assert np.abs(once(every) / exact - 1.0).max() < EPSILON

    def stairs(n: int) -> np.ndarray[Any, Any]:
        return np.array([1000.0 + 40.0 * -(-n // 64), n])

    cells, line = Cells(stairs, 0.0), KnotLine(stairs, 0.0)
    for n in (1, 63, 64, 65, 1000, 4097):
        np.testing.assert_allclose(cells(n), stairs(n), rtol=EPSILON)
        np.testing.assert_allclose(line(float(n)), stairs(n), rtol=0.05)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("model", ["kimi-k2.6", "deepseek-v3.2", "gpt-oss-120b"])
def test_one_step_costs_to_the_bit_what_the_first_of_a_run_does(model: str) -> None:
    cost, draw = costs(model), random.Random(5)
    for _ in range(200):
        batch = draw.choice([1, 2, 7, 16, 40, 64, 100, 200])
        others = [draw.choice([draw.randint(1, 900), draw.randint(1, 60_000)])] * (batch - 1)
        work = StepWork((), [*others, draw.randint(1, 60_000)])
        assert cost.seconds([work]) == cost.decode_ends_s([work], 1)[0] == cost.decode_ends_s([work], 3)[0]


def test_a_curve_at_one_number_is_to_the_bit_what_it_is_in_an_array() -> None:
    curve, draw = KnotCurve(lambda x: 0.1 + x**1.3 / 7.0 + (x > 700) * 3.0, breakpoints=(700, 701)), random.Random(2)
    numbers = [1.0, 2.0, 699.5, 700.0, 701.0, 1024.0, *(draw.uniform(1.0, 5000.0) for _ in range(500))]
    assert [curve.at(number) for number in numbers] == curve(np.array(numbers)).tolist()
