"""What first users run into: impossible pairs, outputs over inputs, other questions side by side, names in any script,
keys and units that are nearly right, and the documentation itself."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import tspsim
from tspsim.base import catalog
from tspsim.base.errors import InputError
from tspsim.base.units import were
from tspsim.cli import main
from tspsim.cli.docs import section
from tspsim.hardware import load_device
from tspsim.model import load_model
from tspsim.parallel import load_stack
from tspsim.steps import STEPS
from tspsim.studies.contract import probes

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "name": "first",
    "cluster": {"device": "h100", "nodes": 1},
    "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "4Ki"},
    "plans": [{"name": "TP8", "tp": 8}],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command is refused with."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    return told


# --- pairs that cannot be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stack", "device", "pass_", "message"),
    [
        ("trtllm", "mi355x", "prefill", "'trtllm' runs on devices of nvidia; mi355x is one of amd"),
        ("atom", "h200", "prefill", "'atom' runs on devices of amd; h200 is one of nvidia"),
        ("vllm@0.19", "h200", "training", "runs forward and serving steps, not training"),
        ("nanotron", "h200", "prefill", "'nanotron' runs forward and training steps, not prefill"),
    ],
)
def test_a_stack_runs_where_its_file_says(
    here: Path, capsys: pytest.CaptureFixture[str], stack: str, device: str, pass_: str, message: str
) -> None:
    sets = [f"workload.stack={stack}", f"cluster.device={device}", f"workload.pass={pass_}"]
    asked = [word for each in sets for word in ("--set", each)]
    for command in ("check", "run"):
        told = refused(capsys, command, "base.yaml", *asked)
        assert message in told and "workload.stack" in told and "(those that do: " in told
    able = told.rpartition("(those that do: ")[2].rpartition(")")[0].split(", ")
    vendor = load_device(device).vendor
    assert "ideal" in able and all(load_stack(name).runs(vendor, STEPS.get(pass_)) for name in able)


def test_every_shipped_stack_but_the_ideal_one_says_where_it_runs_and_who_says_so() -> None:
    vendors = {load_device(name).vendor for name in catalog.names("devices")}
    for name in catalog.names("stacks"):
        stack = load_stack(name)
        assert (stack.vendors is None) == (stack.steps is None) == (name == "ideal"), name
        assert stack.vendors is None or set(stack.vendors.value) <= vendors
        serves = stack.steps is not None and "serving" in stack.steps.value
        stated = stack.engine.model_fields_set if stack.engine is not None else set()
        assert bool(stated - {"hosts"}) == serves, name  # how fast a processor launches is of training too


def test_a_config_of_an_unknown_family_is_read_with_a_note_or_refused_with_the_nearest(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 4096}
    file = here / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "vocab_size": 32000, **sizes}))
    assert load_model(str(file)).note == ""
    file.write_text(json.dumps({"model_type": "lamma", "vocab_size": 32000, **sizes}))
    capsys.readouterr()
    for arguments in (["check", "config.json"], ["check", "base.yaml", "--set", "workload.model=config.json"]):
        assert main(arguments) == 0
        told = capsys.readouterr().out
        assert "model_type 'lamma' is not known here (did you mean 'llama'?)" in told, arguments
    assert main(["run", "base.yaml", "--set", "workload.model=config.json", "--json", "a.json"]) == 0
    (plan,) = json.loads((here / "a.json").read_text())["plans"]
    assert any("is not known here" in note for note in plan["notes"])
    file.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 32000, **sizes}))
    assert load_model(str(file)).note == ""
    file.write_text(json.dumps({"architectures": ["ZorblaxForCausalLM"], "vocab_size": 32000, **sizes}))
    assert "model_type 'zorblax' is not known here" in load_model(str(file)).note
    file.write_text(json.dumps({"model_type": "mambo", "mamba_d_state": 16, "vocab_size": 32000, **sizes}))
    assert "cannot be read (mamba_d_state)" in refused(capsys, "check", "config.json")


@pytest.mark.parametrize("amount", ["global_batch=1e9", "sequences_per_replica=1000000000"])
def test_a_batch_beyond_simulation_is_refused_with_its_count_at_once(
    here: Path, capsys: pytest.CaptureFixture[str], amount: str
) -> None:
    began = time.process_time()
    sets = ["--set", f"workload.{amount}", "--set", "workload.pass=training"]
    for command in ("check", "run", "bound", "plan"):
        told = refused(capsys, command, "base.yaml", *sets)
        assert "1,000,000,000" in told and "at most" in told, command
    assert time.process_time() - began < 10.0
    lengths = "workload.lengths={kind: uniform, of: 4Ki, from: 0.5}"
    told = refused(capsys, "check", "base.yaml", *sets, "--set", lengths) if "global" in amount else "at most"
    assert "at most" in told


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        *(["run", "base.yaml", f"--{option}"] for option in ("json", "html", "trace")),
        *(["plan", "base.yaml", f"--{option}"] for option in ("json", "html", "write")),
        *(["compare", "base.yaml", f"--{option}"] for option in ("json", "html", "csv")),
        ["bound", "base.yaml", "--json"],
        ["sweep", "base.yaml", "--over", "plans=TP8", "--html"],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-1]}",
)
def test_no_output_replaces_an_input(here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    own = here / "mine.json"
    own.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512,
                               "num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 1000}))  # fmt: skip
    (here / "base.yaml").write_text(yaml.safe_dump(SMALL | {"workload": {**SMALL["workload"], "model": "mine.json"}}))
    (here / "link.yaml").symlink_to("base.yaml")
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    for target in ("base.yaml", "./base.yaml", "link.yaml", "mine.json"):
        if arguments[-1] == "--write" and target.endswith(".json"):
            continue
        assert "it is an input of this command" in refused(capsys, *arguments, target)
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before


def test_measured_tables_are_inputs_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "data").mkdir()
    (here / "data/rows.csv").write_text("a\n1\n")
    assert "it is an input" in refused(capsys, "validate", "--data", "data", "--json", "data/rows.csv")
    assert "name another folder" in refused(capsys, "validate", "--data", "data", "--rows", "./data")
    assert "it is an input" in refused(capsys, "calibrate", "h100", "--data", "data", "--out", "data/rows.csv")


def test_reports_of_several_files_and_of_any_script_stand_beside_each_other(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "best.yaml").write_text((here / "base.yaml").read_text())
    names = {"ru.yaml": "где купить?", "zh.yaml": "在哪里买" * 40}
    for file, name in names.items():
        (here / file).write_text(yaml.safe_dump(SMALL | {"name": name}, allow_unicode=True), encoding="utf-8")
    for file in ("base.yaml", "best.yaml", *names, "base.yaml"):
        assert main(["run", file]) == 0
    written = sorted(path.name for path in (here / "reports").iterdir())
    assert written[:2] == ["first-best.html", "first.html"] and "где-купить.html" in written and len(written) == 4
    assert all(len(name.encode()) < 200 for name in written)
    assert "report: reports/first-best.html" in capsys.readouterr().out


# --- words ------------------------------------------------------------------------------------------------------


def test_compare_says_what_else_differs_than_the_hardware(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = {"model": "qwen3-8b", "pass": "forward", "sequence": "8Ki"}
    (here / "other.yaml").write_text(yaml.safe_dump(SMALL | {"workload": workload, "name": "other"}))
    (here / "amd.yaml").write_text(yaml.safe_dump(SMALL | {"cluster": {"device": "mi300x", "nodes": 1}, "name": "amd"}))
    assert main(["compare", "base.yaml", "other.yaml", "--html", "c.html"]) == 0
    told = "Not the same question: model llama-3.1-8b and qwen3-8b; sequence 4,096 and 8,192."
    assert told in capsys.readouterr().out and told in (here / "c.html").read_text(encoding="utf-8")
    compared = tspsim.compare("base.yaml", "other.yaml")
    assert told in repr(compared) and told in compared._repr_html_()
    assert [each.key for each in compared.differences] == ["workload.model", "workload.sequence"]
    assert compared.to_json()["differs"][1] == {"key": "workload.sequence", "values": [4096, 8192]}
    assert main(["compare", "base.yaml", "amd.yaml"]) == 0
    assert "Not the same question" not in capsys.readouterr().out
    assert "differs" not in tspsim.compare("base.yaml", "amd.yaml").to_json()


@pytest.mark.parametrize(
    ("section", "key"), [("workload", "sequence"), ("workload", "model"), ("workload", "pass"), ("cluster", "device")]
)
def test_a_needed_key_without_its_last_letter_is_told_as_misspelt(section: str, key: str) -> None:
    data = {name: dict(value) if isinstance(value, dict) else value for name, value in SMALL.items()}
    data[section][key[:-1]] = data[section].pop(key)
    with pytest.raises(InputError, match=f"{section}.{key[:-1]}: unknown key .did you mean '{key}'"):
        tspsim.load(data)


@pytest.mark.parametrize("price", ["2 EUR/h", "2 €/h", "2 CNY/h"])
def test_prices_in_another_currency_say_which_are_read(price: str) -> None:
    currency = price.split()[1].partition("/")[0]
    with pytest.raises(InputError, match=f"is in {currency}; prices are in US dollars alone"):
        tspsim.load(SMALL | {"prices": {"gpu_hour": price}})


def test_the_documentation_is_searched_where_it_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == pages
    assert main(["docs", "zigzag"]) == 0
    assert "schedules.md#tokens" in capsys.readouterr().out
    assert main(["docs", "stacks.md#engines"]) == 0
    assert capsys.readouterr().out.startswith("## Engines")
    assert main(["docs", "stacks.md#defaults"]) == 0, "a section that moved is found where its new place is named"
    shown = capsys.readouterr().out
    assert shown.startswith("## Engines") and "<a id" not in shown
    assert "did you mean 'zigzag'?" in refused(capsys, "docs", "zigzg")


def test_pages_that_messages_name_are_there() -> None:
    """Whoever reads `tspsim docs X` in an answer can run it."""
    import re

    named = {
        place
        for path in (ROOT / "tspsim").rglob("*.py")
        for place in re.findall(r"tspsim docs ([\w-]+\.md(?:#[\w-]+)?)", path.read_text(encoding="utf-8"))
    }
    assert named
    for place in named:
        assert section(place)


def test_words_of_the_field_stand_in_tables_and_one_is_not_several(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "base.yaml"]) == 0
    told = capsys.readouterr().out
    assert "per GPU" in told and "$/M" in told and "a million" not in told
    assert were(1) == "1 was" and were(2) == "2 were"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "tensor and sequence parallelism" in readme[:1000], "the first lines say what TSP stands for"


@pytest.mark.in_turn(2, group="commands")
def test_names_of_searched_plans_are_explained_where_they_appear(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = {**SMALL["workload"], "model": probes.Models(here).dense, "pass": "training", "global_batch": 8}
    plans = [{"name": "best", "search": {"limits": ["schemes=tp"]}}]
    (here / "best.yaml").write_text(yaml.safe_dump(SMALL | {"workload": work, "plans": plans}))
    assert main(["run", "base.yaml", "--html", "plain.html"]) == 0
    assert "Words in the names" not in (here / "plain.html").read_text(encoding="utf-8")
    for command, further in (("run", []), ("compare", []), ("plan", ["--budget", "0.3 s"])):
        capsys.readouterr()
        page = here / f"{command}.html"
        assert main([command, "best.yaml", *further, "--html", str(page)]) == 0
        shown = [capsys.readouterr().out, *([page.read_text(encoding="utf-8")] if command != "compare" else [])]
        for told in shown:
            assert "degrees of parallelism, one per axis" in told and "of a micro-batch" in told, command
