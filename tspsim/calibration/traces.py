"""A device fitted to profiles of whole steps: the time of each family of operators in steps, relative to its kernel
models.

A step is aligned with its scenario (:mod:`tspsim.traces.lay`), which gives every operator its measured time: the median
over its layers, so that one slow kernel changes nothing. Per family, t = start + factor · t(model) is fitted to the
logarithm of time over its different shapes; a single shape gives a factor with a wide range. Ranges come from crossed
folds: a shape is judged by the fit to the others. Kernels shorter than three of a step's shortest give only the start.
Transfers that ran alone move the node's and the fabric's files like rows of nccl-tests (:mod:`.traced_transfers`); the
host's gaps move the stack's (:mod:`.traced_host`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import catalog, dialect
from ..base.errors import InputError
from ..hardware import Costs, Device, load_device
from ..hardware.pricers import bound_of
from ..hardware.specification import InSteps
from ..operators import Operator
from ..scenario import load
from ..step.question import Question, look_up
from ..traces import Trace, read
from ..traces.comparison import Laid
from ..traces.lay import lay
from ..traces.learned import kernels_found
from ..traces.simulated import Simulated, plan_named
from ..traces.table import busy_s
from ..validation.devices import device_name
from .collectives import TransferFits
from .network_files import calibrate_transfers
from .residuals import ONE_SIZE, StepCheck
from .traced_host import CalibratedHosts, hosts_of
from .traced_transfers import transfers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Range factor of a family with one shape, and least range factor of one with several.
ONE_ROW, SEVERAL = ONE_SIZE, 1.15
#: Beyond this factor a kernel does not match its operator.
OUTLIER = 12.0
#: From this number of shapes on a fit separates the start from the factor.
ROWS_OF_A_START = 3
#: Kernels shorter than this many of the step's shortest take only their start time, whatever they move.
STARTS = 3.0
#: Quantile of a step's kernel times that stands for the shortest: a step of many tokens has few kernels that only
#: start.
SHORTEST = 0.01


@dataclass(frozen=True)
class TracedOperator:
    """One operator of one step: time by the device's model, measured time, number of runs."""

    operator: Operator
    model_s: float
    measured_s: float
    times: int
    #: Its kernels, and the time of the shortest ones in its step.
    kernels: float = 1.0
    shortest_s: float = 0.0
    #: The resource that bounds a product (:func:`tspsim.hardware.pricers.bound_of`); empty for other operators.
    bound: str = ""

    @property
    def starts(self) -> bool:
        """Whether its kernels are too short to show the time of moving bytes."""
        return not self.bound and self.measured_s < STARTS * self.shortest_s * self.kernels

    @property
    def is_outlier(self) -> bool:
        """Whether its kernels do not match the operator."""
        return not self.starts and not 1.0 / OUTLIER < self.measured_s / self.model_s < OUTLIER


@dataclass(frozen=True)
class TraceCalibration:
    """A device's file with the factors from its steps."""

    device: str
    fits: tuple[InSteps, ...]
    checks: tuple[StepCheck, ...]
    document: Mapping[str, Any]
    #: Nodes and fabrics that transfers between ranks moved, by kind of file and name.
    transfers: TransferFits | None = None
    #: Stacks that the host's gaps moved.
    hosts: CalibratedHosts = field(default_factory=CalibratedHosts)

    @property
    def moved(self) -> tuple[tuple[str, str], ...]:
        """Files beside the device's that moved, by kind and name."""
        transfers = self.transfers.documents if self.transfers is not None else {}
        return *transfers, *(("stacks", name) for name in self.hosts.documents)

    def text(self, entry: tuple[str, str] | None = None) -> str:
        """The device's file, or that of a node, fabric or stack."""
        import yaml

        document = self.document
        if entry is not None and entry[0] == "stacks":
            document = self.hosts.documents[entry[1]]
        elif entry is not None and self.transfers is not None:
            document = self.transfers.documents[entry]
        name = self.device if entry is None else entry[1]
        head = f"# {name}: steps of profiles fitted by tspsim calibrate --trace; the rest as in the catalog\n"
        return head + yaml.safe_dump(
            dict(document), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
        )


def points_of(laid: Laid, costs: Costs, device: Device) -> list[TracedOperator]:
    """Operators of a step with their median measured time."""
    rows = kernels_found(laid)
    starts, ends = laid.trace.columns["start_s"], laid.trace.end_s
    shortest = float(np.quantile(laid.trace.columns["duration_s"], SHORTEST))
    took: dict[Operator, list[tuple[float, int]]] = defaultdict(list)
    # One kernel may do the work of two modelled operators of a kind (attention of prompts and of decoding); it is then
    # left out.
    alike = Counter((item.instruction, item.kind) for item in laid.lane.operations)
    for index, own in rows.items():
        item = laid.lane.operations[index]
        operator = item.operator
        if operator is not None and (alike[item.instruction, item.kind] == 1 or item.kind == "gemm"):
            took[operator].append((busy_s(starts[own], ends[own]), len(own)))
    operators = []
    for operator, spans in took.items():
        seconds, kernels = (float(np.median(column)) for column in zip(*spans, strict=True))
        bound = bound_of(device, operator) if operator.kind == "gemm" else ""
        operators.append(TracedOperator(operator, costs(operator), seconds, len(spans), kernels, shortest, bound))
    return [point for point in operators if min(point.model_s, point.measured_s) > 0.0 and not point.is_outlier]


