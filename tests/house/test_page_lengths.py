"""A page of the documentation has at most 4,000 words: a longer one is two."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOST = 4_000
#: A page of tables, a row a system, that is not divided yet.
LONGER = {"schemes-worth.md"}


@pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")
@pytest.mark.parametrize("page", sorted({page.name for page in DOCS.glob("*.md")} - LONGER))
def test_a_page_has_at_most_4000_words(page: str) -> None:
    words = len((DOCS / page).read_text(encoding="utf-8").split())
    assert words <= MOST, f"docs/{page} has {words} words: divide it by who reads it, or say it once and link"
