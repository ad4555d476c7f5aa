"""A first scenario from a trace, and the oracle beneath other people's schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import Kernel, decode_step, kineto, written

import tspsim
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.steps import Batch
from tspsim.traces import read
from tspsim.traces.scenario import guess


def serving(**workload: Any) -> dict[str, Any]:
    work = {"model": "qwen3-8b", "pass": "decode", "stack": "vllm", "batch": 32, "context": 1024} | workload
    return {"name": "asked", "cluster": "mi300x-8", "workload": work, "plans": [{"name": "TP1", "tp": 1}]}


def test_a_scenario_is_written_from_a_trace_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)"
    trace = written(tmp_path / "Decode 1.json.gz", kineto([(note, decode_step(36))], graph=True))
    out = tmp_path / "first.yaml"
    assert main(["trace", "scenario", str(trace), "--out", str(out)]) == 0
    scenario = tspsim.load(out)
    assert (scenario.name, scenario.workload.model, scenario.workload.stack) == ("decode-1", "qwen3-8b", "sglang")
    assert main(["check", str(out)]) == 0
    assert main(["trace", "lay", str(trace), str(out)]) == 0
    assert "matched: 100.0 %" in capsys.readouterr().out
    assert main(["trace", "scenario", str(trace), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_groups_are_degrees_and_what_is_not_told_is_a_comment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [
        {"pg_name": "1", "pg_desc": "tensor_model_parallel", "pg_size": 8, "ranks": list(range(8))},
        {"pg_name": "2", "pg_desc": "pp", "pg_size": 2, "ranks": [0, 8]},
    ]
    kernels = [Kernel("ampere_gemm", 5.0, "aten::mm", [[64, 96], [96, 96]]), Kernel("odd", 1.0)] * 4
    trace = written(tmp_path / "t.json", kineto([("", kernels)], device="Tesla K80", world_size=16, groups=groups))
    found = guess(read([trace]))
    assert (found.degrees, found.device, found.models) == ({"tp": 8, "pp": 2}, "", ())
    assert main(["trace", "scenario", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "the device is not in the catalog" in text and "none of the catalog" in text and "tp: 8, pp: 2" in text


@pytest.fixture(scope="module")
def oracle() -> Any:
    return tspsim.predict(serving(), "TP1")


def test_the_oracle_says_what_a_run_says(oracle: Any) -> None:
    said = oracle([(1, 1024, 32)])
    assert said == pytest.approx(tspsim.simulate(serving()).plans[0].step_time_s, rel=2e-3)
    assert 0.0 < said.low < said < said.high
    prefill = serving() | {
        "workload": {"model": "qwen3-8b", "pass": "prefill", "stack": "vllm", "batch": 1, "context": 512}
    }
    assert oracle([(512, 0, 1)]) == pytest.approx(tspsim.simulate(prefill).plans[0].step_time_s, rel=2e-2)
    assert oracle(Batch(((512, 0, 1), (1, 1024, 32)))) > max(said, oracle([(512, 0, 1)]))
    assert sum(oracle.breakdown([(1, 1024, 32)]).values()) == pytest.approx(said, rel=1e-2)


def test_more_work_is_never_quicker(oracle: Any) -> None:
    for smaller, larger in [
        ([(1, 512, 8)], [(1, 2048, 8)]),
        ([(1, 512, 8)], [(1, 512, 64)]),
        ([(256, 0, 1)], [(2048, 0, 1)]),
    ]:
        assert oracle(smaller) < oracle(larger)


@pytest.mark.parametrize("batch", [[], [(1, 5)], [(0, 5, 1)], [(1, 5, 0)], [(1.5, 5, 1)], [(1, -1, 1)]])
def test_batches_that_are_none_are_refused(oracle: Any, batch: Any) -> None:
    with pytest.raises(InputError, match="batch"):
        oracle(batch)


def test_an_oracle_is_of_steps_that_serve() -> None:
    with pytest.raises(InputError, match="unknown plan 'TP3'"):
        tspsim.predict(serving(), "TP3")
    work = {"model": "qwen3-8b", "pass": "training", "sequence": 4096}
    training = {"name": "t", "cluster": "mi300x-8", "workload": work, "plans": [{"name": "TP8", "tp": 8}]}
    with pytest.raises(InputError, match="an oracle answers steps that serve"):
        tspsim.predict(training)
