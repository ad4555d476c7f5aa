"""The commands as people type them: what is printed, which files appear, and the exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import without_reader

import tspsim as package
from tspsim import __version__
from tspsim.base import catalog, display
from tspsim.base.errors import InputError
from tspsim.cli import main

SMALL = """\
name: small
cluster: {device: mi300x, nodes: 2, fabric: rails-400g}
workload: {model: tsp-8b, pass: forward, sequence: 16Ki}
plans:
  - {name: TSP8, tsp: 8}
  - {name: TP8, tp: 8}
"""
ROOT = Path(__file__).parents[2]
#: Where the tspsim under test lies, for processes of their own.
IMPORTED_FROM = str(Path(package.__file__).parent.parent)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with one scenario in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "small.yaml").write_text(SMALL)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TSPSIM_CATALOG", raising=False)
    return folder


def files(folder: Path) -> set[str]:
    """Every file below ``folder`` but the question itself."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"small.yaml"}


def tspsim(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """``python -m tspsim`` in a process of its own, in the current folder."""
    paths = os.pathsep.join(filter(None, (IMPORTED_FROM, os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", "tspsim", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_help_names_the_commands_and_exits_with_zero() -> None:
    done = tspsim("--help")
    assert done.returncode == 0 and done.stderr == ""
    for command in ("run", "compare", "bound", "catalog"):
        assert f"\n  {command}" in done.stdout
    assert tspsim("--version").stdout == f"tspsim {__version__}\n"


def test_nothing_asked_shows_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Usage: tspsim" in capsys.readouterr().err


def test_the_command_line_loads_nothing_heavy() -> None:
    heavy = ["numpy", "networkx", "pandas", "plotly", "scipy", "simpy", "pydantic", "rich", "jinja2", "yaml"]
    code = f"import sys, tspsim.cli; print([name for name in {heavy} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": IMPORTED_FROM}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "[]\n"


def test_run_prints_a_table_and_writes_the_report_here(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "small.yaml"]) == 0
    printed = capsys.readouterr()
    assert files(here) == {"reports/small.html"}
    assert "report: reports/small.html" in printed.out
    assert "TSP8" in printed.out and "TP8" in printed.out and "tokens/s" in printed.out
    assert "16 × MI300X in 2 nodes · " in printed.out
    assert "zigzag" in printed.out  # the defaults that decide the answer are said
    assert printed.err == ""
    assert "<html" in (here / "reports/small.html").read_text(encoding="utf-8")


def test_json_alone_writes_no_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "small.yaml", "--json", "a.json"]) == 0
    assert files(here) == {"a.json"}
    assert "JSON: a.json" in capsys.readouterr().out
    document = json.loads((here / "a.json").read_text())
    assert document["schema"] == 1 and [plan["name"] for plan in document["plans"]] == ["TSP8", "TP8"]
    first = document["plans"][0]
    assert first["tokens_per_s"] == pytest.approx(first["tokens_per_step"] / first["step_time_s"])
    parts = first["breakdown_s"]
    total = parts["compute"] + sum(parts["exposed_communication"].values()) + parts["bubble"] + parts["idle"]
    assert total == pytest.approx(first["step_time_s"], rel=1e-9)


