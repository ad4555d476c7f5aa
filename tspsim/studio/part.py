"""The common base of all parts of the page."""

from __future__ import annotations

from typing import Any

from dash import Output

from .desks import Desks
from .fields import Forms

#: Seconds that a request waits for its job before it reports progress.
WAIT_S = 0.8
Said = dict[str, Any]
#: Milliseconds between two requests for progress.
TICK_MS = 250


def one_by_one(tick: str) -> list[tuple[Output, int, int]]:
    """The ``running`` argument of a callback with a clock: the clock stops while the callback runs, so that calls do
    not pile up."""
    return [(Output(tick, "interval"), 3_600_000, TICK_MS)]


class StudioPart:
    """The callbacks of a part of the page.

    Parameters
    ----------
    desks, forms
        The processes of all tabs; the forms of all sorts of question.
    start
        The first question of a new page: a scenario's name or file; None: the built-in one.
    """

    def __init__(self, desks: Desks, forms: Forms, start: str | None) -> None:
        self.desks, self.forms, self.start = desks, forms, start
