"""docs/schemes-worth.md: rows of its table say what the package says now."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
from helpers import documents
from helpers.draws import in_turn
from markupsafe import escape

from tspsim.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_schemes")


def rows(script: ModuleType) -> dict[str, list[str]]:
    """Cells of the table as it stands on the page, by scheme."""
    (text,) = script.pages.block("worth").findall(script.PAGE.read_text(encoding="utf-8"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {line[0]: line for line in lines[2:]}


def test_the_gallery_shows_the_table_as_it_stands(script: ModuleType, tmp_path: Path) -> None:
    from tspsim.report import gallery, worth

    table, further = script.tables()
    found = worth.write(table, tmp_path, further)
    assert [row[0] for row in found.rows] == [entry.name for entry in script.ENTRIES]
    assert all(worth.plain(cell) in row for row, cells in zip(found.rows, rows(script).values(), strict=True)
               for cell in cells)  # fmt: skip
    assert len(found.gains) == sum("·" in cell for cells in rows(script).values() for cell in cells[2:6])
    (entry,) = gallery.schemes(tmp_path)
    assert entry.rates[0] == max(gain.best for gain in found.gains) and 'href="pages/' in gallery.index([entry])
    committed = script.PAGE.parent.parent / "reports"
    if committed.is_dir():
        for part in ("pages/schemes-worth.html", "tables/schemes-worth.csv"):
            assert (committed / part).read_text() == (tmp_path / part).read_text(), "python docs/generate_schemes.py"
        assert 'href="pages/schemes-worth.html"' in (committed / "index.html").read_text(encoding="utf-8")
    assert gallery.schemes(tmp_path / "empty") == []
    page = (tmp_path / "pages" / "schemes-worth.html").read_text()
    assert all(f'<th scope="row">{escape(each.name)}</th>' in page for each in script.systems.SYSTEMS)
    assert page.count("tspsim run") + page.count("tspsim compare") >= len(script.systems.SYSTEMS) - 1


def test_every_scheme_has_its_row(script: ModuleType) -> None:
    assert list(rows(script)) == [entry.name for entry in script.ENTRIES]


@pytest.mark.parametrize(
    ("name", "device"),
    in_turn((
     ("TASP", "mi300x"), ("TokenRing", "b200"), ("Ladder residual", "mi355x"), ("Fused sums (Flux)", "h100"),
     ("LLEP", "b200"), ("EPLB", "mi300x"), ("Helix", "h100"),
     ("Tutel's degree", "h100"), ("Tutel's parallelism", "h100"), ("Janus' scheduler", "b200"),
     ("Janus' pools", "h100"), ("ParaThinker", "b200"), ("Padding removed (EnergonAI)", "mi300x"),
     ("Speculative MoE", "mi355x"), ("Fused exchanges (Comet)", "h100"), ("A tier for models (SN40L)", "b200"),
     ("Three levels (Frontier)", "b200"), ("ExFlow", "mi300x"), ("Fused sums by copy engines", "mi355x"))),
)  # fmt: skip
def test_a_cell_of_every_kind_says_what_the_package_says(script: ModuleType, name: str, device: str) -> None:
    entry = next(each for each in script.ENTRIES if each.name == name)
    stands = rows(script)[name][2 + script.DEVICES.index(device)]
    found = script.cell(entry, device)
    assert NUMBER.sub("#", stands) == NUMBER.sub("#", found), "python docs/generate_schemes.py"
    for was, now in zip(NUMBER.findall(stands), NUMBER.findall(found), strict=True):
        assert float(now) == pytest.approx(float(was), rel=0.02, abs=0.011), "python docs/generate_schemes.py"


@pytest.mark.in_turn(5)
@pytest.mark.parametrize(
    "name",
    [
        "TokenRing",
        "Three levels (Frontier)",
        pytest.param("Host attention (APEX)", marks=pytest.mark.slow),
        pytest.param("Pipette", marks=pytest.mark.slow),
    ],
)
def test_gains_on_their_own_hardware_are_what_the_package_says(script: ModuleType, name: str) -> None:
    (text,) = script.pages.block("published").findall(script.PAGE.read_text(encoding="utf-8"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    stands = {line[0]: line[4] for line in lines[2:]}
    assert list(stands) == [each.name for each in script.published.PUBLISHED]
    (row,) = (each for each in script.published.PUBLISHED if each.name == name)
    gain = re.compile(r"\d+\.\d\d")
    for was, now in zip(gain.findall(stands[name]), gain.findall(row.cell), strict=True):
        assert float(now) == pytest.approx(float(was), rel=0.02, abs=0.011), "python docs/generate_schemes.py"


def test_every_system_has_a_verdict_and_tests_and_scenarios_that_are_there(script: ModuleType) -> None:
    (text,) = script.pages.block("systems").findall(script.PAGE.read_text(encoding="utf-8"))
    assert text.strip() == script.systems.table()
    root = DOCS.parent
    assert all((root / "tests" / each.held).is_file() for each in script.systems.SYSTEMS)


@pytest.mark.slow
def test_what_asks_a_system_is_a_command_that_runs(script: ModuleType) -> None:
    """Read with everything it sets, and every plan either runs or is refused as one that does not fit."""
    commands = [shlex.split(each.command.strip("`")) for each in script.systems.SYSTEMS if "tspsim " in each.command]
    assert len(commands) >= len(script.systems.SYSTEMS) - 1
    for _, asked, *words in commands:
        assert asked in ("run", "compare")
        assert main(["check", *words]) == 0, words
