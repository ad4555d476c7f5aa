"""What happens on the page: one function a happening, from what the page says to what it shows.

A question is text. Whatever changes it (a key in the form, a line of YAML, a link, a plan that was found) goes through
:meth:`Page.turn`, which gives the text a number; :meth:`Page.answer` answers the numbered text, and what is shown of an
older number is dimmed until then. The question stands in the page's address, so that reloading, going back and a new
server find it again.
"""

from __future__ import annotations

import hashlib
import json
import threading
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from ..errors import InputError, printable, shorten
from ..interface import mapping_of, schema
from . import figures, formed, kept, layout, link, numbers, shown, values
from .desks import Desk, Desks, Job
from .fields import Form

#: Seconds that a request for an answer waits before it says how far the answer is.
WAIT_S = 0.8
MOST_PINS = 8
MOST_ROWS = 300
GRID = "rgba(128,128,128,.25)"
#: What a new page asks if nobody says otherwise: an answer comes at once, and every part of a question is there.
FIRST = """\
name: first
cluster: {device: h100, nodes: 1}
workload: {model: llama-3.1-8b, pass: forward, sequence: 32Ki}
plans:
  - {name: TP8, tp: 8}
  - {name: TP4-SP2, tp: 4, sp: 2}
  - {name: TSP8, tsp: 8}
"""

Told = dict[str, Any]


def made(desks: Desks, start: str | None) -> Dash:
    """The application; every file of it comes from this machine."""
    app = Dash(
        "tspsim.studio",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        title="tspsim studio",
        update_title=None,
        suppress_callback_exceptions=True,
        compress=False,
    )
    app.layout = layout.page
    Page(desks, start).join(app)
    app.server.add_url_rule("/leave/<tab>", "leave", lambda tab: _left(desks, tab), methods=["POST"])
    return app


def _left(desks: Desks, tab: str) -> tuple[str, int]:
    """A tab was closed."""
    desks.leave(tab)
    return "", 204


