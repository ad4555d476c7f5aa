"""What every part of the page works with."""

from __future__ import annotations

from typing import Any

from .desks import Desks
from .fields import Forms

#: Seconds that a request waits for its job before it says how far that is.
WAIT_S = 0.8
Said = dict[str, Any]


class Part:
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
