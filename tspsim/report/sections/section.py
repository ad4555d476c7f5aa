"""What a section of the report is."""

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
    short
        What the navigation calls it; its title when empty.
    """

    key: str
    title: str
    build: Callable[[View], Mapping[str, Any] | None]
    template: str
    short: str = ""
