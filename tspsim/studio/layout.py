"""The page: the question on one side, its answer on the other."""

from __future__ import annotations

import uuid
from typing import Any

import dash_bootstrap_components as dbc
from dash import dcc, html

from .part import TICK_MS


def page() -> Any:
    """A new tab's page."""
    tab = uuid.uuid4().hex
    return html.Div(
        [
            dcc.Location(id="link", refresh=False),
            dcc.Store(id="tab", data=tab),
            dcc.Store(id="question"),
            dcc.Store(id="happen"),
            dcc.Store(id="happened"),
            dcc.Store(id="turned"),
            dcc.Store(id="turned-seen"),
            dcc.Store(id="form-asked"),
            dcc.Store(id="form-drawn"),
            dcc.Store(id="form-seen"),
            dcc.Store(id="answered"),
            dcc.Store(id="about-of"),
            dcc.Store(id="about-seen"),
            dcc.Store(id="slid"),
            dcc.Store(id="found"),
            dcc.Store(id="curve-of"),
            dcc.Store(id="writing"),
            dcc.Store(id="keys-of"),
            dcc.Store(id="pins", storage_type="session"),
            html.Div(id="offered"),
            dcc.Interval(id="tick", interval=TICK_MS, disabled=True),
            dcc.Interval(id="curve-tick", interval=TICK_MS, disabled=True),
            dcc.Interval(id="plans-tick", interval=TICK_MS, disabled=True),
            dcc.Interval(id="offers-tick", interval=TICK_MS, disabled=True),
            dcc.Interval(id="write-tick", interval=TICK_MS, disabled=True),
            html.A("Skip to the answer", href="#answer-title", className="skip", id="skip"),
            html.Header([html.H1("tspsim studio"), _start()]),
            html.Main([_ask(), _text(), _answer()], **{"data-tab": tab}),
        ],
        id="studio",
    )


def _start() -> Any:
    return html.Div(
        [
            html.Label("Start from", htmlFor="start"),
            dcc.Input(
                id="start",
                type="text",
                list="offered-scenarios",
                debounce=0.3,
                className="input",
                placeholder="type to search the scenarios",
                autoComplete="off",
            ),
        ],
        className="start",
    )


def _ask() -> Any:
    return html.Section(
        [
            html.Div(
                [
                    html.Label("Find a key", htmlFor="find"),
                    dcc.Input(
                        id="find", type="text", list="keys", debounce=True, className="input", autoComplete="off"
                    ),
                    html.Datalist(id="keys"),
                ],
                className="row find",
            ),
            html.Div(id="form"),
        ],
        className="ask",
        **{"aria-label": "Question as a form"},
    )


def _text() -> Any:
    return html.Section(
        [
            html.Label(
                ["The same as YAML", html.Span("", id="file-name", className="what")], htmlFor="yaml", className="title"
            ),
            html.P("", id="problem", className="problem", role="alert"),
            html.Div(id="mend"),
            html.Div(
                [
                    html.Pre("", id="lines", className="lines", **{"aria-hidden": "true"}),
                    dcc.Textarea(id="yaml", value="", spellCheck=False, wrap="off", className="yaml"),
                ],
                className="editor",
            ),
            _keep(),
        ],
        className="text",
        **{"aria-label": "Question as YAML"},
    )


def _keep() -> Any:
    return html.Details(
        [
            html.Summary("Keep"),
            html.Div(
                [
                    html.Label("File", htmlFor="file"),
                    dcc.Input(id="file", type="text", debounce=True, className="input"),
                ],
                className="row",
            ),
            html.Div(
                [
                    html.Button("Save YAML", id="save", type="button"),
                    html.Button("Save JSON", id="save-json", type="button"),
                    html.Button("Save report", id="save-report", type="button"),
                    html.Button("Save page with all pins", id="save-pins", type="button"),
                ],
                className="buttons",
            ),
            html.Div(id="saved", role="status"),
            html.Div(
                [
                    html.Button("Replace it", id="replace", type="button"),
                    html.Button("Leave it", id="leave", type="button"),
                ],
                id="asked",
                hidden=True,
                className="buttons",
            ),
            html.Details([html.Summary("As a command"), _copied("command")]),
            html.Details([html.Summary("As Python"), _copied("script")]),
            html.P(
                "The address of this page holds the whole question: a bookmark or a copy of it opens it again.",
                className="doc",
            ),
        ],
        id="keep",
    )


