"""docs/tsp-inference.md and tsp-prefill.md: rows of tables say what the package says now, the prose what they say."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from helpers import documents

DOCS = Path(__file__).resolve().parents[2] / "docs"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_tsp_inference")


def committed(script: ModuleType, name: str) -> list[list[str]]:
    """Cells of a table as it stands on the page, header first."""
    page = script.PAGE if name in script.TABLES else script.PREFILL_PAGE
    (text,) = script.pages.block(name).findall(page.read_text(encoding="utf-8"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [lines[0], *lines[2:]]


def check_row(found: list[str], rows: list[list[str]]) -> None:
    """A row with the same first cell, its numbers within 2 % or a unit of their last digit."""
    (stands,) = [row for row in rows if row[0] == found[0]]
    assert [NUMBER.sub("#", cell) for cell in stands] == [NUMBER.sub("#", cell) for cell in found]
    for old_cell, new_cell in zip(stands, found, strict=True):
        for old, new in zip(NUMBER.findall(old_cell), NUMBER.findall(new_cell), strict=True):
            was, now = float(old.replace(",", "")), float(new.replace(",", ""))
            digit = 10.0 ** -len(old.partition(".")[2])
            assert abs(now - was) <= max(0.02 * was, digit) * (1 + 1e-9), "python docs/generate_tsp_inference.py"


def test_the_pages_have_every_table(script: ModuleType) -> None:
    for page, tables in ((script.PAGE, script.TABLES), (script.PREFILL_PAGE, script.PREFILL_TABLES)):
        assert set(re.findall(r"<!-- begin (\S+) -->", page.read_text(encoding="utf-8"))) == set(tables)
        assert all(len(committed(script, name)) > 2 for name in tables)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", ["where", "kimi"])
def test_shipped_scenarios_say_what_stands_there(script: ModuleType, name: str) -> None:
    rows = committed(script, name)
    for line in script.TABLES[name]().splitlines()[2:]:
        check_row([cell.strip() for cell in line.strip("|").split("|")], rows)


@pytest.mark.in_turn(2, group="pages")
def test_a_row_of_every_other_kind_says_what_the_package_says(script: ModuleType) -> None:
    work = {"model": "llama-3.1-70b", "context": 8 * 1024}
    check_row(script.decode_row(script.DENSE, "mi300x", 8, **work), committed(script, "decode-dense"))
    work = {"model": "kimi-k2.6", "context": 8 * 1024, "precision": {"kv": "fp8"}}
    check_row(script.decode_row(script.EXPERTS, "b200", 512, **work), committed(script, "decode-experts"))
    check_row(script.prefill_row("llama-3.1-8b", "b200", 32 * 1024, 1), committed(script, "prefill-llama-3.1-8b"))
    check_row(script.longest_row("mi300x"), committed(script, "longest"))
    check_row(script.derived_row("Qwen3-235B, 32 × 128Ki", "mi355x"), committed(script, "derived"))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "tsp-8b"])
def test_the_chosen_schedule_is_never_slower_than_the_published_one(script: ModuleType, model: str) -> None:
    def seconds(cell: str) -> float:
        value, unit = cell.split(" ")[:2]
        return float(value) * (1e-3 if unit == "ms" else 1.0)

    header, *rows = committed(script, f"prefill-{model}")
    chosen, published = header.index("TSP8"), header.index("TSP8-published")
    ran = [row for row in rows if row[chosen] != "–"]
    assert len(ran) >= 18
    assert all(seconds(row[chosen]) <= seconds(row[published]) for row in ran)


def test_sharing_pays_later_than_bytes_and_latencies_alone_say(script: ModuleType) -> None:
    for row in committed(script, "even")[1:]:
        stated, simulated = (float(cell.replace(" k", "").replace(",", "")) for cell in row[1:3])
        assert simulated > 2 * stated
