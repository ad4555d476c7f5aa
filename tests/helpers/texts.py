"""Texts as hypothesis draws them, of characters that are stated: those of all Unicode take a second to list."""

from __future__ import annotations

from hypothesis import strategies as st

#: Control characters, Latin and accents, and what changes lines, directions and widths.
CHARACTERS = "".join(map(chr, range(0x250))) + "Ωж→∞漢字🙂\u0301\u200b\u202e\u2028\ufeff\ufffd\U0010ffff"


def texts(most: int | None = None) -> st.SearchStrategy[str]:
    """Any text of these characters, of ``most`` at most."""
    return st.text(CHARACTERS, max_size=most)
