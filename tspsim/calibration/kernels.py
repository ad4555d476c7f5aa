"""Fit kernel models to measured tables: robust least squares on the logarithm of time.

Rows are split by a hash of their shape (or of their curve, where a family has curves), so that a shape measured on
several devices or libraries is on the same side for all of them: at most 70 % are used, the others measure the error.
Switches (facts about a library, such as its tiles) are chosen by the error on used rows. Ranges are quantiles of the
residuals by predicted time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import InputError
from ..hardware.families import FAMILIES
from ..hardware.kernels import SUFFICIENT_ROWS, Kernel, find_kernel, limits_of, sufficient_rows
from ..hardware.specification import DeviceSpec, KernelFit
from ..validation.kernel_tables import GROUP_COLUMNS
from .curves import Curves, fit_curves
from .least_squares import POOR_PRIOR, minimise, used_rows
from .residuals import kernel_error, kernel_spread
from .rows import CallRows

if TYPE_CHECKING:
    import pandas as pd

#: Another value of a switch must lower the cost to this share; optional terms together to WORTH_A_TERM.
WORTH_A_SWITCH = 0.995
#: Only small grids distinguish block heights of attention, and few tables have them: a height other than the usual one
#: must explain a large part of the remaining error.
WORTH_A_HEIGHT = 0.8
WORTH_A_TERM = 0.9
#: Least half range, as a factor, of a fit to too few rows (:func:`tspsim.hardware.kernels.sufficient_rows`): such rows
#: move the parameters of the kernel that would be borrowed.
POOR_FACTOR = 1.35
#: Below this number of rows the range comes from cross-validation over FOLDS folds.
CROSSED_ROWS = 60
FOLDS = 5
#: Fewer rows carry no information.
FEWEST_ROWS = 2
#: Fewer rows cannot distinguish the values of a switch: its first value, the usual one, stands.
SWITCH_ROWS = 20
#: Memory-bound kernels that reduce over rows; a row may have a cost beside its bytes.
REDUCTIONS = ("norm", "softmax")
#: Terms that only some kernels have: switched off, or fitted where that improves the fit enough.
_OPTIONAL: Mapping[str, frozenset[str]] = {
    "gemm": frozenset({"quantise_gb_per_s"}),
    "grouped_gemm": frozenset({"quantise_gb_per_s"}),
    "grouped_gemm_backward": frozenset({"quantise_gb_per_s"}),
    "absorb": frozenset({"quantise_gb_per_s"}),
    "attention_forward": frozenset({"rope", "cache_write", "token_ns"}),
    "attention_backward": frozenset({"rope", "cache_write", "token_ns"}),
    "memory_bound": frozenset({"row_us", "row_exponent", "rows_us"}),
}
#: From this number of rows on a table can distinguish an optional term from chance.
TERM_ROWS = 60
#: Kernels without any of those terms.
_PLAIN = frozenset({"attention_backward", "grouped_gemm", "grouped_gemm_backward"})


@dataclass(frozen=True, slots=True)
class KernelFits:
    """Result of fitting one device: the fits, and the groups left at their defaults with the reason."""

    fits: tuple[KernelFit, ...]
    skipped: tuple[tuple[str, str], ...]


def used_in_fit(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows a fit may use, by their shape (:func:`tspsim.calibration.least_squares.used_rows`)."""
    return used_rows(tuple(shape) for shape in frame[list(columns)].astype(float).itertuples(index=False))


