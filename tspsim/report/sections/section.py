"""A section of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tspsim.report.view import View


@dataclass(frozen=True)
class PageSection:
    """One part of the page."""

    #: The anchor in the page.
    key: str
    #: The heading; empty for a section that writes its own.
    title: str
    #: Values for the template. ``figures`` among them is a dict from an identifier to a figure (``data`` and
    #: ``layout``) or to ``{"choices": [{"label", "data", "layout"}, ...]}``; the template places it with the
    #: macro ``figure``. ``payload`` is data for the page's own scripts.
    build: Callable[[View], Mapping[str, Any] | None]
    #: Jinja2, autoescaped.
    template: str
    #: The title in the navigation; the heading when empty.
    short: str = ""
