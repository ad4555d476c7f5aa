"""Residuals of a fit as what a device file says of them: error on other rows, and the 90 % range."""

from __future__ import annotations

from typing import Any

import numpy as np

from .specification import HeldOutError, Spread

#: A dozen rows can happen to lie on the model; larger groups always scatter this much (in log time) around
#: it.
SCATTER = 0.04


def error_of(residual: Any) -> HeldOutError:
    """Median, mean and 90 % quantile of |predicted/measured − 1|, and bias, from log(measured/predicted)."""
    error = np.abs(np.expm1(-residual))
    return HeldOutError(
        rows=len(residual),
        median=rounded(np.median(error)),
        mape=rounded(np.mean(error)),
        p90=rounded(np.quantile(error, 0.9)),
        bias=rounded(-np.mean(residual)),
    )


def spread_of(predicted: Any, residual: Any, parameters: int, *, least: float = 1.005) -> Spread:
    """The 90 % range of measured over predicted in each third of the predicted times, ``least`` each way.

    Residuals of rows used are smaller than those of new rows; by how much a linear model with as many
    parameters tells: sqrt((1 + p/n) / (1 − p/n)), with p at most n/2: the pull to defaults holds the rest.
    Quantiles are those of one more row (Vovk et al. 2005, conformal prediction): few rows have wider ones.
    Fewer than twenty have none; two standard deviations (:data:`SCATTER` at least) stand in.
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
        enough = inside if len(inside) >= 20 else residual
        if len(enough) >= 20:
            level = min(1.0, 0.955 * (len(enough) + 1) / len(enough))
            a, b = np.quantile(enough, [1.0 - level, level]) * unseen
        else:
            b = 2.0 * max(SCATTER, float(np.sqrt(np.mean(enough**2)))) * unseen
            a = -b
        low.append(rounded(min(np.exp(a), 1.0 / least)))
        high.append(rounded(max(np.exp(b), least)))
    return Spread(
        borders_us=(rounded(first), rounded(second)),
        low=(low[0], low[1], low[2]),
        high=(high[0], high[1], high[2]),
        domain_us=(rounded(us.min() * 0.999), rounded(us.max() * 1.001)),
    )


def rounded(value: Any) -> float:
    return float(f"{float(value):.4g}")
