"""The highest rate at which requests keep their bounds, and the saturation rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from ..scenario.traffic import TrafficSpec
from .bounds import kept_of, misses_in_words
from .deployment import Deployment
from .points import MOST_REQUESTS, longer_by, rate_of, served_rate, whole
from .steady import enough, steady_of
from .waits import Waits, kept_share

Progress = Callable[[float], None]
#: CLOSE: a rate is found to this share of itself. MOST_RUNS: most runs.
CLOSE, MOST_RUNS = 0.02, 24
#: Least requests of a run that searches for a rate; more for a longer steady part.
REQUESTS_TO_FIND = 2000
#: Rough runs: FEWEST, MOST: requests; SOME: requests per request under way; NEAR: relative accuracy; WIDE: factor
#: between rates.
FEWEST, MOST, SOME, NEAR, WIDE = 250, 4000, 6, 0.15, 1.5
#: The counted part of a rough run: after the ramp, before the drain.
MIDDLE = (0.4, 0.85)
#: First factor between rates in the exact search, squared after each step.
STEP = 1.06
#: Requests/s at which requests hardly ever meet.
ALONE_RATE = 1e-3
#: ALONE: requests that are served alone; BEYOND: multiples of the inverse share that may miss a bound.
ALONE, BEYOND = 64, 10


@dataclass(frozen=True)
class HighestRate:
    """Result of a search for the highest rate."""

    #: None where no rate keeps the bounds.
    rate: float | None
    #: The lowest rate tried that does not keep the bounds.
    over: float
    #: Requests of the run at that rate.
    requests: int
    runs: int
    #: Requests of all runs.
    served: int = 0
    #: Where no rate keeps the bounds: the bound that lone requests miss, with the excess.
    missed: str = ""


def highest_rate(
    deployment: Deployment,
    traffic: TrafficSpec,
    *,
    rough: bool = False,
    start: float | None = None,
    progress: Progress | None = None,
) -> HighestRate:
    """The highest rate at which the wanted share of requests keeps the bounds, by bisection.

    The same requests come at every rate, at shorter or longer intervals. Their number does not depend on the
    scenario's: it suffices for a steady part. Where the scenario states more, the rate is then lowered until that
    run keeps the bounds too.

    Parameters
    ----------
    rough
        Few requests, and a rate to within :data:`NEAR`: for a search over many plans.
    start
        A rate to begin with; None: one request after the other.
    """
    search = _Search(deployment, traffic, progress)
    alone = search.alone()
    if kept_share(alone, search.bounds, traffic.protocol.apart) < traffic.share:
        missed = misses_in_words(alone, search.bounds, traffic.share)
        return HighestRate(None, ALONE_RATE, len(alone), 1, search.sent, missed)
    first = start or 1.0 / float(alone.e2e_s.mean())
    e2e_s = float(alone.e2e_s.mean())
    low, high = search.closer(*search.around(first, WIDE, lambda rate: search.roughly(rate, e2e_s)), NEAR)
    if rough:
        return HighestRate(low, high, search.used[low], search.runs, search.sent)
    low, high = search.closer(*search.around(low, STEP, search.kept_at), CLOSE)
    trace = traffic.arrivals.trace()
    stated = min(search.most, traffic.requests or (len(trace) if trace is not None else 0))
    while stated > search.used[low] and not search.kept_at(low, stated):
        low, high = four_digits(low / (1.0 + CLOSE)), low
        search.used.setdefault(low, 0)
    return HighestRate(low, high, max(search.used[low], stated), search.runs, search.sent)


class _Search:
    """Runs of one deployment at several rates, with their count."""

    def __init__(self, deployment: Deployment, traffic: TrafficSpec, progress: Progress | None) -> None:
        self.deployment, self.traffic, self.progress = deployment, traffic, progress
        self.bounds = traffic.bounds(deployment.question.scenario.workload.model)
        trace = traffic.arrivals.trace()
        self.most = len(trace) if trace is not None else max(MOST_REQUESTS, traffic.requests or 0)
        self.requests, self.runs, self.sent = min(REQUESTS_TO_FIND, self.most), 0, 0
        #: The predicate given to :meth:`around`: whether a rate keeps the bounds.
        self.keeps: Callable[[float], bool] = self.kept_at
        #: Rate → requests of the longest run at it.
        self.used: dict[float, int] = {}

    def served(self, rate: float, count: int) -> Waits:
        """The served requests of a run at a rate."""
        self.runs, self.sent = self.runs + 1, self.sent + count
        if self.progress is not None:
            self.progress(min(0.99, self.runs / MOST_RUNS))
        return whole(self.deployment, self.point_at(rate, count))

    def point_at(self, rate: float, count: int) -> TrafficSpec:
        return self.traffic.at_rate(rate).model_copy(update={"requests": count})

    def alone(self) -> Waits:
        """Requests that hardly ever meet, enough to decide whether the wanted share keeps the bounds."""
        few = max(ALONE, ceil(BEYOND / max(1e-9, 1.0 - self.traffic.share)))
        return self.served(ALONE_RATE, min(few, self.requests))

    def roughly(self, rate: float, e2e_s: float) -> bool:
        """Whether the bounds are kept at a rate, in the middle of a short run; ``e2e_s``: duration of a request."""
        count = min(self.most, MOST, max(FEWEST, ceil(SOME * rate * e2e_s)))
        waits = self.served(rate, count)
        self.used[rate] = count
        middle = waits.part(slice(*(int(share * len(waits)) for share in MIDDLE)))
        good = kept_share(middle, self.bounds, self.traffic.protocol.apart)
        return good >= self.traffic.share and served_rate(waits, rate) is None

    def kept_at(self, rate: float, count: int | None = None) -> bool:
        """Whether the bounds are kept at a rate, with ``count`` requests or more for a steady part."""
        count = count or self.requests
        waits, point = self.served(rate, count), self.point_at(rate, count)
        steady = steady_of(waits, self.bounds, rate_of(point))
        grows = served_rate(waits, rate) is not None
        self.used[rate] = max(count, self.used.get(rate, 0))
        kept = kept_of(waits, steady, self.bounds, self.traffic.share, self.traffic.protocol.apart, grows).kept
        more = longer_by(point, waits)
        # Ramp and drain only flatter: a run that misses the bounds with them misses them without.
        if not kept or steady is not None or more is None:
            return kept
        return self.kept_at(rate, more)

    def around(self, rate: float, step: float, keeps: Callable[[float], bool]) -> tuple[float, float]:
        """A rate that keeps the bounds and one that does not, from ``rate`` on in growing steps."""
        self.keeps = keeps
        low = high = four_digits(rate)
        if keeps(low):
            while True:
                low, high = high, four_digits(high * step)
                if self.runs >= MOST_RUNS or not keeps(high):
                    return low, high
                step *= step
        while True:
            low, high = four_digits(low / step), low
            if self.runs >= MOST_RUNS or keeps(low):
                return low, high
            step *= step

    def closer(self, low: float, high: float, close: float) -> tuple[float, float]:
        """Narrows the two rates of :meth:`around` until they differ by at most a share."""
        while high / low > 1.0 + close and self.runs < 2 * MOST_RUNS:
            middle = four_digits((low * high) ** 0.5)
            low, high = (middle, high) if self.keeps(middle) else (low, middle)
        return low, high


def most_served(deployment: Deployment, traffic: TrafficSpec, waits: Waits, rate: float) -> float | None:
    """The saturation rate where requests come faster; None where they do not.

    In a short run few answers are written beside the prompts. So the rate is measured again with enough
    requests at that rate, until they no longer queue.
    """
    most = served = served_rate(waits, rate)
    while served is not None and most is not None:
        most = min(most, served)
        count = max(REQUESTS_TO_FIND, min(MOST_REQUESTS, enough(waits)))
        waits = whole(deployment, traffic.at_rate(most).model_copy(update={"requests": count}))
        served = served_rate(waits, most)
    return most


def four_digits(rate: float) -> float:
    """A rate rounded to four digits.

    >>> four_digits(12.34567), four_digits(0.00123456)
    (12.35, 0.001235)
    """
    return float(f"{rate:.4g}")
