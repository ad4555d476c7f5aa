"""Fits of kernels whose tables hold few shapes at many sizes, over all devices of a generation together.

A dozen shapes do not determine a kernel's cost for other shapes, but the kernels of a generation are the same. So each
group (types, library) is fitted first to the rows of all its devices, in shares of their peaks and bandwidths; then
each device's own rows move the numbers a little. Whole curves are held out: a size between two fitted sizes tests
nothing. The range comes from curves that fits to the others predict, over all devices together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..hardware.families import FAMILIES
from ..hardware.specification import KernelFit
from .least_squares import PRIOR, minimise
from .residuals import kernel_error, kernel_spread
from .rows import CallRows

#: Pull of a device's numbers towards its generation's (see :data:`.least_squares.PRIOR`).
GENERATION_PRIOR = 0.5
#: Fewer rows do not move a device's own numbers.
FEWEST_MOVING = 10
FOLDS = 10
#: With fewer curves none can be predicted from the others: the range is at least this factor each way.
FEWEST_CURVES = 3
FEW_CURVES_FACTOR = 1.35


@dataclass(frozen=True)
class Curves:
    """The rows of one group on one device: which of them a fit may use, and the curve of each."""

    rows: CallRows
    used: Any
    curve: Any


def fit_curves(
    group: Sequence[Curves], library: str, *, date: str, source: str, start: Mapping[str, float] | None = None
) -> list[KernelFit]:
    """One fit per device, in the order given, to a group's rows on the devices of one generation.

    Parameters
    ----------
    group
        The rows of each device; at least one of them may be used.
    library
        The library of the kernels.
    start
        Numbers of a relative's kernels, from which the generation's fit starts.
    """
    first = group[0].rows
    used = [part.used for part in group]
    numbers = _numbers(group, used, start)
    curves = sorted({curve for part in group for curve in part.curve[part.used]})
    residual = [_residual(part, of_part) for part, of_part in zip(group, numbers, strict=True)]
    if len(curves) >= FEWEST_CURVES:
        for fold in range(FOLDS):
            inside = [np.isin(part.curve, curves[fold::FOLDS]) for part in group]
            others = [may & ~where for may, where in zip(used, inside, strict=True)]
            for i, of_part in enumerate(_numbers(group, others, start)):
                residual[i] = np.where(inside[i], _residual(group[i], of_part), residual[i])
    predicted = [part.rows.seconds({}, of_part) for part, of_part in zip(group, numbers, strict=True)]
    spread = kernel_spread(
        np.concatenate([times[may] for times, may in zip(predicted, used, strict=True)]),
        np.concatenate([errors[may] for errors, may in zip(residual, used, strict=True)]),
        0,
        least=1.005 if len(curves) >= FEWEST_CURVES else FEW_CURVES_FACTOR,
    )
    return [
        KernelFit(
            family=first.family,
            dtype=first.dtype,
            kv_dtype=first.second_dtype,
            library=library,
            parameters=of_part,
            switches={},
            spread=spread,
            rows_used=int(part.used.sum()),
            held_out=kernel_error(_residual(part, of_part)[~part.used]) if (~part.used).any() else None,
            date=date,
            source=source,
        )
        for part, of_part in zip(group, numbers, strict=True)
    ]


def _residual(part: Curves, numbers: Mapping[str, float]) -> Any:
    """log(measured/predicted) of all rows."""
    return -part.rows.residual({}, numbers)


def _numbers(
    group: Sequence[Curves], chosen: Sequence[Any], start: Mapping[str, float] | None
) -> list[dict[str, float]]:
    """The numbers of every device from the chosen rows: the common ones, moved by the device's own rows."""
    parameters = FAMILIES[group[0].rows.family].parameters
    parts = [part.rows[where] for part, where in zip(group, chosen, strict=True)]
    bounds = parameters if start is None else {n: p._replace(default=start[n]) for n, p in parameters.items()}
    pull = PRIOR if start is None else GENERATION_PRIOR
    together, _ = minimise(bounds, frozenset(), partial(_log_ratio, parts), pull=pull)
    around = {name: p._replace(default=together[name]) for name, p in parameters.items()}
    by_device = []
    for rows in parts:
        own = together
        if len(parts) > 1 and len(rows) >= FEWEST_MOVING:
            own, _ = minimise(around, frozenset(), partial(_log_ratio, [rows]), pull=GENERATION_PRIOR)
        by_device.append({name: float(f"{value:.4g}") for name, value in own.items()})
    return by_device


def _log_ratio(parts: Sequence[CallRows], numbers: Mapping[str, float]) -> Any:
    """log(predicted/measured) of all rows."""
    return np.concatenate([rows.residual({}, numbers) for rows in parts])
