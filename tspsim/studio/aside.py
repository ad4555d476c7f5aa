"""Slow work beside the answer: a search for plans, a purchase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from .answers.parts import heads, prose, region
from .desks import WorkerTask
from .part import WAIT_S, Said, StudioPart, one_by_one


class Aside(StudioPart):
    """A search and a purchase."""

    def join(self, app: Dash) -> None:
        """Bind both to their buttons."""
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
            running=one_by_one("plans-tick"),
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
            running=one_by_one("offers-tick"),
        )(self.offers)

    def _under_way(
        self, tab: str, question: Said | None, job: str, arguments: tuple[Any, ...]
    ) -> tuple[WorkerTask, str]:
        """A job that one button starts and another stops, after a moment; and its progress (empty: it is over)."""
        desk = self.desks.of(tab)
        if question is None:
            raise PreventUpdate
        if str(ctx.triggered_id).startswith("stop-"):
            desk.cancel("back")
        elif not str(ctx.triggered_id).endswith("-tick"):
            desk.aside[job] = desk.ask("back", job, question["text"], question["file"], *arguments)
        if job not in desk.aside:
            raise PreventUpdate
        begun = desk.aside[job]
        over = begun.wait(WAIT_S)
        return begun, "" if over else f"{100 * begun.share:.0f} %: {begun.words or 'begins'}"

    def plans(
        self, _search: int, _stop: int, _tick: int, budget: str | None, question: Said | None, tab: str
    ) -> tuple[Any, ...]:
        """The planner's best plans."""
        job, words = self._under_way(tab, question, "plans", (budget or "10 s", []))
        if words:
            return no_update, words, False, False, no_update
        if job.line:
            return [], job.line, True, True, []
        rows = job.value["rows"]
        return (
            html.Ol([_plan(*row) for row in enumerate(rows)], className="found"),
            job.value["words"],
            True,
            True,
            rows,
        )

    def offers(self, _compare: int, _stop: int, _tick: int, question: Said | None, tab: str) -> tuple[Any, ...]:
        """The decided offers of a purchase."""
        job, words = self._under_way(tab, question, "purchase", ())
        if words:
            return no_update, words, False, False
        return ([], job.line, True, True) if job.line else (_bought(job.value), "", True, True)


def _plan(number: int, row: Mapping[str, Any]) -> Any:
    """A searched plan, and the button that adds it."""
    name = row["plan"]["name"]
    button = html.Button(
        "Add to the question",
        id={"type": "join", "row": number},
        type="button",
        **{"aria-label": f"Add {name} to the question"},
    )
    return html.Li(
        [html.Div([html.Strong(name), f" {row['machine']}"]), html.Div(row["line"], className="what"), button]
    )


def _bought(value: Mapping[str, Any]) -> list[Any]:
    """A purchase: the verdict in words, and a row per offer."""
    rows = [
        html.Tr(
            [html.Th(cells[0], scope="row"), *map(html.Td, cells[1:])], className="best" if at == value["best"] else ""
        )
        for at, cells in enumerate(value["rows"])
    ]
    return [*(html.P(prose(sentence)) for sentence in value["words"]), region("Offers", heads(value["columns"]), rows)]
