"""What if: the curve of a figure along a number of the question, and the slider over its points."""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from ..api import mapping_of
from ..base.errors import InputError
from . import numbers, values
from .answers.parts import AXIS, LOOKS
from .desks import WorkerTask
from .part import WAIT_S, Said, StudioPart, one_by_one


class SliderCurves(StudioPart):
    """The curve of a sliding number."""

    def join(self, app: Dash) -> None:
        """Bind curve and slider."""
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
            Input("points", "value"),
            Input("figure", "value"),
            Input("question", "data"),
            Input("curve-tick", "n_intervals"),
            State("curve-of", "data"),
            State("tab", "data"),
            prevent_initial_call=True,
            running=one_by_one("curve-tick"),
        )(self.curve)
        app.callback(
            Output("slid", "data"),
            Input("slide", "value"),
            State("curve-of", "data"),
            State("question", "data"),
            prevent_initial_call=True,
        )(self.slide)

    def curve(
        self,
        title: str | None,
        stated: str | None,
        figure: str | None,
        question: Said | None,
        _tick: int,
        before: Said | None,
        tab: str,
    ) -> tuple[Any, ...]:
        """The curve of a figure along a number, with the points so far."""
        if not title or question is None:
            raise PreventUpdate
        desk = self.desks.of(tab)
        try:
            data = mapping_of(question["text"], Path(question["file"]))
        except InputError:
            raise PreventUpdate from None
        sliding = numbers.sliding(self.forms.of(data), data)
        number = sliding.get(title.strip())
        if number is None:
            return [], _unknown(title, list(sliding)), True, None, True, 1, "", 0, ""
        path, now, own = number.path, number.now, stated or ""
        points = before["points"] if before and (before["path"], before["own"]) == (path, own) else []
        if now not in points:
            points = number.over(own)
        rest = values.dumped(values.put(data, values.parts(path), values.GONE))
        key = hashlib.sha256(f"{rest}\0{path}\0{points}".encode()).hexdigest()
        if desk.drawn != key or desk.drawing is None:
            desk.drawing = desk.ask("curve", "curve", question["text"], question["file"], path, points)
            desk.drawn = key
        job: WorkerTask = desk.drawing
        looks = ctx.triggered_id == "curve-tick"
        over = job.wait(WAIT_S / 4 if looks else 0.05)  # a moved slider waits for this
        status = job.line if job.line else "" if over else f"drawing: {job.words or 'begins'}"
        index = points.index(now)
        refused = [point["error"] for point in job.parts if "error" in point]
        if over and refused:
            status = f"{len(refused)} of {len(points)} points have no answer: {refused[0]}"
        same = before is not None and before["key"] == key
        names = {point: number.shown(point) for point in points}
        ends = [html.Span(names[points[0]]), html.Span(names[points[-1]])]
        return (
            _drawing(job.parts, names, figure, number.title, now),
            status,
            over,
            {"key": key, "path": path, "points": points, "own": own},
            False,
            no_update if same else len(points) - 1,
            no_update if same else ends,
            no_update if looks else index,  # it may have been moved meanwhile
            f"{number.title}: {names[now]}",
        )

    def slide(self, index: float | str | None, curve: Said | None, question: Said | None) -> Any:
        """The new value of a slider that stopped."""
        place = int(float(index or 0))
        if index is None or not curve or question is None or place >= len(curve["points"]):
            raise PreventUpdate
        value = curve["points"][place]
        data = mapping_of(question["text"], Path(question["file"]))
        of = values.parts(curve["path"])
        if (values.shown(values.get(data, of)) if values.stated(data, of) else "") == value:
            raise PreventUpdate
        return {"path": curve["path"], "value": value}


def _unknown(title: str, names: list[str]) -> str:
    """The nearest names of an unknown number."""
    if not names:
        return "this question has no number that may slide"
    sought = title.strip().lower()
    near = [name for name in names if sought in name.lower()][:6] or difflib.get_close_matches(title, names, 3, 0.4)
    return f"no number has this name; {'perhaps ' + ', '.join(near) if near else 'choose one of the list'}"


def _drawing(parts: list[Said], points: dict[str, str], figure: str | None, title: str, now: str) -> Any:
    """A line per plan, with the points so far and a mark at the present value; ``points`` has their names."""
    import plotly.graph_objects as go

    drawn = go.Figure()
    places, names = list(points), list(points.values())
    for name in dict.fromkeys(name for part in parts for name in part["lines"]):
        by_point = {part["at"]: part["lines"][name].get(figure) for part in parts if name in part["lines"]}
        drawn.add_scatter(x=names, y=[by_point.get(point) for point in places], name=name, mode="lines+markers")
    drawn.add_vline(x=places.index(now), line_dash="dot", line_color="#8a94a6")
    drawn.update_layout(
        **LOOKS,
        height=280,
        xaxis={
            **AXIS,
            "title": {"text": title, "standoff": 12},
            "automargin": True,
            "type": "category",
            "categoryarray": names,
        },
        yaxis={**AXIS, "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.15},
        uirevision=title,
    )
    return dcc.Graph(figure=drawn, config={"displayModeBar": False}, responsive=True, id="curve-graph")