class Page:
    """The functions behind the page, over the desks of all tabs."""

    def __init__(self, desks: Desks, start: str | None) -> None:
        self.desks, self.start = desks, start
        self._lock = threading.Lock()

    @cached_property
    def form(self) -> Form:
        """The form of a scenario; it is the same for every tab."""
        return Form(schema("scenario"))

    def join(self, app: Dash) -> None:
        """Bind every function to what it listens to."""
        threading.Thread(target=lambda: self.form, daemon=True).start()
        app.clientside_callback(
            ClientsideFunction("studio", "happen"),
            Output("happen", "data"),
            Input("link", "hash"),
            Input("yaml", "value"),
            Input("start", "value"),
            Input("find", "value"),
            Input("file", "value"),
            Input("slid", "data"),
            Input({"type": "field", "path": ALL}, "value"),
            Input({"type": "go", "path": ALL}, "n_clicks"),
            Input({"type": "put", "path": ALL, "what": ALL}, "n_clicks"),
            Input({"type": "free", "path": ALL}, "value"),
            Input({"type": "join", "row": ALL}, "n_clicks"),
            Input({"type": "reopen", "pin": ALL}, "n_clicks"),
            State("question", "data"),
        )
        app.clientside_callback(
            ClientsideFunction("studio", "turned"), Output("turned-seen", "data"), Input("turned", "data")
        )
        app.clientside_callback(
            ClientsideFunction("studio", "fresh"),
            Output("answer", "className"),
            Input("question", "data"),
            Input("answered", "data"),
        )
        app.callback(
            Output("turned", "data"),
            Output("yaml", "value"),
            Output("yaml", "rows"),
            Output("form", "children"),
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
        app.callback(
            Output("answer", "children"),
            Output("answered", "data"),
            Output("status", "children"),
            Output("spinner", "hidden"),
            Output("cancel", "hidden"),
            Output("tick", "disabled"),
            Output("problem", "children"),
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
        )(self.answer)
        app.callback(
            Output("cancel", "n_clicks"), Input("cancel", "n_clicks"), State("tab", "data"), prevent_initial_call=True
        )(self.cancel)
        app.callback(
            Output("offered", "children"), Output("keys", "children"), Input("saved", "children"), State("tab", "data")
        )(self.choices)
        app.callback(
            Output("number", "options"),
            Output("command", "children"),
            Output("script", "children"),
            Input("question", "data"),
            prevent_initial_call=True,
        )(self.about)
        app.callback(
            Output("at-load", "children"),
            Output("load-name", "children"),
            Input("load", "value"),
            Input("answered", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
        )(self.load)
        app.callback(
            Output("curve", "children"),
            Output("curve-told", "children"),
            Output("curve-tick", "disabled"),
            Output("curve-of", "data"),
            Output("slides", "hidden"),
            Output("slide", "max"),
            Output("slide-ends", "children"),
            Output("slide", "value"),
            Output("slide-name", "children"),
            Input("number", "value"),
            Input("figure", "value"),
            Input("question", "data"),
            Input("curve-tick", "n_intervals"),
            State("curve-of", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
        )(self.curve)
        app.callback(
            Output("slid", "data"),
            Input("slide", "value"),
            State("curve-of", "data"),
            State("question", "data"),
            prevent_initial_call=True,
        )(self.slide)
        app.callback(
            Output("plans", "children"),
            Output("plans-told", "children"),
            Output("plans-tick", "disabled"),
            Output("stop-search", "hidden"),
            Output("found", "data"),
            Input("search", "n_clicks"),
            Input("stop-search", "n_clicks"),
            Input("plans-tick", "n_intervals"),
            State("budget", "value"),
            State("question", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
        )(self.plans)
        app.callback(
            Output("offers", "children"),
            Output("offers-told", "children"),
            Output("offers-tick", "disabled"),
            Output("stop-compare", "hidden"),
            Input("compare", "n_clicks"),
            Input("stop-compare", "n_clicks"),
            Input("offers-tick", "n_intervals"),
            State("question", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
        )(self.offers)
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
        )(self.write)

    # --- the question -----------------------------------------------------------------------------------------

    def turn(
        self,
        happened: Told | None,
        question: Told | None,
        tab: str,
        found: list[Told] | None,
        pins: list[Told] | None,
    ) -> tuple[Any, ...]:
        """The question after something happened; the page sends the next one when it has the answer to this."""
        if happened is None:
            raise PreventUpdate
        desk, turned = self.desks.of(tab), {"n": happened["n"]}
        if question is None:
            now = link.read(happened.get("hash")) or self._begun(desk, self.start)
            begun = {"n": 0, "base": now.text, "start": self.start or ""}
            return ({**turned, "asks": True}, *self._shown(desk, now, begun, True, None))
        before = link.State(question["text"], question["file"], question["at"])
        try:
            now, whole = self._after(desk, happened, before, found or [], pins or [])
        except (InputError, LookupError, TypeError, ValueError):
            now, whole = before, False  # the form cannot follow a text that is told to be wrong
        if now == before:
            return (turned, *(no_update,) * 9)
        origin = question
        if happened["kind"] == "start":
            origin = {**question, "base": now.text, "start": happened["value"]}
        typed = now.text if happened["kind"] == "typed" else before.text
        turned["asks"] = (now.text, now.file) != (before.text, before.file)
        return (turned, *self._shown(desk, now, origin, whole, typed))

    def _after(
        self, desk: Desk, happened: Told, before: link.State, found: list[Told], pins: list[Told]
    ) -> tuple[link.State, bool]:
        """The question after something happened, and whether the form looks otherwise."""
        text, file, at, kind = before.text, before.file, before.at, happened["kind"]
        if kind == "link":
            return link.read(happened["hash"]) or before, True
        if kind == "typed":
            return link.State(str(happened["value"]), file, at), True
        if kind == "start":
            if happened["value"] not in dict(self._offered(desk).get("scenarios", ())):
                return before, False  # somebody is still typing
            return self._begun(desk, str(happened["value"])), True
        if kind == "field":
            text, whole = self._typed(text, dict(happened["values"]))
            return link.State(text, file, at), whole
        if kind == "file":
            return link.State(text, str(happened["value"] or file), at), False
        if kind == "go":
            at = happened["path"]
        elif kind == "put":
            text, at = self._put(text, happened["path"], happened["what"], at)
        elif kind == "free":
            name = str(happened["value"]).strip()
            text = self._edited(text, values.path([*values.parts(happened["path"]), name]), True) if name else text
        elif kind == "find":
            at = self._place(text, str(happened["value"]), at)
        elif kind == "slid":
            text = self._edited(text, happened["path"], values.scalar(str(happened["value"])))
        elif kind == "join":
            text = self._joined(text, found[happened["row"]])
        elif kind == "reopen":
            text, file = pins[happened["pin"]]["text"], pins[happened["pin"]]["file"]
        return link.State(text, file, at), True

    def _begun(self, desk: Desk, start: str | None) -> link.State:
        """What a page begins with."""
        if start is None:
            return link.State(FIRST, "first.yaml")
        try:
            told = desk.done("list", "opened", start)
        except InputError as error:
            return link.State(f"# {printable(str(error))}\n{FIRST}", "first.yaml")
        return link.State(told["text"], told["file"])

    def _shown(self, desk: Desk, now: link.State, question: Told, whole: bool, before: str | None) -> tuple[Any, ...]:
        """The page of a question: its text where it changed, its form where that may look otherwise."""
        children: Any = no_update
        if whole:
            try:
                data: Any = mapping_of(now.text, Path(now.file))
            except InputError:
                data = None  # what is wrong is told with the answer
            if data is not None:
                level = self.form.level(data, now.at)
                children = formed.level(level, self._offered(desk), lambda path: self.form.level(data, path))
                now = link.State(now.text, now.file, level.path)
        made = link.made(now)
        asks = (now.text, now.file) != (question.get("text"), question.get("file"))
        told = {**question, "text": now.text, "file": now.file, "at": now.at, "n": question["n"] + asks, "hash": made}
        same = now.text == before
        rows = min(MOST_ROWS, max(10, now.text.count("\n") + 2))
        return (
            no_update if same else now.text,
            rows,
            children,
            made or no_update,
            told,
            "",
            "",
            now.file,
            f" {now.file}",
        )

    def _typed(self, text: str, typed: dict[str, Any]) -> tuple[str, bool]:
        """The text with what was typed into fields, and whether the form looks otherwise then."""
        whole = False
        for path, said in typed.items():
            of = values.parts(path)
            level = self.form.level(mapping_of(text, Path("question.yaml")), values.path(of[:-1]))
            field = next((each for each in level.fields if each.path == path), None)
            if field is None or field.opened:
                continue
            empty = said is None or said == ""
            if empty and not field.stated:
                continue
            value = values.GONE if empty else values.scalar(str(said), plain=field.plain and not field.choices)
            if not empty and field.stated and value == field.value:
                continue
            whole = whole or field.choices != () or field.catalogs != () or empty or isinstance(value, dict | list)
            text = self._edited(text, path, value)
        return text, whole

    def _edited(self, text: str, path: str, value: Any) -> str:
        """The text with a value at a place; a section that begins with a kind is begun with it."""
        of = values.parts(path)
        data = mapping_of(text, Path("question.yaml"))
        for depth in range(1, len(of)):
            above = of[:depth]
            if value is values.GONE or isinstance(values.get(data, above), dict | list):
                continue
            level = self.form.level(data, values.path(above))
            begun = next((begin for called, begin in level.kinds if called == level.kind), None)
            if begun and level.path == values.path(above):
                text = values.edited(text, above, begun)
                data = mapping_of(text, Path("question.yaml"))
        return values.edited(text, of, value)

    def _put(self, text: str, path: str, what: str, at: str) -> tuple[str, str]:
        """A section or an entry that a button begins or takes out, and where the form goes."""
        word, _, told = what.partition(" ")
        of = values.parts(path)
        data = mapping_of(text, Path("question.yaml"))
        if word == "remove":
            return values.edited(text, of, values.GONE), at
        begun = json.loads(told)
        if word == "add":
            count = len(values.get(data, of) or [])
            below = values.path([*of, str(count)])
            return self._edited(text, below, begun), below if isinstance(begun, dict | list) else path
        return values.edited(text, of, begun), path

    def _place(self, text: str, find: str, at: str) -> str:
        """The level with the key that was looked for."""
        sought = find.strip().lower()
        keys = [path for path, _ in self.form.keys(mapping_of(text, Path("question.yaml")))]
        dotted = {path: path.replace("/", ".").lower() for path in keys}
        ranked = sorted(
            (path for path in keys if sought and sought in dotted[path]),
            key=lambda path: (dotted[path] != sought, not dotted[path].endswith(f".{sought}"), len(dotted[path])),
        )
        return values.path(values.parts(ranked[0])[:-1]) if ranked else at

    def _joined(self, text: str, row: Told) -> str:
        """The question with a plan that was found, at the batch that it was found for."""
        data = mapping_of(text, Path("question.yaml"))
        plan = dict(row["plan"])
        plans = data.get("plans")
        taken = {each.get("name") for each in plans if isinstance(each, dict)} if isinstance(plans, list) else set()
        name, number = str(plan["name"]), 2
        while plan["name"] in taken:
            plan["name"], number = f"{name} {number}", number + 1
        count = len(plans) if isinstance(plans, list) else 0
        text = values.edited(text, ["plans", str(count)] if count else ["plans"], plan if count else [plan])
        workload = data.get("workload", {})
        if row["batch"] is not None and "global_batch" not in workload:
            text = values.edited(text, ["workload", "sequences_per_replica"], values.GONE)
            text = values.edited(text, ["workload", "global_batch"], row["batch"])
        return text

    def _offered(self, desk: Desk) -> dict[str, list[tuple[str, str]]]:
        """Entries of catalogs and files of the folder, by kind; looked at when a page opens or a file is saved."""
        with desk.listing:
            if desk.offered is None:
                try:
                    told = desk.done("list", "folder")
                except InputError:
                    return {}
                desk.offered = {
                    kind: [*((file, "a file of this folder") for file in told["own"][kind]), *entries]
                    for kind, entries in told["catalogs"].items()
                }
            return desk.offered

    def choices(self, saved: Any, tab: str) -> tuple[Any, Any]:
        """What a page may start from, and the keys that may be looked for."""
        if ctx.triggered_id is not None and not str(saved).startswith("saved"):
            raise PreventUpdate
        desk = self.desks.of(tab)
        desk.offered = None
        offered = self._offered(desk)
        scenarios = [html.Option(what, value=name) for name, what in dict(offered.get("scenarios", ())).items()]
        told = [*formed.lists(offered), html.Datalist(scenarios, id="offered-scenarios")]
        if ctx.triggered_id is not None:
            return told, no_update
        begun = mapping_of(FIRST, Path("first.yaml"))
        keys = [html.Option(value=path.replace("/", ".")) for path, _ in self.form.keys(begun)]
        return told, keys

    def about(self, question: Told | None) -> tuple[Any, str, str]:
        """Numbers that may slide, and the question as a command and as a script."""
        if question is None:
            raise PreventUpdate
        try:
            data = mapping_of(question["text"], Path(question["file"]))
        except InputError:
            return no_update, "", ""
        options = [
            {"label": f"{numbers.titled(path, data)} (now {text})", "value": path}
            for path, text in numbers.sliding(self.form, data)
        ]
        try:
            base = mapping_of(question["base"], Path("base.yaml"))
        except InputError:
            base = None
        one = kept.line(question["start"], base, data)
        whole = kept.command(question["text"], question["file"])
        return options, f"{one}\n\n# or, with a file of its own:\n{whole}" if one else whole, kept.script(data)

    # --- the answer -------------------------------------------------------------------------------------------

    def answer(
        self, question: Told | None, _tick: int, _again: int, tab: str, figure: str | None, answered: Told | None
    ) -> tuple[Any, ...]:
        """The answer as far as it is: there, refused, or under way."""
        if question is None:
            raise PreventUpdate
        desk = self.desks.of(tab)
        if ctx.triggered_id == "question" and answered and answered["n"] == question["n"]:
            raise PreventUpdate  # another place of the same question
        job = desk.answering if desk.asked == question["n"] else None
        if job is None or ctx.triggered_id == "again":
            job = desk.answering = desk.ask("front", "answer", question["text"], question["file"])
            desk.asked = question["n"]
        keep = (no_update,) * 5
        if not job.wait(WAIT_S):
            words = shorten(f"{job.words}: {100 * job.share:.0f} %" if job.words else "", 90)
            status = f"answering… {words}".rstrip()
            return (no_update, no_update, status, False, False, False, no_update, no_update, *keep)
        count = question["text"].count("\n") + 1
        if job.line:
            place = values.place_of(question["text"], job.key)
            at = values.line_told(job.line) or (place[0] if place else None)
            where = f"line {at}: " if at else ""
            told = {"n": question["n"], "refused": True, "path": values.path(place[1]) if place else ""}
            status = "cancelled" if job.cancelled else "no answer; what is shown is of an earlier question"
            if not (answered and answered.get("shown")):
                status = "cancelled" if job.cancelled else "no answer yet"
            told["shown"] = bool(answered and answered.get("shown"))
            return (no_update, told, status, True, True, True, f"{where}{job.line}", _lines(count, at), *keep)
        value = job.value
        document = json.loads(value["json"])
        desk.document, desk.value = document, value
        names = figures.names(document["plans"])
        options = [{"label": name, "value": key} for key, name in names.items()]
        chosen = figure if figure in names else next(iter(names), None)
        loads = shown.loads(document)
        told = {"n": question["n"], "refused": False, "path": "", "shown": True}
        problem = value["refused"]
        return (
            shown.answer(document, value),
            told,
            "answered",
            True,
            True,
            True,
            problem,
            _lines(count, None),
            options,
            chosen,
            not loads,
            max(1, len(loads) - 1),
            not value["offers"],
        )

    def cancel(self, clicks: int | None, tab: str) -> Any:
        """End what answers."""
        if clicks:
            self.desks.of(tab).cancel("front")
        raise PreventUpdate

    def load(self, index: float | str | None, answered: Told | None, tab: str) -> tuple[Any, str]:
        """The figures of a serving curve at the load that the slider is at."""
        document = self.desks.of(tab).document
        if document is None or not answered or answered.get("refused"):
            raise PreventUpdate
        names = shown.loads(document)
        if not names:
            return [], ""
        at = min(int(float(index or 0)), len(names) - 1)
        return shown.at_load(document, at), f"load: {names[at]}"

    # --- what if ----------------------------------------------------------------------------------------------

    def curve(
        self,
        path: str | None,
        figure: str | None,
        question: Told | None,
        _tick: int,
        before: Told | None,
        tab: str,
    ) -> tuple[Any, ...]:
        """The curve of a figure along a number, as far as it is drawn."""
        if not path or question is None:
            raise PreventUpdate
        desk = self.desks.of(tab)
        try:
            data = mapping_of(question["text"], Path(question["file"]))
        except InputError:
            raise PreventUpdate from None
        now = dict(numbers.sliding(self.form, data)).get(path)
        if now is None:
            return [], "this number is no longer in the question", True, None, True, 1, "", 0, ""
        points = before["points"] if before and before["path"] == path else []
        if now not in points:
            points = numbers.points(now)
        rest = values.dumped(values.put(data, values.parts(path), values.GONE))
        key = hashlib.sha256(f"{rest}\0{path}\0{points}".encode()).hexdigest()
        if desk.drawn != key or desk.drawing is None:
            desk.drawing = desk.ask("curve", "curve", question["text"], question["file"], path, points)
            desk.drawn = key
        job: Job = desk.drawing
        over = job.wait(WAIT_S if ctx.triggered_id == "curve-tick" else 0.05)
        title = numbers.titled(path, data)
        told = job.line if job.line else "" if over else f"drawing: {job.words or 'begins'}"
        index = points.index(now)
        refused = [each["error"] for each in job.parts if "error" in each]
        if over and refused:
            told = f"{len(refused)} of {len(points)} points have no answer: {refused[0]}"
        same = before is not None and before["key"] == key
        ends = [html.Span(points[0]), html.Span(points[-1])]
        return (
            _drawing(job.parts, points, figure, title, now),
            told,
            over,
            {"key": key, "path": path, "points": points},
            False,
            no_update if same else len(points) - 1,
            no_update if same else ends,
            index,
            f"{title}: {now}",
        )

    def slide(self, index: float | str | None, curve: Told | None, question: Told | None) -> Any:
        """A slider that stopped at another value."""
        place = int(float(index or 0))
        if index is None or not curve or question is None or place >= len(curve["points"]):
            raise PreventUpdate
        value = curve["points"][place]
        data = mapping_of(question["text"], Path(question["file"]))
        if dict(numbers.sliding(self.form, data)).get(curve["path"]) == value:
            raise PreventUpdate
        return {"path": curve["path"], "value": value}

    # --- beside it --------------------------------------------------------------------------------------------

    def plans(
        self, _search: int, _stop: int, _tick: int, budget: str | None, question: Told | None, tab: str
    ) -> tuple[Any, ...]:
        """What the planner finds."""
        desk = self.desks.of(tab)
        if question is None:
            raise PreventUpdate
        if ctx.triggered_id == "search":
            desk.searching = desk.ask("back", "plans", question["text"], question["file"], budget or "10 s", [])
        elif ctx.triggered_id == "stop-search":
            desk.cancel("back")
        job = desk.searching
        if job is None:
            raise PreventUpdate
        if not job.wait(WAIT_S):
            return no_update, f"{100 * job.share:.0f} %: {job.words or 'begins'}", False, False, no_update
        if job.line:
            return [], job.line, True, True, []
        rows = job.value["rows"]
        cells = [
            html.Li(
                [
                    html.Div([html.Strong(str(row["plan"]["name"])), f" {row['machine']}"]),
                    html.Div(row["line"], className="what"),
                    html.Button(
                        "Add to the question",
                        id={"type": "join", "row": number},
                        type="button",
                        **{"aria-label": f"Add {row['plan']['name']} to the question"},
                    ),
                ]
            )
            for number, row in enumerate(rows)
        ]
        return html.Ol(cells, className="found"), job.value["told"], True, True, rows

    def offers(self, _compare: int, _stop: int, _tick: int, question: Told | None, tab: str) -> tuple[Any, ...]:
        """The offers of a purchase, decided."""
        desk = self.desks.of(tab)
        if question is None:
            raise PreventUpdate
        if ctx.triggered_id == "compare":
            desk.deciding = desk.ask("back", "purchase", question["text"], question["file"])
        elif ctx.triggered_id == "stop-compare":
            desk.cancel("back")
        job = desk.deciding
        if job is None:
            raise PreventUpdate
        if not job.wait(WAIT_S):
            return no_update, f"{100 * job.share:.0f} %: {job.words or 'begins'}", False, False
        if job.line:
            return [], job.line, True, True
        return shown.offers(job.value), "", True, True

    def pin(self, _pin: int, _unpin: list[int], pins: list[Told] | None, question: Told | None, tab: str) -> list[Told]:
        """The pins with this answer, or without one."""
        now = list(pins or [])
        by = ctx.triggered_id
        if isinstance(by, dict):
            if not any(each["value"] for each in ctx.triggered):
                raise PreventUpdate
            return [pin for number, pin in enumerate(now) if number != by["pin"]]
        desk = self.desks.of(tab)
        if question is None or desk.document is None or desk.asked != question["n"] or desk.value is None:
            raise PreventUpdate
        best = desk.value["best"]
        plan = next((each for each in desk.document["plans"] if each["name"] == best), None)
        if plan is None:
            raise PreventUpdate
        taken = {pin["name"] for pin in now}
        name, number = str(desk.document["scenario"]["name"]), 2
        while name in taken:
            name, number = f"{desk.document['scenario']['name']} {number}", number + 1
        slim = {key: value for key, value in plan.items() if key not in ("links", "classes", "settings", "curve")}
        pin = {"name": name, "text": question["text"], "file": question["file"], "plan": slim}
        return [*now, pin | {"doubts": desk.value["doubts"][best]}][-MOST_PINS:]

    def pinned(self, pins: list[Told] | None) -> list[Any]:
        """The pins side by side."""
        return shown.pinned(pins or [])

    def write(
        self,
        _save: int,
        _json: int,
        _report: int,
        _pins: int,
        _replace: int,
        _leave: int,
        _tick: int,
        writing: Told | None,
        question: Told | None,
        pins: list[Told] | None,
        tab: str,
    ) -> tuple[Any, ...]:
        """A file below the folder; one that is there is replaced only where somebody says so."""
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

    def _written(self, desk: Desk, what: str, question: Told, pins: list[Told], replace: bool) -> Job | None:
        """The job that writes; None where there is nothing to write yet."""
        file = PurePosixPath(question["file"])
        if what == "save":
            return desk.ask("file", "save", question["file"], question["text"], replace, (".yaml", ".yml"))
        if what == "save-json":
            if desk.value is None or desk.asked != question["n"] or desk.answering is None or not desk.answering.over:
                return None
            return desk.ask("file", "save", str(file.with_suffix(".json")), desk.value["json"], replace, (".json",))
        asked = [(question["text"], question["file"])]
        page = f"reports/{file.stem}.html"
        if what == "save-pins":
            asked = [(pin["text"], pin["file"]) for pin in pins] or asked
            page = "reports/pins.html"
        return desk.ask("file", "report", asked, page, replace)


def _lines(count: int, wrong: int | None) -> str:
    """Numbers of lines, the wrong one marked."""
    return "\n".join(f"▶{number}" if number == wrong else str(number) for number in range(1, count + 1))


def _drawing(parts: list[Told], points: list[str], figure: str | None, title: str, now: str) -> Any:
    """A line a plan, as far as points came; the value as it stands is marked."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    names = list(dict.fromkeys(name for part in parts for name in part["plans"]))
    for name in names:
        told = {part["at"]: part["plans"][name].get(figure) for part in parts if name in part["plans"]}
        drawn.add_scatter(x=points, y=[told.get(point) for point in points], name=name, mode="lines+markers")
    drawn.add_vline(x=points.index(now), line_dash="dot", line_color="#8a94a6")
    drawn.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#7a8699"},
        margin={"l": 60, "r": 10, "t": 10, "b": 45},
        height=280,
        xaxis={
            "title": {"text": title},
            "type": "category",
            "categoryarray": points,
            "gridcolor": "rgba(128,128,128,.25)",
        },
        yaxis={"rangemode": "tozero", "gridcolor": "rgba(128,128,128,.25)"},
        legend={"orientation": "h", "y": 1.15},
        uirevision=title,
    )
    return dcc.Graph(figure=drawn, config={"displayModeBar": False}, responsive=True, id="curve-graph")
