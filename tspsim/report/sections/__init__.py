"""The report's sections, in the order they are read.

A section is one file: a title, a function that turns the :class:`~tspsim.report.view.View` into values for
a small Jinja2 template (or None, when there is nothing to say), and that template. To add one, write the
file and put it into :func:`ordered`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tspsim.report.view import View


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes
    ----------
    key
        The anchor in the page.
    title
        The heading; empty for a section that writes its own.
    build
        Values for the template. ``figures`` among them is a dict from an identifier to a figure (``data`` and
        ``layout``) or to ``{"choices": [{"label", "data", "layout"}, ...]}``; the template places it with the
        macro ``figure``. ``payload`` is data for the page's own scripts.
    template
        Jinja2, autoescaped.
    """

    key: str
    title: str
    build: Callable[[View], Mapping[str, Any] | None]
    template: str


def ordered() -> tuple[Section, ...]:
    """Every section, the answer first."""
    from . import (
        answer,
        assumptions,
        breakdown,
        breakeven,
        fabric,
        memory,
        plans,
        rates,
        timeline,
        unexplained,
        volume,
    )

    modules = (
        answer,
        plans,
        rates,
        breakdown,
        timeline,
        fabric,
        memory,
        volume,
        breakeven,
        assumptions,
        unexplained,
    )
    return tuple(module.SECTION for module in modules)
