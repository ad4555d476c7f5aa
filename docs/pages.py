"""Tables in pages of the documentation: each stands between two marks, and is written anew there."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
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


def asked(about: str | None, tables: Iterable[str] = ()) -> list[str]:
    """What a script's command line names of its ``tables``; ``--help`` prints what the script is ``about``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = list(tables)
    if known:
        parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"all of them, or some of {', '.join(known)}")
    named: list[str] = getattr(parser.parse_args(), "tables", [])
    if strange := [name for name in named if name not in known]:
        parser.error(f"there is no table '{strange[0]}'; there are {', '.join(known)}")
    return named
