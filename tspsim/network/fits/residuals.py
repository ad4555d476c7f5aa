"""Residuals of collectives as a file says of them: the error on rows left out, and the 90 % range."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..calibration import Spread

Floats = NDArray[np.float64]
#: Fewer rows than this have no quantiles; two standard deviations stand in, of at least so much in log time.
QUANTILE_ROWS = 20
SCATTER = 0.04
#: No range is narrower than this factor each way.
LEAST = 1.02


class Errors(NamedTuple):
    """|predicted/measured − 1| over some rows."""

    rows: int
    median: float
    mean: float

    def __str__(self) -> str:
        return f"median {100 * self.median:.1f} %, mean {100 * self.mean:.1f} %"


def errors_of(residual: Floats) -> Errors | None:
    """Errors from log(measured/predicted), shape (rows,); None without rows."""
    if not len(residual):
        return None
    error = np.abs(np.expm1(-residual))
    return Errors(len(error), float(np.median(error)), float(np.mean(error)))


def spread_of(residual: Floats, share: Floats) -> Spread:
    """The factors of the predicted time between which nine of ten measured ones lie.

    Parameters
    ----------
    residual
        log(measured/predicted) of rows that their fit had not seen, shape (rows,).
    share
        Of the predicted time that is fluid: rows weigh on the range of large messages by it, on that of small ones by
        the rest.
    """
    ends = []
    for weight in (1.0 - share, share):
        low, high = _ends(residual, weight)
        ends.append((rounded(min(math.exp(low), 1.0 / LEAST)), rounded(max(math.exp(high), LEAST))))
    return Spread(small=ends[0], large=ends[1], rows=len(residual))


def wider_of(one: Spread, other: Spread) -> Spread:
    """The wider of two ranges at each end; ``one`` says how many rows told it."""
    small, large = (
        (min(a[0], b[0]), max(a[1], b[1])) for a, b in ((one.small, other.small), (one.large, other.large))
    )
    return Spread(small=small, large=large, rows=one.rows)


def _ends(residual: Floats, weight: Floats) -> tuple[float, float]:
    """5 and 95 % quantiles of weighted residuals, those of one row more (Vovk et al. 2005, conformal prediction)."""
    weight = weight + 1e-9
    rows = float(weight.sum() ** 2 / (weight**2).sum())
    if rows < QUANTILE_ROWS:
        width = 2.0 * max(SCATTER, math.sqrt(float(np.average(residual**2, weights=weight))))
        return -width, width
    order = np.argsort(residual, kind="stable")
    upto = np.cumsum(weight[order]) - 0.5 * weight[order]
    level = min(1.0, 0.95 * (rows + 1.0) / rows)
    low, high = np.interp(np.array([1.0 - level, level]) * weight.sum(), upto, residual[order])
    return float(low), float(high)


def rounded(value: Any) -> float:
    """Four digits."""
    return float(f"{float(value):.4g}")
