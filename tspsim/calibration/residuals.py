"""Residuals of a fit as a file states them: the error on held-out rows, and the range that holds nine in ten.

Kernels have ranges by thirds of the predicted time; transfers interpolate between pure latency and pure bandwidth.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..hardware.specification import HeldOutError, KernelSpread
from ..network.calibration import TransferSpread

Floats = NDArray[np.float64]
#: Fewer rows have no quantiles: two standard deviations stand in, each at least SCATTER in log time, because a dozen
#: rows can happen to lie on the model.
QUANTILE_ROWS = 20
SCATTER = 0.04
#: Range of what one measured size, shape or step alone tells of others, each way.
ONE_SIZE = 1.6
#: No range of transfers is narrower than this factor each way.
LEAST = 1.02


def kernel_error(residual: Any) -> HeldOutError:
    """Median, mean and 90 % quantile of |predicted/measured − 1|, and bias, from log(measured/predicted)."""
    error = np.abs(np.expm1(-residual))
    return HeldOutError(
        rows=len(residual),
        median=rounded(np.median(error)),
        mape=rounded(np.mean(error)),
        p90=rounded(np.quantile(error, 0.9)),
        bias=rounded(-np.mean(residual)),
    )


def kernel_spread(predicted: Any, residual: Any, parameters: int, *, least: float = 1.005) -> KernelSpread:
    """The 90 % range of measured over predicted in each third of the predicted times, ``least`` each way.

    Residuals of used rows are smaller than those of new rows. A linear model with as many parameters gives the factor:
    sqrt((1 + p/n) / (1 − p/n)), with p at most n/2, since the pull to defaults holds the rest. Quantiles are those of
    one more row (Vovk et al. 2005, conformal prediction): few rows give wider ones. Fewer than :data:`QUANTILE_ROWS`
    have none.
    """
    us = predicted * 1e6
    first, second = np.quantile(us, [1 / 3, 2 / 3])
    second = max(second, first * 1.001)
    regime = np.searchsorted([first, second], us)
    share = min(parameters / len(us), 0.5)
    unseen = np.sqrt((1.0 + share) / (1.0 - share))
    low, high = [], []
    for which in range(3):
        inside = residual[regime == which]
        enough = inside if len(inside) >= QUANTILE_ROWS else residual
        if len(enough) >= QUANTILE_ROWS:
            level = min(1.0, 0.955 * (len(enough) + 1) / len(enough))
            a, b = np.quantile(enough, [1.0 - level, level]) * unseen
        else:
            b = 2.0 * max(SCATTER, float(np.sqrt(np.mean(enough**2)))) * unseen
            a = -b
        low.append(rounded(min(np.exp(a), 1.0 / least)))
        high.append(rounded(max(np.exp(b), least)))
    return KernelSpread(
        borders_us=(rounded(first), rounded(second)),
        low=(low[0], low[1], low[2]),
        high=(high[0], high[1], high[2]),
        domain_us=(rounded(us.min() * 0.999), rounded(us.max() * 1.001)),
    )


class StepCheck(NamedTuple):
    """A time of one step: measured; simulated with the old numbers, with the new ones, and with a fit to the other
    traces."""

    name: str
    measured_s: float
    before_s: float
    after_s: float
    others_s: float | None


class TransferErrors(NamedTuple):
    """|predicted/measured − 1| over some rows."""

    rows: int
    median: float
    mean: float

    def __str__(self) -> str:
        return f"median {100 * self.median:.1f} %, mean {100 * self.mean:.1f} %"


def transfer_errors(residual: Floats) -> TransferErrors | None:
    """Errors from log(measured/predicted), shape (rows,); None without rows."""
    if not len(residual):
        return None
    error = np.abs(np.expm1(-residual))
    return TransferErrors(len(error), float(np.median(error)), float(np.mean(error)))


def transfer_spread(residual: Floats, share: Floats) -> TransferSpread:
    """The factors of the predicted time between which nine of ten measured times lie.

    Parameters
    ----------
    residual
        log(measured/predicted) of rows that the fit had not used, shape (rows,).
    share
        Fluid share of the predicted time: the weight of a row in the range of large messages. The rest is its weight in
        the range of small ones.
    """
    ends = []
    for weight in (1.0 - share, share):
        low, high = _ends(residual, weight)
        ends.append((rounded(min(math.exp(low), 1.0 / LEAST)), rounded(max(math.exp(high), LEAST))))
    return TransferSpread(small=ends[0], large=ends[1], rows=len(residual))


def wider_of(one: TransferSpread, other: TransferSpread) -> TransferSpread:
    """The wider of two ranges at each end; the number of rows is that of ``one``."""
    small, large = ((min(a[0], b[0]), max(a[1], b[1])) for a, b in ((one.small, other.small), (one.large, other.large)))
    return TransferSpread(small=small, large=large, rows=one.rows)


def of_one_size(spread: TransferSpread) -> TransferSpread:
    """The range of rows of one size, which tell nothing of others: at least :data:`ONE_SIZE` each way."""
    wide = (rounded(1.0 / ONE_SIZE), ONE_SIZE)
    return wider_of(spread, TransferSpread(small=wide, large=wide, rows=spread.rows))


def _ends(residual: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted 5 and 95 % quantiles of residuals, those of one more row (Vovk et al. 2005, conformal prediction)."""
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
    """Rounds to four digits."""
    return float(f"{float(value):.4g}")
