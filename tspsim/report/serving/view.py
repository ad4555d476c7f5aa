"""The data of a serving run's pages: plans with their loads, request tables and logs of engines, as plain arrays.

Nothing here simulates; :mod:`tspsim.report.serving.adapter` fills it from a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tspsim.serving.steady import figures, interval
from tspsim.serving.waits import Waits
from tspsim.step.result import PlanResult

from ...base.memo import once

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Kinds of an engine's steps, as in its log.
DECODE, MIXED, PREFILL = 0, 1, 2
KINDS = (PREFILL, MIXED, DECODE)


class Requests(Waits):
    """A run's requests in order of arrival; times in seconds of the run, nan where there is none."""

    @once
    def ended(self) -> NDArray[np.bool_]:
        """Requests that were answered to the last token."""
        return np.isfinite(self.end_s) & np.isfinite(self.first_token_s)


@dataclass(frozen=True)
class StepRuns:
    """An engine's log: runs of equal steps, in order and without overlap; between them it is idle."""

    #: Start and end of each run.
    start_s: Floats
    end_s: Floats
    #: Steps in each run.
    steps: Ints
    #: Kind of the steps, one of :data:`KINDS`.
    kind: NDArray[np.int8]
    #: Decoding sequences in each step.
    sequences: Ints
    #: Prompt tokens in each step.
    chunk_tokens: Ints
    #: Requests in the queue and tokens in the cache.
    waiting: Ints
    used_tokens: Floats

    def __len__(self) -> int:
        return len(self.start_s)

    def within(self, from_s: float, to_s: float) -> StepRuns:
        """Runs that overlap a span of time."""
        chosen = (self.end_s > from_s) & (self.start_s < to_s)
        return StepRuns(
            self.start_s[chosen], self.end_s[chosen], self.steps[chosen], self.kind[chosen], self.sequences[chosen],
            self.chunk_tokens[chosen], self.waiting[chosen], self.used_tokens[chosen],
        )  # fmt: skip


@dataclass(frozen=True)
class EngineView:
    """One engine of a run, with the capacity of its cache (None: any number of tokens)."""

    name: str
    steps: StepRuns
    capacity_tokens: float | None = None


@dataclass(frozen=True)
class Transfers:
    """Caches sent between engines or tiers of their memory. ``request`` is a place in :class:`Requests`, ``way`` one in
    ``ways``, which are (source, destination); ``exposed_s`` is the wait for the transfer."""

    request: Ints
    start_s: Floats
    end_s: Floats
    ways: Sequence[tuple[str, str]] = ()
    way: Ints | None = None
    size_bytes: Floats | None = None
    exposed_s: Floats | None = None


@dataclass(frozen=True)
class Preemptions:
    """Preemptions: the place of the request, the time when it lost its cache, and the time of its readmission."""

    request: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True)
class LoadRun:
    """A plan under one load."""

    #: Concurrent requests of a closed loop, requests/s of an open one; nan where neither is stated.
    load: float
    #: The entry ``serving`` of the JSON contract.
    metrics: Mapping[str, Any]
    #: Ranges of ``ttft_s``, ``tpot_s`` and ``output_tokens_per_s``, nine times of ten.
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    requests: Requests | None = None
    engines: tuple[EngineView, ...] = ()
    transfers: Transfers | None = None
    preempted: Preemptions | None = None
    #: Place in ``engines`` of the engine that answered each request; None where it is unknown.
    answered_by: Ints | None = None
    #: Price basis that ranks, where there are several; the cheapest where the run lacks it.
    basis: str = ""
    #: Time of every request in the front end, before an engine sees it.
    front_end_s: float = 0.0

    def queued_s(self, requests: Requests) -> Floats:
        """Time from an engine's sight of each request to its schedule."""
        return np.maximum(0.0, requests.first_scheduled_s - requests.arrival_s - self.front_end_s)

    def prices(self, key: str) -> dict[str, float]:
        """Dollars by price basis, the one that ranks first; a single price has no name; empty without prices."""
        value: Any = self.figures.get(key)
        stated: Mapping[str, Any] = {"": value} if isinstance(value, int | float) else value or {}
        prices_ = [(str(basis), float(price)) for basis, price in stated.items() if isinstance(price, int | float)]
        return dict(sorted(prices_, key=lambda item: (item[0] != self.basis, item[1])))

    def price(self, key: str = "usd_per_million_output_tokens") -> float:
        """Dollars by the basis that ranks; nan without prices."""
        return next(iter(self.prices(key).values()), float("nan"))

    def engine_of(self, place: int) -> EngineView | None:
        """The engine that answered a request, if its log is available."""
        if self.answered_by is not None and self.answered_by[place] >= 0:
            engine = self.engines[int(self.answered_by[place])]
        elif len(self.engines) == 1:
            engine = self.engines[0]
        else:
            return None
        return engine if len(engine.steps) else None

    def preemption_spans(self, place: int) -> list[tuple[float, float]]:
        """Spans of time in which a preempted request waited again."""
        if self.preempted is None:
            return []
        chosen = self.preempted.request == place
        pairs = zip(self.preempted.start_s[chosen], self.preempted.end_s[chosen], strict=True)
        return [(float(since), float(until)) for since, until in pairs]

    def mean(self, key: str, which: str = "mean") -> float:
        """A figure of a wait (``ttft_s``, …); nan where there is none."""
        wait = self.metrics.get(key) or {}
        value = wait.get(which)
        return float("nan") if value is None else float(value)

    def rate(self, key: str) -> float:
        """A single figure; nan where there is none."""
        value = self.metrics.get(key)
        return float(value) if isinstance(value, int | float) else float("nan")

    @property
    def figures(self) -> Mapping[str, Any]:
        """Rates, shares and dollars of the steady part, where it has one (:func:`tspsim.serving.steady.figures`)."""
        return figures(self.metrics)

    def lasting(self, key: str) -> float:
        """A figure of the steady part; nan where there is none."""
        value = self.figures.get(key)
        return float(value) if isinstance(value, int | float) else float("nan")

    def between(self, key: str) -> tuple[float, float, float]:
        """A figure of the steady part, with its interval."""
        return self.lasting(key), *interval(self.metrics, key)

    @property
    def goodput(self) -> float:
        """Requests/s within the stated limits; nan without limits."""
        return self.lasting("goodput_requests_per_s")

    @property
    def kept(self) -> bool:
        """Whether the stated limits are kept, where there are some (:mod:`tspsim.serving.bounds`)."""
        return bool((self.metrics.get("bounds") or {}).get("kept", True))

    @property
    def end_s(self) -> float:
        """Time of the last event."""
        ends = [float(engine.steps.end_s[-1]) for engine in self.engines if len(engine.steps)]
        if self.requests is not None and self.requests.ended.any():
            ends.append(float(np.nanmax(self.requests.end_s)))
        return max(ends, default=0.0)


