"""The gallery: reproducible to the bit, small, complete; and the comparison's files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet
import pytest

from tspsim.base import catalog
from tspsim.cli import main
from tspsim.report.gallery import PLANNED, SHOWN, WITH_BEST, write_gallery

ROOT = Path(__file__).parents[2]
FEW = ["gqa-tsp-moves-fewer-bytes", "slow-gpu-mi300x"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages and tables of a few scenarios."""
    folder = tmp_path_factory.mktemp("gallery")
    write_gallery(folder, FEW)
    return folder


@pytest.mark.slow
def test_the_same_scenarios_give_the_same_bytes(gallery: Path, tmp_path: Path) -> None:
    write_gallery(tmp_path, FEW)
    assert files(tmp_path) == files(gallery)
    assert sum(name.endswith("plotly.min.js") for name in files(gallery)) == 1


SMALL = """\
name: small-plan
description: Two H200
cluster: {device: h200, gpus_per_node: 2}
workload: {model: llama-3.1-8b, pass: forward, sequence: 8Ki, global_batch: 2}
plans: [{name: TP2, tp: 2}]
"""


def test_a_planners_answer_stands_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the best plan as `run` reports it, a legend of names, and its numbers."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios/small-plan.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    (entry,) = write_gallery(Path("reports"), [], ["small-plan"])
    assert entry.description == "Two H200" and "times the best plan stated" in entry.answer
    assert entry.href in Path("reports/index.html").read_text()
    page = Path("reports", entry.href).read_text(encoding="utf-8")
    best = entry.answer.split(":")[0]
    assert f"Timeline: {best}</h2>" in page and 'id="gantt"' in page and "Assumptions and sources" in page
    assert "</code></dt><dd>sequences of a micro-batch</dd>" in page
    with Path("reports/tables/small-plan.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["plan"] == best and rows[-1]["plan"] == "TP2 (stated)"
    assert float(rows[0]["tokens_per_s"]) == max(float(row["tokens_per_s"]) for row in rows)


def test_csv_and_parquet_have_the_same_rows(gallery: Path) -> None:
    with (gallery / "tables/gqa-tsp-moves-fewer-bytes.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = pyarrow.parquet.read_table(gallery / "tables/gqa-tsp-moves-fewer-bytes.parquet").to_pydict()
    assert [row["plan"] for row in rows] == columns["plan"] and len(rows) == 10
    assert [float(row["tokens_per_s"]) for row in rows] == columns["tokens_per_s"]
    assert [row["offer"] for row in rows] == ["MI300X"] * 5 + ["H200"] * 5


def test_what_is_shown_ships() -> None:
    assert {*SHOWN, *PLANNED} <= set(catalog.names("scenarios")) and set(WITH_BEST) <= set(SHOWN)


def test_the_committed_gallery_is_whole_and_moderate() -> None:
    reports = ROOT / "reports"
    if not (reports / "index.html").is_file():
        pytest.skip("no gallery beside the package: it is in the source tree only")
    text = (reports / "index.html").read_text(encoding="utf-8")
    for name in (*SHOWN, *PLANNED):
        assert f'href="pages/{name}.html"' in text
        for file in (f"pages/{name}.html", f"tables/{name}.csv", f"tables/{name}.parquet"):
            assert (reports / file).is_file(), file
    committed = [path for part in ("pages", "tables") for path in (reports / part).iterdir()]
    assert sum(path.stat().st_size for path in [*committed, reports / "plotly.min.js"]) < 13e6


def test_compare_writes_page_reports_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, numbers = tmp_path / "c.html", tmp_path / "c.json"
    assert main(["compare", "gqa-tsp-moves-fewer-bytes", "--html", str(page), "--json", str(numbers)]) == 0
    assert "MI300X" in capsys.readouterr().out
    document = json.loads(numbers.read_text(encoding="utf-8"))
    assert [result["scenario"]["name"] for result in document["results"]] == ["MI300X", "H200"]
    assert document["purchase"]["winner"] in ("MI300X", "H200")
    names = sorted(path.name for path in (tmp_path / "c-reports").iterdir())
    assert names == ["01-MI300X.html", "02-H200.html", "plotly.min.js"]
    assert 'href="c-reports/02-H200.html"' in page.read_text(encoding="utf-8")


def test_plain_scenarios_are_compared_without_a_purchase(tmp_path: Path) -> None:
    numbers = tmp_path / "c.json"
    assert main(["compare", "tsp-8x-h100", "tsp-8x-mi355x", "--json", str(numbers)]) == 0
    assert "purchase" not in json.loads(numbers.read_text(encoding="utf-8"))