def fit_device(
    spec: DeviceSpec,
    rows: pd.DataFrame,
    *,
    date: str,
    source: str,
    starts: int = 2,
    families: Iterable[str] | None = None,
    relatives: Sequence[DeviceSpec] = (),
) -> KernelFits:
    """Fit every group (family, types, library) of normalised ``rows`` that belong to ``spec``.

    Parameters
    ----------
    spec
        The device: its peaks, bandwidth, compute units.
    rows
        Rows of :func:`tspsim.validation.kernel_tables.calls`, of any number of tables.
    date, source
        Written into every fit.
    starts
        Starting points a group, the first at the defaults.
    families
        Only these families; None: all.
    relatives
        Devices whose kernels a group of very few rows starts from, nearest first, after the device's own.
    """
    mine = rows[(rows["gpu"] == spec.name) & (rows["reason"] == "") & (rows["time_us"] > 0.0)]
    fits: list[KernelFit] = []
    skipped: list[tuple[str, str]] = []
    groups = []
    for names, group in mine.groupby(list(GROUP_COLUMNS), sort=True):
        key = tuple(str(name) for name in names)
        if families is None or key[0] in set(families):
            groups.append((int(used_in_fit(group, split_by(key[0])).sum()), key, group))
    for used, key, group in sorted(
        groups, key=lambda item: not sufficient_rows(item[1][0], item[0])
    ):  # groups with enough rows first: the others borrow from them
        family, dtype, second, library = key
        if FAMILIES[family].curve is not None:
            if not used:
                skipped.append((" ".join(key), "no curve that a fit may use"))
                continue
            start = next((fit for kin in relatives if kin.family == spec.family for fit in kin.kernels
                          if _group(fit) == key), None)  # fmt: skip
            fits += fit_curves([curves_of(spec, key, group)], library, date=date, source=source,
                               start=start.parameters if start else None)  # fmt: skip
            continue
        others = [fit for fit in in_place(spec.kernels, fits) if _group(fit) != key]
        own = spec.model_copy(update={"kernels": tuple(others)})
        try:
            lender = None if sufficient_rows(family, used) else find_kernel(own, relatives, family, dtype, None, second)
        except InputError:  # nobody to borrow from
            lender = None
        fewest = FEWEST_ROWS if lender else SUFFICIENT_ROWS
        if used < fewest:
            skipped.append((" ".join(key), f"{used} rows to fit, {fewest} are needed"))
            continue
        fit = fit_group(
            spec, family, dtype, second, library, group, date=date, source=source, starts=starts, lender=lender
        )
        fits.append(fit)
    return KernelFits(tuple(fits), tuple(skipped))


def fit_generation(
    specs: Sequence[DeviceSpec], rows: pd.DataFrame, family: str, *, date: str, source: str
) -> dict[str, list[KernelFit]]:
    """Fits of a family that has curves, by device, to normalised rows of all devices of one generation.

    A device whose curves of a group are all held out takes the group's numbers from the other devices.
    """
    mine = rows[rows["gpu"].isin([spec.name for spec in specs]) & (rows["family"] == family)]
    mine = mine[(mine["reason"] == "") & (mine["time_us"] > 0.0)]
    by_device: dict[str, list[KernelFit]] = {spec.name: [] for spec in specs}
    for names, group in mine.groupby(list(GROUP_COLUMNS), sort=True):
        key = tuple(str(name) for name in names)
        devices = [spec for spec in specs if (group["gpu"] == spec.name).any()]
        parts = [curves_of(spec, key, group[group["gpu"] == spec.name]) for spec in devices]
        if any(part.used.any() for part in parts):
            for spec, fit in zip(devices, fit_curves(parts, key[-1], date=date, source=source), strict=True):
                by_device[spec.name].append(fit)
    return by_device


def curves_of(spec: DeviceSpec, key: Sequence[str], group: pd.DataFrame) -> Curves:
    """The rows of a group (:data:`GROUP_COLUMNS`) on a device, with the split of their curves."""
    family, dtype, second, _ = key
    names = split_by(family)
    curve = np.array([repr(tuple(shape)) for shape in group[list(names)].astype(float).itertuples(index=False)])
    rows = CallRows.of(limits_of(spec, dtype), family, dtype, second, group)
    return Curves(rows, used_in_fit(group, names), curve)


def split_by(family: str) -> tuple[str, ...]:
    """The columns that decide whether a fit may use a row: those of its curve, or its shape."""
    model = FAMILIES[family]
    return model.shape if model.curve is None else model.curve


def in_place(fits: Sequence[KernelFit], new: Sequence[KernelFit]) -> tuple[KernelFit, ...]:
    """``fits`` with new ones in place of those of the same types and library."""
    names = {_group(fit) for fit in new}
    return (*new, *(fit for fit in fits if _group(fit) not in names))


def _group(fit: KernelFit) -> tuple[str, ...]:
    """The :data:`GROUP_COLUMNS` of a fit."""
    return fit.family, fit.dtype, fit.kv_dtype or fit.dtype, fit.library


