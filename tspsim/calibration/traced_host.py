"""The host's time of measured steps as a number of a stack: the time that the device waits for it.

An engine, whose graphs leave one gap between steps, gets ``engine.step``. A trainer, which launches kernel by kernel,
gets ``kernel``: the median time between two launches, times the kernels per operator. Both are judged by the device's
idle time in a step simulated with them. A trace that ends with its step does not show the time between steps: its idle
time can raise an engine's number, never lower it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..base import catalog, dialect
from ..parallel.serving_engine import Prior
from ..parallel.stack import Stack
from ..step.question import Question
from ..traces import Trace
from ..traces.comparison import Laid
from ..traces.lay import lay
from ..traces.table import busy_s
from .residuals import ONE_SIZE, StepCheck

#: Range factor of one step's number, and least range factor of several: profilers take time too.
ONE_STEP, SEVERAL = ONE_SIZE, 1.25
#: Share of the steps by which their idle times may be told worse with a new number.
WORSE = 0.01


@dataclass(frozen=True)
class HostFit:
    """A number of a stack's host before and after, with its range and number of steps."""

    stack: str
    key: str
    before_s: float
    value_s: float
    low_s: float
    high_s: float
    steps: int


@dataclass(frozen=True)
class CalibratedHosts:
    """The fits, the steps' idle times, and the new files of stacks by name."""

    fits: tuple[HostFit, ...] = ()
    checks: tuple[StepCheck, ...] = ()
    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Stacks whose numbers stay, with the reason.
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Seen:
    """One step's estimate of its stack's number, and the device's idle time, measured and simulated."""

    laid: Laid
    question: Question
    trace: Trace
    name: str
    serves: bool
    value_s: float
    measured_s: float
    simulated_s: float

    @property
    def stack(self) -> str:
        return str(self.question.scenario.workload.stack)

    @property
    def key(self) -> str:
        return "engine.step" if self.serves else "kernel"

    @property
    def before_s(self) -> float:
        stack = self.question.work.stack
        return stack.engine.step.value if self.serves else stack.kernel_s

    def with_value(self, value_s: float) -> float:
        """Simulated idle time of the device with another number of the stack."""
        question, laid = _with(self.question, self.serves, value_s), self.laid
        return idle_of(lay(self.trace, question, laid.plan, laid.rank, laid.step))


def idle_of(laid: Laid) -> float:
    """Idle time of the device in the simulated step."""
    return max(_measured_idle(laid) - laid.causes.host_s, 0.0)


def _measured_idle(laid: Laid) -> float:
    return laid.measured_s - busy_s(laid.trace.columns["start_s"], laid.trace.end_s)


def _with(question: Question, serves: bool, value_s: float) -> Question:
    stack: Stack = question.work.stack
    if serves:
        stack = replace(stack, engine=replace(stack.engine, step=Prior(value_s, value_s, value_s)))
    else:
        stack = replace(stack, kernel_s=value_s)
    return replace(question, work=replace(question.work, stack=stack))


def _seen(laid: Laid, question: Question, trace: Trace, name: str) -> _Seen | None:
    """A step's estimate; None where its scenario names no stack of the catalog, or launches were not recorded."""
    stack, serves, stated = question.work.stack, question.work.step.serves, question.scenario.workload.stack
    if stated is None or catalog.is_path(stated):
        return None
    measured, simulated = _measured_idle(laid), idle_of(laid)
    value: float | None
    if serves:
        share = 1.0 - stack.engine.hidden
        if share <= 0.0:
            return None
        value = stack.engine.step.value + (measured - simulated) / share
        # No trace shows what follows its last step; the host takes at least that long.
        if not laid.followed and value <= stack.engine.step.value:
            return None
    else:
        value = _between_launches(laid)
    if value is None:
        return None
    return _Seen(laid, question, trace, name, serves, max(value, 0.0), measured, simulated)


def _between_launches(laid: Laid) -> float | None:
    """The host's time for one operator that is launched kernel by kernel."""
    columns = laid.trace.columns
    rows = np.flatnonzero(np.isfinite(columns["launch_s"]) & (columns["graph_node"] < 0) & (laid.operation >= 0))
    operators = sum(not item.is_transfer for item in laid.lane.operations)
    if len(rows) < 2 or not operators:
        return None
    between = np.diff(np.sort(columns["launch_s"][rows]))
    return float(np.median(between)) * len(rows) / operators


def hosts_of(steps: Sequence[tuple[Laid, Question, Trace, str]], source: str) -> CalibratedHosts:
    """Fit the stacks of steps aligned with their scenarios. ``source``: origin of the steps."""
    seen = [one for step in steps if (one := _seen(*step)) is not None]
    fits: list[HostFit] = []
    checks: list[StepCheck] = []
    documents: dict[str, Mapping[str, Any]] = {}
    left_out: list[str] = []
    for stack, key in sorted({(one.stack, one.key) for one in seen}):
        own = [one for one in seen if (one.stack, one.key) == (stack, key)]
        fit = _fit(stack, key, own)
        after = [one.with_value(fit.value_s) for one in own]
        worse = [
            abs(idle - one.measured_s) - abs(one.simulated_s - one.measured_s)
            for idle, one in zip(after, own, strict=True)
        ]
        if sum(worse) > WORSE * sum(one.laid.measured_s for one in own):
            left_out.append(f"{stack}: {key}: with what these steps show, the device would wait longer than it does")
            continue
        fits.append(fit)
        for one, idle in zip(own, after, strict=True):
            others = [other for other in own if other is not one]
            by_others = one.with_value(_fit(stack, key, others).value_s) if others else None
            checks.append(StepCheck(one.name, one.measured_s, one.simulated_s, idle, by_others))
        base = catalog.versioned(stack)[0]
        documents[base] = _document(documents.get(base), stack, fit, own[0], source)
    return CalibratedHosts(tuple(fits), tuple(checks), documents, tuple(left_out))


def _fit(stack: str, key: str, own: Sequence[_Seen]) -> HostFit:
    values = sorted(one.value_s for one in own)
    value = float(np.median(values))
    spread = ONE_STEP if len(own) == 1 else SEVERAL
    return HostFit(
        stack, key, own[0].before_s, value, min(values[0], value / spread), max(values[-1], value * spread), len(own)
    )


def _document(written: Mapping[str, Any] | None, stack: str, fit: HostFit, seen: _Seen, source: str) -> dict[str, Any]:
    """The stack's file with the new number, at the reference host; in a version's section for a version."""
    base, version = catalog.versioned(stack)
    document = dict(written or dialect.read_yaml(catalog.locate("stacks", base)))
    slower = seen.question.work.stack.engine.slower_host(seen.question.device.name)
    value, low, high = (f"{1e6 * seconds / slower:.4g} us" for seconds in (fit.value_s, fit.low_s, fit.high_s))
    entry = {"value": value, "range": [low, high], "source": source}
    key = fit.key.rpartition(".")[2]
    if version:
        versions = dict(document["versions"])
        versions[version] = {**(versions[version] or {}), key: entry}
        return {**document, "versions": versions}
    if seen.serves:
        return {**document, "engine": {**document["engine"], key: entry}}
    return {**document, key: entry}
