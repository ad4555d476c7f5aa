"""The first hour of a new user, as docs/first-hour.md tells it: every command of the page, in its order, in one folder
that holds what the page has one write.

Installing is what ``.ci/run`` does before any test.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import zipfile
from pathlib import Path

import pytest
from helpers.nccl_logs import nccl_log

import tspsim
from tspsim.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "first-hour.md"
FENCED = re.compile(r"^```shell\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WRITTEN = re.compile(r"^Write `([\w.]+)`:\n\n```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """Every command of the page but the installation's."""
    text = PAGE.read_text(encoding="utf-8")
    lines = [shlex.split(line) for block in FENCED.findall(text) for line in block.splitlines()]
    return [words[1:] for words in lines if words[0] == "tspsim"]


def test_the_first_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TSPSIM_CATALOG", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)  # in this process, which starts sooner
    nccl_log(tmp_path / "all_reduce.log", "all_reduce")
    for name, text in WRITTEN.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text)
    typed = commands()
    assert [words[0] for words in typed] == [
        *(
            "--version",
            "init",
            "check",
            "run",
            "run",
            "init",
            "compare",
            "sweep",
            "plan",
            "run",
            "compare",
            "calibrate",
            "run",
        )
    ]
    for words in typed:
        assert main(words) == 0, (words, capsys.readouterr().err)
        assert capsys.readouterr().err == ""

    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        "all_reduce.log",
        "best.yaml",
        "compared.csv",
        "first.yaml",
        "lengths.csv",
        "lengths.sqlite",
        "offers.yaml",
        "offers.zip",
        "reports/first.html",
        "reports/first-best.html",
        "reports/fleet-from-sacct.html",
        "topologies/nodes/hgx-h100-8.yaml",
        "training.yaml",
    }
    compared = list(csv.DictReader((tmp_path / "compared.csv").open()))
    assert {row["scenario"] for row in compared} == {"first", "tsp-8x-h100"}
    lengths = list(csv.DictReader((tmp_path / "lengths.csv").open()))
    assert {int(row["workload.sequence"]) for row in lengths} == {2**14, 2**15, 2**16} and len(lengths) == 9

    (planned,) = tspsim.load("best.yaml").plans
    assert planned.name not in {plan.name for plan in tspsim.load("first.yaml").plans}
    with zipfile.ZipFile("offers.zip") as mailed:
        pages = [name for name in mailed.namelist() if name.startswith("offers-reports/") and name.endswith(".html")]
        assert len(pages) == 2 and all(f'href="{name}"' in mailed.read("offers.html").decode() for name in pages)

    # What was calibrated is what the next answer uses: the log is slower than what ships.
    assert main(["run", "first.yaml", "--json", "slower.json"]) == 0
    calibrated = json.loads((tmp_path / "slower.json").read_text())["plans"][0]
    (tmp_path / "topologies").rename(tmp_path / "elsewhere")
    shipped = tspsim.simulate("first.yaml").plan(calibrated["name"])
    assert calibrated["tokens_per_s"] < 0.99 * shipped.tokens_per_s


def test_the_page_s_notebook_shows_itself() -> None:
    result = tspsim.simulate("tsp-8x-h100")
    assert "<table>" in result._repr_html_() and len(repr(result).splitlines()) < 12
    assert result.best is not None and result.best.name in result.to_frame().index
