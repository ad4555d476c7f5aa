"""The numbers of a node's or fabric's file that rows may move, with their bounds, and the cost of each row under new
numbers.

The costs are those that predict (:mod:`tspsim.network.collectives`): the fit and the prediction use one model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.memo import once
from ..hardware.limits import Parameter
from ..network.calibration import (
    Curve,
    CustomAllReduce,
    ExpertCurve,
    FabricFactors,
    LibraryFactors,
    Shot,
    TransferSpread,
)
from ..network.collectives.algorithm import AlgorithmCandidate, CollectiveCost, MeasuredCurve
from ..network.collectives.between import across
from ..network.collectives.experts import ExchangeCost
from ..network.collectives.library import Custom
from .least_squares import POOR_PRIOR, PRIOR, minimise
from .measurements import MeasuredTransfer
from .residuals import TransferErrors, rounded, wider_of

Floats = NDArray[np.float64]
Values = Mapping[str, float]
#: Parts of a file whose numbers may move.
Entry = Curve | CustomAllReduce | ExpertCurve | FabricFactors
#: The largest factor by which a number may move, each way.
REACH = 30.0
#: ``moved`` of a fit with few rows.
FACTORS = "factors"
FOLDS = 5
#: A factor on everything is found at once but where a limit holds something.
_TURNS = 3
_REGIMES = ("base", "hop", "efficiency")
_SHOTS = ("one_shot", "two_shot", "fallback")
#: Numbers of an exchange: seconds, and shares of a bandwidth.
_TIMES = ("base", "doubling", "node", "per_copy")
_SHARES = ("efficiency", "fabric_efficiency")


@dataclass(frozen=True)
class TransferFit:
    """The result of fitting one set of rows."""

    #: Collectives and their algorithms, an engine's kernels, or a fabric.
    what: str
    #: The numbers that moved.
    moved: str
    #: Libraries that were measured.
    libraries: tuple[str, ...]
    #: Rows that the fit used.
    rows_used: int
    #: TransferErrors on the other rows, before and after; None where every row was used.
    before: TransferErrors | None
    after: TransferErrors | None


@dataclass(frozen=True)
class FittedForm:
    """One way to fit an entry of a file to rows.

    ``build`` makes the entry from its numbers. ``costs`` gives the candidates' costs from an entry and a row's
    position. ``new``: the file has no numbers yet for some of these rows.
    """

    entry: Entry
    what: str
    moved: str
    rows: Sequence[MeasuredTransfer]
    bounds: Mapping[str, Parameter]
    build: Callable[[Values], Entry]
    costs: Callable[[Any, int], Sequence[CollectiveCost]]
    new: bool = False

    def residual(self, values: Values, where: Sequence[int]) -> Floats:
        """log(measured/predicted) of some rows; equal rows are predicted once."""
        entry = self.build(values)
        predicted: dict[int, float] = {}
        for i in where:
            if self._question_numbers[i] not in predicted:
                size_bytes = self.rows[i].size_bytes
                predicted[self._question_numbers[i]] = min(sum(cost.alone(size_bytes)) for cost in self.costs(entry, i))
        out: Floats = np.log([self.rows[i].seconds / predicted[self._question_numbers[i]] for i in where])
        return out

    @once
    def _question_numbers(self) -> list[int]:
        """A number per row, equal for rows with the same question."""
        numbers: dict[Any, int] = {}
        questions = [(id(row.cluster), row.question, row.size_bytes) for row in self.rows]
        return [numbers.setdefault(question, len(numbers)) for question in questions]

    def solved(self, where: Sequence[int]) -> Values:
        """The fitted numbers, rounded to four digits."""
        pull = POOR_PRIOR if self.moved == FACTORS else PRIOR
        values, _ = minimise(self.bounds, frozenset(), lambda moved: -self.residual(moved, where), pull=pull)
        return {name: rounded(value) for name, value in values.items()}

    def one_factor(self, where: Sequence[int]) -> Values:
        """The numbers that slow down or speed up the whole entry by one factor, for rows of one size."""
        factor = 1.0
        values = {name: bounds.default for name, bounds in self.bounds.items()}
        for _ in range(_TURNS):
            factor *= float(np.exp(np.median(self.residual(values, where))))
            for name, bounds in self.bounds.items():
                value = bounds.default * (factor if "latency" in name else 1.0 / factor)
                values[name] = rounded(min(max(value, bounds.low), bounds.high))
        return values

    def start(self, where: Sequence[int]) -> Floats:
        """log(measured/predicted) of some rows with the file as it is."""
        return self.residual({name: bounds.default for name, bounds in self.bounds.items()}, where)

    def crossed(self, where: Sequence[int]) -> Floats:
        """log(measured/predicted) of each row by a fit to the rows of other shapes."""
        shapes = {shape: i % FOLDS for i, shape in enumerate(sorted({self.rows[i].shape for i in where}))}
        fold = np.array([shapes[self.rows[i].shape] for i in where])
        out = np.zeros(len(where))
        for which in sorted(set(fold.tolist())):
            others = [i for i, f in zip(where, fold, strict=True) if f != which]
            inside = [i for i, f in zip(where, fold, strict=True) if f == which]
            out[fold == which] = self.residual(self.solved(others), inside) if others else self.start(inside)
        return out

    def stated(self, entry: Entry, fit: TransferFit, spread: TransferSpread, source: str) -> Entry:
        """The entry with the fit's range, source and basis. Where only factors of libraries moved, these are noted at
        the factors."""
        errors = f"{fit.after.rows} left out: {fit.after}" if fit.after else "none left out"
        names = f": {', '.join(fit.libraries)}" if fit.libraries else ""
        text = f"{source}{names}, {fit.rows_used} rows used; {errors}"
        update: dict[str, Any] = {"spread": spread, "source": text, "basis": "fitted"}
        if isinstance(entry, Curve):
            update["libraries"] = {
                name: factors.model_copy(update={"source": text}) if name in fit.libraries else factors
                for name, factors in entry.libraries.items()
            }
            if self.moved == FACTORS:
                update |= {"spread": wider_of(entry.spread, spread), "source": entry.source, "basis": entry.basis}
        return entry.model_copy(update=update)


def forms_of(
    entry: Entry, rows: Sequence[MeasuredTransfer], costs: Sequence[CollectiveCost], carrying: bool
) -> list[FittedForm]:
    """Ways to fit an entry of a node, the richest last; the full set only where rows carry it."""
    if isinstance(entry, Curve):
        return _curve_forms(entry, rows, costs, carrying)
    if isinstance(entry, ExpertCurve):
        return _exchange_forms(entry, rows, costs, carrying)
    assert isinstance(entry, CustomAllReduce)
    return _engine_forms(entry, rows, costs, carrying)


def _curve_forms(
    curve: Curve, rows: Sequence[MeasuredTransfer], costs: Sequence[Any], carrying: bool
) -> list[FittedForm]:
    """The factors of the measured libraries; with enough rows also the curve's own numbers."""
    libraries = sorted({row.library for row in rows})
    factor_bounds: dict[str, Parameter] = {}
    for library in libraries:
        factors = curve.libraries.get(library, LibraryFactors())
        factor_bounds |= {
            f"{name} of {library}": _around(getattr(factors, name), 100.0) for name in ("latency", "bandwidth")
        }
    own = {f"{name} {i}": _around(value, 2.0 if name == "efficiency" else None)
           for name in _REGIMES for i, value in enumerate(getattr(curve, name)) if value > 0.0}  # fmt: skip
    own |= {name: _around(value) for name in ("growth", "own") if (value := getattr(curve, name))}
    link = costs[0].bandwidth_bytes_per_s
    most = max(curve.ranks[1], *(row.ranks for row in rows))

    def build(values: Values) -> Curve:
        numbers: dict[str, Any] = {}
        if own.keys() <= values.keys():
            for name in _REGIMES:
                numbers[name] = tuple(values.get(f"{name} {i}", was) for i, was in enumerate(getattr(curve, name)))
            numbers |= {"growth": values.get("growth", 0.0), "ranks": (curve.ranks[0], most)}
        if "own" in values:  # no slower than the links: a larger group never gains by it
            numbers["own"] = max(values["own"], link * max(numbers["efficiency"][1:]))
        factors = {
            name: LibraryFactors(latency=values[f"latency of {name}"], bandwidth=values[f"bandwidth of {name}"])
            for name in libraries
        }
        return curve.model_copy(update=numbers | {"libraries": {**curve.libraries, **factors}})

    def costs_of(entry: Curve, row: int) -> Sequence[CollectiveCost]:
        factors = entry.libraries[rows[row].library]
        return (replace(costs[row], curve=entry, latency=factors.latency, bandwidth=factors.bandwidth),)

    new = any(library not in curve.libraries for library in libraries)
    forms = [FittedForm(curve, name_of(curve), FACTORS, rows, factor_bounds, build, costs_of, new)]
    if carrying:
        forms.append(FittedForm(curve, name_of(curve), "curve", rows, own | factor_bounds, build, costs_of, new))
    return forms


