"""A device fitted to profiles of whole steps: what each family of operators takes there, beside its kernel models.

A step is laid over its scenario (:mod:`tspsim.traces.lay`), which gives every operator its measured time: the median
over its layers, so that one slow kernel moves nothing. Of a family, t = start + factor · t(model), fitted to the
logarithm of time by its different shapes; one shape alone is taken as a factor with a wide range. Ranges come from
crossed folds: a shape is judged by the fit to the others. Launches of small kernels in a graph are the start;
transfers between ranks and the host's gaps stay as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import catalog
from ..costs import Costs
from ..errors import InputError
from ..hardware import load_device
from ..hardware.specification import InSteps
from ..operators import Operator
from ..question import Question, look_up
from ..scenario import load
from ..traces import Trace, read
from ..traces.lay import Laid, lay
from ..traces.learned import kernels_found
from ..traces.simulated import Simulated, plan_named
from ..traces.table import busy_s
from ..validation.devices import device_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A family with one shape may be off by so much, one with several by at least so much.
ONE_ROW, SEVERAL = 1.6, 1.15
#: Beyond such a factor a kernel does something else than its operator.
OUTLIER = 12.0
#: Shapes from which a start is told apart from a factor.
ROWS_OF_A_START = 3


@dataclass(frozen=True)
class TracedOperator:
    """One operator of one step: what the device's model says, what was measured, how often it ran."""

    operator: Operator
    model_s: float
    measured_s: float
    times: int


@dataclass(frozen=True)
class Check:
    """A step before and after: kernels together, measured, by the old device, by the new, by the other traces alone."""

    name: str
    measured_s: float
    before_s: float
    after_s: float
    others_s: float | None


@dataclass(frozen=True)
class TraceCalibration:
    """A device's file with what its steps taught."""

    device: str
    fits: tuple[InSteps, ...]
    checks: tuple[Check, ...]
    document: Mapping[str, Any]

    def text(self) -> str:
        """The file."""
        import yaml

        head = f"# {self.device}: steps of profiles fitted by tspsim calibrate --trace; the rest as in the catalog\n"
        return head + yaml.safe_dump(
            dict(self.document), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
        )


def points_of(laid: Laid, costs: Costs) -> list[TracedOperator]:
    """Operators of a step with the median of what they took."""
    rows = kernels_found(laid)
    starts, ends = laid.trace.columns["start_s"], laid.trace.end_s
    took: dict[Operator, list[float]] = defaultdict(list)
    # One kernel may do what the model has as two of a kind (attention of prompts and of decoding): whose, nobody knows.
    alike = Counter((item.instruction, item.kind) for item in laid.lane.operations)
    for index, own in rows.items():
        item = laid.lane.operations[index]
        operator = item.operator
        if operator is not None and (alike[item.instruction, item.kind] == 1 or item.kind == "gemm"):
            took[operator].append(busy_s(starts[own], ends[own]))
    return [
        TracedOperator(operator, costs(operator), float(np.median(seconds)), len(seconds))
        for operator, seconds in took.items()
        if costs(operator) > 0.0 and 1.0 / OUTLIER < np.median(seconds) / costs(operator) < OUTLIER
    ]


def fitted(points: Sequence[TracedOperator], source: str) -> tuple[InSteps, ...]:
    """One entry a family."""
    families: dict[str, list[TracedOperator]] = defaultdict(list)
    for point in points:
        families[point.operator.family].append(point)
    found = []
    for family, own in sorted(families.items()):
        model = np.array([point.model_s for point in own]) * 1e6
        measured = np.array([point.measured_s for point in own]) * 1e6
        start, factor = _line(model, measured)
        spread = ONE_ROW
        if len(own) > 1:
            off = []
            for index in range(len(own)):
                kept = np.arange(len(own)) != index
                a, b = _line(model[kept], measured[kept])
                off.append(abs(np.log(measured[index] / (a + b * model[index]))))
            spread = max(SEVERAL, float(np.exp(np.quantile(off, 0.9))))
        found.append(
            InSteps(
                operator=family, start_us=round(start, 4), factor=float(f"{factor:.5g}"),
                low=float(f"{1 / spread:.4g}"), high=float(f"{spread:.4g}"), rows=len(own), source=source,
            )
        )  # fmt: skip
    return tuple(found)


def _line(model: NDArray[Any], measured: NDArray[Any]) -> tuple[float, float]:
    """Start and factor by robust least squares on the logarithm of time."""
    ratio = float(np.exp(np.median(np.log(measured / model))))
    if len(model) < ROWS_OF_A_START or model.max() < 2.0 * model.min():
        return 0.0, min(max(ratio, 1e-3), 100.0)
    from scipy.optimize import least_squares

    def off(values: NDArray[Any]) -> NDArray[Any]:
        residual: NDArray[Any] = np.log((values[0] + values[1] * model) / measured)
        return residual

    answer = least_squares(
        off,
        (0.1 * float(measured.min()), ratio),
        bounds=((0.0, 0.3 * ratio), (float(measured.min()), 3.0 * ratio)),
        loss="soft_l1",
    )
    return float(answer.x[0]), float(answer.x[1])


def calibrate_traces(gpu: str, runs: Sequence[tuple[Path | str, Path | str]]) -> TraceCalibration:
    """Fit a device to profiles of steps.

    Parameters
    ----------
    runs
        A trace and the scenario that it ran, each.

    Raises
    ------
    InputError
        The catalog has no such device, a scenario is of another, or a trace is not of its scenario.
    """
    name = device_name(gpu)
    if name is None:
        raise InputError(f"unknown device '{gpu}'", key="GPU")
    laid: list[tuple[Laid, Question, str]] = []
    for file, scenario in runs:
        question = look_up(load(scenario))
        if question.device.spec.name != name:
            raise InputError(f"is of {question.device.spec.name}, not of {name}", file=str(scenario))
        trace: Trace = read([file])
        laid.append((lay(trace, question), question, Path(file).name))
    every = []
    for one, question, _ in laid:
        simulated = Simulated(question, plan_named(question, one.plan))
        every.append(points_of(one, Costs(simulated.question.device)))
    files = ", ".join(file for _, _, file in laid)
    fits = fitted([point for points in every for point in points], f"profiles of whole steps: {files}")
    checks = []
    for place, ((_, _, file), points) in enumerate(zip(laid, every, strict=True)):
        others = [point for other, own in enumerate(every) if other != place for point in own]
        checks.append(
            Check(
                file,
                sum(point.times * point.measured_s for point in points),
                sum(point.times * point.model_s for point in points),
                _together(points, fits),
                _together(points, fitted(others, "")) if others else None,
            )
        )
    spec = load_device(name).spec
    before = {entry.operator: entry for entry in spec.in_steps}
    for entry in fits:
        old = before.get(entry.operator)
        if old is not None:  # the model that was asked had the old entry in it
            entry = entry.model_copy(
                update={
                    "start_us": entry.start_us + entry.factor * old.start_us,
                    "factor": entry.factor * old.factor,
                }
            )
        before[entry.operator] = entry
    document = dict(catalog.read_yaml(catalog.locate("devices", name)))
    document["in_steps"] = [entry.model_dump() for entry in before.values()]
    return TraceCalibration(name, fits, tuple(checks), document)


def _together(points: Sequence[TracedOperator], fits: Sequence[InSteps]) -> float:
    known = {entry.operator: entry for entry in fits}
    total = 0.0
    for point in points:
        entry = known.get(point.operator.family)
        seconds = 1e-6 * entry.start_us + entry.factor * point.model_s if entry is not None else point.model_s
        total += point.times * seconds
    return total
