"""What somebody in a notebook has of every answer: a frame with rates first, a page, a picture, a short line, a bar."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
from plotly.graph_objects import Figure

import tspsim
from tspsim.base import display, errors
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.hardware import load_device
from tspsim.validation.run import reference_folder

CLUSTER = {"device": "h100", "nodes": 1}
STEP: dict[str, Any] = {
    "name": "step",
    "cluster": CLUSTER,
    "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "4Ki"},
    "plans": [{"name": "none", "tp": 1, "recomputation": "none"}, {"name": "TP8", "tp": 8}],
}
DECODES = STEP | {"workload": {"model": "llama-3.1-8b", "pass": "decode", "batch": 8, "context": "4Ki"}}
SERVES: dict[str, Any] = {
    "name": "serves",
    "cluster": CLUSTER,
    "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
    "traffic": {
        "arrivals": {"kind": "closed", "concurrency": [2, 8]},
        "prompt": 512,
        "output": {"kind": "uniform", "of": 64, "from": 0.5},
        "requests": 24,
        "slo": {"ttft": "2 s", "tpot": "50 ms"},
    },
    "plans": [{"name": "TP8", "tp": 8}],
}
TRAINS = STEP | {"name": "trains", "workload": {**STEP["workload"], "pass": "training", "global_batch": 8}, "plans": []}
OFFERS = TRAINS | {
    "offers": [{"name": "A", "cluster": CLUSTER}, {"name": "B", "cluster": {"device": "h200", "nodes": 1}}],
}

#: Those that take longer than others of their kind.
LONG = ("plan of a served step", "plan of offers", "run of a served step")
#: What a notebook may ask → the columns that stand first in its frame.
ANSWERS: dict[str, tuple[Callable[[], Any], str]] = {
    "run": (lambda: tspsim.simulate(STEP), "tokens_per_s"),
    "run of a served step": (lambda: tspsim.simulate(DECODES), "tokens_per_s"),
    "run of requests": (lambda: tspsim.simulate(SERVES), "tokens_per_s"),
    "plan": (lambda: tspsim.plan(TRAINS, budget=0.3, top=2), "tokens_per_s"),
    "plan of a served step": (lambda: tspsim.plan(DECODES, budget="0.3 s", top=2), "tokens_per_s"),
    "plan of offers": (lambda: tspsim.plan(OFFERS, budget=0.5, top=1), "tokens_per_s"),
    "compare": (lambda: tspsim.compare(STEP, DECODES), "scenario"),
    "sweep": (lambda: tspsim.sweep("tsp-8x-h100", {"plans": ["TSP8"], "workload.sequence": ["32Ki", "64Ki"]}), "point"),
    "validate": (lambda: tspsim.validate(few_tables()), "median_ape"),
    "bound": (lambda: tspsim.bounds(STEP), "ceiling_tokens_per_s"),
}


def few_tables() -> Path:
    """A folder with one of the tables that ship."""
    table = reference_folder() / "kernels" / "gemm.csv"
    target = Path(mkdtemp()) / "kernels" / table.name
    target.parent.mkdir()
    target.write_bytes(table.read_bytes())
    return target.parent.parent


@cache
def answered(name: str) -> Any:
    return ANSWERS[name][0]()


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow if each in LONG else ()) for each in ANSWERS]
)
def test_every_answer_has_a_frame_a_page_a_picture_and_a_short_line(name: str, tmp_path: Path) -> None:
    answer = answered(name)
    frame = answer.to_frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) and frame.columns[0] == ANSWERS[name][1]
    assert 0 < len(repr(answer)) < 2000 and repr(answer).count("\n") < 20 and "object at 0x" not in repr(answer)
    assert "<table" in answer._repr_html_()
    page = answer.to_html(tmp_path / "a.html")
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    figure = answer.plot()
    assert isinstance(figure, Figure) and len(figure.data)
    assert all(len(trace.x) and len(trace.y) for trace in figure.data)
    assert figure.layout.xaxis.title.text


def test_rates_stand_first_even_where_the_first_plan_is_refused() -> None:
    refused = {**STEP["plans"][0], "name": "refused"}
    asked = STEP | {"workload": {**TRAINS["workload"], "model": "llama-3.1-70b"}, "plans": [refused, STEP["plans"][1]]}
    frame = tspsim.simulate(asked | {"cluster": {"device": "mi300x", "nodes": 1}}).to_frame()
    assert frame["error"].notna()["refused"] and list(frame.columns[:2]) == ["tokens_per_s", "tokens_per_s_low"]


@pytest.mark.parametrize(
    "name", ["plan", *(pytest.param(each, marks=pytest.mark.slow) for each in LONG if each.startswith("plan"))]
)
def test_what_was_found_can_be_simulated(name: str) -> None:
    found = answered(name)
    best = found.best[0]
    for asked in (found.best, best):
        (plan,) = tspsim.simulate(asked).plans
        assert plan.tokens_per_s == pytest.approx(best.result.tokens_per_s, rel=1e-9)
    with pytest.raises(InputError, match="no plan"):
        tspsim.simulate(())


def test_what_is_loaded_says_itself_in_a_line() -> None:
    for loaded in (tspsim.load(STEP), tspsim.load(SERVES), tspsim.load_cluster("mi300x-8"), load_device("h200")):
        assert len(repr(loaded)) < 160 and repr(loaded).startswith("<") and "\n" not in repr(loaded)


def test_the_catalog_is_a_frame() -> None:
    every = tspsim.catalog()
    assert list(every.columns) == ["kind", "description", "file"] and set(every["kind"]) == set(tspsim.catalog.FOLDERS)
    assert set(tspsim.catalog("devices").index) == set(tspsim.catalog.names("devices"))
    with pytest.raises(UnknownNameError, match="did you mean 'devices'"):
        tspsim.catalog("device")  # type: ignore[arg-type]
    assert importlib.import_module("tspsim.base.catalog") is tspsim.catalog


def test_every_exception_is_imported_from_one_place() -> None:
    """``from tspsim.errors import InputError`` in the first line of a program, before anything else is there."""
    own = {name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__}
    program = f"from tspsim.errors import {', '.join(sorted(own))}; import tspsim; print(tspsim.errors.__all__)"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(asked.stdout)) == own
    assert tspsim.errors.InputError is errors.InputError


def test_budgets_are_times_or_numbers_of_seconds() -> None:
    for budget in (0, -3, "soon"):
        with pytest.raises(InputError, match="budget"):
            tspsim.plan(TRAINS, budget=budget)


def test_a_bar_stands_in_terminals_and_notebooks_alone_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []

    def progress(words: str, share: float) -> None:
        told.append((words, share))

    with display.progress_bar(progress) as given:
        assert given is progress
    with display.progress_bar() as none:
        assert none is None, "a test has no terminal"
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setattr(display, "PROGRESS_AFTER_S", 30.0)
    with display.progress_bar() as bar:
        assert bar is not None
        bar("TP8", 0.5)
        with display.progress_bar() as inner:
            assert inner is None
    tspsim.simulate(STEP, progress=progress)
    assert told and all(0.0 <= share <= 1.0 for _, share in told)
