"""A device fitted to profiles of whole steps: the time of each family of operators in steps, relative to its kernel
models.

A step is aligned with its scenario (:mod:`tspsim.traces.lay`), which gives every operator its measured time: the median
over its layers, so that one slow kernel changes nothing. What transfers beside it cost in the simulated step is taken
off. Per family, t = start + factor · t(model) is fitted to the logarithm of time over its different shapes, each as
heavy as its share of its step; a single shape gives a factor with a wide range. Ranges come from crossed folds: a shape
is judged by the fit to the others, or to the other profiles where there are several. Kernels shorter than three of a
step's shortest give only the start, and the stack's pace holds. Products are a library's, which all stacks call, and
apart by type and bound; other kernels are the stack's own, and tell nothing of another's. A fit that is no nearer to
its own steps than what it would replace is left out. Transfers that ran alone move the node's and the fabric's files
like rows of nccl-tests (:mod:`.traced_transfers`); the host's gaps move the stack's (:mod:`.traced_host`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import catalog, dialect
from ..base.errors import InputError
from ..hardware import Costs, Device, load_device
from ..hardware.specification import InSteps
from ..scenario import load
from ..step.question import Question, look_up
from ..traces import Trace, read
from ..traces.comparison import Laid
from ..traces.lay import lay
from ..validation.devices import device_name
from .collectives import TransferFits
from .network_files import calibrate_transfers
from .residuals import ONE_SIZE, StepCheck
from .traced_host import CalibratedHosts, hosts_of
from .traced_operators import STARTS, TracedOperator, points_of, untaught
from .traced_transfers import transfers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Range factor of a family with one shape; least range factor of several shapes of one profile (large products of three
#: profiles on MI300X take 1.02, 1.19 and 1.34 times the model's time), and of those of several profiles.
ONE_ROW, ONE_PROFILE, SEVERAL = ONE_SIZE, 1.3, 1.15
#: From this number of shapes on a fit separates the start from the factor.
ROWS_OF_A_START = 3
#: Log error of what a fit would replace, below which it stays: profiles of one step repeat no better.
NEAR = 0.02


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


def fitted(points: Sequence[TracedOperator]) -> tuple[InSteps, ...]:
    """One entry per family and stack. Products get one per type and bound (bytes of weights, bytes of rows, arithmetic)
    where it was seen: none of them predicts the others. What a library's own kernels took holds for other stacks."""
    groups: dict[tuple[str, str, str, str], list[TracedOperator]] = defaultdict(list)
    for point in points:
        groups[point.group(point.stack)].append(point)
    for shared in sorted({key[:3] for key, basis in groups.items() if basis[0].operator.of_library}):
        stacks = [key for key in groups if key[:3] == shared]
        every = [point for key in stacks for point in groups[key]]
        alone = [replace(point, measured_s=point.library_s or point.measured_s) for point in every]
        if len(stacks) == 1 and _error(every, [point.measured_s for point in alone]) < NEAR**2:
            del groups[stacks[0]]
        groups[*shared, ""] = alone
    entries = []
    for (family, bound, dtype, stack), basis in sorted(groups.items()):
        start, factor = _fit(basis)
        former = _error(basis, [point.told_s or point.model_s for point in basis])
        if former < NEAR**2 or _error(basis, [_seconds(point, start, factor) for point in basis]) >= former:
            continue
        shapes = len({point.operator for point in basis})
        several = len({point.source for point in basis}) > 1
        spread = ONE_ROW if shapes == 1 else SEVERAL if several else ONE_PROFILE
        if len(basis) > 1:
            off = []
            for point in basis:
                # Shapes of one profile share what is particular to it.
                others = [other for other in basis if (other.source != point.source if several else other is not point)]
                off.append(abs(np.log(point.measured_s / _seconds(point, *_fit(others)))))
            spread = max(spread, float(np.exp(np.quantile(off, 0.9))))
        entries.append(
            InSteps(
                operator=family, bound=bound or None, dtype=dtype or None, stack=stack or None,
                start_us=round(start, 4), factor=None if factor is None else float(f"{factor:.5g}"),
                low=float(f"{1 / spread:.4g}"), high=float(f"{spread:.4g}"), rows=shapes,
                source=f"profiles of whole steps: {', '.join(sorted({point.source for point in basis}))}",
            )
        )  # fmt: skip
    return tuple(entries)


def _seconds(point: TracedOperator, start_us: float, factor: float | None) -> float:
    """Seconds of a point by a fit."""
    return 1e-6 * start_us + (point.paced_s or point.model_s if factor is None else factor * point.model_s)


def _error(points: Sequence[TracedOperator], seconds: Sequence[float]) -> float:
    """Mean squared log error, each point as heavy as its share of its step."""
    off = [np.log(point.measured_s / own_s) ** 2 for point, own_s in zip(points, seconds, strict=True)]
    return float(np.average(off, weights=[point.share for point in points]))


