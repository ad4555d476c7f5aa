"""Pinned answers, kept beside the next ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, html
from dash.exceptions import PreventUpdate

from ..api import likely_ratio
from .answers import SORTS
from .answers.parts import capital, heads, region
from .part import Said, StudioPart

MOST_PINS = 8


class Pins(StudioPart):
    """The pinned answers, side by side; the browser keeps them as long as the tab."""

    def join(self, app: Dash) -> None:
        """Bind pins to their buttons."""
        app.callback(
            Output("pins", "data"),
            Input("pin", "n_clicks"),
            Input({"type": "unpin", "pin": ALL}, "n_clicks"),
            State("pins", "data"),
            State("question", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
        )(self.pin)
        app.callback(Output("pinned", "children"), Input("pins", "data"))(self.pinned)

    def pin(self, _pin: int, _unpin: list[int], pins: list[Said] | None, question: Said | None, tab: str) -> list[Said]:
        """The pins with this answer, or without one."""
        now = list(pins or [])
        by = ctx.triggered_id
        if isinstance(by, dict):
            if not any(trigger["value"] for trigger in ctx.triggered):
                raise PreventUpdate
            return [pin for number, pin in enumerate(now) if number != by["pin"]]
        desk = self.desks.of(tab)
        if question is None or desk.document is None or desk.number != question["n"] or desk.value is None:
            raise PreventUpdate
        kept = SORTS[desk.value["sort"]].pinned(desk.document, desk.value)
        if kept is None:
            raise PreventUpdate
        taken = {pin["name"] for pin in now}
        name, number = str(desk.document["scenario"]["name"]), 2
        while name in taken:
            name, number = f"{desk.document['scenario']['name']} {number}", number + 1
        pin = {"name": name, "text": question["text"], "file": question["file"], "kept": asdict(kept)}
        return [*now, pin][-MOST_PINS:]

    def pinned(self, pins: list[Said] | None) -> list[Any]:
        """The pins side by side."""
        return side_by_side(pins or [])


def side_by_side(pins: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Answers side by side; the others are compared with the first."""
    if not pins:
        return [html.P("Nothing is pinned. “Pin this answer” keeps it here, beside the next ones.", className="doc")]
    names = {figure["key"]: figure["name"] for pin in pins for figure in pin["kept"]["figures"]}
    head = heads(["figure"])
    for number, pin in enumerate(pins):
        buttons = [_button("open", "reopen", number, pin), _button("remove", "unpin", number, pin)]
        of = html.Div(pin["kept"]["name"], className="what")
        head.append(html.Th([html.Div(pin["name"]), of, *buttons], scope="col"))
    rows = [_ratios(pins)] if len(pins) > 1 and any(pin["kept"]["doubts"] for pin in pins) else []
    for key, name in names.items():
        texts = [{figure["key"]: figure["text"] for figure in pin["kept"]["figures"]}.get(key, "–") for pin in pins]
        rows.append(html.Tr([html.Th(name, scope="row"), *map(html.Td, texts)]))
    parts: list[Any] = [region("Pinned answers", head, rows)]
    for pin in pins[1:]:
        lines = difflib.unified_diff(
            pins[0]["text"].splitlines(), pin["text"].splitlines(), pins[0]["name"], pin["name"], "", "", 1, ""
        )
        text = "\n".join(lines) or "the same question"
        parts.append(html.Details([html.Summary(f"Differences of {pin['name']}"), html.Pre(text, tabIndex=0)]))
    return parts


def _button(words: str, kind: str, number: int, pin: Mapping[str, Any]) -> Any:
    label = {"aria-label": f"{capital(words)} {pin['name']}"}
    return html.Button(words, id={"type": kind, "pin": number}, type="button", **label)


def _ratios(pins: Sequence[Mapping[str, Any]]) -> Any:
    """A row of rates over the first one's."""
    first, cells = pins[0]["kept"]["doubts"], [html.Td("1")]
    for pin in pins[1:]:
        doubts = pin["kept"]["doubts"]
        if first is None or doubts is None:
            cells.append(html.Td("–"))
            continue
        ratio, ends = likely_ratio(doubts, first)
        range_ = f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends else ""
        cells.append(html.Td(f"{ratio:.3f}×{range_}"))
    return html.Tr([html.Th("tokens/s over the first (nine times of ten)", scope="row"), *cells])
