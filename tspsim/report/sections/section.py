"""A section of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

#: What a page's sections are built from.
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class PageSection(Generic[Seen]):
    """One part of a page, such as that of a :class:`~tspsim.report.view.View`."""

    #: The anchor in the page.
    key: str
    #: The heading; empty for a section that writes its own.
    title: str
    #: Values for the template. ``figures`` among them is a dict from an identifier to a figure (``data`` and
    #: ``layout``) or to ``{"choices": [{"label", "data", "layout"}, ...]}``; the template places it with the
    #: macro ``figure``. ``payload`` is data for the page's own scripts.
    build: Callable[[Seen], Mapping[str, Any] | None]
    #: Jinja2, autoescaped.
    template: str
    #: The title in the navigation; the heading when empty.
    short: str = ""
