"""The answer on the page: shown, refused, or under way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from ..api import mapping_of
from ..base.errors import InputError, shorten
from . import numbers, values
from .answers import SORTS, loads
from .answers.parts import about
from .part import WAIT_S, Said, StudioPart, one_by_one


class Answers(StudioPart):
    """The answer to the current question."""

    def join(self, app: Dash) -> None:
        """Bind the answer to its question."""
        app.callback(
            Output("answer", "children"),
            Output("answered", "data"),
            Output("status", "children"),
            Output("spinner", "hidden"),
            Output("cancel", "hidden"),
            Output("tick", "disabled"),
            Output("problem", "children"),
            Output("mend", "children"),
            Output("lines", "children"),
            Output("figure", "options"),
            Output("figure", "value"),
            Output("loads", "hidden"),
            Output("load", "max"),
            Output("purchase", "hidden"),
            Input("question", "data"),
            Input("tick", "n_intervals"),
            Input("again", "n_clicks"),
            State("tab", "data"),
            State("figure", "value"),
            State("answered", "data"),
            prevent_initial_call=True,
            running=one_by_one("tick"),
        )(self.answer)
        app.callback(
            Output("about", "children"),
            Output("about-of", "data"),
            Input("answered", "data"),  # figures do not wait for their sources
            State("tab", "data"),
            prevent_initial_call=True,
        )(self.about)
        app.callback(
            Output("cancel", "n_clicks"), Input("cancel", "n_clicks"), State("tab", "data"), prevent_initial_call=True
        )(self.cancel)
        app.callback(
            Output("at-load", "children"),
            Output("load-name", "children"),
            Input("load", "value"),
            Input("answered", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
        )(self.load)

    def answer(
        self, question: Said | None, _tick: int, _again: int, tab: str, figure: str | None, answered: Said | None
    ) -> tuple[Any, ...]:
        """The current state of the answer: shown, refused, or under way."""
        if question is None:
            raise PreventUpdate
        desk = self.desks.of(tab)
        if ctx.triggered_id == "question" and answered and answered["n"] == question["n"]:
            raise PreventUpdate  # another place of the same question
        job = desk.answer(question["n"], question["text"], question["file"], ctx.triggered_id == "again")
        if job is None:
            raise PreventUpdate
        keep = (no_update,) * 5
        if not job.wait(WAIT_S):
            words = shorten(f"{job.words}: {100 * job.share:.0f} %" if job.words else "", 90)
            status = f"answering… {words}".rstrip()
            return (no_update, no_update, status, False, False, False, no_update, no_update, no_update, *keep)
        count = question["text"].count("\n") + 1
        if job.line:
            place = values.place_of(question["text"], job.key)
            at = values.line_in(job.line) or (place[0] if place else None)
            where = f"line {at}: " if at else ""
            state = {"n": question["n"], "refused": True, "path": values.path(place[1]) if place else ""}
            status = "cancelled" if job.cancelled else "no answer; the page shows an earlier question's"
            if not (answered and answered.get("shown")):
                status = "cancelled" if job.cancelled else "no answer yet"
            state["shown"] = bool(answered and answered.get("shown"))
            mend = _mend(question, place[1] if place else [])
            return (no_update, state, status, True, True, True, f"{where}{job.line}", mend, _lines(count, at), *keep)
        value = job.value
        document = json.loads(value["json"])
        desk.document, desk.value = document, value
        sort = SORTS[value["sort"]]
        names = {one.key: one.name for figures in sort.lines(document, value).values() for one in figures}
        options = [{"label": name, "value": key} for key, name in names.items()]
        chosen = figure if figure in names else next(iter(names), None)
        points = loads.loads(document)
        state = {"n": question["n"], "refused": False, "path": "", "shown": True}
        problem = value["refused"]
        return (
            sort.parts(document, value),
            state,
            "answered",
            True,
            True,
            True,
            problem,
            [],
            _lines(count, None),
            options,
            chosen,
            not points,
            max(1, len(points) - 1),
            not value["offers"],
        )

    def about(self, answered: Said | None, tab: str) -> tuple[Any, int]:
        """Notes, assumptions and sources of the shown figures, and the number of their question."""
        desk = self.desks.of(tab)
        if not answered or answered["refused"] or desk.document is None or desk.value is None:
            raise PreventUpdate
        return about(desk.document, desk.value), answered["n"]

    def cancel(self, clicks: int | None, tab: str) -> Any:
        """Stop the answer under way."""
        if clicks:
            self.desks.of(tab).cancel("front")
        raise PreventUpdate

    def load(self, index: float | str | None, answered: Said | None, tab: str) -> tuple[Any, str]:
        """The figures of a serving curve at the load of the slider."""
        document = self.desks.of(tab).document
        if document is None or not answered or answered.get("refused"):
            raise PreventUpdate
        names = loads.loads(document)
        if not names:
            return [], ""
        at = min(int(float(index or 0)), len(names) - 1)
        return loads.at_load(document, at), f"load: {names[at]}"


def _mend(question: Said, of: list[str]) -> list[Any]:
    """A button to the section with the wrong key, where the form shows another section."""
    try:
        data = mapping_of(question["text"], Path(question["file"]))
    except InputError:
        return []
    section = of if isinstance(values.get(data, of), Mapping | list) else of[:-1]
    if not of or values.path(section) == question["at"]:
        return []
    key = {"type": "mend", "path": values.path(section)}
    return [html.Button(f"Go to {numbers.titled(values.path(of), data)}", id=key, type="button", className="mend")]


def _lines(count: int, wrong: int | None) -> str:
    """Line numbers, with the wrong line marked."""
    return "\n".join(f"▶{number}" if number == wrong else str(number) for number in range(1, count + 1))
