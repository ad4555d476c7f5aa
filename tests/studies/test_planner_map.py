"""The map in docs/planner.md: its table is that of the file, and the file says what the package says."""

from __future__ import annotations

import csv
from pathlib import Path
from types import ModuleType

import pytest
from helpers import documents

from tspsim.studies.executors import Here
from tspsim.studies.planner import read_map
from tspsim.studies.planner.map_search import search_map

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_map")


@pytest.fixture(scope="module")
def rows(script: ModuleType) -> list[dict[str, str]]:
    with script.NUMBERS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("device", ["mi355x", "mi300x", "b200"])
def test_the_table_is_that_of_the_file(script: ModuleType, rows: list[dict[str, str]], device: str) -> None:
    (stands,) = script.pages.block(f"map-{device}").findall(script.PAGE.read_text("utf-8"))
    assert stands.rstrip("\n") == script.table([row for row in rows if row["device"] == device])
    assert device in script.MAPS


def test_every_row_says_what_its_plans_say(rows: list[dict[str, str]]) -> None:
    for row in rows:
        sides = [side for side in ("tsp", "other") if row[f"{side}_plan"]]
        for side in sides:
            assert float(row[f"{side}_least_s"]) <= float(row[f"{side}_step_s"])
            assert ("TSP" in row[f"{side}_plan"]) == (side == "tsp")
        assert int(row["batch_sequences"]) * int(row["sequence"]) == 16 * 2**20
        if len(sides) < 2:
            assert row["ratio"] == {(): "", ("tsp",): "inf", ("other",): "0.0000"}[tuple(sides)]
            without = {"tsp", "other"} - {*sides}
            assert not any(row[f"{side}_{what}_s"] for side in without for what in ("step", "least"))
            continue
        assert float(row["ratio"]) == pytest.approx(float(row["other_step_s"]) / float(row["tsp_step_s"]), abs=1e-3)


@pytest.mark.parametrize("nodes", [4, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.in_turn(5, group="searches")
def test_a_cluster_says_what_the_file_says(script: ModuleType, rows: list[dict[str, str]], nodes: int) -> None:
    points = read_map(f"sequences=8Ki,nodes={nodes}")
    (cell,) = search_map(script.asked_of("mi355x"), points, script.TOKENS, Here())
    place = "mi355x", "8192", str(nodes)
    written = next(row for row in rows if (row["device"], row["sequence"], row["nodes"]) == place)
    assert cell.ratio == pytest.approx(float(written["ratio"]), rel=0.02)
    assert cell.proven == (written["proven"] == "true")
