"""docs/schemes-worth.md: rows of its table say what the package says now."""

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
    return documents.script("generate_schemes")


def rows(script: ModuleType) -> dict[str, list[str]]:
    """Cells of the table as it stands on the page, by scheme."""
    (text,) = script.pages.block("worth").findall(script.PAGE.read_text(encoding="utf-8"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {line[0]: line for line in lines[2:]}


def test_every_scheme_has_its_row(script: ModuleType) -> None:
    assert list(rows(script)) == [entry.name for entry in script.ENTRIES]


@pytest.mark.parametrize(
    ("name", "device"),
    [("TASP", "mi300x"), ("TokenRing", "b200"), ("Ladder residual", "mi355x"), ("Fused sums (Flux)", "h100"),
     ("LLEP", "b200"), ("EPLB", "mi300x"), ("Helix", "h100"),
     ("Tutel's degree", "h100"), ("Tutel's parallelism", "h100"), ("Janus' scheduler", "b200"),
     ("Speculative MoE", "mi355x"), ("ExFlow", "mi300x"), ("Fused sums by copy engines", "mi355x")],
)  # fmt: skip
def test_a_cell_of_every_kind_says_what_the_package_says(script: ModuleType, name: str, device: str) -> None:
    entry = next(each for each in script.ENTRIES if each.name == name)
    stands = rows(script)[name][2 + script.DEVICES.index(device)]
    found = script.cell(entry, device)
    assert NUMBER.sub("#", stands) == NUMBER.sub("#", found), "python docs/generate_schemes.py"
    for was, now in zip(NUMBER.findall(stands), NUMBER.findall(found), strict=True):
        assert float(now) == pytest.approx(float(was), rel=0.02, abs=0.011), "python docs/generate_schemes.py"