def fit_group(
    spec: DeviceSpec, family: str, dtype: str, second_dtype: str, library: str, group: pd.DataFrame,
    *, date: str, source: str, starts: int = 2, lender: Kernel | None = None,
) -> KernelFit:  # fmt: skip
    """The best parameters and switches for one group, with its error on held-out rows.

    With a ``lender`` its switches stand, and rows move only its parameters.
    """
    model = FAMILIES[family]
    rows = CallRows.of(limits_of(spec, dtype), family, dtype, second_dtype, group)
    stated = _stated(family, group)
    used = used_in_fit(group, split_by(family))
    count = int(used.sum())
    if lender is None:
        solve = partial(minimise, model.parameters, starts=starts)
        absent, switches = _best_form(rows[used], library, solve, stated)
    else:
        absent = frozenset(name for name, value in lender.parameters.items() if value == 0.0)
        switches = dict(lender.switches) | stated
        around = {name: p._replace(default=lender.parameters[name]) for name, p in model.parameters.items()}
        solve = partial(minimise, around, pull=POOR_PRIOR)
    parameters, _ = solve(absent, partial(rows[used].residual, switches))
    parameters = {name: float(f"{value:.4g}") for name, value in parameters.items()}
    residual = -rows.residual(switches, parameters)
    predicted = rows.seconds(switches, parameters)[used]
    if lender is not None:
        spread = kernel_spread(predicted, residual[used], len(parameters), least=POOR_FACTOR)
    elif count < CROSSED_ROWS:
        spread = kernel_spread(predicted, _crossed(rows[used], absent, switches, solve), 0)
    else:
        spread = kernel_spread(predicted, residual[used], len(parameters))
    return KernelFit(
        family=family,
        dtype=dtype,
        kv_dtype=second_dtype,
        library=library,
        parameters=parameters,
        switches=switches,
        spread=spread,
        rows_used=count,
        held_out=kernel_error(residual[~used]) if (~used).any() else None,
        date=date,
        source=source,
    )


#: Fits the parameters that are not absent: parameters, and their cost.
_Solve = Callable[[frozenset[str], Callable[[Mapping[str, float]], Any]], tuple[dict[str, float], float]]


def _stated(family: str, group: pd.DataFrame) -> dict[str, Any]:
    """Switches that the rows state in a column of their name: facts, not choices of a fit."""
    return {name: group[name].iloc[0] for name in FAMILIES[family].switches if name in group}


def _best_form(
    rows: CallRows, library: str, solve: _Solve, stated: Mapping[str, Any]
) -> tuple[frozenset[str], dict[str, Any]]:
    """The optional terms to leave out, and the switches, that fit the rows best."""
    worth = WORTH_A_HEIGHT if rows.family.startswith("attention_") else WORTH_A_SWITCH

    def best_of(absent: frozenset[str]) -> tuple[float, dict[str, Any]]:
        best: tuple[float, dict[str, Any]] | None = None
        for switches in _switches(rows.family, len(rows), stated):
            _, cost = solve(absent, partial(rows.residual, switches))
            if best is None or cost < best[0] * worth:
                best = cost, switches
        assert best is not None
        return best

    without, *others = _absent_terms(rows.family, library, len(rows))
    cost, switches = best_of(without)
    for absent in others:
        full_cost, full_switches = best_of(absent)
        if full_cost < cost * WORTH_A_TERM:
            without, switches = absent, full_switches
    return without, switches


def _crossed(rows: CallRows, absent: frozenset[str], switches: Mapping[str, Any], solve: _Solve) -> Any:
    """log(measured / predicted) of every row by a fit to the rows of the other folds."""
    fold = np.argsort(np.argsort(rows.measured, kind="stable"), kind="stable") % FOLDS
    out = np.zeros(len(rows))
    for which in range(FOLDS):
        parameters, _ = solve(absent, partial(rows[fold != which].residual, switches))
        out[fold == which] = -rows[fold == which].residual(switches, parameters)
    return out


def _absent_terms(family: str, library: str, rows: int) -> list[frozenset[str]]:
    """Sets of terms to leave out, in the order tried.

    A norm has a cost per row, a copy has none. A backward pass has no rope and writes no cache, and grouped products
    take quantised inputs. Rows decide the rest where they are enough.
    """
    optional = _OPTIONAL.get(family, frozenset())
    if family == "memory_bound":
        return [frozenset() if any(word in library for word in REDUCTIONS) else optional]
    if not optional or family in _PLAIN or rows < TERM_ROWS:
        return [optional]
    return [optional, frozenset()]


def _switches(family: str, rows: int, stated: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Every combination of a family's switches that ``rows`` rows can distinguish, with the stated ones fixed."""
    values = {name: _TRIED.get(name, allowed) for name, allowed in FAMILIES[family].switches.items()}
    if rows < SWITCH_ROWS:
        values = {name: tried[:1] for name, tried in values.items()}
    values |= {name: (value,) for name, value in stated.items()}
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


#: Switches of which only these values are tried.
_TRIED: Mapping[str, tuple[Any, ...]] = {"splits": (1, 16)}
