"""Tables as a notebook shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol


class Lined(Protocol):
    """What says itself in a line."""

    @property
    def name(self) -> str: ...
    def in_a_line(self) -> str: ...


class ShownPlans:
    """An answer of plans that shows itself in a line a plan, in a notebook as a table."""

    def shown_title(self) -> str:
        """What was asked."""
        raise NotImplementedError

    def shown_plans(self) -> Iterable[tuple[str, Lined]]:
        """The plans under the names that they are shown by, the best first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        lines = [f"  {name}  {plan.in_a_line()}" for name, plan in self.shown_plans()]
        return "\n".join([f"<{type(self).__name__} {self.shown_title()}", *lines]) + ">"

    def _repr_html_(self) -> str:
        rows = [(name, plan.in_a_line()) for name, plan in self.shown_plans()]
        return html_table(self.shown_title(), ("plan", "what it does"), rows)


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
