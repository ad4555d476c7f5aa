"""The steady part of a run: the basis of verdicts, so that they do not depend on the run's length.

A benchmark's wall time includes the ramp and the drain of its run (:mod:`.metrics`). Capacity, dollars, goodput and the
highest rate are those of the steady part instead:

- Warm-up: it begins when twice as many requests have been answered as were sent before the first answer. Of a closed
  loop that is twice the clients, so that the opening burst is over.
- Tail: it ends when the last request is sent. From then on clients are no longer replaced.
- A request counts by the share of its answer that is written within it: tokens come evenly from f to e. Of requests
  that end at the same time, whole waves count.
- Where requests come at a known rate, counts are scaled by that rate over the rate drawn within the window (a control
  variate: over time as many are answered as come).
- Intervals hold nine times of ten, from means of batches that are at least one mean answer long each, about twenty of
  them, by Student's distribution (batch means; Law and Kelton, Simulation Modeling and Analysis, §9.5). Of shares the
  residuals of the ratio are taken. At a known rate answers equal arrivals up to the work left at both ends.

A run whose steady part is shorter than :data:`A_FEW` mean answers, or has fewer than five requests a batch, has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, hypot
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..traffic.kind import Floats
from .streams import reached
from .waits import Waits

if TYPE_CHECKING:
    from .metrics import Bill

#: Least length of a steady part in mean answers, and least requests of a batch.
A_FEW, A_BATCH = 5, 5
#: Number of batches, about.
BATCHES = 20
#: Factor: answered requests before the steady part, over requests sent before the first answer.
WARM = 2
#: Requests of a run, per request under way, for a long enough steady part.
A_CLIENT = 10
#: Times that differ relatively by less are equal.
ROUNDING = 1e-12
#: 95 % quantile of a normal distribution.
NORMAL = 1.6448536269514722


@dataclass(frozen=True)
class IntervalEstimate:
    """A value, and half the width of its 90 % interval."""

    value: float
    half: float

    def to_json(self) -> dict[str, float]:
        return {"low": max(0.0, self.value - self.half), "high": self.value + self.half}


@dataclass(frozen=True)
class Steady:
    """The steady part of a run of ``run_requests``; seconds, and requests or tokens per second."""

    run_requests: int
    from_s: float
    to_s: float
    #: Its length over the mean E2E.
    answers: float
    batches: int
    #: Mean number of requests under way.
    users: float
    ttft_s: float
    #: nan where every answer is one token.
    tpot_s: float
    e2e_s: float
    requests_per_s: IntervalEstimate
    output_tokens_per_s: IntervalEstimate
    prompt_tokens_per_s: IntervalEstimate
    #: Goodput and share of requests within all bounds; None without bounds.
    goodput_requests_per_s: IntervalEstimate | None = None
    good_share: IntervalEstimate | None = None
    #: Share of requests within the bound that fewest keep, each bound by itself.
    apart_share: IntervalEstimate | None = None

    def to_json(self, gpus: int, bill: Bill) -> dict[str, Any]:
        """The entry ``steady`` of ``serving`` (docs/json.md)."""
        outputs, prompts = self.output_tokens_per_s.value, self.prompt_tokens_per_s.value
        intervals = {
            name: estimate.to_json()
            for name in ("output_tokens_per_s", "requests_per_s", "goodput_requests_per_s", "good_share")
            if isinstance(estimate := getattr(self, name), IntervalEstimate)
        }
        return {
            "run_requests": self.run_requests,
            "from_s": self.from_s,
            "to_s": self.to_s,
            "answers": self.answers,
            "batches": self.batches,
            "users": self.users,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s if np.isfinite(self.tpot_s) else None,
            "e2e_s": self.e2e_s,
            "output_tokens_per_s": outputs,
            "output_tokens_per_s_per_gpu": outputs / gpus,
            "total_tokens_per_s": outputs + prompts,
            "requests_per_s": self.requests_per_s.value,
            "goodput_requests_per_s": self.goodput_requests_per_s and self.goodput_requests_per_s.value,
            "good_share": self.good_share and self.good_share.value,
            "usd_per_million_output_tokens": bill.usd_per_million(gpus, 1.0, outputs),
            "usd_per_million_input_tokens": bill.usd_per_million(gpus, 1.0, prompts),
            "usd_per_million_tokens": bill.usd_per_million(gpus, 1.0, outputs + prompts),
            "interval": intervals,
        }


def steady_of(waits: Waits, bounds: Mapping[str, float], rate: float | None = None) -> Steady | None:
    """The steady part of a run; None where it is too short, or has none.

    Parameters
    ----------
    waits
        Requests that count and ended.
    bounds
        Bounds on ``ttft``, ``tpot``, ``e2e`` of a good request, in seconds; empty: none.
    rate
        Requests/s of open arrivals; None of a closed loop.
    """
    if len(waits) < A_FEW * A_BATCH:
        return None
    from_s, to_s = window(waits)
    mean_s = waits.stream(lambda piece: piece.e2e_s).mean()
    answers = (to_s - from_s) / mean_s if mean_s > 0.0 else 0.0
    if answers < A_FEW:
        return None
    answers_per_batch = max(1, round(answers / BATCHES))
    inside = _Counts.of(waits, np.array([from_s, to_s]), bounds).sums["requests"].sum()
    batches = min(floor(answers / answers_per_batch + 1e-9), int(inside) // A_BATCH)
    if batches < A_FEW:
        return None
    counts = _Counts.of(waits, np.linspace(from_s, to_s, batches + 1), bounds)
    length_s, sums = to_s - from_s, counts.sums

    def a_second(name: str) -> IntervalEstimate:
        """The rate per second, scaled to the known arrival rate, where there is one."""
        if rate is None or not counts.arrivals.any():
            return _mean(sums[name] * (batches / length_s))
        value = rate * float(sums[name].sum() / counts.arrivals.sum())
        served = rate * float(sums["requests"].sum() / counts.arrivals.sum())
        other = ratio(sums[name], sums["requests"])
        doubts = counts.ends_half / length_s / served, other.half / other.value if other.value else 0.0
        return IntervalEstimate(value, value * hypot(*doubts))

    good = [ratio(sums[name], sums["requests"]) for name in bounds]
    return Steady(
        run_requests=len(waits),
        from_s=from_s,
        to_s=to_s,
        answers=answers,
        batches=batches,
        users=counts.seconds / length_s,
        ttft_s=counts.mean("ttft_s"),
        tpot_s=counts.mean("tpot_s"),
        e2e_s=counts.mean("e2e_s"),
        requests_per_s=a_second("requests"),
        output_tokens_per_s=a_second("outputs"),
        prompt_tokens_per_s=a_second("prompts"),
        goodput_requests_per_s=a_second("good") if bounds else None,
        good_share=ratio(sums["good"], sums["requests"]) if bounds else None,
        apart_share=min(good, key=lambda estimate: estimate.value, default=None),
    )


def window(waits: Waits) -> tuple[float, float]:
    """From the end of the warm-up to the last send; empty where all requests were sent at once."""
    to_s = waits.last_sent_s
    rank = min(len(waits), WARM * opening(waits))
    (from_s,) = reached(lambda: ((piece.end_s, None) for piece in waits.pieces()), [rank])
    return from_s, max(from_s, to_s)


def opening(waits: Waits) -> int:
    """Requests sent before the first answer. A replacement is sent at the same time as the answer, up to rounding."""
    before_s = waits.first_end_s * (1.0 - ROUNDING)
    return waits.total(lambda piece: piece.arrival_s < before_s)


@dataclass
class _Counts:
    """Answers in each of several batches of time, and means over the requests sent in all of them."""

    #: ``requests``, ``good``, ``outputs``, ``prompts``, and the requests that keep each bound: one per batch.
    sums: dict[str, Floats]
    #: Requests sent in each batch.
    arrivals: Floats
    #: Requests' worth of answers left to write at each edge.
    left: Floats
    #: Seconds under way, over all requests.
    seconds: float
    totals: dict[str, tuple[float, int]]

    @classmethod
    def of(cls, waits: Waits, edges: Floats, bounds: Mapping[str, float]) -> _Counts:
        names = ("requests", "outputs", "prompts", *(("good", *bounds) if bounds else ()))
        sums = {name: np.zeros(len(edges) - 1) for name in names}
        arrivals, left, seconds = np.zeros(len(edges) - 1), np.zeros(len(edges)), 0.0
        totals = dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"), (0.0, 0))
        for piece in waits.pieces():
            part = _near(piece, edges)
            if not len(part):
                continue
            done = _written(part, edges)
            left += (part.arrival_s[:, None] <= edges[None, :]).sum(axis=0) - done.sum(axis=0)
            written = np.diff(done, axis=1)
            ones = np.ones(len(part))
            weights: dict[str, NDArray[Any]] = {
                "requests": ones, "outputs": part.output_tokens, "prompts": part.prompt_tokens
            }  # fmt: skip
            if bounds:
                weights["good"] = part.good(bounds)
                weights |= {name: part.good({name: bounds[name]}) for name in bounds}
            for name, weight in weights.items():
                sums[name] += weight @ written
            arrivals += np.histogram(part.arrival_s, edges)[0]
            under_way = np.clip(part.end_s, edges[0], edges[-1]) - np.clip(part.arrival_s, edges[0], edges[-1])
            seconds += float(under_way.sum())
            sent = (part.arrival_s >= edges[0]) & (part.arrival_s <= edges[-1])
            for name, (total, count) in totals.items():
                values = getattr(part, name)[sent]
                values = values[np.isfinite(values)]
                totals[name] = total + float(values.sum()), count + len(values)
        return cls(sums, arrivals, left, seconds, totals)

    @property
    def ends_half(self) -> float:
        """Half the 90 % interval of the difference between answers and arrivals: the work left at one end minus that at
        the other."""
        return student(len(self.left) - 1) * float(np.sqrt(2.0) * self.left.std(ddof=1))

    def mean(self, name: str) -> float:
        total, count = self.totals[name]
        return total / count if count else float("nan")


def _near(piece: Waits, edges: Floats) -> Waits:
    """Requests under way at some time between the first edge and the last."""
    chosen = (piece.end_s >= edges[0]) & (piece.arrival_s <= edges[-1])
    return piece if chosen.all() else piece.where(chosen)


def _written(waits: Waits, edges: Floats) -> Floats:
    """Share of each answer that is written at each edge: (requests, edges). An answer of one token comes at once."""
    span = (waits.end_s - waits.first_token_s)[:, None]
    since = edges[None, :] - waits.first_token_s[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip(since / span, 0.0, 1.0)
    done: Floats = np.where(span > 0.0, share, since >= 0.0)
    return done


def _mean(values: Floats) -> IntervalEstimate:
    """Mean of batches with its interval."""
    return IntervalEstimate(float(values.mean()), _half(values - values.mean()))


def ratio(over: Floats, under: Floats) -> IntervalEstimate:
    """Σ over / Σ under of batches, with the interval from the residuals."""
    whole = float(under.sum())
    if whole <= 0.0:
        return IntervalEstimate(0.0, 0.0)
    value = float(over.sum()) / whole
    return IntervalEstimate(value, _half(over - value * under) * len(under) / whole)


def _half(residuals: Floats) -> float:
    """Half the 90 % interval of the mean of independent values with these residuals."""
    count = len(residuals)
    return student(count - 1) * float(np.sqrt((residuals**2).sum() / (count * (count - 1))))


def student(freedom: int) -> float:
    """The 95 % quantile of Student's distribution (Cornish and Fisher's expansion, within 0.1 % from four degrees on).

    >>> [round(student(freedom), 2) for freedom in (4, 9, 19)]
    [2.13, 1.83, 1.73]
    """
    z, v = NORMAL, float(freedom)
    first = (z**3 + z) / (4 * v)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return z + first + second + third


def enough(waits: Waits) -> int:
    """Requests of a run like this one with a long enough steady part: :data:`A_CLIENT` per request under way."""
    span_s = waits.last_sent_s - waits.first_s
    under_way = waits.stream(lambda piece: piece.e2e_s).total(len(waits)) / max(span_s, waits.wall_s / 2.0, 1e-12)
    return max(2 * A_FEW * A_BATCH, ceil(A_CLIENT * max(opening(waits), under_way)))


# --- answers in JSON ------------------------------------------------------------------------------


def figures(serving: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of verdicts: the steady part's, or without one the whole run's."""
    return serving.get("steady") or serving


def interval(serving: Mapping[str, Any], name: str) -> tuple[float, float]:
    """(low, high) of a figure of :func:`figures`; the figure itself twice without an interval."""
    steady_figures = figures(serving)
    ends = steady_figures.get("interval", {}).get(name)
    value = float(steady_figures[name])
    return (float(ends["low"]), float(ends["high"])) if ends else (value, value)


def tied(mine: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Whether two values, each (value, low, high), are equal within their intervals."""
    half = hypot((mine[2] - mine[1]) / 2.0, (other[2] - other[1]) / 2.0)
    return abs(mine[0] - other[0]) <= half
