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


def precision_of(text: str) -> str:
    """The simulator's name of a precision, or the source's own if it has none.

    >>> precision_of("amp_bf16"), precision_of("BF16 (assumed)"), precision_of("MXFP8")
    ('bf16', 'bf16', 'mxfp8')
    """
    word = text.lower()
    if word.startswith(("bf16", "amp_bf16", "fp16")):
        return "bf16"
    if word.startswith("mxfp8") or "fp8-mx" in word:
        return "mxfp8"
    if "fp4" in word:
        return "nvfp4"
    return "fp8" if "fp8" in word else (word or "an unknown precision")
