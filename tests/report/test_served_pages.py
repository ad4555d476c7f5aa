"""Serving steps in tables and pages: words of inference, pictures that say what the JSON says."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import tspsim
from tspsim.report import render, searched, serving_plan, table
from tspsim.report.ceilings import ceilings
from tspsim.report.comparison import csv
from tspsim.report.comparison import table as compared
from tspsim.report.sections import answer, assumptions, batches, breakeven, caches, memory, plans, rates, roofline
from tspsim.report.view import View
from tspsim.step.bound import bounds
from tspsim.step.cells import flat
from tspsim.step.result import Result
from tspsim.studies.planner import ServingPlanner
from tspsim.studies.serving_curves import MOST_BATCHES, rates_over_batch, sessions_over_context
from tspsim.studies.uncertainty import offer_of, rerun

DECODE = {"pass": "decode", "batch": 16, "context": "8Ki", "precision": {"weights": "fp8", "kv": "fp8"}}
WORK: dict[str, dict[str, Any]] = {
    "decode": DECODE,
    "prefill": {"pass": "prefill", "sequence": "16Ki", "chunk": "8Ki"},
    "mixed": {"pass": "mixed", "sequence": "1Ki", "batch": 16, "context": "8Ki"},
    "verify": {**DECODE, "pass": "verify", "speculation": {"tokens": 3, "draft": "ngram"}},
}
PLANS = [{"name": "TP8", "tp": 8}, {"name": "TP4", "tp": 4}]


def asked(step: str, **more: Any) -> dict[str, Any]:
    work = {"model": "llama-3.1-8b", **WORK[step], **more}
    return {"name": step, "cluster": {"device": "h100", "nodes": 1}, "workload": work, "plans": PLANS}


@cache
def served(step: str) -> Result:
    return tspsim.simulate(asked(step))


def printed(*shown: Any, width: int = 160) -> str:
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    for each in shown:
        console.print(each)
    return out.getvalue()


# --- words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("decode", "16 sequences at 8,192 tokens, each replica"),
        ("prefill", "1 × 16,384 prompt tokens in chunks of 8,192"),
        ("mixed", "1 × 1,024 prompt tokens and 16 sequences at 8,192 tokens"),
        ("verify", "16 sequences at 8,192 tokens, 3 drafts each"),
    ],
)
def test_the_first_line_says_how_much_the_step_is(step: str, said: str) -> None:
    assert said in answer.kicker(View(served(step)))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("step", WORK)
def test_a_page_of_a_serving_step_says_nothing_of_training(step: str) -> None:
    text = render(served(step), "x.js")
    for word in ("Block forward", "Block-forward", "optimizer", "recomputation", "every sequence shard", "rates-block"):
        assert word not in text
    assert ("zigzag" in text) == (step == "prefill")


def test_the_headline_is_the_wait_of_who_is_served() -> None:
    decode, prefill = (answer.build(View(served(step))) for step in ("decode", "prefill"))
    assert "puts out most: " in decode["headline"] and "a token every " in decode["headline"]
    assert "reads most: " in prefill["headline"] and "first token after " in prefill["headline"]
    assert any(text.startswith("For one prompt TP8 is quickest") for text in prefill["sentences"])
    assert prefill["spread"].endswith(" ms")
    mixed = answer.build(View(served("mixed")))
    assert " read and put out, first tokens after " in mixed["headline"] and ", then one every " in mixed["headline"]
    assert any(text.startswith("For a user TP8 is quickest") for text in decode["sentences"])
    for sentences in (decode["sentences"], prefill["sentences"]):
        assert any(text.startswith("Caches take ") and " sessions of " in text for text in sentences)


def test_tables_have_the_columns_that_a_step_has_an_answer_for() -> None:
    heads = {step: plans.build(View(served(step)))["columns"] for step in WORK}
    assert "Output token" in heads["decode"] and "First token" not in heads["decode"] and "Step" not in heads["decode"]
    assert "First token" in heads["prefill"] and "Output token" not in heads["prefill"]
    assert {"First token", "Output token", "Step"} <= set(heads["mixed"])
    assert {"Output token", "Step"} <= set(heads["verify"])
    for head in heads.values():
        assert "Sessions" in head and "Block-forward tokens/s" not in head


@pytest.mark.parametrize("width", [80, 120, 155])
@pytest.mark.parametrize("step", WORK)
def test_the_terminal_s_table_fits(step: str, width: int) -> None:
    text = printed(table(served(step), width), width=width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text


def test_assumptions_are_those_of_the_step() -> None:
    told = {step: " ".join(served(step).defaults) for step in WORK}
    assert "in fp8 (stated): attention, dense layers; in bf16 (as in its checkpoint): tables" in told["decode"]
    assert "Caches are kept in fp8 (stated" in told["decode"] and "as its checkpoint says" in told["prefill"]
    assert "advances 2.53 tokens, mean (assumed: `rate` 0.7" in told["verify"]
    stated = {**WORK["verify"]["speculation"], "accepted": 2.0}
    result = tspsim.simulate(asked("verify", speculation=stated))
    assert "2 tokens, mean (stated: `accepted`)" in " ".join(result.defaults)
    assert "last token of a prompt" in told["prefill"] and "last token of a prompt" not in told["decode"]


def test_an_engine_says_what_it_captures_and_what_was_padded() -> None:
    result = tspsim.simulate(asked("decode", stack="vllm", batch=9))
    assert any("`vllm` takes 250 µs of host a step" in text and "one graph" in text for text in result.defaults)
    assert "9 tokens run as 16, the next captured size" in result.plan("TP8").notes


def test_notes_say_what_ranks_keep_of_a_context() -> None:
    ways = [{"name": "TP8", "tp": 8}, {"name": "DCP8", "tp": 8, "dcp": 8}]
    work = {"model": "deepseek-v3", "pass": "decode", "batch": 8, "context": "8Ki"}
    result = tspsim.simulate({**asked("decode"), "cluster": "mi355x-8", "workload": work, "plans": ways})
    replicated, shared = (" ".join(plan.notes) for plan in result.plans)
    assert "latents have no heads to divide: 8 ranks keep a copy" in replicated
    assert "every rank keeps 1/8 of the tokens of a context (`dcp`)" in shared and "latents" not in shared


def test_facts_of_the_workload_are_those_that_matter_to_the_step() -> None:
    built = assumptions.build(View(served("decode")))
    (facts,) = [each["facts"] for each in built["tables"] if each["title"] == "Workload"]
    told = {fact["what"] for fact in facts}
    assert {"batch", "context", "precision"} <= told and not told & {"sequence", "optimizer", "causal"}


def test_borrowed_kernel_models_are_named() -> None:
    borrowed = {"what": "mi308x: gemm bf16", "basis": "inherited from mi300x; wider range"}
    rows = [borrowed, {"what": "x", "basis": "stated"}]
    assert assumptions.borrowed(rows) == ["mi308x: gemm bf16: inherited from mi300x"]


# --- pictures -----------------------------------------------------------------------------------------------


def test_marks_under_the_roofline_are_the_kernels_of_the_timeline() -> None:
    result = served("decode")
    plan = result.plan("TP8")
    marks = roofline.marks(plan, result.cluster["device"]["peak_flops_per_s"])
    hbm = result.cluster["device"]["hbm_bytes_per_s"]
    spent = sum(mark.share for mark in marks) * plan.step_time_s
    multiplied = result.timeline("TP8").query("stream == 'compute' and flops > 0")
    assert spent == pytest.approx((multiplied.end_s - multiplied.start_s).sum(), rel=1e-9)
    attention = next(mark for mark in marks if mark.kind == "attention")
    assert attention.flops_per_s <= attention.roof(hbm) and attention.intensity < 50
    assert roofline.build(View(replace(result, plans=tuple(replace(p, timeline=None) for p in result.plans)))) is None


def test_bars_of_caches_add_up_to_what_a_gpu_shows() -> None:
    view = View(served("decode"))
    built = caches.build(view)
    assert built is not None
    parts = [trace["x"] for trace in built["figures"]["cache"]["data"][:4]]
    for index, plan in enumerate(view.ran):
        assert sum(part[index] for part in parts) * 2**30 == pytest.approx(plan.memory.capacity_bytes)
        assert (parts[1][index] + parts[2][index]) * 2**30 == pytest.approx(plan.inference["capacity"]["cache_bytes"])


def test_lines_of_sessions_go_through_those_of_the_answer() -> None:
    result = served("decode")
    assert result.source_scenario is not None
    for name, line in sessions_over_context(result.source_scenario, ["TP8", "TP4"]).items():
        room, replicas = result.plan(name).inference["capacity"], result.plan(name).degrees["dp"]
        assert dict(line)[room["context"]] == pytest.approx(replicas * room["sessions"])
        counts = [count for _, count in line]
        assert counts == sorted(counts, reverse=True) and counts[-1] >= replicas


def test_rates_over_the_batch_go_through_the_answer_and_rise_a_gpu() -> None:
    result = served("decode")
    assert result.source_scenario is not None
    found = rates_over_batch(result.source_scenario, result.plans)
    assert found.complete
    for name, line in found.plans.items():
        assert len(line) <= MOST_BATCHES
        (here,) = [rate for rate in line if rate.batch == 16]
        assert here.per_user == result.plan(name).inference["tokens_per_s_per_user"]
        assert [rate.per_gpu for rate in line] == sorted(rate.per_gpu for rate in line)
        assert [rate.per_user for rate in line] == sorted((rate.per_user for rate in line), reverse=True)


def test_no_further_batch_is_begun_when_time_is_up() -> None:
    result = served("decode")
    assert result.source_scenario is not None
    found = rates_over_batch(result.source_scenario, result.plans, limit_s=0.0)
    assert not found.complete and all(len(line) == 1 for line in found.plans.values())


def test_only_steps_that_decode_alone_have_rates_over_the_batch() -> None:
    assert batches.build(View(served("verify"))) is not None
    assert batches.build(View(served("prefill"))) is None and batches.build(View(served("mixed"))) is None
    assert batches.build(View(replace(served("decode"), source_scenario=None))) is None


def test_a_block_alone_and_a_break_even_are_no_pictures_of_decoding() -> None:
    view = View(tspsim.simulate({**asked("decode"), "plans": [{"name": "TSP8", "tsp": 8}, {"name": "TP8", "tp": 8}]}))
    built = rates.build(view)
    assert built is not None and set(built["figures"]) == {"rates-model"}
    assert breakeven.build(view) is None


def test_a_batch_that_its_engine_has_no_room_for_is_no_plan_that_fits() -> None:
    work = {**asked("decode", stack="vllm", batch=560), "plans": [{"name": "TP4", "tp": 4}]}
    result = tspsim.simulate(work)
    (plan,) = result.plans
    assert not plan.ran and plan.memory.fits
    (verdict,) = memory.build(View(result))["verdicts"]
    assert not verdict["fits"] and "what fits: " in verdict["text"]


def test_doubts_are_weighed_of_serving_steps_too() -> None:
    offer = offer_of(tspsim.load(asked("decode")), "TP8")
    assert offer.step_s == served("decode").plan("TP8").step_time_s
    # What is common to the step (its generation's tables, its software) is all of it; kernels and transfers add up.
    common = [part_s for part_s in offer.parts_s.values() if part_s == offer.step_s]
    assert len(common) == 2
    assert sum(offer.parts_s.values()) - sum(common) == pytest.approx(offer.step_s, rel=1e-6)
    assert rerun(tspsim.load(asked("decode")), "TP8", {"gemm": 2.0}) > 1.2 * offer.step_s


# --- tables of several --------------------------------------------------------------------------------------


def test_flat_cells_of_an_answer_have_what_users_see() -> None:
    cells = flat(served("mixed").plan("TP8").to_json())
    seen = served("mixed").plan("TP8").inference
    for key in ("time_to_first_token_s", "time_per_output_token_s", "tokens_per_s_per_user"):
        assert cells[key] == seen[key]
    assert cells["sessions"] == seen["capacity"]["sessions"]
    assert "time_to_first_token_s" not in flat(served("decode").plan("TP8").to_json())


def test_comparisons_tell_the_waits() -> None:
    results = [served("decode"), served("mixed")]
    text = printed(compared(results))
    assert "output token" in text and "first token" in text and "MFU" not in text
    head, first, *_ = csv(results).splitlines()
    row = dict(zip(head.split(","), first.split(","), strict=True))
    assert float(row["time_per_output_token_s"]) == served("decode").plans[0].inference["time_per_output_token_s"]
    assert row["time_to_first_token_s"] == ""


def test_ceilings_of_a_serving_step_bound_the_step() -> None:
    answer = bounds(tspsim.load(asked("decode")))
    text = " ".join(printed(*ceilings(answer, 1e9)).split())
    assert "step at least" in text and "one block" not in text and "ends a step of it before" in text
    assert "whole model: impossible" in text


def test_a_result_in_a_notebook_says_the_waits() -> None:
    assert "a token every " in repr(served("decode")) and "first token after " in repr(served("prefill"))


# --- the planner --------------------------------------------------------------------------------------------


def test_the_planner_s_answer_has_the_columns_that_the_step_has() -> None:
    question = {**asked("decode"), "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 2}}
    question["plans"] = [{"name": "TP2", "tp": 2}]
    planned = ServingPlanner(tspsim.load(question), limits=("tpot<=20ms", "memory_free>=4GiB")).run()
    text = " ".join(printed(*searched.summary(serving_plan.view_of(planned)), width=200).split())
    assert "output token" in text and "sessions" in text and "first token" not in text
    assert "time an output token at most 20.0 ms, memory free per GPU at least 4.0 GiB" in text
    assert "decode step of llama-3.1-8b, at 8,192 tokens" in text
    page = searched.page(serving_plan.view_of(planned), "x.js")
    assert f"{planned.best[0].name}: " in page and "a token every " in page
