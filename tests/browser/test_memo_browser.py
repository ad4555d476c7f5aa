"""The decision memo as paper: one sheet of A4 or Letter, nothing clipped, by itself and from the page of a purchase."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tspsim.report.memo.sheet import LENGTH, ROWS, Memo, section, sheet
from tspsim.report.page import render_sections

pytestmark = pytest.mark.browser

Open = Callable[..., Any]

SENTENCE = "word " * (LENGTH // 5)
#: As much as a sheet is given.
FULL = Memo(
    title="purchase <b>of everything</b>",
    kicker="Decision memo · 8 offers · llama-3.1-8b, training, 131,072 tokens a sequence",
    question="word " * 72,
    verdict="A and B tie: the difference lies within its range.",
    standing="tie",
    reasons=[SENTENCE] * 4,
    tiles=[("Dollars (neocloud)", "$19.3 k", "$14.9 k – $22.8 k")] * 4,
    what="Offers",
    columns=(
        "Offer", "Machine", "Plan", "Days", "Dollars", "In time", "In budget", "Enough nodes", "$/M tokens", "× first",
    ),
    rows=[
        ("eight of the newer kind", "1,024 MI355X", "SP8-DP16 gather Z3/64 mb1 keep ov b", "3.31\n2.99 – 3.78",
         "$19.3 k\n$14.9 k – $22.8 k", "over 99.9 %", "over 99.9 %", "1,024", "0.0956", "0.71, tie\n0.47 – 1.97")
    ] * (ROWS + 2),
    lists=[("What would change it", [SENTENCE] * 9), ("To know before signing", [SENTENCE] * 9)],
    terms=[(name, SENTENCE) for name in ("Plan", "Limit", "Precision", "Stack", "Prices", "Failures", "Left")],
)  # fmt: skip


def sheets(page: Any, size: str) -> int:
    """Pages of a print."""
    return len(re.findall(rb"/Type\s*/Page\b", page.pdf(format=size, prefer_css_page_size=True)))


@pytest.mark.parametrize("alone", [True, False])
def test_a_full_memo_is_one_sheet_and_nothing_of_it_is_clipped(visit: Open, tmp_path: Path, alone: bool) -> None:
    """By itself, and as the part of a page that its button prints."""
    file = tmp_path / "memo.html"
    parts = [("answer", "", "<p>much</p>" * 200, {}), section(FULL)]
    styles, scripts = ("page.css", "comparison.css", "memo.css"), ("memo.js",)
    of_a_page = render_sections(parts, {}, title="t", plotly_js="none.js", styles=styles, scripts=scripts)
    without = of_a_page.replace('<script src="none.js"></script>', "")
    file.write_text(sheet(FULL) if alone else without, encoding="utf-8")
    page = visit(file, 1400, drawn=False)
    for size in ("A4", "Letter"):
        if not alone:
            page.evaluate("() => { window.print = () => {}; document.getElementById('print-memo').click(); }")
        assert sheets(page, size) == 1, size
        assert page.evaluate("() => document.documentElement.dataset.print") is None  # the page is whole again
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 690, "height": 900})  # A4 between its margins
    beyond = page.evaluate("""() => [...document.querySelectorAll('.memo *:not(.hidden)')].filter(
        each => each.getBoundingClientRect().right > 691 || each.scrollWidth > each.clientWidth + 1
            && getComputedStyle(each).display !== 'inline').map(each => each.textContent.slice(0, 40))""")
    assert beyond == []


def test_the_memo_is_read_on_a_phone(visit: Open, tmp_path: Path) -> None:
    file = tmp_path / "memo.html"
    file.write_text(sheet(FULL), encoding="utf-8")
    page = visit(file, 390, drawn=False)
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    assert page.inner_text("h1") == FULL.title
