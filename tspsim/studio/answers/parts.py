"""Pieces of answers as components: tables, foldable details, assumptions, sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from .sort import Document, Figure

#: Layout of figures on this page, in light and dark.
LOOKS = {
    "template": "none",
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#7a8699"},
    "margin": {"l": 60, "r": 10, "t": 30, "b": 45},
}
AXIS = {"gridcolor": "rgba(128,128,128,.25)"}


def about(document: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Any]:
    """Named entries, notes, assumptions, and sources of the numbers."""
    notes: dict[str, list[str]] = {}
    for plan in document["plans"]:
        for note in plan.get("notes", ()):
            notes.setdefault(note, []).append(plan["name"])
    every = len(document["plans"])
    lines = [
        note if every == 1 else f"{'Every plan' if len(names) == every else ', '.join(names)}: {note}"
        for note, names in notes.items()
    ]
    sources = [
        html.Tr([html.Th(row["what"], scope="row"), *(html.Td(row[key]) for key in ("value", "source", "basis"))])
        for row in document["provenance"]
    ]
    entries = [html.Li([html.Code(name), f": {what}"]) for _, name, what in facts["entries"]]
    head = [html.Th(word, scope="col") for word in ("what", "value", "source", "basis")]
    return [
        *details("The named entries", [html.Ul(entries)], entries),
        *details("Notes", [html.Ul([html.Li(prose(line)) for line in lines])], lines),
        *details(
            "Assumed; each can be switched",
            [html.Ul([html.Li(prose(sentence)) for sentence in document["defaults"]])],
            document["defaults"],
        ),
        *details(
            "Sources of the numbers",
            [region("Sources", head, sources)],
            sources,
        ),
    ]


def details(title: str, inside: list[Any], when: Sequence[Any]) -> list[Any]:
    """A part that folds away, titled with its count; empty where it has nothing."""
    return [html.Details([html.Summary(f"{title} ({len(when)})"), *inside])] if when else []


def region(title: str, head: list[Any], rows: list[Any]) -> Any:
    """A table that scrolls sideways where it is wider than the page, and that keyboards reach."""
    body = html.Table([html.Caption(title, className="unseen"), html.Thead(html.Tr(head)), html.Tbody(rows)])
    return html.Div(body, className="scroll", tabIndex=0, role="region", **{"aria-label": title})


def heads(columns: Sequence[str]) -> list[Any]:
    """Head cells of columns."""
    return [html.Th(name, scope="col") for name in columns]


def prose(text: str) -> list[Any]:
    """A text whose parts between backticks are code."""
    return [html.Code(part) if at % 2 else part for at, part in enumerate(text.split("`"))]


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def explained(figure: Figure, of: str, reasons: Sequence[str]) -> list[Any]:
    """A figure with foldable reasons beside it."""
    shown: list[Any] = [html.Span(figure.text, className="figure", **{"data-figure": figure.key})]
    if reasons:
        shown.append(folded(f"why {figure.name} of {of}", reasons))
    return shown


def folded(label: str, reasons: Sequence[str]) -> Any:
    """Sentences that fold out under "why?"."""
    summary = html.Summary("why?", **{"aria-label": label})
    return html.Details([summary, html.Div([html.P(prose(reason)) for reason in reasons])], className="why")


def sources(document: Document, word: str) -> list[str]:
    """The first three sources of numbers whose name contains a word."""
    rows = [row for row in document["provenance"] if word and word in row["what"].lower()]
    return [f"{row['what']}: {row['value']} ({row['source']}; {row['basis']})." for row in rows[:3]]
