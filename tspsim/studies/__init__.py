"""Many questions at once: sweeps over any path of a scenario, and the uncertainty of their verdicts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sweep import Sweep
    from .sweeping import SweepInterruptedError
    from .table import Table

__all__ = ["Sweep", "SweepInterruptedError", "Table"]

_HOMES = {"Sweep": "sweep", "SweepInterruptedError": "sweeping", "Table": "table"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
