"""The errors of predictions against measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def errors(
    measured: NDArray[np.float64], predicted: NDArray[np.float64], low: NDArray[Any], high: NDArray[Any]
) -> dict[str, Any]:
    """The errors of rows with both values.

    Parameters
    ----------
    measured, predicted, low, high
        Shape (rows,), one unit. Rows without a positive measured or a finite predicted value are not scored.

    Returns
    -------
    dict
        ``scored`` rows; with e = predicted/measured − 1: ``mape`` the mean of |e|, ``median_ape``, ``p90_ape`` (the
        90 % quantile), ``bias`` the mean of e; ``in_range`` the share of measured values within [low, high]. Shares of
        one, None where no row is scored.
    """
    scored = np.isfinite(measured) & (measured > 0.0) & np.isfinite(predicted)
    if not scored.any():
        return {"scored": 0, "mape": None, "median_ape": None, "p90_ape": None, "bias": None, "in_range": None}
    truth = measured[scored]
    error = predicted[scored] / truth - 1.0
    inside = (low[scored] <= truth) & (truth <= high[scored])
    return {
        "scored": int(scored.sum()),
        "mape": float(np.mean(np.abs(error))),
        "median_ape": float(np.median(np.abs(error))),
        "p90_ape": float(np.quantile(np.abs(error), 0.9)),
        "bias": float(np.mean(error)),
        "in_range": float(np.mean(inside)),
    }
