"""Engines' all-reduces and exchanges with experts fitted to steps: made-up machines whose truth is stated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import kineto, of_lane, written

import tspsim
from tspsim.base import catalog, dialect
from tspsim.calibration.collectives import TransferFits
from tspsim.calibration.network_files import calibrate_transfers
from tspsim.calibration.traced_transfers import transfers_of
from tspsim.cli import main
from tspsim.network import ExpertExchange, exchange_experts, load_cluster
from tspsim.step.question import look_up
from tspsim.traces import read
from tspsim.traces.lay import lay
from tspsim.traces.simulated import Simulated


def decoding(batch: int) -> dict[str, Any]:
    work = {"model": "llama-3.1-8b", "pass": "decode", "stack": "vllm", "batch": batch, "context": 1024}
    return {"name": f"a{batch}", "cluster": {"device": "h100", "nodes": 1}, "workload": work,
            "plans": [{"name": "TP8", "tp": 8}]}  # fmt: skip


def experts(sequence: int) -> dict[str, Any]:
    work = {"model": "deepseek-v2-lite", "pass": "forward", "sequence": sequence, "sequences_per_replica": 1}
    plan = {"name": "EP8", "dp": 8, "ep": 8, "expert_dispatch": "ranks"}
    return {"name": f"e{sequence}", "cluster": {"device": "h100", "nodes": 1}, "workload": work, "plans": [plan]}


def slower(folder: Path, asked: dict[str, Any], kinds: tuple[str, ...], factor: float, name: str) -> tuple[Path, Path]:
    """A step one kernel after the other, whose transfers of some kinds take ``factor`` of the simulated time."""
    question = look_up(tspsim.load(asked))
    lane = Simulated(question, question.plans[0]).lane(0)
    document = kineto([], device="h100", world_size=8)
    events = of_lane(lane.operations, lambda each: factor if each.kind in kinds else 1.0)
    end = 0.0
    ordered = sorted(lane.operations, key=lambda each: each.start_s)
    for event, operation in zip(events, ordered, strict=True):
        event["ts"], end = max(event["ts"], end), max(event["ts"], end) + event["dur"]
        if operation.kind in kinds and name:
            event["name"] = name
    document["traceEvents"] = events
    trace, yaml = written(folder / f"{asked['name']}.json.gz", document), folder / f"{asked['name']}.yaml"
    yaml.write_text(json.dumps(asked))
    return trace, yaml


def test_all_reduces_of_an_engine_move_its_part_of_the_node_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>"
    runs = [slower(tmp_path, decoding(batch), ("all_reduce",), 1.4, kernel) for batch in (16, 64)]
    words = [word for trace, yaml in runs for word in ("--trace", str(trace), "--scenario", str(yaml))]
    monkeypatch.chdir(tmp_path)

    def exposed() -> float:
        return float(sum(tspsim.simulate(decoding(32)).plans[0].breakdown_s["exposed_communication"].values()))

    before = exposed()
    assert main(["calibrate", "h100", *words]) == 0
    assert "node: topologies/nodes/hgx-h100-8.yaml" in capsys.readouterr().out
    assert exposed() == pytest.approx(1.4 * before, rel=0.08)


def exchanges(folder: Path, *sequences: int) -> TransferFits:
    steps = []
    for sequence in sequences:
        trace, _ = slower(folder, experts(sequence), ("dispatch", "combine"), 1.4, "")
        steps.append(lay(read([trace]), look_up(tspsim.load(experts(sequence)))))
    return calibrate_transfers(transfers_of(steps), "a test", held_out=False)


def test_exchanges_with_experts_move_the_curves_of_their_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = dialect.read_yaml(catalog.locate("nodes", "hgx-h100-8"))["collectives"]["experts"]
    two = exchanges(tmp_path, 1024, 4096)
    now = two.documents["nodes", "hgx-h100-8"]["collectives"]["experts"]
    moved = {(old["mode"], old["phase"]) for old, new in zip(was, now, strict=True) if old != new}
    assert moved == {("normal", "dispatch"), ("normal", "combine")}
    folder = tmp_path / "topologies/nodes"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(json.dumps({**two.documents["nodes", "hgx-h100-8"], "name": "mine"}))
    monkeypatch.chdir(tmp_path)
    asked = ExpertExchange(2048.0, 4096.0, 64, 6)
    traffics = [exchange_experts(load_cluster(name), range(8), "dispatch", asked) for name in ("hgx-h100-8", "mine")]
    before, after = (traffic.latency_s + traffic.fluid_s for traffic in traffics)
    assert after == pytest.approx(1.4 * before, rel=0.05)


def test_one_size_of_an_exchange_is_a_factor_with_a_wide_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has every exchange often, and of one size: it tells no start from a rate, and both are as much slower."""
    one = exchanges(tmp_path, 4096)
    assert {fit.what for fit in one.fits} == {
        f"normal {phase} of deepep, one node" for phase in ("dispatch", "combine")
    }
    document = one.documents["nodes", "hgx-h100-8"]
    moved = [entry for entry in document["collectives"]["experts"] if "a test" in str(entry["source"])]
    assert len(moved) == 2
    for entry in moved:
        for low, high in (entry["spread"]["small"], entry["spread"]["large"]):
            assert low <= 1 / 1.6 + 1e-3
            assert high >= 1.6
    folder = tmp_path / "topologies/nodes"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(json.dumps({**document, "name": "mine"}))
    monkeypatch.chdir(tmp_path)
    for tokens in (64.0, 2048.0, 8192.0):
        asked = ExpertExchange(tokens, 4096.0, 64, 6)
        clusters = [load_cluster(name) for name in ("hgx-h100-8", "mine")]
        found = [exchange_experts(cluster, range(8), "combine", asked) for cluster in clusters]
        before, after = (each.latency_s + each.fluid_s for each in found)
        assert after == pytest.approx(1.4 * before, rel=0.02)


def test_one_size_that_is_as_the_file_has_it_moves_nothing(tmp_path: Path) -> None:
    trace, _ = slower(tmp_path, experts(2048), (), 1.0, "")
    measured = transfers_of([lay(read([trace]), look_up(tspsim.load(experts(2048))))])
    found = calibrate_transfers(measured, "a test", held_out=False)
    assert not found.fits
    assert sum("of one size are as they were" in line for line in found.kept) == 2
