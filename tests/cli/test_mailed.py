"""One file to mail, what a comparison says it wrote, and hardware in it that nobody has measured."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tspsim.cli import main

PURCHASE = """\
name: few
workload: {model: llama-3.1-8b, pass: forward, sequence: 8Ki}
plans: [{name: TP8, tp: 8}]
offers:
  - {name: A, cluster: {device: h200}}
  - {name: B, cluster: {device: rubin, gpus_per_node: 8}, prices: {gpu_hour: 5 USD/h}}
project: {tokens: 100G}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.yaml").write_text(PURCHASE)


def test_a_comparison_is_one_file_to_mail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "few.yaml", "--html", "few.zip"]) == 0
    assert capsys.readouterr().out.endswith("report: few.zip\n")
    with zipfile.ZipFile("few.zip") as archive:
        inside = archive.namelist()
        page = archive.read("few.html").decode()
    assert inside == sorted(inside) and {"few.html", "few-reports/01-A.html", "few-reports/plotly.min.js"} < set(inside)
    assert 'href="few-reports/01-A.html"' in page
    assert sorted(path.name for path in Path().iterdir()) == ["few.yaml", "few.zip"]
    first = Path("few.zip").read_bytes()
    assert main(["compare", "few.yaml", "--html", "few.zip"]) == 0
    assert Path("few.zip").read_bytes() == first


def test_a_comparison_says_what_it_wrote_and_what_nobody_has_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "few.yaml", "--html", "few.html"]) == 0
    told = capsys.readouterr().out
    beside = "report: few.html, with the offers' own pages in few-reports/ (--html few.zip: all in one file to mail)"
    assert beside in told
    assert told.count("rubin is announced: ") == 1 and "vera-rubin-nvl144 is announced: " in told


def test_an_unknown_device_is_not_answered_with_the_scenario_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mygpu.yaml").write_text(PURCHASE.replace("device: h200", "device: mygpu"))
    assert main(["compare", "mygpu.yaml"]) == 2
    told = capsys.readouterr().err
    assert "unknown device 'mygpu'" in told and "did you mean 'mygpu.yaml'" not in told
