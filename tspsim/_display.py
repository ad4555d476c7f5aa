"""Tables as a notebook shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """A title, a table whose first column names the rows, and sentences below it; all text is escaped.

    >>> shown = html_table("t", ["plan", "step"], [["<A>", "1 s"]])
    >>> "<tr><th>&lt;A&gt;</th><td>1 s</td></tr>" in shown
    True
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for tag, cell in zip(_tags(row), row, strict=True)) + "</tr>"
        for row in rows
    )
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<p><strong>{escape(title)}</strong></p>{table}{below}"


def _tags(row: Sequence[str]) -> list[str]:
    return ["th", *["td"] * (len(row) - 1)]