def _engine_forms(
    engine: CustomAllReduce, rows: Sequence[MeasuredTransfer], costs: Sequence[Any], carrying: bool
) -> list[FittedForm]:
    """One factor of an engine's latencies and one of its bandwidths; with enough rows each way's own numbers."""
    shots: dict[str, Shot] = {name: shot for name in _SHOTS if (shot := getattr(engine, name)) is not None}
    most = 1.0 / max(shot.efficiency for shot in shots.values())
    both = {"latency": _around(1.0), "bandwidth": _around(1.0, most)}
    own = {f"{way} {name}": _around(value, 1.0 if name == "efficiency" else None)
           for way, shot in shots.items() for name, value in shot if value > 0.0}  # fmt: skip

    def build(values: Values) -> CustomAllReduce:
        latency, bandwidth = values.get("latency", 1.0), values.get("bandwidth", 1.0)
        moved = {
            way: shot.model_copy(update={
                "base": values.get(f"{way} base", shot.base * latency),
                "hop": values.get(f"{way} hop", shot.hop * latency),
                "efficiency": values.get(f"{way} efficiency", min(1.0, shot.efficiency * bandwidth)),
            })
            for way, shot in shots.items()
        }  # fmt: skip
        return engine.model_copy(update=moved)

    def costs_of(entry: CustomAllReduce, row: int) -> Sequence[CollectiveCost]:
        return (replace(costs[row], kernels=entry),)

    forms = [FittedForm(engine, name_of(engine), FACTORS, rows, both, build, costs_of)]
    return [*forms, FittedForm(engine, name_of(engine), "kernels", rows, own, build, costs_of)] if carrying else forms


