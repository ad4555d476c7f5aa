"""Sorts of question, one file each: what the page shows of an answer, what a pin keeps, what is bought.

Whoever has a question or its answer looks its sort up by the name that :func:`tspsim.api.sort_of` gives it, and
asks that; nothing outside tells sorts apart. What draws is imported only where a page is drawn: a process that answers
needs no components.
"""

from __future__ import annotations

from .fleets import Fleets
from .plans import Plans
from .sort import Figure, Sort

SORTS: dict[str, Sort] = {"scenario": Plans(), "fleet": Fleets()}

__all__ = ["SORTS", "Figure", "Sort"]
