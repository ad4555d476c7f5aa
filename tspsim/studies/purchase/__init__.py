"""The purchase: the same work on several offers, at a price, to the end of a project, with its uncertainty.

A scenario with ``offers`` is a purchase. :func:`expand` makes one scenario per offer, :func:`decide` compares their
results.
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
    """Import on first use: the terms are read with every scenario, the rest is not."""
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
