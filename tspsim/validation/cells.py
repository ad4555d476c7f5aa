"""Cells of a table that was read as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Row = Mapping[Any, Any]


def number_of(value: object) -> float:
    """The number in a cell; NaN if there is none."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def count_of(row: Row, column: str, default: int = 0) -> int:
    """The whole number in a cell; the default if there is none."""
    value = number_of(row.get(column, ""))
    return int(value) if math.isfinite(value) and value > 0.0 and value == int(value) else default
