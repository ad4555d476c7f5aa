"""What the model does not explain."""

from __future__ import annotations

from typing import Any

from tspsim.report.view import View

from .section import PageSection

TEMPLATE = """<ul>{% for text in unexplained %}<li>{{ text|prose }}</li>{% endfor %}</ul>"""


def build(view: View) -> dict[str, Any] | None:
    """The result's own list of unexplained effects."""
    return {"unexplained": view.result.unexplained} if view.result.unexplained else None


SECTION = PageSection("unexplained", "What the model does not explain", build, TEMPLATE, short="Limits")