def _copied(name: str) -> Any:
    return html.Div(
        [
            html.Button("Copy", type="button", id=f"copy-{name}", **{"data-copy": name}),
            html.Pre("", id=name, tabIndex=0),
        ]
    )


def _slider(name: str, words: str) -> Any:
    """A slider over a list; the text above it shows the selected entry (and names the slider: assets/studio.js)."""
    slider = dcc.Slider(
        id=name,
        min=0,
        max=1,
        step=1,
        value=0,
        marks=None,
        included=False,
        allow_direct_input=False,
        updatemode="mouseup",
    )
    return html.Div([html.P(words, id=f"{name}-name"), slider, html.Div(id=f"{name}-ends", className="ends")])


def _answer() -> Any:
    return html.Section(
        [
            html.H2("Answer", id="answer-title", tabIndex=-1),
            html.Div(
                [
                    html.Span("", id="status"),
                    html.Span("", className="spinner", id="spinner", hidden=True),
                    html.Button("Cancel", id="cancel", type="button", hidden=True),
                    html.Button("Answer again", id="again", type="button"),
                    html.Button("Pin this answer", id="pin", type="button"),
                ],
                className="status",
                role="status",
            ),
            html.Div(id="answer", className="answer"),
            html.Div(id="about", className="about"),
            html.Div(
                [
                    html.H3("Load"),
                    html.Div(
                        dcc.Slider(
                            id="load",
                            min=0,
                            max=1,
                            step=1,
                            value=0,
                            marks=None,
                            included=False,
                            allow_direct_input=False,
                        ),
                        **{"aria-label": "Load"},
                    ),
                    html.P("", id="load-name"),
                    html.Div(id="at-load"),
                ],
                id="loads",
                hidden=True,
            ),
            html.Details(
                [
                    html.Summary("What if: a number slides"),
                    html.Div(
                        [
                            html.Div(
                                [
                                    html.Label("Number", htmlFor="number"),
                                    dcc.Input(
                                        id="number",
                                        type="text",
                                        list="numbers",
                                        debounce=0.3,
                                        className="input",
                                        placeholder="type to search, such as sequence, price, bandwidth",
                                        autoComplete="off",
                                    ),
                                    html.Datalist(id="numbers"),
                                ],
                                className="row",
                            ),
                            html.Div(
                                [
                                    html.Label("Values", htmlFor="points"),
                                    dcc.Input(
                                        id="points",
                                        type="text",
                                        debounce=0.5,
                                        className="input",
                                        placeholder="around it; or your own: 8Ki, 32Ki, 1Mi",
                                        autoComplete="off",
                                    ),
                                ],
                                className="row",
                            ),
                            html.Div(
                                [
                                    html.Label("Figure", htmlFor="figure"),
                                    dbc.Select(id="figure", options=[], value="", className="input"),
                                ],
                                className="row",
                            ),
                        ],
                        className="pair",
                    ),
                    html.Div(
                        [
                            _slider("slide", "number"),
                        ],
                        id="slides",
                        hidden=True,
                    ),
                    html.P("", id="curve-told", role="status"),
                    html.Div(id="curve"),
                ],
                id="what-if",
            ),
            html.Details(
                [
                    html.Summary("Search for better plans"),
                    html.Div(
                        [
                            html.Label("Work, in seconds of a processor", htmlFor="budget"),
                            dcc.Input(id="budget", type="text", value="10 s", className="input"),
                        ],
                        className="row",
                    ),
                    html.Div(
                        [
                            html.Button("Search", id="search", type="button"),
                            html.Button("Stop", id="stop-search", type="button", hidden=True),
                        ],
                        className="buttons",
                    ),
                    html.P("", id="plans-told", role="status"),
                    html.Div(id="plans"),
                ],
                id="planner",
            ),
            html.Details(
                [
                    html.Summary("Offers: which to buy"),
                    html.Div(
                        [
                            html.Button("Compare the offers", id="compare", type="button"),
                            html.Button("Stop", id="stop-compare", type="button", hidden=True),
                        ],
                        className="buttons",
                    ),
                    html.P("", id="offers-told", role="status"),
                    html.Div(id="offers"),
                ],
                id="purchase",
            ),
            html.H3("Pins"),
            html.Div(id="pinned"),
        ],
        className="look",
        **{"aria-label": "Answer"},
    )
