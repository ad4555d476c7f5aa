"""docs/memory-tiers.md: cells of its tables say what the package says now."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from helpers import documents

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_tiers")


def rows(script: ModuleType, table: str) -> dict[str, list[str]]:
    (text,) = script.pages.block(table).findall(script.PAGE.read_text(encoding="utf-8"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines[2:]}


def test_a_cell_of_every_table_says_what_the_package_says(script: ModuleType) -> None:
    cell = rows(script, "weights")["4Ki"][list(script.DEVICES).index("mi355x")]
    assert cell == ", ".join(f"{script.prefill_ratio('mi355x', 4 * script.KI, layers):.2f}" for layers in (80, 20))
    told = rows(script, "hosts")["6.25 %"][list(script.DEVICES).index("h100")]
    slower = script.served("h100", 1 / 16).step_time_s / script.served("h100", 0.0).step_time_s
    assert told.split(",")[0] == f"{slower:.2f}"
    assert rows(script, "all_reduces") == {
        line.strip("| ").split(" | ")[0]: line.strip("| ").split(" | ")[1:]
        for line in script.all_reduces().splitlines()[2:]
    }


def test_a_pool_behind_every_device_is_what_its_table_says(script: ModuleType) -> None:
    stands = [line for line in script.machines().splitlines()[2:] if line.startswith("| MI355X")]
    (row,) = stands
    assert rows(script, "machines")["MI355X"] == row.strip("| ").split(" | ")[1:]
    assert all(float(cells[1]) < float(cells[0]) for cells in rows(script, "machines").values())


def test_weights_hide_behind_the_tokens_that_the_rule_of_thumb_says(script: ModuleType) -> None:
    """FLOP/s over the link's bytes/s, of weights in two bytes: about ten thousand, an eighth of it for every eighth."""
    for device in script.DEVICES:
        cells = [rows(script, "weights")[f"{tokens}Ki"][list(script.DEVICES).index(device)] for tokens in (2, 16)]
        (few, _), (many, every_fourth) = ([float(each) for each in cell.split(",")] for cell in cells)
        assert few > 2.0 and many < 1.05 and every_fourth == 1.0