def _fit(points: Sequence[TracedOperator]) -> tuple[float, float | None]:
    """Start in µs, and factor. Kernels that are all as short as the device's shortest give a start and no factor."""
    model = np.array([point.model_s for point in points]) * 1e6
    measured = np.array([point.measured_s for point in points]) * 1e6
    share = np.array([point.share for point in points])
    short = np.array([point.starts for point in points])
    if short.all():
        paced = np.array([point.paced_s or point.model_s for point in points]) * 1e6
        return float(np.median(np.maximum(measured - paced, 0.0))), None
    if len(points) < ROWS_OF_A_START and short.any():
        # Long kernels have the short ones' start, and give the factor of the rest.
        start = float(np.median(np.maximum(measured - model, 0.0)[short]))
        rest = np.maximum(measured - start, 0.1 * measured)[~short] / model[~short]
        return start, float(np.exp(np.average(np.log(rest), weights=share[~short])))
    # No kernel starts longer than short ones take.
    longest = min(STARTS * point.shortest_s * point.kernels for point in points) * 1e6
    return _line(model, measured, share, longest if longest > 0.0 else float(measured.min()))


def _line(model: NDArray[Any], measured: NDArray[Any], share: NDArray[Any], longest: float) -> tuple[float, float]:
    """Start, at most ``longest``, and factor by robust least squares on the logarithm of time."""
    ratio = float(np.exp(np.average(np.log(measured / model), weights=share)))
    if len(model) < ROWS_OF_A_START or model.max() < 2.0 * model.min():
        return 0.0, min(max(ratio, 1e-3), 100.0)
    from scipy.optimize import least_squares

    weight = np.sqrt(share / share.mean())

    def off(values: NDArray[Any]) -> NDArray[Any]:
        residual: NDArray[Any] = weight * np.log((values[0] + values[1] * model) / measured)
        return residual

    longest = min(longest, float(measured.min()))
    answer = least_squares(
        off, (0.1 * longest, ratio), bounds=((0.0, 0.3 * ratio), (longest, 3.0 * ratio)), loss="soft_l1"
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
    names = _names([Path(file) for file, _ in runs])
    for (file, scenario), short in zip(runs, names, strict=True):
        question = look_up(load(scenario))
        if question.device.spec.name != name:
            raise InputError(f"is of {question.device.spec.name}, not of {name}", file=str(scenario))
        trace: Trace = read([file])
        if trace.device and trace.device not in (name, name.partition("-")[0]):
            raise InputError(f"was recorded on {trace.device}, not on {name}", file=str(file))
        laid.append((lay(trace, question), question, trace, short))
    steps = [(Path(file).resolve(), one.step) for (file, _), (one, *_) in zip(runs, laid, strict=True)]
    for (file, _), step in zip(runs, steps, strict=True):
        if steps.count(step) > 1:
            raise InputError("one of its steps stands twice; it counts once", file=str(file), key="--trace")
    plain = [untaught(one.lane.question) for one, *_ in laid]
    every = [points_of(one, own, file) for (one, *_, file), own in zip(laid, plain, strict=True)]
    fits = fitted([point for points in every for point in points])
    checks = []
    for place, ((one, _, _, file), own, points) in enumerate(zip(laid, plain, every, strict=True)):
        others = [point for other, theirs in enumerate(every) if other != place for point in theirs]
        checks.append(
            StepCheck(
                file,
                sum(point.times * point.measured_s for point in points),
                _told(one, one.lane.question.device, points),
                _told(one, _taught(own, fits), points),
                _told(one, _taught(own, fitted(others)), points) if others else None,
            )
        )
    spec = load_device(name).spec
    kept = [old for old in spec.in_steps if not any(_replaces(entry, old) for entry in fits)]
    document = dict(dialect.read_yaml(catalog.locate("devices", name)))
    document["in_steps"] = [entry.model_dump(exclude_none=True) for entry in (*kept, *fits)]
    source = f"profiles of whole steps: {', '.join(sorted(names))}"
    measured = transfers_of([one for one, *_ in laid])
    any_transfers = measured.rows or measured.left_out
    transfers = calibrate_transfers(measured, source, held_out=False) if any_transfers else None
    return TraceCalibration(name, fits, tuple(checks), document, transfers, hosts_of(laid, source))


def _names(files: Sequence[Path]) -> list[str]:
    """Names of traces; those of several folders that are called alike with their folders."""
    names = [file.name for file in files]
    return [file.name if names.count(file.name) == 1 else "/".join(file.parts[-2:]) for file in files]


def _replaces(entry: InSteps, old: InSteps) -> bool:
    """Whether an entry holds for all that an older one does; older files say no type and no stack."""
    return entry.operator == old.operator and all(
        theirs in (None, own)
        for own, theirs in ((entry.bound, old.bound), (entry.dtype, old.dtype), (entry.stack, old.stack))
    )


def _taught(question: Question, fits: Sequence[InSteps]) -> Device:
    """The question's device with these corrections."""
    device = question.device
    spec = device.spec.model_copy(update={"in_steps": tuple(fits)})
    taught = Device(spec, device.relatives, device.clocks, device.engine, device.overrides)
    return taught.under(question.work.stack.base)


def _told(laid: Laid, device: Device, points: Sequence[TracedOperator]) -> float:
    """Seconds of the points' kernels, as a step's are priced."""
    cost = laid.lane.job.work.stack.cost(Costs(device), device, laid.lane.job.capture)
    return sum(point.times * float(cost(point.operator)) for point in points)
