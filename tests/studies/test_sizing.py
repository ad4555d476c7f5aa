"""Machines for a trace: as many as keep the bounds and not one more, told, launched and written; and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim.cli import main
from tspsim.scenario import load
from tspsim.studies import sizing
from tspsim.studies.planner.traffic import TrafficPlanner
from tspsim.traffic.traces import read_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bursty arrivals at ten a second."""
    random = np.random.default_rng(0)
    times = np.cumsum(random.gamma(0.5, 2.0, 600)) / 10.0
    rows = [f"{at:.4f},{int(random.integers(100, 900))},{int(random.integers(20, 90))}" for at in times]
    file = tmp_path_factory.mktemp("trace") / "chat.csv"
    file.write_text("\n".join(["timestamp_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return file


def one_gpu(asked: Any) -> Any:
    """Each offer with one GPU alone, so that searches are quick."""
    small = [
        offer.model_copy(update={"cluster": offer.cluster.model_copy(update={"gpus_per_node": 1})})
        for offer in asked.offers
    ]
    return asked.model_copy(update={"offers": tuple(small)})


@pytest.mark.in_turn(2, group="sizes")
def test_so_many_machines_keep_the_bounds_and_one_less_does_not(trace: Path):
    asked = sizing.question_of(
        str(trace), model="llama-3.1-8b", stack="vllm", slo={"ttft": "1 s", "tpot": "14 ms"}, offers=["h200"]
    )
    answer = sizing.sized(one_gpu(asked), 120.0, budget_s=0.4)
    (found,) = answer.sized
    frame = answer.to_frame()
    assert next(iter(frame.columns)) == "usd_per_hour" and frame.loc["h200", "machines"] == found.machines
    assert "h200" in answer._repr_html_() and "nodes" in repr(answer) and len(answer.plot().data) == 1
    assert "vllm serve" in answer.to_html(trace.parent / "size.html").read_text()
    assert found.machines > 1 and found.nodes == found.gpus == found.machines == found.pools["replicas"]
    assert found.served is not None and found.served["bounds"]["kept"] and "With one machine less" in found.fewer
    assert found.machines >= 120.0 / (1.3 * found.requests_per_s_each)
    told = found.in_words()
    assert f"{found.machines} nodes" in told and "replicas" in told and "an hour" in told


@pytest.mark.in_turn(2, group="sizes")
def test_the_command_tells_writes_and_launches(trace: Path, tmp_path: Path, capsys, monkeypatch):
    real = sizing.question_of
    monkeypatch.setattr(sizing, "question_of", lambda *of, **more: one_gpu(real(*of, **more)))
    folder, answer = tmp_path / "out", tmp_path / "size.json"
    words = ["size", str(trace), "--slo", "ttft=1s,tpot=30ms", "--model", "llama-3.1-8b", "--on", "h200"]
    assert main([*words, "--budget", "0.2 s", "--launch", str(folder), "--json", str(answer)]) == 0
    assert "h200: 1 node, 1 GPU" in capsys.readouterr().out
    (offer,) = json.loads(answer.read_text())["size"]["offers"]
    assert offer["machines"] == 1 and offer["bounds"]["kept"] and offer["replicas"] == {"replicas": 1}
    assert "vllm serve" in (folder / "h200.sh").read_text()
    assert load(str(folder / "h200.yaml")).traffic is not None


def test_an_interrupt_is_no_size(trace: Path, monkeypatch, capsys):
    """Ctrl-C while plans are searched: what was found by then is no answer."""

    def stopped(self: TrafficPlanner) -> Any:
        return SimpleNamespace(interrupted=True, best=())

    monkeypatch.setattr(TrafficPlanner, "run", stopped)
    words = ["size", str(trace), "--slo", "ttft=1s", "--model", "llama-3.1-8b", "--on", "h200"]
    assert main(words) == 130
    told = capsys.readouterr()
    assert not told.out and "interrupted" in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slo", "ttft"], "is no bound; state such as ttft=2s,tpot=40ms"),
        (["--slo", "ttfft=2s"], "did you mean 'ttft'"),
        (["--slo", "ttft=2 kg"], "ttft"),
        (["--slo", "ttft=2s", "--on", "h2000"], "did you mean"),
        (["--slo", "ttft=2s", "--rate", "fast"], "fast"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, trace: Path, capsys):
    offers = [] if "--on" in words else ["--on", "h200"]
    assert main(["size", str(trace), "--model", "llama-3.1-8b", *offers, *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_a_trace_without_times_or_with_a_hole_is_refused(tmp_path: Path, capsys):
    file = tmp_path / "t.csv"
    words = ["size", str(file), "--slo", "ttft=2s", "--model", "llama-3.1-8b", "--on", "h200"]
    for text, said in (
        ("prompt_tokens,output_tokens\n10,20\n", "no arrival times"),
        ("arrival_s,prompt_tokens,output_tokens\n0,10,20\n1,,20\n", "line 3: prompt_tokens is missing"),
        ("arrival_s,prompt_tokens,output_tokens\n0,10,20\n0,10,20\n", "at one moment"),
    ):
        file.write_text(text)
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_a_trace_takes_a_list_of_rates(trace: Path):
    stated = {
        "name": "curve",
        "cluster": {"device": "h200", "gpus_per_node": 1},
        "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
        "traffic": {"arrivals": {"kind": "trace", "file": str(trace), "rate": [5, "20"]}, "requests": 200},
        "plans": [{"name": "one"}],
    }
    (plan,) = tspsim.simulate(stated).plans
    assert [point["rate"] for point in plan.curve] == [5.0, 20.0]
    spans = [float(run.waits.arrival_s[-1]) for run in plan.runs]
    assert spans == pytest.approx([199 / 5, 199 / 20]) and read_trace(str(trace)).rate == pytest.approx(10, rel=0.2)


def test_the_one_plan_of_a_scenario_is_launched_without_a_search(tmp_path: Path, capsys, monkeypatch):
    from tspsim.studies.planner import traffic

    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\ncluster: {device: h200}\nworkload: {model: llama-3.1-8b, stack: vllm}\n"
        "traffic: {arrivals: {kind: closed, concurrency: 4}, prompt: 100, output: 20}\nplans: [{name: two, tp: 4}]\n"
    )

    def searched(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be searched")

    monkeypatch.setattr(traffic.TrafficPlanner, "run", searched)
    assert main(["plan", str(file), "--emit", "vllm"]) == 0
    assert "--tensor-parallel-size 4" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="searched"):
        monkeypatch.setenv("TSPSIM_TRACEBACK", "1")
        main(["plan", str(file), "--emit", "vllm", "--budget", "1 s"])
