"""What profiles of steps say of a device, and what they do not: made-up machines whose truth is stated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import decode_step, kineto, of_lane, written

import tspsim
from tspsim.base.errors import InputError
from tspsim.calibration.traces import TraceCalibration, calibrate_traces
from tspsim.hardware import Device, load_device
from tspsim.hardware.pricers import in_steps, price
from tspsim.hardware.specification import InSteps
from tspsim.operators import Gemm, MemoryBound
from tspsim.parallel import Captured, load_stack
from tspsim.step.question import look_up
from tspsim.traces.simulated import Simulated

PRICED = Captured.NOTHING


def serving(stack: str, batch: int) -> dict[str, Any]:
    work = {"model": "qwen3-8b", "pass": "decode", "stack": stack, "batch": batch, "context": 1024}
    return {"name": "s", "cluster": {"device": "mi300x", "nodes": 1}, "workload": work,
            "plans": [{"name": "TP1", "tp": 1}]}  # fmt: skip


#: Weights are gathered, and gradients summed, beside kernels.
BESIDE = {
    "name": "fsdp",
    "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 8},
    "workload": {"model": "llama-3.2-1b", "pass": "training", "sequence": 4096, "sequences_per_replica": 2},
    "plans": [{"name": "FSDP8", "dp": 8, "zero": 3, "recomputation": "none"}],
}


def machine(path: Path, asked: dict[str, Any], factor: Callable[[Any], float] = lambda each: 1.0) -> tuple[Path, Path]:
    """A profile of a machine whose kernels take ``factor`` of what is simulated, and its scenario."""
    question = look_up(tspsim.load(asked))
    lane = Simulated(question, question.plans[0]).lane(0)
    document = kineto([], device=question.device.name, world_size=question.cluster.gpus)
    document["traceEvents"] = of_lane(lane.operations, factor)
    yaml = path.with_suffix("").with_suffix(".yaml")
    yaml.write_text(json.dumps(asked), encoding="utf-8")
    return written(path, document), yaml


def test_a_machine_that_is_as_simulated_teaches_nothing(tmp_path: Path) -> None:
    """Kernels beside transfers take longer there, and are not taught as if they were alone."""
    for device, asked in (("h100", BESIDE), ("mi300x", serving("sglang", 16))):
        run = machine(tmp_path / f"{device}.json.gz", asked)
        found = calibrate_traces(device, [run])
        assert found.fits == () and found.checks[0].after_s == pytest.approx(found.checks[0].before_s)
        assert found.checks[0].before_s == pytest.approx(found.checks[0].measured_s, rel=0.01)


def test_slower_products_beside_transfers_are_as_much_slower_alone(tmp_path: Path) -> None:
    run = machine(tmp_path / "s.json.gz", BESIDE, lambda each: 1.3 if each.kind == "gemm" else 1.0)
    fits = {fit.operator: fit for fit in calibrate_traces("h100", [run]).fits}
    assert set(fits) == {"Gemm"}
    assert fits["Gemm"].factor == pytest.approx(1.3, rel=0.05)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """One machine under two engines: its products take 1.4 times as long, norms under SGLang alone twice."""
    folder = tmp_path_factory.mktemp("two")

    def slower(each: Any, norms: float) -> float:
        return {"gemm": 1.4, "norm": norms}.get(each.kind, 1.0)

    return [
        machine(folder / "a" / "rank0.json.gz", serving("sglang", 256), lambda each: slower(each, 2.0))
        if (folder / "a").mkdir() is None
        else (folder, folder),
        machine(folder / "b" / "rank0.json.gz", serving("vllm", 64), lambda each: slower(each, 1.0))
        if (folder / "b").mkdir() is None
        else (folder, folder),
    ]


@pytest.fixture(scope="module")
def learnt(two: list[tuple[Path, Path]]) -> TraceCalibration:
    return calibrate_traces("mi300x", two)


def taught(fits: tuple[InSteps, ...]) -> Device:
    device = load_device("mi300x")
    return Device(device.spec.model_copy(update={"in_steps": fits}), device.relatives)


def test_an_engine_s_own_kernels_say_nothing_of_another_engine_s(learnt: TraceCalibration) -> None:
    norm, product = MemoryBound("add_rmsnorm", 4e6, 256), Gemm(64, 4096, 4096)
    device = taught(learnt.fits)
    # What a library's products took under one engine holds for an engine that no profile has.
    alone = load_device("mi300x")
    assert price(device.under("trtllm"), product).seconds > 1.2 * price(alone, product).seconds
    assert in_steps(device.under("trtllm"), norm) is None and in_steps(device.under("vllm"), norm) is None
    own = in_steps(device.under("sglang"), norm)
    assert own is not None and own.source.endswith(": a/rank0.json.gz")
    assert device.under("sglang") is device.under("sglang") and alone.under("sglang") is alone


def test_a_row_names_the_profiles_that_it_is_from(learnt: TraceCalibration) -> None:
    sources = {(fit.operator, fit.stack): fit.source.partition(": ")[2] for fit in learnt.fits}
    assert sources["Gemm", None] == "a/rank0.json.gz, b/rank0.json.gz"
    assert sources["Gemm", "sglang"] == "a/rank0.json.gz" and sources["Gemm", "vllm"] == "b/rank0.json.gz"


def test_the_order_of_profiles_does_not_matter_and_a_second_time_changes_nothing(
    two: list[tuple[Path, Path]], learnt: TraceCalibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calibrate_traces("mi300x", two[::-1]).text() == learnt.text()
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "topologies/devices/mi300x.yaml"
    target.parent.mkdir(parents=True)
    target.write_text(learnt.text(), encoding="utf-8")
    again = calibrate_traces("mi300x", two)
    assert again.text() == learnt.text()
    # Before is what the file in this folder says now.
    for check in again.checks:
        assert check.before_s == pytest.approx(check.after_s) == pytest.approx(check.measured_s, rel=0.03)


def test_profiles_that_contradict_each_other_give_a_range_over_both(tmp_path: Path) -> None:
    runs = [
        machine(
            tmp_path / f"{name}.json.gz", serving("sglang", 16), lambda each, f=f: f if each.kind == "gemm" else 1.0
        )
        for name, f in (("quick", 1.0), ("slow", 2.0))
    ]
    found = calibrate_traces("mi300x", runs)
    (gemm,) = [fit for fit in found.fits if fit.operator == "Gemm"]
    assert gemm.high >= 1.9 and gemm.low <= 1 / 1.9
    quick, slow = found.checks
    assert quick.measured_s < quick.after_s < slow.measured_s and quick.others_s > 1.4 * quick.measured_s


def test_before_is_what_the_step_was_told_to_take(tmp_path: Path) -> None:
    """The engine's pace and least times are in it, as in ``tspsim run``."""
    asked = serving("sglang", 16)
    found = calibrate_traces("mi300x", [machine(tmp_path / "a.json.gz", asked, lambda each: 1.2)])
    question = look_up(tspsim.load(asked))
    lane = Simulated(question, question.plans[0]).lane(0)
    told = sum(each.seconds for each in lane.operations if each.operator is not None)
    assert found.checks[0].before_s == pytest.approx(told, rel=0.01)


