"""A real answer as its page reads it: arrays, loads, bounds, preemptions, and where steps spend their time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim.report import render
from tspsim.report.serving import life
from tspsim.report.serving.adapter import kicker, runs_of, view_of
from tspsim.report.serving.view import LoadRun
from tspsim.step.result import Result

ASKED: dict[str, Any] = {
    "name": "short-cache",
    "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 2},
    "workload": {"model": "llama-3.1-70b", "stack": "vllm", "engine": {"gpu_memory_utilization": 0.888}},
    "traffic": {
        "arrivals": {"kind": "closed", "concurrency": [2, 12]},
        "prompt": {"kind": "fixed", "of": 256},
        "output": {"kind": "lognormal", "median": 300, "sigma": 0.8, "cap": 1024},
        "requests": 36,
        "slo": {"ttft": "2 s"},
    },
    "plans": [{"name": "TP2", "tp": 2}, {"name": "TP1", "tp": 1}],
}


@cache
def answered() -> Result:
    return tspsim.simulate(ASKED)


def most() -> LoadRun:
    return view_of(answered()).served[0].runs[-1]


def test_plans_that_ran_have_their_loads_bounds_and_prices() -> None:
    view = view_of(answered())
    assert [each.name for each in view.served] == ["TP2"] and [plan.name for plan in view.refused] == ["TP1"]
    assert view.loads == (2.0, 12.0) and view.closed and view.slo == {"ttft": 2.0}
    assert most().price() == most().metrics["steady"]["usd_per_million_output_tokens"]["neocloud"]
    assert kicker(answered()).startswith("2 × H100 · llama-3.1-70b · vllm · 2 or 12 clients send")


def test_arrays_say_what_the_figures_say() -> None:
    run = most()
    requests = run.requests
    assert requests is not None and len(requests) == 36 and requests.ended.all()
    assert np.mean(requests.ttft_s) == pytest.approx(run.mean("ttft_s"))
    assert np.nanmean(requests.tpot_s) == pytest.approx(run.mean("tpot_s"))
    (engine,) = run.engines
    assert engine.capacity_tokens and engine.steps.used_tokens.max() <= engine.capacity_tokens
    assert (engine.steps.start_s[1:] >= engine.steps.end_s[:-1] - 1e-9).all()
    assert run.answered_by is not None and (run.answered_by == 0).all()


def test_preemptions_are_told_when_they_happened() -> None:
    run = most()
    assert run.requests is not None and run.preempted is not None
    counts = np.bincount(run.preempted.request, minlength=len(run.requests))
    assert (counts == run.requests.preemptions).all() and counts.sum() > 0
    assert (run.preempted.end_s >= run.preempted.start_s).all()
    notable = life.lives(run.requests)
    place = int(np.argmax(run.requests.preemptions))
    assert place in notable.values()
    away = [part for part in life.parts(run, place) if part[0] == "preempted, waits again"]
    assert len(away) == run.requests.preemptions[place]
    when, count, _ = life.tokens(run, place, run.engine_of(place))
    assert (np.diff(when) >= -1e-9).all() and (np.diff(count) >= 0).all() and len(when) > 10


def test_typical_steps_are_of_the_least_and_the_most_load() -> None:
    shares = view_of(answered()).served[0].shares
    assert [share.label.split(" at ")[0].split(" tokens")[0] for share in shares][:2] != []
    assert shares[0].label.startswith("decodes ") and shares[-1].label.startswith("reads ")
    assert all(share.seconds > 0 and "attention" in share.parts for share in shares)


def test_a_result_without_its_runs_still_has_its_curve() -> None:
    from dataclasses import replace

    plan = replace(answered().plans[0], runs=())
    runs = runs_of(plan)
    assert [run.load for run in runs] == [2.0, 12.0] and all(run.requests is None for run in runs)
    assert set(runs[0].ranges) == {"ttft_s", "tpot_s", "output_tokens_per_s"}
    text = render(replace(answered(), plans=(plan, answered().plans[1])), "x.js")
    assert "Users against GPUs" in text and 'id="figure-engines"' not in text


def test_offers_are_written_as_one_page_with_pages_of_their_own(tmp_path: Any) -> None:
    offers = [{"name": name, "cluster": {"device": name.lower(), "nodes": 1}} for name in ("H200", "MI355X")]
    traffic = {**ASKED["traffic"], "arrivals": {"kind": "closed", "concurrency": 2}, "requests": 6}
    asked = {**ASKED, "name": "both", "traffic": traffic, "plans": [{"name": "TP8", "tp": 8}], "offers": offers}
    asked.pop("cluster")
    compared = tspsim.compare(tspsim.load(asked))
    page = compared.to_html(tmp_path / "both.html").read_text(encoding="utf-8")
    assert " is cheapest: $" in page and " times the tokens a dollar of " in page
    assert 'href="both-reports/01-H200.html"' in page and (tmp_path / "both-reports" / "02-MI355X.html").is_file()
    assert "Uncertainty</h2>" in page and "Assumptions side by side</h2>" in page
