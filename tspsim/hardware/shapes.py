"""Shapes of calls as the kernel models read them: positive sizes, numbers or arrays of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tspsim.base.errors import InputError

_MAY_BE_ZERO = frozenset(
    {"rows", "columns", "causal", "choice", "longest", "prompts", "pairs", "touched", "gated", "elsewhere"}
)


def read_shape(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Floats, or float arrays of one shape; refuses what is not a size. Tuples, of segments, are left as they are."""
    if all(isinstance(value, int | float | tuple) for value in shape.values()):
        numbers: dict[str, Any] = {n: v if isinstance(v, tuple) else float(v) for n, v in shape.items()}
        smallest = {name: value for name, value in numbers.items() if not isinstance(value, tuple)}
        largest = max(smallest.values())
    else:
        arrays = np.broadcast_arrays(*(np.asarray(value, dtype=float) for value in shape.values()))
        numbers = dict(zip(shape, arrays, strict=True))
        smallest = {name: array.min() if array.size else 1.0 for name, array in numbers.items()}
        largest = max((array.max() for array in arrays if array.size), default=1.0)
    for name, value in smallest.items():
        if not value > 0.0 and not (value == 0.0 and name in _MAY_BE_ZERO):
            raise InputError(f"{name} must be more than zero, not {value:g}")
    if not largest < float("inf"):
        raise InputError("sizes must be finite")
    return numbers
