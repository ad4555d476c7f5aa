"""Fit kernel models to measured tables: robust least squares on the logarithm of time.

Rows are split by a hash of their shape alone, so that a shape measured on several devices or libraries is
on one side for all of them: at most 70 % are used, the rest tell the error. Switches (facts about a
library, such as its tiles) are chosen by the error on rows used. Ranges are quantiles of the residuals by
predicted time.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .families import FAMILIES
from .kernels import machine_of
from .specification import DeviceSpec, HeldOutError, KernelFit, Spread
from .tables import GROUP_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

FIT_SHARE_PERCENT = 70
#: Residuals beyond this (in log time) count linearly, not squared.
OUTLIER = 0.08
#: Pull of every parameter towards its default, as a residual for a factor of e. It decides where rows
#: cannot (few of them, or two parameters that compensate) and is nothing beside a hundred rows.
PRIOR = 0.02
#: Another value of a switch must lower the cost to this share; optional terms together to that one.
WORTH_A_SWITCH = 0.995
#: Block heights of attention are told apart by small grids alone; few tables have them, so a height other than
#: the usual one must explain a good part of what is left.
WORTH_A_HEIGHT = 0.8
WORTH_A_TERM = 0.9
#: A dozen rows can happen to lie on the model; larger groups always scatter this much (in log time) around
#: it.
SCATTER = 0.04
#: Fewer rows than this cannot carry a family's parameters.
FEWEST_ROWS = 5
#: Memory-bound kernels that reduce over rows, so that rows may cost something beside their bytes.
REDUCTIONS = ("norm", "softmax")
#: Terms that are there for some kernels only: switched off, or fitted where that earns its place.
_OPTIONAL: Mapping[str, frozenset[str]] = {
    "gemm": frozenset({"quantise_gb_per_s"}),
    "attention_forward": frozenset({"rope", "cache_write", "token_ns"}),
    "attention_backward": frozenset({"rope", "cache_write", "token_ns"}),
    "memory_bound": frozenset({"row_us", "row_exponent", "rows_us"}),
}
#: Rows from which a table can tell an optional term from chance.
TERM_ROWS = 60


@dataclass(frozen=True, slots=True)
class Report:
    """What a fit of one device did: the fits, and the groups it had to leave at their defaults (with why)."""

    fits: tuple[KernelFit, ...]
    skipped: tuple[tuple[str, str], ...]


def used_in_fit(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows a fit may use: decided by a hash of the shape, the same in every process and table."""
    keys = frame[list(columns)].astype(float).itertuples(index=False)
    return np.array(
        [zlib.crc32(repr(tuple(key)).encode()) % 100 < FIT_SHARE_PERCENT for key in keys], dtype=bool
    )


def fit_device(
    spec: DeviceSpec,
    rows: pd.DataFrame,
    *,
    date: str,
    source: str,
    starts: int = 2,
    families: Iterable[str] | None = None,
) -> Report:
    """Fit every group (family, types, library) of normalised ``rows`` that belong to ``spec``.

    Parameters
    ----------
    spec
        The device: its peaks, bandwidth, compute units.
    rows
        Rows of :func:`tspsim.hardware.tables.calls`, of any number of tables.
    date, source
        Written into every fit.
    starts
        Starting points a group, the first at the defaults.
    families
        Only these families; None: all.
    """
    mine = rows[(rows["gpu"] == spec.name) & (rows["reason"] == "") & (rows["time_us"] > 0.0)]
    fits: list[KernelFit] = []
    skipped: list[tuple[str, str]] = []
    for key, group in mine.groupby(list(GROUP_COLUMNS), sort=True):
        family, dtype, second, library = (str(part) for part in key)
        if families is not None and family not in set(families):
            continue
        used = int(used_in_fit(group, FAMILIES[family].shape).sum())
        if used < FEWEST_ROWS:
            skipped.append((" ".join(map(str, key)), f"{used} rows to fit, {FEWEST_ROWS} are needed"))
            continue
        fits.append(
            fit_group(spec, family, dtype, second, library, group, date=date, source=source, starts=starts)
        )
    return Report(tuple(fits), tuple(skipped))


def fit_group(
    spec: DeviceSpec, family: str, dtype: str, second_dtype: str, library: str, group: pd.DataFrame,
    *, date: str, source: str, starts: int = 2,
) -> KernelFit:  # fmt: skip
    """The best parameters and switches for one group, with its error on the rows left out."""
    model = FAMILIES[family]
    machine = machine_of(spec, dtype)
    used = used_in_fit(group, model.shape)
    measured = group["time_us"].to_numpy(float) * 1e-6
    shape = {name: group[name].to_numpy(float) for name in model.shape}

    def predict(parameters: Mapping[str, float], switches: Mapping[str, Any], where: Any) -> Any:
        part = {name: column[where] for name, column in shape.items()}
        return model.seconds(machine, parameters, switches, part, dtype, second_dtype)

    def best_of(off: frozenset[str]) -> tuple[float, dict[str, float], dict[str, Any]]:
        found: tuple[float, dict[str, float], dict[str, Any]] | None = None
        worth = WORTH_A_HEIGHT if family.startswith("attention_") else WORTH_A_SWITCH
        for switches in _switches(family):
            parameters, cost = _minimise(
                model.parameters,
                off,
                starts,
                lambda p, s=switches: np.log(predict(p, s, used) / measured[used]),
            )
            if found is None or cost < found[0] * worth:
                found = cost, parameters, switches
        assert found is not None
        return found

    without, *others = _absent_terms(family, library, int(used.sum()))
    cost, parameters, switches = best_of(without)
    for absent in others:
        full_cost, full_parameters, full_switches = best_of(absent)
        if full_cost < cost * WORTH_A_TERM:
            parameters, switches = full_parameters, full_switches
    parameters = {name: float(f"{value:.4g}") for name, value in parameters.items()}
    everything = np.ones(len(group), dtype=bool)
    predicted = predict(parameters, switches, everything)
    residual = np.log(measured / predicted)
    return KernelFit(
        family=family,
        dtype=dtype,
        kv_dtype=second_dtype,
        library=library,
        parameters=parameters,
        switches=switches,
        spread=spread_of(predicted[used], residual[used], len(model.parameters)),
        rows_used=int(used.sum()),
        held_out=error_of(residual[~used]) if (~used).any() else None,
        date=date,
        source=source,
    )


