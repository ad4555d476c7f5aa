"""A stack's host fitted to how long devices idle in steps: made-up machines whose truth is stated."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import kineto, of_lane, written

import tspsim
from tspsim.calibration.traced_host import ONE_STEP
from tspsim.calibration.traces import calibrate_traces
from tspsim.cli import main
from tspsim.step.question import look_up
from tspsim.traces.kinds import SMALL
from tspsim.traces.simulated import Simulated


def scenario(batch: int, device: str = "mi300x") -> dict[str, Any]:
    work = {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": batch, "context": 1024}
    return {"name": f"h{batch}", "cluster": {"device": device, "nodes": 1}, "workload": work,
            "plans": [{"name": "TP1", "tp": 1}]}  # fmt: skip


def steps(
    folder: Path,
    batch: int,
    between_us: float,
    *,
    count: int = 2,
    factor: Any = lambda item: 1.0,
    device: str = "mi300x",
) -> tuple[Path, Path]:
    """Steps of a machine that waits so long for its host between two of them, each kernel ``factor`` as long."""
    question = look_up(tspsim.load(scenario(batch, device)))
    lane = Simulated(question, question.plans[0]).lane(0)
    once = of_lane(lane.operations, factor)
    length = max(event["ts"] + event["dur"] for event in once) - min(event["ts"] for event in once)
    document = kineto([], device=device)
    document["traceEvents"] = []
    for number in range(count):
        shift = number * (length + between_us)
        first = min(event["ts"] for event in once) + shift
        document["traceEvents"].append(
            {"ph": "X", "cat": "user_annotation", "name": f"step[DECODE bs={batch} toks={batch}]", "pid": 1, "tid": 1,
             "ts": first - 1.0, "dur": length, "args": {}}
        )  # fmt: skip
        document["traceEvents"] += [{**event, "ts": event["ts"] + shift} for event in once]
    trace, yaml = written(folder / f"h{batch}.json.gz", document), folder / f"h{batch}.yaml"
    yaml.write_text(json.dumps(scenario(batch, device)))
    return trace, yaml


def test_what_a_device_waits_between_steps_is_the_engine_s(tmp_path: Path) -> None:
    before_s = look_up(tspsim.load(scenario(16))).work.stack.engine.step.value
    runs = [steps(tmp_path, 16, 700.0), steps(tmp_path, 64, 800.0)]
    hosts = calibrate_traces("mi300x", runs).hosts
    (fit,) = hosts.fits
    assert (fit.stack, fit.key, fit.before_s, fit.steps) == ("sglang", "engine.step", before_s, 2)
    assert fit.value_s == pytest.approx(750e-6, rel=1e-3) and fit.low_s < 700e-6 < 800e-6 < fit.high_s
    for check, measured, others in zip(hosts.checks, (700e-6, 800e-6), (800e-6, 700e-6), strict=True):
        assert check.measured_s == pytest.approx(measured, rel=1e-3)
        assert check.before_s == pytest.approx(before_s, rel=1e-3)
        assert check.after_s == pytest.approx(750e-6, rel=1e-3)
        assert check.others_s == pytest.approx(others, rel=1e-3)


@pytest.mark.parametrize(("between_us", "start_us", "noise", "seed"), [(600.0, 3.0, 0.05, 1), (1200.0, 2.0, 0.1, 5)])
def test_gaps_and_starts_of_small_kernels_are_told_apart_under_noise(
    tmp_path: Path, between_us: float, start_us: float, noise: float, seed: int
) -> None:
    """Small kernels begin later than the model's by a time that is stated; the host waits between steps."""
    scatter = random.Random(seed)

    def factor(item: Any) -> float:
        late = 1e-6 * start_us / item.seconds if item.kind in SMALL else 0.0
        return (1.0 + late) * math.exp(scatter.gauss(0.0, noise))

    found = calibrate_traces(
        "h100", [steps(tmp_path, batch, between_us, factor=factor, device="h100") for batch in (16, 64)]
    )
    (host,) = found.hosts.fits
    assert host.value_s == pytest.approx(1e-6 * between_us, rel=0.02)
    starts = {fit.operator.removeprefix("MemoryBound "): fit.start_us for fit in found.fits}
    for name in ("add_rmsnorm", "swiglu", "cache_write"):
        assert starts[name] == pytest.approx(start_us, rel=0.12), name
    for check in found.checks:
        assert check.others_s == pytest.approx(check.measured_s, rel=0.02)


def test_a_trace_of_one_step_never_makes_a_host_quicker(tmp_path: Path) -> None:
    assert calibrate_traces("mi300x", [steps(tmp_path, 16, 0.0, count=1)]).hosts.fits == ()
    (fit,) = calibrate_traces("mi300x", [steps(tmp_path, 16, 50.0)]).hosts.fits
    assert fit.value_s == pytest.approx(50e-6, rel=1e-2)
    assert (fit.low_s, fit.high_s) == pytest.approx((fit.value_s / ONE_STEP, fit.value_s * ONE_STEP))


def test_the_command_writes_a_stack_that_the_next_step_is_asked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, yaml = steps(tmp_path, 16, 900.0)
    monkeypatch.chdir(tmp_path)
    before = tspsim.simulate(scenario(64)).plans[0].step_time_s
    assert main(["calibrate", "mi300x", "--trace", str(trace), "--scenario", str(yaml)]) == 0
    said = capsys.readouterr().out
    assert "sglang: engine.step" in said and "device idle in" in said
    written_stack = tmp_path / "workloads/stacks/sglang.yaml"
    assert written_stack.exists() and "h16.json.gz" in written_stack.read_text()
    after = tspsim.simulate(scenario(64)).plans[0].step_time_s
    assert after - before == pytest.approx(700e-6, rel=0.05)  # small kernels of the device move a little too
    assert main(["calibrate", "mi300x", "--trace", str(trace), "--scenario", str(yaml)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_launches_of_a_trainer_are_its_stack_s(tmp_path: Path) -> None:
    asked = {
        "name": "eager", "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 1},
        "workload": {"model": "llama-3.2-1b", "pass": "training", "sequence": 2048, "sequences_per_replica": 1,
                     "stack": "torchtitan-eager"},
        "plans": [{"name": "one", "recomputation": "none"}],
    }  # fmt: skip
    question = look_up(tspsim.load(asked))
    lane = Simulated(question, question.plans[0]).lane(0)
    document = kineto([], device="h100")
    events = of_lane(lane.operations, lambda each: 1.0)
    launches = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 100.0 + 25.0 * number,
         "dur": 1.0, "args": {"correlation": 1000 + number}}
        for number in range(len(events))
    ]  # fmt: skip
    document["traceEvents"] = launches + [
        {**event, "args": {**event["args"], "correlation": 1000 + number}} for number, event in enumerate(events)
    ]
    trace, yaml = written(tmp_path / "eager.json.gz", document), tmp_path / "eager.yaml"
    yaml.write_text(json.dumps(asked))
    (fit,) = calibrate_traces("h100", [(trace, yaml)]).hosts.fits
    assert (fit.stack, fit.key) == ("torchtitan-eager", "kernel")
    operators = sum(not item.is_transfer for item in lane.operations)
    assert fit.value_s == pytest.approx(25e-6 * len(events) / operators, rel=1e-3)
