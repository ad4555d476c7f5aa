"""A timeline that tspsim wrote is read, and laid over another simulation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tspsim
from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.report import write_trace
from tspsim.step.question import look_up
from tspsim.traces.lay import lay
from tspsim.traces.simulated import Simulated

TRAINING = {"model": "llama-3.2-1b", "pass": "training", "sequence": 4096, "global_batch": 8}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "shards": (TRAINING | {"stack": "torchtitan"}, {"dp": 8, "zero": 3, "recomputation": "full"}, "h100"),
    "stages": (TRAINING | {"stack": "megatron-core"}, {"tp": 2, "pp": 2, "dp": 2, "sequence_regions": True}, "h100"),
    "experts": ({"model": "deepseek-v2-lite", "pass": "decode", "batch": 64, "context": 2048}, {"ep": 8}, "h200"),
    "windows": ({"model": "gpt-oss-20b", "pass": "decode", "batch": 16, "context": 2048}, {"tp": 2}, "mi355x"),
    "rings": (TRAINING | {"sequence": 32768, "global_batch": 1}, {"tp": 2, "cp": 4}, "mi300x"),
    "linear": ({"model": "qwen3-next-80b-a3b", "pass": "decode", "batch": 16, "context": 2048}, {"tp": 4}, "h200"),
}


def scenario(workload: dict[str, Any], plan: dict[str, Any], device: str) -> dict[str, Any]:
    return {"name": "own", "cluster": {"device": device, "nodes": 1}, "workload": workload,
            "plans": [{"name": "P", **plan}]}  # fmt: skip


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.in_turn(5)
def test_a_simulated_step_is_laid_over_its_own_simulation(case: str, tmp_path: Path) -> None:
    loaded = tspsim.load(scenario(*CASES[case]))
    file = tmp_path / "own.json"
    write_trace(tspsim.simulate(loaded), file)
    trace = traces.read([file])
    assert trace.format == "tspsim"
    question = look_up(loaded)
    simulated = Simulated(question, question.plans[0])
    for rank in trace.ranks:
        own = trace.of(trace.columns["rank"] == rank)
        lane = [each for each in simulated.lane(rank).operations if not each.prepares and each.seconds > 0.0]
        assert Counter(zip(own.word("kind"), own.columns["layer"].tolist(), strict=True)) == Counter(
            (each.kind, each.layer) for each in lane
        )
        sizes = sorted(own.columns["bytes"][own.columns["bytes"] > 0].tolist())
        assert sizes == pytest.approx(sorted(each.size_bytes for each in lane if each.size_bytes > 0), rel=1e-3)
        laid = lay(trace, question, "P", rank)
        assert laid.matched_share >= 0.999, laid.left_over
        assert sum(row.measured_s for row in laid.kinds) == pytest.approx(
            sum(row.simulated_s for row in laid.kinds), rel=0.01
        )


def test_a_faster_machines_step_differs_where_it_is_faster(tmp_path: Path) -> None:
    workload = {"model": "qwen3-8b", "pass": "decode", "batch": 32, "context": 1024}
    file = tmp_path / "own.json"
    write_trace(tspsim.simulate(tspsim.load(scenario(workload, {"tp": 2}, "h200"))), file)
    laid = lay(traces.read([file]), look_up(tspsim.load(scenario(workload, {"tp": 2}, "h100"))), "P")
    rows = {row.kind: row for row in laid.kinds}
    assert laid.matched_share == pytest.approx(1.0)
    assert 1.1 < rows["attention"].simulated_s / rows["attention"].measured_s < 1.6


def test_several_plans_and_fleets_are_refused_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    document = scenario({"model": "qwen3-8b", "pass": "decode", "batch": 8, "context": 1024}, {"tp": 2}, "h100")
    document["plans"].append({"name": "Q", "tp": 4})
    write_trace(tspsim.simulate(tspsim.load(document)), file)
    with pytest.raises(InputError, match=r"has 2 plans \(P, Q\)"):
        traces.read([file])
    start = '{"displayTimeUnit":"ms","otherData":{"scenario":"f"},"traceEvents":[\n'
    file.write_text(start + '{"name":"job","cat":"pre","ph":"X","pid":1,"tid":0,"ts":0,"dur":5,"args":{}}\n]}\n')
    with pytest.raises(InputError, match="a fleet's jobs"):
        traces.read([file])
