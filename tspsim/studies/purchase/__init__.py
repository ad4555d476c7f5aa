"""The purchase: the same work on several offers, at a price, to the end of a project, and with its doubts.

A scenario with ``offers`` is a purchase. :func:`expand` makes one scenario an offer, :func:`decide` answers what a
buyer asks of their results.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decision import Decision, decide
    from .offers import expand

__all__ = ["Decision", "decide", "expand"]

_HOMES = {"expand": "offers", "Decision": "decision", "decide": "decision"}


def __getattr__(name: str) -> Any:
    """Look names up when they are used: the terms are read with every scenario, the rest is not."""
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
