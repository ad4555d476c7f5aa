"""docs/tasp.md: TASP's published speed-ups, and the simulated ones that stand beside them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from helpers import documents

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_tasp")


def rows(script: ModuleType, table: str) -> list[list[str]]:
    (text,) = script.pages.block(table).findall(script.PAGE.read_text(encoding="utf-8"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()][2:]


def test_points_of_the_grid_say_what_the_package_says(script: ModuleType) -> None:
    table = {(row[0], row[1]): row[2:] for row in rows(script, "tasp_grid")}
    for device, causal, tokens, shape in (("mi300x", True, 13_440, (12, 192)), ("h100", False, 3360, (4, 512))):
        found = script.point(device, *shape, tokens, causal)
        told = table[f"{shape[0]} × {shape[1]}", f"{tokens:,}"][list(script.GRID).index((device, causal))]
        assert f"{found.gain:.2f}" == told, "python docs/generate_tasp.py"


def test_no_gain_is_above_what_seven_links_can_give_and_a_switch_gives_none(script: ModuleType) -> None:
    for tokens in (6720, 53_760):
        found = script.point("mi300x", 20, 128, tokens, False)
        # Kernels beside transfers are slower in both, so that the ring's own wait is a little more than its hops.
        assert 1.0 < found.gain < min(7.0, 1.1 * found.most)
    assert script.point("h100", 20, 128, 26_880, False).gain == pytest.approx(1.0, abs=0.01)


def test_every_published_length_has_its_row(script: ModuleType) -> None:
    published = [(row[1], row[2]) for row in rows(script, "tasp_row")]
    assert published == [(f"{ratio:.2f}", f"{gain:.1f}") for ratio, gain in script.ROW.values()]
    assert len(rows(script, "tasp_grid")) == len(script.SHAPES) * len(script.SEQUENCES) + 2
