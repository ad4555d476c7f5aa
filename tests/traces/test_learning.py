"""A device fitted to profiles of whole steps: made-up machines whose truth is stated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import kineto, of_lane, written

import tspsim
from tspsim.calibration.traces import calibrate_traces, fitted
from tspsim.cli import main
from tspsim.question import look_up
from tspsim.traces.simulated import Simulated


def scenario(batch: int) -> dict[str, Any]:
    work = {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": batch, "context": 1024}
    return {"name": f"b{batch}", "cluster": {"device": "mi300x", "nodes": 1}, "workload": work,
            "plans": [{"name": "TP1", "tp": 1}]}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Two batches of a machine whose products take 1.5 times as long, and whose attention 1.2 times."""
    folder, found = tmp_path_factory.mktemp("runs"), []
    for batch in (16, 64):
        question = look_up(tspsim.load(scenario(batch)))
        lane = Simulated(question, question.plans[0]).lane(0)
        document = kineto([], device="mi300x")
        slower = {"gemm": 1.5, "attention": 1.2}
        document["traceEvents"] = of_lane(lane.operations, lambda each, slower=slower: slower.get(each.kind, 1.0))
        trace, yaml = written(folder / f"b{batch}.json.gz", document), folder / f"b{batch}.yaml"
        yaml.write_text(json.dumps(scenario(batch)))
        found.append((trace, yaml))
    return found


def test_a_slower_machine_is_learnt_and_the_other_batch_follows(runs: list[tuple[Path, Path]]) -> None:
    found = calibrate_traces("mi300x", runs)
    factors = {fit.operator: (fit.start_us, fit.factor) for fit in found.fits}
    # What was fitted takes the place of the pace that SGLang's kernels have on this device.
    stack = look_up(tspsim.load(scenario(16))).work.stack
    pace = next(each.factor for each in stack.engine.paces if each.kernels == ("bf16",))
    assert factors["DecodeAttention"][1] == pytest.approx(1.2 * pace, rel=0.1) and pace > 1.0
    for check in found.checks:
        assert abs(check.before_s / check.measured_s - 1.0) > 0.2
        assert check.after_s == pytest.approx(check.measured_s, rel=0.05)
        assert check.others_s == pytest.approx(check.measured_s, rel=0.05)
    assert found.document["in_steps"] and "b16.json.gz" in found.document["in_steps"][0]["source"]


def test_one_shape_is_a_factor_with_a_wide_range(runs: list[tuple[Path, Path]]) -> None:
    fits = {fit.operator: fit for fit in calibrate_traces("mi300x", runs[:1]).fits}
    alone = fits["DecodeAttention"]
    assert (alone.rows, alone.start_us, alone.high) == (1, 0.0, 1.6)
    assert fitted([], "") == ()


def test_the_command_writes_a_device_that_steps_are_priced_by(
    runs: list[tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tspsim.simulate(scenario(16)).plans[0].step_time_s
    words = [word for trace, yaml in runs for word in ("--trace", str(trace), "--scenario", str(yaml))]
    assert main(["calibrate", "mi300x", *words]) == 0
    assert "by the others" in capsys.readouterr().out
    assert (tmp_path / "topologies/devices/mi300x.yaml").exists()
    after = tspsim.simulate(scenario(16)).plans[0].step_time_s
    assert after > 1.2 * before
    assert tspsim.predict(scenario(16))([(1, 1024, 16)]) == pytest.approx(after, rel=5e-3)
    assert main(["calibrate", "mi300x", *words]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["calibrate", "mi300x", "--trace", str(runs[0][0])]) == 2
    assert main(["calibrate", "h100", *words]) == 2
    assert "is of mi300x, not of h100" in capsys.readouterr().err