def test_a_start_alone_leaves_the_engine_s_pace() -> None:
    """SGLang's activations take 1.6 times a copy on MI300X, which short ones of a step do not show."""
    long = MemoryBound("swiglu", 1132.5e6, 15360)
    entry = InSteps(operator="MemoryBound swiglu", start_us=6.0, low=0.6, high=1.6, rows=1, source="a test")
    costs = []
    for device in (load_device("mi300x"), taught((entry,))):
        own = device
        costs.append(
            load_stack("sglang").stack().cost(lambda each, own=own: price(own, each).seconds, own, PRICED)(long)
        )
    assert costs[1] == pytest.approx(costs[0] + 6e-6) and costs[0] > 1.5 * price(load_device("mi300x"), long).seconds


def test_a_profile_of_another_device_is_refused(tmp_path: Path) -> None:
    trace, _ = machine(tmp_path / "a.json.gz", serving("sglang", 16))
    other = serving("sglang", 16)
    other["cluster"]["device"] = "mi355x"
    (tmp_path / "other.yaml").write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(InputError, match="was recorded on mi300x, not on mi355x"):
        calibrate_traces("mi355x", [(trace, tmp_path / "other.yaml")])


def test_one_profile_is_one_witness(tmp_path: Path) -> None:
    """The same file twice would be held against itself; one shape in two profiles is one shape."""
    run = machine(tmp_path / "a.json.gz", serving("sglang", 16), lambda each: 1.3 if each.kind == "attention" else 1.0)
    with pytest.raises(InputError, match="stands twice; it counts once"):
        calibrate_traces("mi300x", [run, run])
    copied = tmp_path / "b.json.gz"
    copied.write_bytes(run[0].read_bytes())
    (attention,) = calibrate_traces("mi300x", [run, (copied, run[1])]).fits
    assert (attention.rows, attention.high, attention.low) == (1, 1.6, 0.625)


def note(batch: int) -> str:
    decoding = f"sq{batch}sk{batch * 1024}sqsq{batch}sqsk{batch * 1024}"
    return f"execute_{batch}_context_0(sq0sk0sqsq0sqsk0)_generation_{batch}({decoding})"


def test_of_many_steps_the_one_that_the_scenario_states_is_taken(tmp_path: Path) -> None:
    """A server's profile has steps of several batches; each may be taught, and each counts once."""
    steps = [(note(batch), decode_step(36, batch)) for batch in (16, 16, 16, 32, 16)]
    trace = written(tmp_path / "a.json.gz", kineto(steps, graph=True))
    yamls = []
    for batch in (16, 32):
        yamls.append(tmp_path / f"b{batch}.yaml")
        yamls[-1].write_text(json.dumps(serving("sglang", batch)), encoding="utf-8")
    assert len(calibrate_traces("mi300x", [(trace, yaml) for yaml in yamls]).checks) == 2
    with pytest.raises(InputError, match="stands twice; it counts once"):
        calibrate_traces("mi300x", [(trace, yamls[1]), (trace, yamls[1])])
