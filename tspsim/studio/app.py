"""The application: the page, and its active parts, one file each.

A question is text. Every change of it (a key in the form, a line of YAML, a link, a searched plan) goes through
:meth:`tspsim.studio.question.QuestionTurns.turn`, which numbers the text;
:meth:`tspsim.studio.answering.Answers.answer` answers the numbered text, and the page dims answers to older numbers.
The question is part of the page's address, so that a reload, the back button and a new server restore it. Every part
declares its inputs and outputs in its ``join``, beside the functions that answer.
"""

from __future__ import annotations

from pathlib import Path

from dash import Dash

from . import answering, aside, catalogs, keeping, layout, pins, question, whatif
from .desks import Desks
from .fields import Forms

#: Part of the page: browsers fetch an icon of the server again whenever the address changes.
ICON = (
    '<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns=%27http://www.w3.org/2000/svg%27 viewBox=%270 0 16 16%27%3E'
    "%3Cpath d=%27M1 2h14v5H1z%27 fill=%27%232b6cb0%27/%3E%3Cpath d=%27M1 9h6v5H1z%27 fill=%27%23dd6b20%27/%3E"
    '%3C/svg%3E">'
)
PARTS = (
    question.QuestionTurns,
    answering.Answers,
    catalogs.Choices,
    whatif.SliderCurves,
    aside.Aside,
    pins.Pins,
    keeping.Keep,
)


def studio_app(desks: Desks, start: str | None) -> Dash:
    """The application; all of its files come from this machine.

    Parameters
    ----------
    start
        The first question of a new page: a scenario's name or file; None: the built-in one.
    """
    app = Dash(
        "tspsim.studio",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        title="tspsim studio",
        update_title=None,
        suppress_callback_exceptions=True,
        compress=False,
    )
    app.index_string = app.index_string.replace("{%favicon%}", ICON)
    app.layout = layout.page
    forms = Forms()
    for part in PARTS:
        part(desks, forms, start).join(app)
    app.server.add_url_rule("/leave/<tab>", "leave", lambda tab: _left(desks, tab), methods=["POST"])
    # Dash reads its files on the first request, and answers others meanwhile without them; tabs of an earlier server
    # send requests at once.
    app.server.test_client().get("/")
    return app


def _left(desks: Desks, tab: str) -> tuple[str, int]:
    """A tab was closed."""
    desks.leave(tab)
    return "", 204
