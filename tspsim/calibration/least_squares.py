"""Robust least squares on the logarithm of time, and the split of measured rows.

Fits of kernels and of collectives share this: every fitted number is positive, so its logarithm moves; an outlier pulls
no harder than a row that is slightly off; every number is pulled weakly to its start.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..hardware.limits import Parameter

#: Share of all shapes that may be used.
FIT_SHARE_PERCENT = 70
#: Residuals beyond this (in log time) count linearly, not squared.
OUTLIER = 0.08
#: Pull of every number towards its start, as a residual for a factor of e. It decides where rows cannot (few rows, or
#: two numbers that compensate) and is negligible beside a hundred rows.
PRIOR = 0.02
#: The same pull for rows too few to carry the numbers.
POOR_PRIOR = 0.1


def used_rows(shapes: Iterable[tuple[object, ...]]) -> NDArray[np.bool_]:
    """Which rows a fit may use, by a hash of the shape: the same in every process and table."""
    return np.array([zlib.crc32(repr(shape).encode()) % 100 < FIT_SHARE_PERCENT for shape in shapes], dtype=bool)


def minimise(
    bounds: Mapping[str, Parameter],
    absent: frozenset[str],
    residuals: Callable[[Mapping[str, float]], Any],
    *,
    starts: int = 1,
    pull: float = PRIOR,
) -> tuple[dict[str, float], float]:
    """Bounded robust least squares over the logarithms of named numbers.

    Parameters
    ----------
    bounds
        Numbers that may move.
    absent
        Names of numbers that stay zero.
    residuals
        From all numbers to log(predicted/measured), shape (rows,).
    starts
        Starting points, the first at the defaults.
    pull
        See :data:`PRIOR`.

    Returns
    -------
    (dict, float)
        Every number, within its bounds, and the cost there.
    """
    from scipy.optimize import least_squares

    names = [name for name in bounds if name not in absent]
    low = np.log([max(bounds[name].low, bounds[name].high * 1e-6) for name in names])
    high = np.log([bounds[name].high for name in names])
    start = np.log([bounds[name].default or bounds[name].high * 0.3 for name in names])
    random = np.random.default_rng(7)
    best: Any = None

    def full(z: Any) -> dict[str, float]:
        return dict.fromkeys(absent, 0.0) | dict(zip(names, np.exp(z).tolist(), strict=True))

    for turn in range(starts):
        origin = start if turn == 0 else start + random.normal(0.0, 0.6, len(start))
        result = least_squares(
            lambda z: np.concatenate([residuals(full(z)), (z - start) * pull]),
            np.clip(origin, low + 1e-3, high - 1e-3),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=OUTLIER,
            diff_step=2e-3,
            max_nfev=40,
        )
        if best is None or result.cost < best.cost:
            best = result
    solution = full(best.x)
    return {
        name: min(max(solution[name], bounds[name].low), bounds[name].high) if name not in absent else 0.0
        for name in bounds
    }, float(best.cost)
