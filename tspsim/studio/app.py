"""The application: the page, and the parts of it that do something, one file each.

A question is text. Whatever changes it (a key in the form, a line of YAML, a link, a plan that was found) goes through
:meth:`tspsim.studio.question.QuestionTurns.turn`, which gives the text a number;
:meth:`tspsim.studio.answering.Answers.answer` answers the numbered text, and what is shown of an older number is dimmed
until then. The question stands in the page's address, so that reloading, going back and a new server find it again.
Every part declares what it listens to in its ``join``, beside the functions that answer.
"""

from __future__ import annotations

from pathlib import Path

from dash import Dash

from . import answering, aside, catalogs, keeping, layout, pins, question, whatif
from .desks import Desks
from .fields import Forms

#: In the page itself: browsers ask anew for an icon of the server whenever the address changes.
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


def made(desks: Desks, start: str | None) -> Dash:
    """The application; every file of it comes from this machine.

    Parameters
    ----------
    start
        What a new page begins with: a scenario's name or file; None: a first question.
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
    # Dash looks at its files on the first request, and answers others meanwhile without them: tabs of a server before
    # this one ask at once.
    app.server.test_client().get("/")
    return app


def _left(desks: Desks, tab: str) -> tuple[str, int]:
    """A tab was closed."""
    desks.leave(tab)
    return "", 204
