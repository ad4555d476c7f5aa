"""What every part of the page works with."""

from __future__ import annotations

from typing import Any

from dash import Output

from .desks import Desks
from .fields import Forms

#: Seconds that a request waits for its job before it says how far that is.
WAIT_S = 0.8
Said = dict[str, Any]
#: Milliseconds between two looks at what is under way.
TICK_MS = 250


def one_by_one(tick: str) -> list[tuple[Output, int, int]]:
    """What a callback that a clock asks sets while it runs: the clock waits for it, or looks would pile up."""
    return [(Output(tick, "interval"), 3_600_000, TICK_MS)]


class StudioPart:
    """Functions behind a part of the page, over the desks of all tabs.

    Parameters
    ----------
    desks, forms
        All tabs' processes; the forms of all sorts of question.
    start
        What a new page begins with: a scenario's name or file; None: a first question.
    """

    def __init__(self, desks: Desks, forms: Forms, start: str | None) -> None:
        self.desks, self.forms, self.start = desks, forms, start
