"""A device fitted to profiles of whole steps: made-up machines whose truth is stated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import kineto, of_lane, written

import tspsim
from tspsim.calibration.traces import TracedOperator, calibrate_traces, fitted
from tspsim.cli import main
from tspsim.hardware import Device, load_device
from tspsim.hardware.pricers import bound_of, in_steps, price
from tspsim.operators import Gemm, MemoryBound
from tspsim.parallel import Captured, load_stack
from tspsim.step.question import look_up
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
    pace = next(each.value for each in stack.engine.paces if each.kernels == ("bf16",))
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
    assert fitted([]) == ()


def seen(operator: Any, model_us: float, measured_us: float, bound: str = "", kernels: float = 1.0) -> TracedOperator:
    return TracedOperator(operator, 1e-6 * model_us, 1e-6 * measured_us, 36, kernels, 4.5e-6, bound)


def test_short_kernels_are_a_start_and_long_ones_a_factor() -> None:
    """A norm of 32 tokens takes what any kernel takes; one of 8,192 tells what moving bytes takes."""
    short, long = MemoryBound("add_rmsnorm", 1_000_000.0, 32), MemoryBound("add_rmsnorm", 200_000_000.0, 8192)
    (alone,) = fitted([seen(short, 1.4, 4.7)])
    assert (round(alone.start_us, 3), alone.factor) == (3.3, None)
    both = fitted([seen(short, 1.4, 4.7), seen(long, 48.0, 70.5)])[0]
    assert both.start_us + both.factor * 48.0 == pytest.approx(70.5, rel=1e-3)
    # Five short kernels of an operator are no outlier of a model that has one.
    (several,) = fitted([seen(MemoryBound("rope", 700_000.0, 32), 1.7, 24.0, kernels=5.0)])
    assert several.factor is None and several.start_us == pytest.approx(22.3)


def test_products_of_bytes_teach_nothing_of_products_of_arithmetic() -> None:
    device = load_device("mi300x")
    narrow = [Gemm(32, n, k) for n, k in ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))]
    wide = Gemm(8192, 5120, 2880)
    assert {bound_of(device, gemm) for gemm in narrow} == {"bytes"} and bound_of(device, wide) == "arithmetic"
    fits = fitted([seen(gemm, 10.0 * (1 + i), 13.0 * (1 + i), "bytes") for i, gemm in enumerate(narrow)])
    assert [fit.bound for fit in fits] == ["bytes"] and fits[0].factor == pytest.approx(1.3, rel=1e-2)
    taught = type("Taught", (), {
        "spec": type("Spec", (), {"in_steps": fits}), "peak_flops_per_s": device.peak_flops_per_s,
        "hbm_bytes_per_s": device.hbm_bytes_per_s,
    })()  # fmt: skip
    assert in_steps(taught, narrow[0]) is fits[0] and in_steps(taught, wide) is None


def test_one_product_of_a_kind_teaches_nothing_of_another() -> None:
    """A mixed step of gpt-oss: its router streams rows, its head weights, its projections compute."""
    device = load_device("mi300x")
    router, head = Gemm(8191, 32, 2880), Gemm(46, 201088, 2880)
    wide = Gemm(8191, 2880, 4096), Gemm(8191, 5120, 2880)
    bounds = [bound_of(device, gemm) for gemm in (router, head, *wide)]
    assert bounds == ["rows", "bytes", "arithmetic", "arithmetic"]
    points = [
        seen(gemm, model, measured, bound)
        for gemm, model, measured, bound in zip(
            (router, head, *wide), (10.6, 257.0, 302.0, 382.0), (24.8, 347.0, 315.0, 382.0), bounds, strict=True
        )
    ]
    fits = {fit.bound: fit for fit in fitted(points)}
    # The four together would say that every product starts with 14 us.
    assert {bound: (fit.start_us, round(fit.factor, 2)) for bound, fit in fits.items()} == {
        "arithmetic": (0.0, 1.02), "bytes": (0.0, 1.35), "rows": (0.0, 2.34),
    }  # fmt: skip
    assert (fits["bytes"].high, fits["rows"].high) == (1.6, 1.6)


def test_what_was_fitted_to_steps_has_what_a_graph_saves_in_it() -> None:
    device = load_device("mi300x")
    product, fit = Gemm(32, 4096, 4096), fitted([seen(Gemm(32, 4096, 4096), 12.0, 18.0, "bytes")])
    taught = Device(device.spec.model_copy(update={"in_steps": fit}))
    cost = load_stack("sglang").stack().cost(lambda operator: price(taught, operator).seconds, taught, Captured.WHOLE)
    assert cost(product) == pytest.approx(1.5 * price(device, product).seconds, rel=1e-6)


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


TRAINING = {"model": "llama-3.2-1b", "pass": "training", "sequence": 2048, "sequences_per_replica": 1}


def training(batch: int) -> dict[str, Any]:
    return {
        "name": f"t{batch}",
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 2},
        "workload": {**TRAINING, "sequences_per_replica": batch},
        "plans": [{"name": "TP2", "tp": 2, "recomputation": "none"}],
    }


def one_by_one(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same events, none of which begins before the one before it ends."""
    end, found = 0.0, []
    for event in sorted(events, key=lambda each: each["ts"]):
        start = max(event["ts"], end)
        end = start + event["dur"]
        found.append({**event, "ts": start})
    return found


def test_slower_transfers_move_the_node_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine whose all-reduces take a quarter longer: the next step of another batch is told so."""
    words: list[str] = []
    for batch in (1, 4):
        question = look_up(tspsim.load(training(batch)))
        lane = Simulated(question, question.plans[0]).lane(0)
        document = kineto([], device="h100", world_size=2)
        slower = of_lane(lane.operations, lambda each: 1.25 if each.is_transfer else 1.0)
        document["traceEvents"] = one_by_one(slower)
        trace, yaml = written(tmp_path / f"t{batch}.json.gz", document), tmp_path / f"t{batch}.yaml"
        yaml.write_text(json.dumps(training(batch)), encoding="utf-8")
        words += ["--trace", str(trace), "--scenario", str(yaml)]
    monkeypatch.chdir(tmp_path)
    before = tspsim.simulate(training(3)).plans[0]
    assert main(["calibrate", "h100", *words]) == 0
    shown = capsys.readouterr().out
    assert "node: topologies/nodes/hgx-h100-8.yaml" in shown and "transfers: " in shown
    after = tspsim.simulate(training(3)).plans[0]
    exposed = [sum(plan.breakdown_s["exposed_communication"].values()) for plan in (before, after)]
    assert exposed[1] == pytest.approx(1.25 * exposed[0], rel=0.05)