def test_trace_alone_writes_no_report(here: Path) -> None:
    assert main(["run", "small.yaml", "--trace", "a.trace.json"]) == 0
    assert files(here) == {"a.trace.json"}
    events = json.loads((here / "a.trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"TSP8", "TP8"}


def test_every_output_can_be_asked_for_at_once(here: Path) -> None:
    assert main(["run", "small.yaml", "--json", "a.json", "--trace", "t.json", "--html", "r.html"]) == 0
    assert files(here) == {"a.json", "t.json", "r.html"}


def test_json_on_standard_output_is_all_there_is_and_has_the_same_bits_in_any_process(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = tspsim("run", "small.yaml", "--json", "-")
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout)["scenario"]["name"] == "small"
    assert main(["run", "small.yaml", "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert printed.out == done.stdout and printed.err == ""
    assert files(here) == set()


def test_set_changes_a_plan_by_its_name(here: Path) -> None:
    main(["run", "small.yaml", "--json", "a.json"])
    assert main(["run", "small.yaml", "--json", "b.json", "--set", "plans.TSP8.overlap=false"]) == 0
    before, after = (json.loads((here / name).read_text())["plans"] for name in ("a.json", "b.json"))
    assert after[0]["settings"]["overlap"] is False
    assert after[0]["step_time_s"] > before[0]["step_time_s"]
    assert after[1] == before[1]


def test_every_rank_gives_the_same_answer(here: Path) -> None:
    main(["run", "small.yaml", "--json", "a.json"])
    assert main(["run", "small.yaml", "--json", "b.json", "--every-rank"]) == 0
    folded, full = (json.loads((here / name).read_text())["plans"] for name in ("a.json", "b.json"))
    for one, every in zip(folded, full, strict=True):
        assert every["step_time_s"] == pytest.approx(one["step_time_s"], rel=1e-9)
        assert len(every["classes"]) == 16 >= len(one["classes"])


def test_when_nothing_fits_the_numbers_are_written_and_the_code_is_three(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--set", "workload.sequence=256Mi", "--json", "a.json", "--html", "a.html"]
    assert main(["run", "small.yaml", *arguments]) == 3
    message = capsys.readouterr().err
    assert message.startswith("tspsim: no plan fits; the nearest, ") and message.count("\n") == 1
    assert "GiB more than its 192.0; largest part:" in message
    plans = json.loads((here / "a.json").read_text())["plans"]
    assert all("error" in plan and "tokens_per_s" not in plan and not plan["memory"]["fits"] for plan in plans)
    assert (here / "a.html").is_file()


def test_one_plan_that_runs_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "tsp-memory-8x-mi300x", "--json", "a.json"]) == 0
    assert "SP8 is refused: needs 268.4 GiB per GPU" in " ".join(capsys.readouterr().out.split())


def test_the_report_of_a_strangely_named_scenario_stays_in_reports(here: Path) -> None:
    (here / "odd.yaml").write_text(SMALL.replace("name: small", 'name: "../../<b>what\\e[31m if?</b>"'))
    assert main(["run", "odd.yaml"]) == 0
    assert files(here) - {"odd.yaml"} == {"reports/b-what-31m-if-b.html"}


def test_compare_sets_scenarios_side_by_side(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "other.yaml").write_text(SMALL.replace("mi300x", "mi355x").replace("name: small", "name: <other>"))
    targets = ["--csv", "c.csv", "--json", "c.json", "--html", "c.html"]
    assert main(["compare", "small.yaml", "other.yaml", *targets]) == 0
    printed = capsys.readouterr().out
    assert "16 mi300x" in printed and "16 mi355x" in printed
    results = json.loads((here / "c.json").read_text())["results"]
    plans = [plan for result in results for plan in result["plans"]]
    rows = list(csv.DictReader(io.StringIO((here / "c.csv").read_text())))
    assert [row["scenario"] for row in rows] == ["small", "small", "<other>", "<other>"]
    for row, plan in zip(rows, plans, strict=True):
        assert row["plan"] == plan["name"] and float(row["tokens_per_s"]) == plan["tokens_per_s"]
        assert float(row["ratio_to_first"]) == pytest.approx(plan["tokens_per_s"] / plans[0]["tokens_per_s"])
        assert float(row["memory_peak_bytes"]) == plan["memory"]["peak_bytes"]
    page = (here / "c.html").read_text()
    assert "&lt;other&gt;" in page and "<other>" not in page
    # One file, offline: nothing is loaded from elsewhere, and the page's own policy forbids it.
    assert not re.findall(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["'](?:https?:)?//""", page)
    assert "default-src &#39;none&#39;" in page


def test_compare_shows_a_refused_plan_and_counts_ratios_from_the_first_that_ran(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = SMALL.replace("sequence: 16Ki", "sequence: 4Mi").replace("plans:\n", "plans:\n  - {name: SP16, sp: 16}\n")
    (here / "long.yaml").write_text(shown.replace("tsp-8b", "llama-3.1-405b"))
    assert main(["compare", "long.yaml", "small.yaml", "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["plan"] == "SP16" and "GiB more than" in rows[0]["error"] and rows[0]["tokens_per_s"] == ""
    assert next(row["ratio_to_first"] for row in rows if row["tokens_per_s"]) == "1.0"
    assert main(["compare", "long.yaml", "--csv", "c.csv", "--set", "a=b"]) == 2
    assert files(here) == {"long.yaml"}


def test_compare_changes_a_key_of_every_scenario_whatever_the_processes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "other.yaml").write_text(SMALL.replace("mi300x", "mi355x").replace("name: small", "name: other"))
    asked = ["compare", "small.yaml", "other.yaml", "--set", "workload.sequence=32Ki"]
    assert main([*asked, "--json", "a.json"]) == 0 and main([*asked, "--json", "b.json", "--jobs", "1"]) == 0
    results = json.loads((here / "a.json").read_text())["results"]
    assert [result["scenario"]["workload"]["sequence"] for result in results] == [2**15, 2**15]
    assert (here / "a.json").read_bytes() == (here / "b.json").read_bytes()
    capsys.readouterr()
    assert main(["compare", "small.yaml", "other.yaml", "--set", "plans.TP9.tp=4"]) == 2
    assert "unknown plan 'TP9'" in capsys.readouterr().err


def test_bound_judges_the_published_claim(capsys: pytest.CaptureFixture[str]) -> None:
    claim = ["--claim", "173e6 tokens/s"]
    assert main(["bound", "tsp-vs-tpsp-1024-mi300x", *claim]) == 0
    lines = capsys.readouterr().out.splitlines()
    (model,) = [line for line in lines if line.startswith("  whole model")]
    (block,) = [line for line in lines if line.strip().startswith("one block:")]
    assert "impossible" in model and "8.707 PFLOP/s per GPU" in model and "26.0 M tokens/s" in model
    assert "plausible" in block and "impossible" not in block and "272.1 TFLOP/s" in block and "21 %" in block


def test_bound_calls_a_claim_within_possible(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--claim", "13 Mtokens/s", "--json", "b.json"]
    assert main(["bound", "tsp-vs-tpsp-1024-mi300x", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "whole model: possible, and plausible" in printed and "50 % of the ceiling" in printed
    claim = json.loads((here / "b.json").read_text())["claim"]
    assert claim["model"]["verdict"] == "possible" and claim["model"]["share"] == pytest.approx(0.5, abs=0.01)
    assert main(["bound", "small.yaml", "--json", "-", "--set", "plans.TP8.tp=16"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][1]["memory"]["fits"] is True


def test_bound_of_plans_that_do_not_fit_is_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", "small.yaml", "--set", "workload.sequence=256Mi"]) == 3
    printed = capsys.readouterr()
    assert "too large" in printed.out and printed.err.startswith("tspsim: no plan fits; the nearest, ")


@pytest.mark.parametrize("kind", catalog.FOLDERS)
def test_the_catalog_lists_every_entry_of_a_kind(kind: catalog.Kind, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "list", kind]) == 0
    printed = capsys.readouterr().out
    for name in catalog.names(kind):
        assert f" {name} " in printed


def test_the_whole_catalog_is_listed_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{kind} " in printed for kind in catalog.FOLDERS)


def test_an_entry_that_cannot_be_read_does_not_hide_the_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "scenarios").mkdir()
    (here / "scenarios/broken.yaml").write_text("a: [")
    assert main(["catalog", "list", "scenarios"]) == 0
    printed = capsys.readouterr().out
    assert "cannot be read: is not valid YAML" in printed and "tsp-vs-tpsp-1024-mi300x" in printed


def test_show_prints_an_entry_and_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "show", "rails-400g"]) == 0
    place, text = capsys.readouterr().out.split("\n", 1)
    assert place.startswith("# ") and place.endswith("fabrics/rails-400g.yaml")
    assert text == Path(place[2:]).read_text(encoding="utf-8")


def test_a_name_of_two_kinds_asks_which(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "show", "mi300x-8"]) == 2
    message = capsys.readouterr().err
    assert "nodes/mi300x-8 or clusters/mi300x-8" in message
    assert main(["catalog", "show", "nodes/mi300x-8"]) == 0
    assert "nodes/mi300x-8.yaml" in capsys.readouterr().out


def test_ones_own_entry_is_found_first(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "scenarios").mkdir()
    (here / "scenarios/tsp-8x-h100.yaml").write_text(SMALL)
    assert main(["catalog", "show", "tsp-8x-h100"]) == 0
    assert "name: small" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_appears_on_a_terminal_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(display, "PROGRESS_AFTER_S", 0.05)
    slow = Terminal()
    monkeypatch.setattr(sys, "stderr", slow)
    with display.progress_bar() as progress:
        assert progress is not None
        progress("TP\x1b[31m8", 0.5)
        deadline = time.monotonic() + 10
        while "TP?[31m8" not in slow.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "TP?[31m8" in slow.getvalue()


def test_progress_stays_away_from_quick_answers_and_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Terminal()
    monkeypatch.setattr(sys, "stderr", quick)
    with display.progress_bar() as progress:
        assert progress is not None
        progress("TP8", 0.5)
    assert quick.getvalue().strip() == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with display.progress_bar() as progress:
        assert progress is None


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    ("arguments", "written"), [(["catalog", "list"], set()), (["run", "small.yaml"], {"reports/small.html"})]
)
@pytest.mark.in_turn(2, group="commands")
def test_a_reader_that_has_gone_is_no_error(here: Path, arguments: list[str], written: set[str]) -> None:
    """Neither while the command prints nor when the interpreter ends."""
    environment = {**os.environ, "PYTHONPATH": IMPORTED_FROM}
    command = [sys.executable, "-m", "tspsim", *arguments]
    with without_reader() as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, env=environment, timeout=120)
    assert done.returncode == 141 and done.stderr == b""
    assert files(here) == written


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (["run", "small.yaml", "--json", "a.json", "--html", "a.html"], {"a.json", "a.html"}),
        (["compare", "small.yaml", "--csv", "a.csv"], {"a.csv"}),
        (["compare", "small.yaml", "--csv", "-", "--json", "a.json"], {"a.json"}),
        (["bound", "small.yaml", "--json", "a.json"], {"a.json"}),
        (["sweep", "small.yaml", "--over", "plans=TP8", "--out", "a.csv", "--html", "a.html", "--jobs", "1"],
         {"a.csv", "a.sqlite", "a.html"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_files_are_written_whoever_reads_the_terminal(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    written: set[str],
) -> None:
    with without_reader() as gone, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", gone)
        assert main(arguments) == 141
    assert capsys.readouterr().err == ""
    assert files(here) == written


def test_an_answer_whose_file_cannot_be_written_is_shown(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise InputError("cannot write: No space left on device", file=str(path))

    monkeypatch.setattr("tspsim.base.files.atomic_write", full)
    assert main(["bound", "small.yaml", "--json", "a.json"]) == 2
    printed = capsys.readouterr()
    assert "TSP8" in printed.out and "JSON" not in printed.out
    assert "No space left" in printed.err and printed.err.count("\n") == 1


@pytest.mark.in_turn(2, group="commands")
def test_every_key_of_the_json_is_documented(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documented = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    main(["run", "small.yaml", "--json", "-", "--set", "prices={gpu_hour: 2 USD/h, electricity: 0.1 USD/kWh}"])
    document = json.loads(capsys.readouterr().out)
    plan = document["plans"][0]
    names = [*document, *document["cluster"], *document["cluster"]["device"], *plan, *plan["links"][0]]
    names += [*plan["classes"][0], *plan["cost"], *plan["breakdown_s"], *plan["range"], *plan["memory"]]
    main(["bound", "small.yaml", "--json", "-", "--claim", "1 tokens/s"])
    ceilings = json.loads(capsys.readouterr().out)
    names += [*ceilings, *ceilings["claim"]["model"], *ceilings["plans"][0]["model"]]
    machine = {"nodes": 2, "fabric": "rails-400g"}
    asked = {
        "name": "offers",
        "workload": {"model": "tsp-8b", "pass": "forward", "sequence": "16Ki"},
        "plans": [{"name": "best", "search": {"limits": ["schemes=tp"]}}],
        "offers": [{"name": name, "cluster": machine | {"device": name}} for name in ("mi300x", "mi355x")],
        "project": {"tokens": "1T", "rate": "10 ktokens/s"},
    }
    (here / "offers.yaml").write_text(json.dumps(asked))
    main(["compare", "offers.yaml", "--json", "-", "--jobs", "1"])
    purchase = json.loads(capsys.readouterr().out)["purchase"]
    offer, verdict = purchase["offers"][0], purchase["verdicts"][0]
    names += [*purchase, *offer, *offer["searched"], *offer["rates"], *offer["rates"]["bill"]]
    names += [*offer["weak_scaling"][0]]
    names += [*offer["project"], *offer["project"]["run"], *offer["need"], *verdict, *verdict["tornado"][0]]
    main(["catalog", "list", "devices", "--json", "-"])
    names += [*json.loads(capsys.readouterr().out)[0]]
    known = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]*)`", documented))))
    assert set(names) - known == {"compute_tokens_per_s", "hbm_tokens_per_s"}  # "each of the three"
