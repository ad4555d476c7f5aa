"""Sorts of question, one file each: how an answer is drawn, what a pin keeps, what a purchase shows.

Callers look a sort up by the name that :func:`tspsim.api.sort_of` gives; nothing else distinguishes sorts. Drawing code
is imported only where a page is drawn: a worker needs no components.
"""

from __future__ import annotations

from . import fleets, plans
from .sort import Figure, Sort

SORTS: dict[str, Sort] = {"scenario": plans, "fleet": fleets}

__all__ = ["SORTS", "Figure", "Sort"]
