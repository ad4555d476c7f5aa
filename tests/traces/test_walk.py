"""The whole way of docs/traces.md, its own commands in their order, from a profile to the corrected plan."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import decode_step, kineto, of_lane, written

import tspsim
from tspsim.cli import main
from tspsim.step.question import look_up
from tspsim.traces.simulated import Simulated

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
NOTE = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)"


def scenario(batch: int) -> dict[str, Any]:
    work = {"model": "qwen3-8b", "pass": "decode", "stack": "sglang", "batch": batch, "context": 1024}
    machine = {"device": "mi300x", "nodes": 1}
    return {"name": f"b{batch}", "cluster": machine, "workload": work, "plans": [{"name": "TP1", "tp": 1}]}


def slower_machine(batch: int) -> dict[str, Any]:
    """A profile of a machine whose products take 1.5 times as long as simulated."""
    question = look_up(tspsim.load(scenario(batch)))
    lane = Simulated(question, question.plans[0]).lane(0)
    document = kineto([], device="mi300x")
    document["traceEvents"] = of_lane(lane.operations, lambda operation: 1.5 if operation.kind == "gemm" else 1.0)
    return document


@pytest.mark.skipif(not PAGE.is_file(), reason="no docs beside the tests")
def test_the_page_s_commands_lead_from_a_profile_to_a_corrected_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("rank0.json.gz"), kineto([(NOTE, decode_step(36))], graph=True))
    for name, batch in (("a", 16), ("b", 64)):
        written(Path(f"{name}.json.gz"), slower_machine(batch))
        Path(f"{name}.yaml").write_text(json.dumps(scenario(batch)), encoding="utf-8")
    before = tspsim.simulate("a.yaml").plans[0].step_time_s
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("tspsim ")]
    commands = [shlex.split(command)[1:] for line in lines for command in line.split(" && ")]
    assert [command[:2] for command in commands][:4] == [
        ["trace", "read"], ["trace", "scenario"], ["check", "mine.yaml"], ["trace", "lay"],
    ]  # fmt: skip
    for command in commands:
        words = [name for word in command for name in globbed(word)]
        assert main(words) == 0, (command, capsys.readouterr().err)
    laid = json.loads(Path("difference.json").read_text(encoding="utf-8"))
    assert laid["matched_share"] == 1.0 and Path("difference.html").stat().st_size > 100_000
    assert set(laid["causes"]) == {"kernels_s", "collectives_s", "host_s", "schedule_s"}
    assert Path("table.parquet").is_file() and Path("topologies/devices/mi300x.yaml").is_file()
    assert tspsim.simulate("a.yaml").plans[0].step_time_s > 1.2 * before


def globbed(word: str) -> list[str]:
    """A word as a shell gives it on."""
    return sorted(str(path) for path in Path().glob(word)) if "*" in word else [word]
