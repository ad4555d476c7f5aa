"""The commands as functions, and answers that show themselves in a notebook."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tspsim
from tspsim.api import Comparison
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.step.result import Result

QUESTION: Mapping[str, Any] = {
    "name": "shown",
    "cluster": "mi300x-8",
    "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "16Ki"},
    "plans": [{"name": "TSP8", "tsp": 8}, {"name": "<TP8>", "tp": 8}],
}
#: Nothing of it fits: 70 thousand million weights and their optimizer on one GPU each.
TOO_LARGE = {"model": "llama-3.1-70b", "pass": "training", "sequence": "4Ki"}


@pytest.fixture(scope="module")
def result() -> Result:
    return tspsim.simulate(QUESTION)


@pytest.fixture(scope="module")
def compared(result: Result) -> Comparison:
    return tspsim.compare(QUESTION, {**QUESTION, "name": "again", "cluster": "hgx-h100-8"})


def test_what_was_compared_before_an_interrupt_is_a_frame_even_of_nothing() -> None:
    assert Comparison((), (), ()).to_frame().empty


def test_a_mapping_is_swept_and_its_page_is_that_of_a_sweep(tmp_path: Path) -> None:
    table = tspsim.sweep(QUESTION, {"workload.sequence": ["8Ki", "16Ki"], "plans": ["TSP8"]})
    assert list(table.to_frame()["workload.sequence"]) == [8192, 16384]
    assert "Swept values" in table.to_html(tmp_path / "sweep.html").read_text()


def test_dir_shows_what_the_commands_do() -> None:
    assert {"load", "simulate", "plan", "compare", "sweep"} <= set(dir(tspsim))
    assert all(getattr(tspsim, name) is not None for name in dir(tspsim))


def test_a_result_prints_as_a_few_lines(result: Result) -> None:
    lines = repr(result).splitlines()
    assert lines[0] == "<Result shown: 8 × MI300X" and len(lines) == 3
    assert sum("<- fastest" in line for line in lines) == 1
    many = Result(result.scenario, result.cluster, result.plans * 50)
    assert len(repr(many).splitlines()) < 12 and "92 more plans" in repr(many)
    assert len(repr(result.plans[0])) < 120


def test_a_notebook_shows_the_table_of_plans(result: Result) -> None:
    shown = result._repr_html_()
    assert shown.count("<tr>") == 3 and "&lt;TP8&gt;" in shown and "<TP8>" not in shown
    assert "tokens/s" in shown and "1.00×" in shown


def test_best_is_the_fastest_plan_that_ran(result: Result) -> None:
    assert result.best is max(result.plans, key=lambda plan: plan.tokens_per_s)
    refused = tspsim.simulate({**QUESTION, "workload": TOO_LARGE, "plans": [{"name": "DP8"}]})
    assert refused.best is None and "refused" in repr(refused) and "DP8 is refused" in refused._repr_html_()
    assert refused.to_frame().loc["DP8", "error"] == refused.plans[0].error


def test_a_result_is_a_frame_with_a_row_a_plan(result: Result) -> None:
    frame = result.to_frame()
    assert list(frame.index) == ["TSP8", "<TP8>"]
    for plan in result.plans:
        row = frame.loc[plan.name]
        assert row["tokens_per_s"] == plan.tokens_per_s and row["memory_peak_bytes"] == plan.memory.peak_bytes
        assert row["tokens_per_s_low"] < row["tokens_per_s"] < row["tokens_per_s_high"]


def test_a_result_writes_its_report(result: Result, tmp_path: Path) -> None:
    written = result.to_html(tmp_path / "shown.html")
    assert written.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(InputError):
        result.to_html(tmp_path / "shown.html" / "no-folder.html")


def test_compared_results_stand_side_by_side(compared: Comparison, tmp_path: Path) -> None:
    assert len(repr(compared).splitlines()) == 3 and compared.best in compared.plans
    assert compared._repr_html_().count("<tr>") == 5
    frame = compared.to_frame()
    assert list(frame["scenario"]) == ["shown", "shown", "again", "again"]
    assert set(frame["device"]) == {"mi300x", "h100"}
    assert compared.decision is None and len(compared.to_json()["results"]) == 2
    assert len(compared.to_csv().splitlines()) == 5
    assert compared.to_html(tmp_path / "side.html").stat().st_size > 10_000


def test_planned_plans_show_themselves_in_a_line_each() -> None:
    small = {"model": "tsp-8b", "pass": "forward", "sequence": "16Ki"}
    planned = tspsim.plan({"name": "shown", "cluster": "mi300x-8", "workload": small}, limits=["schemes=tp"])
    assert len(repr(planned).splitlines()) == 1 + len(planned.best) and "tokens/s, step" in repr(planned)
    assert planned._repr_html_().count("<tr>") == 1 + len(planned.best)


def test_requests_side_by_side_have_their_waits_and_no_step() -> None:
    served = {
        "name": "served", "cluster": "mi300x-8", "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 1}, "prompt": {"kind": "fixed", "of": 64},
                    "output": {"kind": "fixed", "of": 8}, "requests": 2},
        "plans": [{"name": "TP8", "tp": 8}],
    }  # fmt: skip
    compared = tspsim.compare(served)
    assert "<th>first token</th><th>a token every</th>" in compared._repr_html_()
    (row,) = csv.DictReader(io.StringIO(compared.to_csv()))
    assert row["step_time_s"] == row["mfu"] == "" and float(row["ttft_s_mean"]) > 0


def test_a_sweep_takes_lists_and_ranges(tmp_path: Path) -> None:
    (tmp_path / "shown.yaml").write_text(
        "name: shown\ncluster: mi300x-8\nworkload: {model: tsp-8b, pass: forward, sequence: 16Ki}\n"
        "plans: [{name: TSP8, tsp: 8}]\n"
    )
    table = tspsim.sweep(tmp_path / "shown.yaml", {"workload.sequence": "16Ki..32Ki*2", "plans.TSP8.overlap": [True]})
    frame = table.to_frame()
    assert list(frame["workload.sequence"]) == [16384, 32768] and (frame["tokens_per_s"] > 0).all()
    assert table._repr_html_().count("<tr>") == 3 and "2 rows" in repr(table)


def test_the_planner_answers_as_a_function() -> None:
    small = {"cluster": {"device": "mi300x", "gpus_per_node": 2}, "plans": []}
    planned = tspsim.plan({**QUESTION, **small}, top=1, budget="none")
    assert planned.best and not planned.stated
    shown = repr(planned).splitlines()
    assert len(shown) == 2 and planned.best[0].result.name in shown[1]
    with pytest.raises(UnknownNameError, match="tokens_per_s"):
        tspsim.plan(QUESTION, objective="tokens_per_second")
    with pytest.raises(InputError, match="overrides"):
        tspsim.plan(tspsim.load(QUESTION), ["workload.sequence=8Ki"])


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(InputError, match="at least one"):
        tspsim.compare()
