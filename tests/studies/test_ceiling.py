"""Who states no stack is told that ``ideal`` is a ceiling, and what plain PyTorch makes of the same plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tspsim
from tspsim.cli import cli
from tspsim.report.plan import sure
from tspsim.studies import ceiling

STEP: dict[str, Any] = {
    "name": "try", "cluster": "hgx-h100-8", "plans": [{"name": "Z3", "zero": 3}],
    "workload": {"model": "tsp-8b", "pass": "training", "sequence": "1Ki"},
}  # fmt: skip


def notes(**workload: str) -> list[str]:
    scenario = tspsim.load(STEP | {"workload": STEP["workload"] | workload})
    told = ceiling.beside_the_ceiling(scenario, tspsim.simulate(scenario))
    return [note for note in told.plans[0].notes if "ceiling" in note]


def test_a_training_step_without_a_stack_is_told_what_plain_pytorch_takes() -> None:
    (note,) = notes()
    slower = tspsim.simulate(STEP | {"workload": STEP["workload"] | {"stack": "fsdp2"}}).plans[0].step_time_s
    share = slower / tspsim.simulate(STEP).plans[0].step_time_s - 1.0
    assert share > 0.02 and f"{100 * share:.1f} % longer" in note.replace("\N{NO-BREAK SPACE}", " ")


def test_where_one_more_simulation_is_not_cheap_the_note_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "FEW_SPANS", 1)
    (note,) = notes()
    assert "`stack: fsdp2`" in note and "%" not in note


def test_a_stated_stack_and_what_does_not_train_are_no_ceiling() -> None:
    assert notes(stack="fsdp2") == [] and notes(**{"pass": "forward"}) == []


def test_the_command_says_so_and_so_does_its_json(tmp_path: Path) -> None:
    file = tmp_path / "try.json"
    (tmp_path / "try.yaml").write_text(json.dumps(STEP))
    ran = CliRunner().invoke(cli, ["run", str(tmp_path / "try.yaml"), "--json", str(file)])
    assert ran.exit_code == 0 and "is a ceiling" in " ".join(ran.output.split())
    assert any("is a ceiling" in note for note in json.loads(file.read_text())["plans"][0]["notes"])


@pytest.mark.in_turn(5, group="searches")
def test_a_search_says_so_of_its_plans_unless_a_stack_is_stated() -> None:
    for stack, said in ((None, True), ("fsdp2", False)):
        workload = STEP["workload"] | ({"stack": stack} if stack else {})
        planned = tspsim.plan(STEP | {"workload": workload}, budget=1)
        assert any("is a ceiling" in line for line in planned.to_json()["defaults"]) is said
        assert any("is a ceiling" in line for line in sure(planned)) is said
