"""init, check, the catalog as data and completion: what a new user types first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tspsim
from tspsim.base import catalog
from tspsim.cli import main
from tspsim.cli.templates import TEMPLATES, text_of
from tspsim.scenario import load

IMPORTED_FROM = str(Path(tspsim.__file__).parent.parent)
SCENARIOS = [name for name, (_, files) in TEMPLATES.items() if not any("/" in place for place in files.values())]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TSPSIM_CATALOG", raising=False)
    return folder


@pytest.mark.parametrize("template", SCENARIOS)
def test_every_template_is_right_as_it_is(template: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", template]) == 0
    (written,) = here.iterdir()
    assert capsys.readouterr().out.startswith(f"wrote {written.name}\nnext: tspsim ")
    assert main(["check", written.name]) == 0
    told = capsys.readouterr().out
    assert f"{written.name}: right" in told and "does not fit" not in told and " fits" in told
    assert load(written).name == template and load(written).description


def test_without_a_name_the_first_template_is_written(here: Path) -> None:
    assert main(["init"]) == 0
    assert (here / "first.yaml").read_text() == text_of("first")
    assert main(["init", "--out", "other.yaml"]) == 0 and (here / "other.yaml").exists()


def test_a_template_is_printed_where_its_file_is_a_dash(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "serving", "--out", "-"]) == 0
    assert capsys.readouterr().out == text_of("serving") and not list(here.iterdir())


def test_a_device_and_node_of_ones_own_are_found_and_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "device"]) == 0 and main(["init"]) == 0
    for path in ("topologies/devices/my-gpu.yaml", "topologies/nodes/my-gpu-8.yaml"):
        assert main(["check", path]) == 0
    assert main(["run", "first.yaml", "--set", "cluster.device=my-gpu", "--json", "own.json"]) == 0
    own = json.loads((here / "own.json").read_text())
    assert own["cluster"]["device"]["name"] == "my-gpu" and own["plans"][0]["tokens_per_s"] > 0
    capsys.readouterr()


def test_nothing_that_exists_is_replaced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "first.yaml").write_text("mine")
    assert main(["init"]) == 2 and "first.yaml: exists already; name another file" in capsys.readouterr().err
    (here / "dangling.yaml").symlink_to("nowhere")
    assert main(["init", "--out", "dangling.yaml"]) == 2
    assert (here / "first.yaml").read_text() == "mine" and not (here / "nowhere").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["init", "fist"], "unknown template 'fist' (did you mean 'first'?)"),
        (["init", "device", "--out", "a.yaml"], "--out: template 'device' has 2 files"),
        (["init", "--out", "nowhere/a.yaml"], "does not exist; make it first"),
        (["check", "none.yaml"], "none.yaml: no such file"),
        (["check", "small.yaml"], "small.yaml: name, workload and plans are required"),
        (["check", "gpu.yaml"], "gpu.yaml: vendor, family, description, hbm_bandwidth, memory, visible_memory"),
        (["check", "letter.yaml"], "letter.yaml: peak.bf16.source: 'x' is shorter than 3 characters"),
        (["check", "gpu.yaml", "--set", "name=a"], "gpu.yaml: --set: changes scenarios; this is none"),
        (["check", "config.json"], "config.json: num_hidden_layers: is required"),
        (["check", "wide.yaml"], "wide.yaml: plans.P: tp 16 = 16 GPUs a replica do not divide the cluster's 8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "small.yaml").write_text("cluster: {device: h100}\n")
    (here / "gpu.yaml").write_text("name: gpu\npeak: {bf16: {value: 1 PFLOP/s, source: data sheet}}\n")
    (here / "letter.yaml").write_text("name: gpu\npeak: {bf16: {value: 1 PFLOP/s, source: x}}\n")
    (here / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 8}')
    (here / "wide.yaml").write_text(
        "name: wide\ncluster: {device: h100}\nworkload: {model: llama-3.1-8b, pass: forward, sequence: 8Ki}\n"
        "plans: [{name: P, tp: 16}]\n"
    )
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert says in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_question_that_does_not_fit_is_told_and_exits_with_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "training"]) == 0
    assert main(["check", "training.yaml", "--set", "workload.model=llama-3.1-405b"]) == 3
    printed = capsys.readouterr()
    assert "does not fit" in printed.out and "no plan fits; the nearest" in printed.err


@pytest.mark.parametrize("kind", ["devices", "nodes", "fabrics", "transports", "clusters", "models", "stacks"])
def test_every_kind_of_entry_can_be_checked(kind: catalog.Kind, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(catalog.locate(kind, catalog.names(kind)[0]))]) == 0
    assert ": right. " in capsys.readouterr().out


def test_the_catalog_is_listed_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {entry["kind"] for entry in entries} == set(catalog.FOLDERS)
    assert all(Path(entry["file"]).exists() and entry["description"] for entry in entries)
    told = []
    for typed in (["models", "--json"], ["models", "--json", "-"], ["--json", "models"]):
        assert main(["catalog", "list", *typed]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] == told[2] and {each["kind"] for each in json.loads(told[0])} == {"models"}
    assert main(["catalog", "list", "devices", "--json", "devices.json"]) == 0
    assert {entry["name"] for entry in json.loads(Path("devices.json").read_text())} == set(catalog.names("devices"))


def completed(words: str) -> list[str]:
    """What bash is offered for the last word."""
    typed = words.split(" ")
    environment = {
        **os.environ,
        "_TSPSIM_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(typed) - 1),
        "PYTHONPATH": IMPORTED_FROM,
    }
    done = subprocess.run([sys.executable, "-m", "tspsim"], capture_output=True, text=True, env=environment, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_a_shell_completes_commands_and_names() -> None:
    assert completed("tspsim com") == ["compare", "completion"]
    assert "tsp-8x-h100" in completed("tspsim run tsp-8x")
    assert completed("tspsim nonsense wor") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_TSPSIM_COMPLETE" in script
    if shell == "bash" and (bash := shutil.which("bash")):
        subprocess.run([bash, "-n"], input=script, text=True, check=True)
