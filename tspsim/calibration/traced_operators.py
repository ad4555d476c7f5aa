"""Operators of measured steps with their times, as if each ran alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hardware import Costs, Device
from ..hardware.pricers import bound_of
from ..operators import Operator
from ..step.question import Question
from ..traces.comparison import Laid
from ..traces.kinds import COLLECTIVES
from ..traces.learned import kernels_found

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Beyond this factor a kernel does not match its operator.
OUTLIER = 12.0
#: Kernels shorter than this many of the step's shortest take only their start time, whatever they move.
STARTS = 3.0
#: Quantile of a step's kernel times that stands for the shortest: a step of many tokens has few kernels that only
#: start.
SHORTEST = 0.01
#: A kernel is no faster than this share of the time at the device's peaks: counts of bytes are a little off.
PEAK = 0.7
#: Bytes over those of the last cache, below which a kernel may find them there.
BEYOND_CACHES = 1.5
#: Kinds of kernels of which one instruction may have several that are told apart.
PRODUCTS = frozenset({"gemm", "grouped_gemm"})
#: Kinds of a library's kernels for a product: split sums too. Copies around it are the stack's.
OF_LIBRARY = PRODUCTS | {"reduction", "memset"}


@dataclass(frozen=True)
class TracedOperator:
    """One operator of one step: time by the device's kernel model, measured time, number of runs."""

    operator: Operator
    model_s: float
    #: Without what transfers beside it cost.
    measured_s: float
    times: int
    #: Its kernels, and the time of the shortest ones in its step.
    kernels: float = 1.0
    shortest_s: float = 0.0
    #: The resource that bounds a product (:func:`tspsim.hardware.pricers.bound_of`); empty for other operators.
    bound: str = ""
    #: The time that a fit would replace: with the pace of its stack; without its least time. 0: the model's.
    paced_s: float = 0.0
    told_s: float = 0.0
    #: Share of its step's kernel time in all of its runs.
    share: float = 1.0
    stack: str = ""
    source: str = ""
    #: The least time of its bytes or arithmetic at the device's peak; 0: caches may hold its bytes.
    least_s: float = 0.0
    #: Time of the library's own kernels among its kernels; 0: of all of them.
    library_s: float = 0.0

    @property
    def starts(self) -> bool:
        """Whether its kernels are too short to show the time of moving bytes."""
        at_least = self.told_s > 2.0 * self.paced_s > 0.0
        return not self.bound and (at_least or self.measured_s < STARTS * self.shortest_s * self.kernels)

    @property
    def is_outlier(self) -> bool:
        """Whether its kernels do not match the operator: by far longer or shorter, or faster than the device can be."""
        if self.measured_s < PEAK * self.least_s:
            return True
        return not self.starts and not 1.0 / OUTLIER < self.measured_s / self.model_s < OUTLIER

    def group(self, stack: str) -> tuple[str, str, str, str]:
        """What a fit is of: family, bound, type and stack, empty for all of them."""
        return self.operator.family, self.bound, self.operator.dtype, stack


def untaught(question: Question) -> Question:
    """The question on its device without corrections by former steps."""
    device = question.device
    spec = device.spec.model_copy(update={"in_steps": ()})
    plain = Device(spec, device.relatives, device.clocks, device.engine, device.overrides)
    return replace(question, device=plain)


def points_of(laid: Laid, question: Question, source: str) -> list[TracedOperator]:
    """Operators of a step with their median measured time; ``question``: on the device without former corrections."""
    rows = kernels_found(laid)
    device, stack = question.device, question.work.stack
    costs = Costs(device)
    # In the step that was laid the device had its former corrections.
    there = stack.cost(Costs(laid.lane.question.device), laid.lane.question.device, laid.lane.job.capture)
    cost = stack.cost(costs, device, laid.lane.job.capture)
    unbound = [pace.model_copy(update={"least": 0.0}) for pace in stack.engine.paces]
    paced = replace(stack, engine=replace(stack.engine, paces=tuple(unbound))).cost(costs, device)
    shared = _shared_s(laid)
    shortest = float(np.quantile(laid.trace.columns["duration_s"], SHORTEST))
    took: dict[Operator, list[tuple[float, float, int]]] = defaultdict(list)
    # One kernel may do the work of two modelled operators of a kind (attention of prompts and of decoding); it is then
    # left out.
    operations = laid.lane.operations
    alike = Counter((item.instruction, item.kind) for item in operations)
    # Kernels of these kinds that stand beside a product are other operators' work.
    elsewhere = {item.kind for item in operations if item.operator is not None and not item.operator.of_library}
    kinds = laid.trace.word("kind")
    for index, own_rows in rows.items():
        item = operations[index]
        operator = item.operator
        own = own_rows
        if operator is not None and operator.of_library:
            own = [row for row in own_rows if laid.operation[row] != index or kinds[row] not in elsewhere]
        if operator is not None and own and (alike[item.instruction, item.kind] == 1 or item.kind in PRODUCTS):
            casts_s = operations[index - 1].seconds if index and operations[index - 1].prepares else 0.0
            alone_s = there(operator)
            slower = (item.seconds + casts_s) / alone_s if alone_s > 0.0 else 1.0
            alone = laid.trace.columns["duration_s"] if operator.units else shared
            each_s = alone[own] / max(slower, 1.0)
            # Casts, which its price has, are other operations' rows.
            of_library = [laid.operation[row] != index or kinds[row] in OF_LIBRARY for row in own]
            took[operator].append((float(each_s.sum()), float(each_s[of_library].sum()), len(own)))
    whole = sum(span[0] for spans in took.values() for span in spans)
    operators = []
    for operator, spans in took.items():
        seconds, library, kernels = (float(np.median(column)) for column in zip(*spans, strict=True))
        bound = bound_of(device, operator) if operator.kind == "gemm" else ""
        operators.append(
            TracedOperator(
                operator, costs(operator), seconds, len(spans), kernels, shortest, bound, paced(operator),
                cost(operator), len(spans) * seconds / whole, stack.base, source, _least_s(device, operator), library,
            )
        )  # fmt: skip
    return [point for point in operators if min(point.model_s, point.measured_s) > 0.0 and not point.is_outlier]


def _shared_s(laid: Laid) -> NDArray[Any]:
    """Seconds of each kernel, those beside others of other streams divided among them; transfers have none."""
    starts, ends = laid.trace.columns["start_s"], laid.trace.end_s
    runs = ~np.isin(laid.trace.word("kind"), list(COLLECTIVES))
    times = np.concatenate([starts[runs], ends[runs]])
    order = np.argsort(times, kind="stable")
    at = times[order]
    beside = np.cumsum(np.repeat([1, -1], int(runs.sum()))[order])
    until = np.concatenate([[0.0], np.cumsum(np.diff(at) / np.maximum(beside[:-1], 1))])
    return np.where(runs, np.interp(ends, at, until) - np.interp(starts, at, until), 0.0)


def _least_s(device: Device, operator: Operator) -> float:
    """Least time at the device's peaks; 0 for few bytes, which caches may hold."""
    peak = device.peak_flops_per_s.get(operator.dtype, 0.0)
    arithmetic = operator.flops / peak if peak else 0.0
    size = operator.hbm_bytes if operator.kind == "memory_bound" else operator.cold_bytes
    return max(arithmetic, size / device.hbm_bytes_per_s if size > BEYOND_CACHES * device.spec.l2.value else 0.0)
