"""Tables in pages of the documentation: each stands between two marks, and is written anew there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def block(name: str) -> re.Pattern[str]:
    """What stands between the marks of a table, its last line end included."""
    return re.compile(rf"(?<=<!-- begin {name} -->\n).*?(?=<!-- end {name} -->)", re.DOTALL)


def rewrite(page: Path, tables: Mapping[str, str]) -> None:
    """Tables by name, without their last line end, in a page's place for them.

    Raises
    ------
    SystemExit
        The marks of a table do not stand in the page just once.
    """
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        text, found = block(name).subn(lambda _, new=f"{table}\n": new, text)
        if found != 1:
            raise SystemExit(f"{page}: table '{name}' stands there {found} times, not once")
    page.write_text(text, encoding="utf-8")
