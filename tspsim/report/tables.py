"""Tables for the terminal: names to the left, numbers to the right, and the refused plans below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def empty_table(names: Sequence[str], numbers: Sequence[str] = (), **more: Any) -> Table:
    """A table with columns of names, which wrap where they are long, then columns of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, **more)
    for heading in names:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def add_row(table: Table, cells: Iterable[str], style: str = "") -> None:
    """Add a row of plain texts; nothing in them is markup."""
    from rich.text import Text

    table.add_row(*map(Text, cells), style=style)


def add_refused(table: Table, lines: Sequence[str]) -> None:
    """Write the refused plans below the table, if there are any."""
    from rich.text import Text

    if lines:
        table.caption, table.caption_justify = Text("\n".join(lines), "yellow"), "left"
