"""Pieces of answers as components: tables, what folds away, what was assumed, where numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from .sort import Document, Figure

#: How figures look on this page, in light and dark.
LOOKS = {
    "template": "none",
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#7a8699"},
    "margin": {"l": 60, "r": 10, "t": 30, "b": 45},
}
AXIS = {"gridcolor": "rgba(128,128,128,.25)"}


def about(document: Mapping[str, Any], told: Mapping[str, Any]) -> list[Any]:
    """What was assumed, where numbers come from, what the named entries are."""
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
    facts = [html.Li([html.Code(name), f": {what}"]) for _, name, what in told["entries"]]
    head = [html.Th(word, scope="col") for word in ("what", "value", "source", "basis")]
    return [
        *details("What the named entries are", [html.Ul(facts)], facts),
        *details("Notes", [html.Ul([html.Li(prose(each)) for each in lines])], lines),
        *details(
            "Assumed; each can be switched",
            [html.Ul([html.Li(prose(each)) for each in document["defaults"]])],
            document["defaults"],
        ),
        *details(
            "Sources of the numbers",
            [region("Sources", head, sources)],
            sources,
        ),
    ]


def details(title: str, inside: list[Any], when: Sequence[Any]) -> list[Any]:
    """What folds away, with how much it is; nothing where there is nothing."""
    return [html.Details([html.Summary(f"{title} ({len(when)})"), *inside])] if when else []


def region(title: str, head: list[Any], rows: list[Any]) -> Any:
    """A table that scrolls sideways where it is wider than the page; keyboards reach it."""
    body = html.Table([html.Caption(title, className="unseen"), html.Thead(html.Tr(head)), html.Tbody(rows)])
    return html.Div(body, className="scroll", tabIndex=0, role="region", **{"aria-label": title})


def heads(columns: Sequence[str]) -> list[Any]:
    """The heads of columns."""
    return [html.Th(name, scope="col") for name in columns]


def prose(text: str) -> list[Any]:
    """A text with what stands between backticks as code."""
    return [html.Code(part) if at % 2 else part for at, part in enumerate(text.split("`"))]


def capital(text: str) -> str:
    """A sentence's begin."""
    return text[:1].upper() + text[1:]


def explained(figure: Figure, of: str, reasons: Sequence[str]) -> list[Any]:
    """A figure and what folds out beside it: why it is what it is."""
    shown: list[Any] = [html.Span(figure.text, className="figure", **{"data-figure": figure.key})]
    if reasons:
        shown.append(folded(f"why {figure.name} of {of}", reasons))
    return shown


def folded(label: str, reasons: Sequence[str]) -> Any:
    """Sentences that fold out of "why?"."""
    summary = html.Summary("why?", **{"aria-label": label})
    return html.Details([summary, html.Div([html.P(prose(each)) for each in reasons])], className="why")


def sources(document: Document, word: str) -> list[str]:
    """Where the numbers come from whose name has a word; the first three."""
    rows = [row for row in document["provenance"] if word and word in row["what"].lower()]
    return [f"{row['what']}: {row['value']} ({row['source']}; {row['basis']})." for row in rows[:3]]