@dataclass(frozen=True)
class Published:
    """A measured point of the same question: load, tokens/s per user and per GPU, mean waits; nan where unknown."""

    name: str
    load: float
    per_user: float
    per_gpu: float
    ttft_s: float
    tpot_s: float
    source: str


@dataclass(frozen=True)
class StepShare:
    """The time of one step by family, at a load that ``label`` names."""

    label: str
    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return float(sum(self.parts.values()))


@dataclass(frozen=True)
class ServedView:
    """A plan that ran, under its loads in ascending order."""

    plan: PlanResult
    runs: tuple[LoadRun, ...]
    shares: tuple[StepShare, ...] = ()
    #: Its offer, on a page with several machines.
    offer: str = ""

    @property
    def name(self) -> str:
        return f"{self.plan.name} on {self.offer}" if self.offer else self.plan.name

    @once
    def best(self) -> LoadRun:
        """The best load: within the limits where there are some, else by output tokens."""
        return max(self.runs, key=Merit.of)

    def at(self, load: float) -> LoadRun | None:
        """Its run under a load."""
        return next((run for run in self.runs if run.load == load), None)


@dataclass(frozen=True, order=True)
class Merit:
    """The rank of a run: whether it keeps the limits, requests/s within them, then output tokens/s per GPU."""

    kept: bool
    goodput: float
    per_gpu: float

    @classmethod
    def of(cls, run: LoadRun) -> Merit:
        goodput = run.goodput
        return cls(run.kept, 0.0 if np.isnan(goodput) else goodput, run.lasting("output_tokens_per_s_per_gpu"))


@dataclass(frozen=True)
class ServingView:
    """A serving result as data of its page."""

    served: tuple[ServedView, ...]
    refused: Sequence[PlanResult] = ()
    #: Whether ``load`` of runs counts concurrent requests (else requests/s).
    closed: bool = True
    #: Limits in seconds by wait (``ttft``, ``tpot``, ``e2e``).
    slo: Mapping[str, float] = field(default_factory=dict)
    published: Sequence[Published] = ()
    #: The plan in the page's headline, where it is not the one with the highest rate.
    leading: str = ""

    @property
    def loads(self) -> tuple[float, ...]:
        """All loads, ascending."""
        values = {run.load for plan in self.served for run in plan.runs}
        return tuple(sorted(load for load in values if not np.isnan(load)))

    @property
    def curve(self) -> bool:
        """Whether the runs have more than one load."""
        return len(self.loads) > 1

    def title_of(self, served: ServedView, run: LoadRun) -> str:
        """A run's plan, and its load where there are several."""
        return f"{served.name}, {self.load_in_words(run.load)}" if self.curve else served.name

    def load_in_words(self, load: float) -> str:
        """A load in words.

        >>> open_loop = ServingView((), closed=False)
        >>> ServingView(()).load_in_words(64.0), open_loop.load_in_words(2.5), open_loop.load_in_words(1.0)
        ('64 at once', '2.5 requests/s', '1 request/s')
        """
        if np.isnan(load):
            return "the stated traffic"
        return f"{load:,.4g} at once" if self.closed else f"{load:,.4g} request{'s' * (load != 1.0)}/s"

    @once
    def ranked(self) -> tuple[ServedView, ...]:
        """Plans, the best first (of equals the first)."""
        return tuple(sorted(self.served, key=lambda plan: Merit.of(plan.best), reverse=True))
