"""The changes of the question: one turn at a time, from an event of the page to the new text and form."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, no_update
from dash.exceptions import PreventUpdate
from flask import request

from ..api import mapping_of
from ..base.errors import InputError, printable
from . import edits, formed, link, values
from .catalogs import offered
from .desks import TabProcesses
from .part import Said, StudioPart

MOST_ROWS = 300
#: The first question of a new page: quick to answer, with every part that a question needs.
FIRST = """\
name: first
cluster: {device: h100, nodes: 1}
workload: {model: llama-3.1-8b, pass: forward, sequence: 32Ki}
plans:
  - {name: TP8, tp: 8}
  - {name: TP4-SP2, tp: 4, sp: 2}
  - {name: TSP8, tsp: 8}
"""


class QuestionTurns(StudioPart):
    """The question of every tab."""

    def join(self, app: Dash) -> None:
        """Bind the events to their effects."""
        app.clientside_callback(
            ClientsideFunction("studio", "sendEvents"),
            Output("happen", "data"),
            Input("link", "hash"),
            Input("start", "value"),
            Input("find", "value"),
            Input("file", "value"),
            Input("slid", "data"),
            Input({"type": "field", "path": ALL}, "value"),
            Input({"type": "go", "path": ALL}, "n_clicks"),
            Input({"type": "mend", "path": ALL}, "n_clicks"),
            Input({"type": "put", "path": ALL, "what": ALL}, "n_clicks"),
            Input({"type": "free", "path": ALL}, "value"),
            Input({"type": "join", "row": ALL}, "n_clicks"),
            Input({"type": "reopen", "pin": ALL}, "n_clicks"),
            State("question", "data"),
        )
        app.clientside_callback(
            ClientsideFunction("studio", "eventHandled"),
            Output("turned-seen", "data"),
            Input("turned", "data"),
            State("question", "data"),
        )
        app.clientside_callback(
            ClientsideFunction("studio", "markStale"),
            Output("answer", "className"),
            Input("question", "data"),
            Input("answered", "data"),
        )
        app.clientside_callback(
            ClientsideFunction("studio", "basisShown"), Output("about-seen", "data"), Input("about-of", "data")
        )
        app.clientside_callback(
            ClientsideFunction("studio", "formDrawn"), Output("form-seen", "data"), Input("form-drawn", "data")
        )
        app.callback(
            Output("form", "children"),
            Output("form-drawn", "data"),
            Input("form-asked", "data"),  # the page asks after the answer is there, which does not wait for the form
            State("question", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
        )(self.form)
        app.callback(
            Output("turned", "data"),
            Output("yaml", "value"),
            Output("yaml", "rows"),
            Output("link", "hash"),
            Output("question", "data"),
            Output("start", "value"),
            Output("find", "value"),
            Output("file", "value"),
            Output("file-name", "children"),
            Input("happened", "data"),
            State("question", "data"),
            State("tab", "data"),
            State("found", "data"),
            State("pins", "data"),
            prevent_initial_call=True,
        )(self.turn)
        app.server.add_url_rule("/begin/<tab>", "begin", self.begin, methods=["POST"])

    def begin(self, tab: str) -> tuple[str, int]:
        """Start the answer of a question that the page will ask next: its text, or a text with values of fields. The
        turn that asks it finds the answer under way."""
        said = request.get_json(silent=True)
        if not isinstance(said, dict):
            return "", 400
        text, file, fields = (said.get(key) for key in ("text", "file", "values"))
        if not (isinstance(text, str) and isinstance(file, str)):
            return "", 400
        try:
            now = edits.typed(self.forms, text, fields)[0] if isinstance(fields, dict) else text
        except (InputError, LookupError, TypeError, ValueError):
            return "", 204  # the turn reports the error
        if now != text or fields is None:
            self.desks.of(tab).begin(now, file)
        return "", 204

    def turn(
        self,
        happened: Said | None,
        question: Said | None,
        tab: str,
        searched: list[Said] | None,
        pins: list[Said] | None,
    ) -> tuple[Any, ...]:
        """The question after an event; the page sends the next event when it has the answer to this one."""
        if happened is None:
            raise PreventUpdate
        desk, turned = self.desks.of(tab), {"n": happened["n"]}
        if question is None:
            now = link.read(happened.get("hash")) or self._begun(desk, self.start)
            begun = {"n": 0, "form": 0, "base": now.text, "start": self.start or ""}
            return ({**turned, "asks": True}, *self._shown(desk, now, begun, True))
        before = link.State(question["text"], question["file"], question["at"])
        try:
            now, whole = self._after(desk, happened, before, searched or [], pins or [])
        except (InputError, LookupError, TypeError, ValueError):
            now, whole = before, False  # the form cannot follow a text that is wrong already
        if now == before:
            return (turned, *(no_update,) * 8)
        origin = question
        if happened["kind"] == "start":
            origin = {**question, "base": now.text, "start": happened["value"]}
        turned["asks"] = (now.text, now.file) != (before.text, before.file)
        return (turned, *self._shown(desk, now, origin, whole, happened["kind"]))

    def _after(
        self, desk: TabProcesses, happened: Said, before: link.State, searched: list[Said], pins: list[Said]
    ) -> tuple[link.State, bool]:
        """The question after an event, and whether the form changes with it."""
        text, file, at, kind = before.text, before.file, before.at, happened["kind"]
        if kind == "link":
            return link.read(happened["hash"]) or before, True
        if kind == "typed":
            return link.State(str(happened["value"]), file, at), True
        if kind == "start":
            if happened["value"] not in dict(offered(desk).get("scenarios", ())):
                return before, False  # the name is not complete yet
            return self._begun(desk, str(happened["value"])), True
        if kind == "field":
            text, whole = edits.typed(self.forms, text, dict(happened["values"]))
            return link.State(text, file, at), whole
        if kind == "file":
            return link.State(text, str(happened["value"] or file), at), False
        if kind in ("go", "mend"):
            at = happened["path"]
        elif kind == "put":
            text, at = edits.put(self.forms, text, happened["path"], happened["what"], at)
        elif kind == "free":
            name = str(happened["value"]).strip()
            text = (
                edits.edited(self.forms, text, values.path([*values.parts(happened["path"]), name]), True)
                if name
                else text
            )
        elif kind == "find":
            at = edits.place(self.forms, text, str(happened["value"]), at)
        elif kind == "slid":
            slid = str(happened["value"])
            text = edits.edited(self.forms, text, happened["path"], values.scalar(slid) if slid else values.GONE)
        elif kind == "join":
            text = edits.joined(text, searched[happened["row"]])
        elif kind == "reopen":
            text, file = pins[happened["pin"]]["text"], pins[happened["pin"]]["file"]
        return link.State(text, file, at), True

    def _begun(self, desk: TabProcesses, start: str | None) -> link.State:
        """The first question of a page."""
        if start is None:
            return link.State(FIRST, "first.yaml")
        try:
            scenario = desk.done("list", "opened", start)
        except InputError as error:
            return link.State(f"# {printable(str(error))}\n{FIRST}", "first.yaml")
        return link.State(scenario["text"], scenario["file"])

    def form(self, request_number: int | None, question: Said | None, tab: str) -> tuple[Any, int]:
        """The form of the present question, and the number of the request for it."""
        if request_number is None or question is None:
            raise PreventUpdate
        try:
            data = mapping_of(question["text"], Path(question["file"]))
        except InputError:
            return no_update, request_number  # the answer reports the error
        form = self.forms.of(data)
        level = form.level(data, question["at"])
        return formed.level(level, offered(self.desks.of(tab)), lambda path: form.level(data, path)), request_number

    def _shown(
        self, desk: TabProcesses, now: link.State, question: Said, whole: bool, kind: str = ""
    ) -> tuple[Any, ...]:
        """The page's values for a question: its text where it changed, and whether its form is drawn anew (``whole``).
        Its answer is started."""
        if whole:
            with contextlib.suppress(InputError):  # the answer reports the error
                data = mapping_of(now.text, Path(now.file))
                now = link.State(now.text, now.file, self.forms.of(data).level(data, now.at).path)
        hash_ = link.fragment(now)
        asks = (now.text, now.file) != (question.get("text"), question.get("file"))
        numbers = {"n": question["n"] + asks, "form": question["form"] + whole}
        stored = {**question, "text": now.text, "file": now.file, "at": now.at, **numbers, "hash": hash_}
        if asks:
            # The page asks for the answer a moment later; until then the job before it can end.
            threading.Thread(target=desk.answer, args=(stored["n"], now.text, now.file), daemon=True).start()
        # Typed text stays as it is; each part that is set anew calls all callbacks that depend on it.
        same, moved = kind == "typed" or now.text == question.get("text"), now.file != question.get("file")
        rows = min(MOST_ROWS, max(10, now.text.count("\n") + 2))
        return (
            no_update if same else now.text,
            rows,
            hash_ or no_update,
            stored,
            "" if kind == "start" else no_update,
            "" if kind == "find" else no_update,
            now.file if moved else no_update,
            f" {now.file}" if moved else no_update,
        )
