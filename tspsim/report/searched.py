"""The answer of a search for serving plans: a table for the terminal, and one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .page import render_sections
from .plan_page import FIGURE, HEADLINE, TABLE
from .tables import add_row, empty_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tspsim.scenario import Scenario


@dataclass(frozen=True)
class SearchedView:
    """The answer of a search, in words.

    ``rows`` are cells of ``columns``, the first ``best`` of them the best plans. The terminal leaves out the columns
    in ``wide``. ``refused`` are names of plans with their reasons.
    """

    scenario: Scenario
    kicker: str
    headline: str
    sentences: Sequence[str]
    keys: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int
    refused: Sequence[tuple[str, str]]
    front: dict[str, Any]
    caption: str
    wide: tuple[str, ...] = ()

    def shown(self, without: tuple[str, ...] = ()) -> tuple[list[str], list[list[str]]]:
        """Columns with any values, and their rows."""
        kept = [
            index
            for index, name in enumerate(self.columns)
            if name not in without and any(row[index] != "–" for row in self.rows)
        ]
        return [self.columns[index] for index in kept], [[row[index] for index in kept] for row in self.rows]


def summary(searched: SearchedView) -> list[RenderableType]:
    """The answer for the terminal."""
    from rich.padding import Padding
    from rich.text import Text

    table = empty_table(())
    columns, rows = searched.shown(searched.wide)
    for number, heading in enumerate(columns):
        name = heading if heading[1:2].isupper() else heading[:1].lower() + heading[1:]
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for index, row in enumerate(rows):
        if index == searched.best:
            table.add_section()
        add_row(table, row, "" if index else "bold")
    parts: list[RenderableType] = [Text(searched.kicker, style="bold"), "", table, ""]
    parts += [Padding(Text(sentence), (0, 0, 0, 2)) for sentence in (*searched.sentences, searched.keys)]
    stated = {plan.name for plan in searched.scenario.plans}
    refused = [f"{name}: {why}" for name, why in searched.refused if name in stated]
    return [*parts, *(Text(text, style="yellow") for text in refused)]


def page(searched: SearchedView, plotly_js: str = "inline") -> str:
    """The whole page."""
    scenario = searched.scenario
    columns, rows = searched.shown()
    sections: list[tuple[str, str, str, dict[str, Any]]] = [
        ("answer", "", HEADLINE, {
            "kicker": searched.kicker, "title": scenario.name, "description": scenario.description,
            "opening": "", "headline": searched.headline, "spread": "", "searched": "", "yaml": searched.keys,
            "sentences": searched.sentences,
        }),
        ("plans", "The best plans", TABLE, {
            "caption": "The best plans", "columns": columns, "table": rows,
            "refused": [f"{name}: {why}" for name, why in searched.refused[:8]],
        }),
        ("front", "The front", FIGURE, {"sentences": [], "key": "front", "caption": searched.caption}),
    ]  # fmt: skip
    drawn = {"front": searched.front}
    return render_sections(sections, drawn, title=f"{scenario.name}, plans", plotly_js=plotly_js)