def _exchange_forms(
    curve: ExpertCurve, rows: Sequence[MeasuredTransfer], costs: Sequence[Any], carrying: bool
) -> list[FittedForm]:
    """One factor of the latencies and one of the bandwidths of an exchange's phase, or its own numbers."""
    most = 1.0 / max(getattr(curve, name) for name in _SHARES)
    both = {"latency factor": _around(1.0), "bandwidth factor": _around(1.0, most)}
    own = {name: _around(getattr(curve, name)) for name in (*_TIMES, "fabric_loss")}
    own |= {name: _around(getattr(curve, name), 1.0) for name in _SHARES}
    own |= {"per_multiprocessor": _around(curve.per_multiprocessor or 0.0)}
    crossing = any(row.cluster.nodes > 1 for row in rows)
    inside = () if crossing else ("node", "fabric_efficiency", "fabric_loss")
    own = {name: bounds for name, bounds in own.items() if bounds.default > 0.0 and name not in inside}

    def build(values: Values) -> ExpertCurve:
        latency, bandwidth = values.get("latency factor", 1.0), values.get("bandwidth factor", 1.0)
        scaled = {name: getattr(curve, name) * latency for name in _TIMES}
        scaled |= {name: min(1.0, getattr(curve, name) * bandwidth) for name in _SHARES}
        scaled |= {name: rate * bandwidth for name, rate in curve.multiprocessor_rates.items()}
        return curve.model_copy(update=scaled | {name: values[name] for name in own.keys() & values.keys()})

    def costs_of(entry: ExpertCurve, row: int) -> Sequence[CollectiveCost]:
        return (replace(costs[row], curve=entry),)

    forms = [FittedForm(curve, name_of(curve), FACTORS, rows, both, build, costs_of)]
    return [*forms, FittedForm(curve, name_of(curve), "curve", rows, own, build, costs_of)] if carrying else forms


def fabric_form(
    name: str, entry: FabricFactors, rows: Sequence[MeasuredTransfer], ways: Sequence[tuple[AlgorithmCandidate, ...]]
) -> FittedForm:
    """The factors of latency and bandwidth of a fabric."""
    bounds = {factor: _around(getattr(entry, factor), 100.0) for factor in ("latency", "bandwidth")}

    def build(values: Values) -> FabricFactors:
        return entry.model_copy(update=dict(values))

    def costs_of(factors: FabricFactors, row: int) -> Sequence[CollectiveCost]:
        cluster = rows[row].cluster
        regimes = cluster.node.collectives.across
        assert regimes is not None
        return [across(cluster, regimes, factors, choice.schedule) for choice in ways[row]]

    return FittedForm(entry, f"between nodes on {name}", FACTORS, rows, bounds, build, costs_of)


def _around(value: float, most: float | None = None) -> Parameter:
    high = value * REACH
    return Parameter(value, value / REACH, high if most is None else min(high, most))


def name_of(entry: Entry) -> str:
    if isinstance(entry, Curve):
        return f"{', '.join(entry.kinds)} by {', '.join(entry.algorithms)}"
    if isinstance(entry, ExpertCurve):
        where = "one node" if entry.nodes == "one" else "several nodes"
        return f"{entry.mode.replace('_', ' ')} {entry.phase} of {entry.library}, {where}"
    return f"all_reduce of {entry.library}" if isinstance(entry, CustomAllReduce) else "factors"


def entry_of(cost: CollectiveCost) -> Entry | None:
    """The entry of the node's file that a cost uses; None for the library's own latencies."""
    if isinstance(cost, MeasuredCurve):
        return cost.curve
    if isinstance(cost, ExchangeCost):
        return cost.curve
    return cost.kernels if isinstance(cost, Custom) else None
