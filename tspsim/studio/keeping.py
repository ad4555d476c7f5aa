"""The question as a file, a report, a command and a script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dash import Dash, Input, Output, State, ctx, html
from dash.exceptions import PreventUpdate

from ..api import mapping_of, sort_of
from ..base.errors import InputError
from . import kept, numbers
from .desks import TabProcesses, WorkerTask
from .part import WAIT_S, Said, StudioPart, one_by_one


class Keep(StudioPart):
    """Saved files, and texts to copy."""

    def join(self, app: Dash) -> None:
        """Bind files to their buttons."""
        app.callback(
            Output("command", "children"),
            Output("script", "children"),
            Input("question", "data"),
            prevent_initial_call=True,
        )(self.copied)
        app.callback(
            Output("numbers", "children"),
            Output("keys", "children"),
            Output("keys-of", "data"),
            Input("answered", "data"),  # the answer does not wait for these lists
            State("question", "data"),
            State("keys-of", "data"),
            prevent_initial_call=True,
        )(self.named)
        app.callback(
            Output("saved", "children"),
            Output("asked", "hidden"),
            Output("writing", "data"),
            Output("write-tick", "disabled"),
            Input("save", "n_clicks"),
            Input("save-json", "n_clicks"),
            Input("save-report", "n_clicks"),
            Input("save-pins", "n_clicks"),
            Input("replace", "n_clicks"),
            Input("leave", "n_clicks"),
            Input("write-tick", "n_intervals"),
            State("writing", "data"),
            State("question", "data"),
            State("pins", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
            running=one_by_one("write-tick"),
        )(self.write)

    def copied(self, question: Said | None) -> tuple[str, str]:
        """The question as a command and as a script."""
        if question is None:
            raise PreventUpdate
        try:
            data = mapping_of(question["text"], Path(question["file"]))
        except InputError:
            return "", ""
        try:
            base = mapping_of(question["base"], Path("base.yaml"))
        except InputError:
            base = None
        one = kept.line(question["start"], base, data)
        whole = kept.command(question["text"], question["file"])
        command = f"{one}\n\n# or, with a file of its own:\n{whole}" if one else whole
        return command, kept.script(data, question["file"])

    def named(self, _answered: Said | None, question: Said | None, shape: str | None) -> tuple[Any, Any, str]:
        """The numbers for the slider, and the keys for the search, where they have changed."""
        if question is None:
            raise PreventUpdate
        try:
            data = mapping_of(question["text"], Path(question["file"]))
        except InputError:
            raise PreventUpdate from None
        now = f"{sort_of(data)} {_shape(data)}"
        if now == shape:
            raise PreventUpdate
        form = self.forms.of(data)
        sliding = numbers.sliding(form, data)
        keys = [html.Option(value=path.replace("/", ".")) for path, _ in form.keys(data)]
        return [html.Option(value=title) for title in sliding], keys, now

    def write(
        self,
        _save: int,
        _json: int,
        _report: int,
        _pins: int,
        _replace: int,
        _leave: int,
        _tick: int,
        writing: Said | None,
        question: Said | None,
        pins: list[Said] | None,
        tab: str,
    ) -> tuple[Any, ...]:
        """Write a file below the folder; an existing file is replaced only after a confirmation."""
        by, desk = ctx.triggered_id, self.desks.of(tab)
        if question is None or by is None:
            raise PreventUpdate
        if by == "leave":
            return "left as it was", True, None, True
        replace = by == "replace"
        what = (writing or {}).get("what") if replace or by == "write-tick" else by
        if what is None:
            raise PreventUpdate
        if by != "write-tick":
            job = desk.writing = self._written(desk, what, question, pins or [], replace)
            if job is None:
                return "wait for the answer first", True, None, True
        job = desk.writing
        if job is None:
            raise PreventUpdate
        if not job.wait(WAIT_S):
            return f"writing… {job.words}", True, {"what": what}, False
        if job.line:
            return job.line, True, None, True
        if "exists" in job.value:
            return f"{job.value['exists']} is there already. Replace it?", False, {"what": what}, True
        return f"saved {job.value['saved']}", True, None, True

    def _written(
        self, desk: TabProcesses, what: str, question: Said, pins: list[Said], replace: bool
    ) -> WorkerTask | None:
        """The job that writes; None where there is no answer to write yet."""
        file = PurePosixPath(question["file"])
        if what == "save":
            return desk.ask("file", "save", question["file"], question["text"], replace, (".yaml", ".yml"))
        if what == "save-json":
            if desk.value is None or desk.number != question["n"] or desk.answering is None or not desk.answering.over:
                return None
            return desk.ask("file", "save", str(file.with_suffix(".json")), desk.value["json"], replace, (".json",))
        questions = [(question["text"], question["file"])]
        page = f"reports/{file.stem}.html"
        if what == "save-pins":
            questions = [(pin["text"], pin["file"]) for pin in pins] or questions
            page = "reports/pins.html"
        return desk.ask("file", "report", questions, page, replace)


def _shape(data: Any) -> str:
    """The sections, lists and keys of a question with names and kinds, and no other values."""
    if isinstance(data, Mapping):
        entries = (
            f"{key}:{value}" if key in ("name", "kind") else f"{key}:{_shape(value)}" for key, value in data.items()
        )
        return f"{{{','.join(entries)}}}"
    return f"[{','.join(map(_shape, data))}]" if isinstance(data, list) else ""