def _absent_terms(family: str, library: str, rows: int) -> list[frozenset[str]]:
    """Which sets of terms to leave out, tried in this order.

    A norm pays for its rows, a copy does not; a backward pass has neither rope nor a cache to write; the rest
    is for the rows to decide where they are enough.
    """
    optional = _OPTIONAL.get(family, frozenset())
    if family == "memory_bound":
        return [frozenset() if any(word in library for word in REDUCTIONS) else optional]
    if not optional or family == "attention_backward" or rows < TERM_ROWS:
        return [optional]
    return [optional, frozenset()]


def _switches(family: str) -> Iterable[dict[str, Any]]:
    """Every combination of a family's switches that is tried."""
    values = {name: _TRIED.get(name, allowed) for name, allowed in FAMILIES[family].switches.items()}
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


#: Of some switches only these values are tried.
_TRIED: Mapping[str, tuple[Any, ...]] = {"splits": (1, 16)}


def _minimise(
    known: Mapping[str, Any], off: frozenset[str], starts: int, residuals: Any
) -> tuple[dict[str, float], float]:
    """Bounded robust least squares over the logarithms of the parameters."""
    from scipy.optimize import least_squares

    names = [name for name in known if name not in off]
    low = np.log([max(known[name].low, known[name].high * 1e-6) for name in names])
    high = np.log([known[name].high for name in names])
    start = np.log([known[name].default or known[name].high * 0.3 for name in names])
    random = np.random.default_rng(7)
    best: Any = None

    def full(z: Any) -> dict[str, float]:
        return dict.fromkeys(off, 0.0) | dict(zip(names, np.exp(z).tolist(), strict=True))

    for turn in range(starts):
        origin = start if turn == 0 else start + random.normal(0.0, 0.6, len(start))
        result = least_squares(
            lambda z: np.concatenate([residuals(full(z)), (z - start) * PRIOR]),
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
        name: min(max(found[name], known[name].low), known[name].high) if name not in off else 0.0
        for name in known
    }, float(best.cost)


def error_of(residual: Any) -> HeldOutError:
    """Median, mean and 90 % quantile of |predicted/measured − 1|, and bias, from log(measured/predicted)."""
    error = np.abs(np.expm1(-residual))
    return HeldOutError(
        rows=len(residual),
        median=_rounded(np.median(error)),
        mape=_rounded(np.mean(error)),
        p90=_rounded(np.quantile(error, 0.9)),
        bias=_rounded(-np.mean(residual)),
    )


def spread_of(predicted: Any, residual: Any, parameters: int) -> Spread:
    """The 90 % range of measured over predicted in each third of the predicted times.

    Residuals of rows used are smaller than those of new rows; by how much a linear model with as many
    parameters tells: sqrt((1 + p/n) / (1 − p/n)), with p at most n/2: the pull to defaults holds the rest.
    Fewer than twenty rows have no quantiles; two standard deviations (:data:`SCATTER` at least) stand in.
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
            a, b = np.quantile(enough, [0.045, 0.955]) * unseen
        else:
            b = 2.0 * max(SCATTER, float(np.sqrt(np.mean(enough**2)))) * unseen
            a = -b
        low.append(_rounded(np.exp(min(a, -0.005))))
        high.append(_rounded(np.exp(max(b, 0.005))))
    return Spread(
        borders_us=(_rounded(first), _rounded(second)),
        low=(low[0], low[1], low[2]),
        high=(high[0], high[1], high[2]),
        domain_us=(_rounded(us.min() * 0.999), _rounded(us.max() * 1.001)),
    )


def _rounded(value: Any) -> float:
    return float(f"{float(value):.4g}")


def to_yaml(fits: Iterable[KernelFit]) -> str:
    """The ``kernels:`` part of a device file, one mapping a fit."""
    return _kernels_yaml([fit.model_dump(mode="json", exclude_none=True) for fit in fits])


def with_fits(text: str, fits: Iterable[KernelFit]) -> str:
    """The text of a device file with these fits, each in place of its own for the same types and library.

    Everything before ``kernels:`` stays as it is written; the fits stand in the order of their names.
    """
    import yaml

    head, found, tail = text.partition("\nkernels:")
    entries = {
        _name(entry): entry for entry in (yaml.safe_load("kernels:" + tail)["kernels"] if found else ())
    }
    for fit in fits:
        entry = fit.model_dump(mode="json", exclude_none=True)
        entries[_name(entry)] = entry
    return head.rstrip("\n") + "\n" + _kernels_yaml([entries[name] for name in sorted(entries)])


def _name(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(key, "")) for key in ("family", "dtype", "kv_dtype", "library"))


def _kernels_yaml(entries: Sequence[Mapping[str, Any]]) -> str:
    import yaml

    return yaml.safe_dump({"kernels": list(entries)}, sort_keys=False, default_flow_style=None, width=110)
