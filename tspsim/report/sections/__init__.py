"""The report's sections, in reading order.

A section is one file: a title, a function that turns the :class:`~tspsim.report.view.View` into values for
a small Jinja2 template (or None, where it has nothing), and that template. To add one, write the
file and put it into :data:`SECTIONS`.
"""

from __future__ import annotations

from ..view import View
from . import (
    answer,
    assumptions,
    batches,
    breakdown,
    breakeven,
    caches,
    fabric,
    iteration,
    memory,
    plans,
    rates,
    roofline,
    timeline,
    unexplained,
    volume,
)
from .section import PageSection

#: Every section, the answer first.
SECTIONS: tuple[PageSection[View], ...] = tuple(
    module.SECTION
    for module in (
        answer,
        plans,
        rates,
        iteration,
        batches,
        breakdown,
        roofline,
        timeline,
        fabric,
        memory,
        caches,
        volume,
        breakeven,
        assumptions,
        unexplained,
    )
)
