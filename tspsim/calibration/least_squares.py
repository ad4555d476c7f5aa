"""Robust least squares on the logarithm of time, and which measured rows a fit may use.

What fits of kernels and of collectives share: every number that moves is positive, so its logarithm does; a row far
off pulls no harder than one a little off; and every number is pulled weakly to where it started.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

#: Of all shapes this share may be used.
FIT_SHARE_PERCENT = 70
#: Residuals beyond this (in log time) count linearly, not squared.
OUTLIER = 0.08
#: Pull of every number towards its start, as a residual for a factor of e. It decides where rows cannot (few of
#: them, or two numbers that compensate) and is nothing beside a hundred rows.
PRIOR = 0.02
#: The same for rows too few to carry the numbers by themselves.
POOR_PRIOR = 0.1


class Bounded(Protocol):
    """A number that may move: where it starts, and its bounds."""

    @property
    def default(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class ParameterBounds(NamedTuple):
    """The plainest of those."""

    default: float
    low: float
    high: float


def used_rows(shapes: Iterable[tuple[object, ...]]) -> NDArray[np.bool_]:
    """Which rows a fit may use: decided by a hash of the shape, the same in every process and table."""
    return np.array([zlib.crc32(repr(shape).encode()) % 100 < FIT_SHARE_PERCENT for shape in shapes], dtype=bool)


def minimise(
    known: Mapping[str, Bounded],
    absent: frozenset[str],
    residuals: Callable[[Mapping[str, float]], Any],
    *,
    starts: int = 1,
    pull: float = PRIOR,
) -> tuple[dict[str, float], float]:
    """Bounded robust least squares over the logarithms of named numbers.

    Parameters
    ----------
    known
        What may move.
    absent
        Names that stay zero.
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

    names = [name for name in known if name not in absent]
    low = np.log([max(known[name].low, known[name].high * 1e-6) for name in names])
    high = np.log([known[name].high for name in names])
    start = np.log([known[name].default or known[name].high * 0.3 for name in names])
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
    found = full(best.x)
    return {
        name: min(max(found[name], known[name].low), known[name].high) if name not in absent else 0.0 for name in known
    }, float(best.cost)
