"""The Chrome trace: valid, complete, named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import reports as fixtures

from tspsim.report import write_trace
from tspsim.step.result import Result


def written(result: Result, folder: Path) -> Any:
    write_trace(result, folder / "trace.json")
    return json.loads((folder / "trace.json").read_text(encoding="utf-8"))


def test_every_instruction_is_an_event_with_its_times_in_microseconds(tmp_path: Path) -> None:
    result = fixtures.result(layers=3)
    events = written(result, tmp_path)["traceEvents"]
    for process, name in enumerate(("TSP8", "TP8", "TP4-SP2", "TP2-SP4"), start=1):
        frame = result.timeline(name)
        complete = [event for event in events if event["ph"] == "X" and event["pid"] == process]
        assert len(complete) == len(frame)
        assert sum(event["dur"] for event in complete) * 1e-6 == pytest.approx(
            float((frame["end_s"] - frame["start_s"]).sum())
        )
        assert {"layer", "shape", "bytes", "flops", "part"} <= set(complete[0]["args"])
        assert sum(event["args"]["flops"] for event in complete) == pytest.approx(float(frame["flops"].sum()))


def test_processes_are_plans_and_threads_are_streams_of_ranks(tmp_path: Path) -> None:
    events = written(fixtures.result(layers=1), tmp_path)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["TSP8", "TP8", "TP4-SP2", "TP2-SP4"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads[1, 0] == "rank 0 compute (position 0, stands for 128)"
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(threads)
    order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert sorted(order, key=lambda thread: (thread[0], order[thread])) == sorted(order)


def test_events_of_a_thread_follow_each_other(tmp_path: Path) -> None:
    events = written(fixtures.result(layers=2), tmp_path)["traceEvents"]
    reached: dict[tuple[int, int], float] = {}
    for event in events:
        if event["ph"] == "X":
            thread = (event["pid"], event["tid"])
            assert event["ts"] >= reached.get(thread, 0.0) - 1e-3
            reached[thread] = event["ts"] + event["dur"]


def test_hostile_names_stay_text_and_no_timeline_is_a_valid_file(tmp_path: Path) -> None:
    plan = replace(fixtures.plan(0, layers=1), name='"}]<script>\n')
    assert written(fixtures.result(plans=(plan,)), tmp_path)["traceEvents"][0]["args"]["name"] == '"}]<script>\n'
    assert written(fixtures.result(plans=(fixtures.plan(4),)), tmp_path)["traceEvents"] == []