def fitted(points: Sequence[TracedOperator], source: str) -> tuple[InSteps, ...]:
    """One entry per family. Products get one per bound (bytes of weights, bytes of rows, arithmetic), where it was
    seen: none of them predicts the others."""
    families: dict[str, list[TracedOperator]] = defaultdict(list)
    for point in points:
        families[point.operator.family].append(point)
    entries = []
    for family, every in sorted(families.items()):
        for bound in sorted({point.bound for point in every}):
            basis = [point for point in every if point.bound == bound]
            start, factor = _fit(basis)
            spread = ONE_ROW
            if len(basis) > 1:
                off = []
                for index, point in enumerate(basis):
                    a, b = _fit([*basis[:index], *basis[index + 1 :]])
                    off.append(abs(np.log(1e6 * point.measured_s / (a + b * 1e6 * point.model_s))))
                spread = max(SEVERAL, float(np.exp(np.quantile(off, 0.9))))
            entries.append(
                InSteps(
                    operator=family, bound=bound or None, start_us=round(start, 4), factor=float(f"{factor:.5g}"),
                    low=float(f"{1 / spread:.4g}"), high=float(f"{spread:.4g}"), rows=len(basis), source=source,
                )
            )  # fmt: skip
    return tuple(entries)


def _fit(points: Sequence[TracedOperator]) -> tuple[float, float]:
    """Start in µs, and factor. Kernels that are all as short as the device's shortest give a start and no factor."""
    model = np.array([point.model_s for point in points]) * 1e6
    measured = np.array([point.measured_s for point in points]) * 1e6
    short = np.array([point.starts for point in points])
    if short.all():
        return float(np.median(np.maximum(measured - model, 0.0))), 1.0
    if len(points) < ROWS_OF_A_START and short.any():
        # Long kernels have the short ones' start, and give the factor of the rest.
        start = float(np.median(np.maximum(measured - model, 0.0)[short]))
        rest = np.maximum(measured - start, 0.1 * measured)[~short] / model[~short]
        return start, float(np.exp(np.median(np.log(rest))))
    return _line(model, measured)


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
        Pairs of a trace and the scenario that it ran.

    Raises
    ------
    InputError
        The catalog has no such device, a scenario has another device, or a trace does not match its scenario.
    """
    name = device_name(gpu)
    if name is None:
        raise InputError(f"unknown device '{gpu}'", key="GPU")
    laid: list[tuple[Laid, Question, Trace, str]] = []
    for file, scenario in runs:
        question = look_up(load(scenario))
        if question.device.spec.name != name:
            raise InputError(f"is of {question.device.spec.name}, not of {name}", file=str(scenario))
        trace: Trace = read([file])
        laid.append((lay(trace, question), question, trace, Path(file).name))
    every = []
    for one, question, _, _ in laid:
        simulated = Simulated(question, plan_named(question, one.plan))
        device = simulated.question.device
        every.append(points_of(one, Costs(device), device))
    files = ", ".join(file for *_, file in laid)
    fits = fitted([point for points in every for point in points], f"profiles of whole steps: {files}")
    checks = []
    for place, ((*_, file), points) in enumerate(zip(laid, every, strict=True)):
        others = [point for other, own in enumerate(every) if other != place for point in own]
        checks.append(
            StepCheck(
                file,
                sum(point.times * point.measured_s for point in points),
                sum(point.times * point.model_s for point in points),
                _together(points, fits),
                _together(points, fitted(others, "")) if others else None,
            )
        )
    spec = load_device(name).spec
    before = {(entry.operator, entry.bound): entry for entry in spec.in_steps}
    for entry in fits:
        old = before.get((entry.operator, entry.bound)) or before.pop((entry.operator, None), None)
        if old is not None:  # the model's times include the old entry
            entry = entry.model_copy(
                update={
                    "start_us": entry.start_us + entry.factor * old.start_us,
                    "factor": entry.factor * old.factor,
                }
            )
        before[entry.operator, entry.bound] = entry
    document = dict(dialect.read_yaml(catalog.locate("devices", name)))
    document["in_steps"] = [entry.model_dump(exclude_none=True) for entry in before.values()]
    measured = transfers_of([one for one, *_ in laid])
    any_transfers = measured.rows or measured.left_out
    transfers = (
        calibrate_transfers(measured, f"profiles of whole steps: {files}", held_out=False) if any_transfers else None
    )
    hosts = hosts_of(laid, f"profiles of whole steps: {files}")
    return TraceCalibration(name, fits, tuple(checks), document, transfers, hosts)


def _together(points: Sequence[TracedOperator], fits: Sequence[InSteps]) -> float:
    by_bound: dict[tuple[str, str], InSteps] = {(entry.operator, entry.bound or ""): entry for entry in fits}
    total = 0.0
    for point in points:
        entry = by_bound.get((point.operator.family, point.bound))
        seconds = 1e-6 * entry.start_us + entry.factor * point.model_s if entry is not None else point.model_s
        total += point.times * seconds
    return total
