"""The page of a fleet says what its answer says: every figure with its table, every GPU-hour once."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim import cli, report
from tspsim.fleet import FleetAnswer
from tspsim.report import fleet_gantt
from tspsim.report.fleet_gantt import rectangles
from tspsim.report.fleet_page import MOST_POINTS, _thinned

QUESTION: dict[str, Any] = {
    "name": "many-jobs",
    "description": "As `tspsim run` shows it.",
    "cluster": {"device": "h100", "nodes": 8, "fabric": "rails-400g"},
    "scheduler": "easy",
    "horizon": "5 days",
    "jobs": [
        {"name": "whole", "nodes": 8, "hours": "12 h", "submit": "1 day"},
        {"name": "tunes", "arrivals": {"kind": "poisson", "rate": "60/day"}, "nodes": 2, "hours": "2 h"},
        {"name": "small", "arrivals": {"kind": "poisson", "rate": "200/day"}, "gpus": 2, "hours": "1 h"},
    ],
}


@pytest.fixture(scope="module")
def answer() -> FleetAnswer:
    found = tspsim.simulate(QUESTION)
    assert isinstance(found, FleetAnswer)
    return found


@pytest.fixture(scope="module")
def figures(answer: FleetAnswer) -> dict[str, Any]:
    page = report.render(answer, "plotly.js")
    (data,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL)
    drawn: dict[str, Any] = json.loads(data)["figures"]
    return drawn


def test_a_page_has_its_figures_and_a_table_beside_each(answer: FleetAnswer, figures: dict[str, Any]) -> None:
    page = report.render(answer, "plotly.js")
    assert "As <code>tspsim run</code> shows it." in page
    for key in ("nodes", "use", "hours", "waits"):
        assert key in figures
        (section,) = re.findall(rf'<section id="{key}".*?</section>', page, re.DOTALL)
        assert "data-label=" in section and f'id="figure-{key}"' in section


def test_rectangles_are_the_spells_of_jobs_on_nodes_and_none_lies_upon_another(answer: FleetAnswer) -> None:
    facts = answer.facts
    found = list(rectangles(facts))
    # GPU-hours, each once: a job on two GPUs of eight is a quarter of a node high.
    assert sum(each.area for each in found) * 8 / 3600 == pytest.approx(sum(job.gpu_hours for job in facts.jobs))
    start_s, end_s = facts.times.spell_start_s, facts.times.spell_end_s
    rows: dict[int, list[tuple[float, float]]] = {}
    for each in found:
        for eighth in range(round(8 * (each.top + 0.5)), round(8 * (each.top + 0.5 + each.high))):
            rows.setdefault(eighth, []).append((start_s[each.spell], end_s[each.spell]))
    assert set(rows) <= set(range(64)) and len(rows) == 64
    for spans in rows.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_a_page_has_more_rectangles_than_it_draws_at_once(answer: FleetAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_gantt, "MOST_DRAWN", 100)
    monkeypatch.setattr(fleet_gantt, "MOST_KEPT", 700)
    page = report.render(answer, "plotly.js")
    (data,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL)
    told = json.loads(data)
    spells = told["spells"]
    # Its script draws the largest hundred of the window (tests/browser/test_fleet_browser.py): they stand there once.
    assert spells["most"] == 100 and not any(trace["x"] for trace in told["figures"]["nodes"]["data"])
    assert {len(spells[key]) for key in ("kind", "number", "start", "span", "top", "high", "nodes", "why")} == {700}
    assert [trace["name"] for trace in told["figures"]["nodes"]["data"]] == ["tunes", "small", "whole"]
    every = len(list(rectangles(answer.facts)))
    assert f"{every - 700:,} of {every:,} rectangles, the smallest, are left out" in page
    assert 'data-span="1.0">1 day</button>' in page and "7 days</button>" not in page
    assert told["figures"]["nodes"]["layout"]["dragmode"] == "zoom"


def test_bars_of_lost_hours_go_down_to_the_productive_ones(answer: FleetAnswer, figures: dict[str, Any]) -> None:
    (bars,) = figures["hours"]["data"]
    assert bars["base"][-2] == pytest.approx(bars["x"][-1], rel=1e-6)
    assert bars["x"][0] == pytest.approx(sum(bars["x"][1:]), rel=1e-9)


def test_lines_over_time_keep_their_mean_however_thin(answer: FleetAnswer) -> None:
    facts = answer.facts
    spans = np.diff(facts.times.at_s, append=facts.horizon_s)
    exact = float((facts.times.allocated_gpus * spans).sum()) / facts.horizon_s
    assert len(facts.times.at_s) > MOST_POINTS
    at_s, means = _thinned(facts, facts.times.allocated_gpus)
    assert len(at_s) == MOST_POINTS
    assert means.mean() == pytest.approx(exact, rel=1e-9)


def test_the_command_writes_page_and_trace_and_a_trace_has_every_spell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.json").write_text(json.dumps(QUESTION), encoding="utf-8")
    assert cli.main(["run", "q.json"]) == 0
    assert "many-jobs" in Path("reports/many-jobs.html").read_text(encoding="utf-8")
    assert cli.main(["run", "q.json", "--trace", "t.json", "--json", "a.json"]) == 0
    events = json.loads(Path("t.json").read_text(encoding="utf-8"))["traceEvents"]
    of_whole = [event for event in events if event["name"] == "whole"]
    jobs = {job["name"]: job for job in json.loads(Path("a.json").read_text(encoding="utf-8"))["fleet"]["jobs"]}
    assert sorted(event["tid"] for event in of_whole) == list(range(8))
    assert all(event["ts"] == pytest.approx(1e6 * jobs["whole"]["start_s"]) for event in of_whole)
    # Events of a thread follow each other, jobs that share a node too.
    threads: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            threads.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(threads) > 8
    for spans in threads.values():
        spans.sort()
        assert all(before[1] <= after[0] + 0.2 for before, after in pairwise(spans))


def test_a_memo_is_not_of_a_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.json").write_text(json.dumps(QUESTION), encoding="utf-8")
    assert cli.main(["run", "q.json", "--pdf", "m.pdf"]) == 2
    assert "--pdf: is not of a fleet of jobs" in capsys.readouterr().err
    assert not Path("m.pdf").exists()
