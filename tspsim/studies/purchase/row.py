"""One offer among others: its best plan, its cost, and the measures that rank offers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...base.errors import UnknownNameError
from ...step.result import PlanResult, Result
from .. import uncertainty
from ..searched import Searched
from ..uncertainty import Measure
from .costs import Rates
from .likely import Likely
from .needs import Need
from .outcome import PurchaseOutcome
from .scaling import ScalingPoint
from .service import LoadPoint, ServiceMachines

#: Measures that rank offers, and their names in texts.
MEASURES = {
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "tokens_per_usd": "tokens a dollar",
    "tokens_per_joule": "tokens a joule",
}


@dataclass(frozen=True)
class Objective:
    """What a verdict compares: a measure of :data:`MEASURES`, and what it weighs of a GPU.

    ``level`` and ``of_other`` are the words around the break-even ratio of ``{a}`` and ``{b}``.
    """

    measure: str
    rank: str
    level: str = "a GPU hour of {a} costs"
    of_other: str = "that of {b}"

    @property
    def words(self) -> str:
        return MEASURES[self.measure]


OBJECTIVES: dict[Measure, Objective] = {
    "tokens_per_dollar": Objective("tokens_per_usd", "dollar"),
    "tokens_per_s": Objective("tokens_per_s", "rate"),
    "tokens_per_joule": Objective("tokens_per_joule", "joule", "a GPU of {a} draws", "what one of {b} does"),
}


@dataclass(frozen=True)
class OfferRow:
    """One offer with its best plan (by tokens/s); ``best`` is None where none runs."""

    name: str
    result: Result
    best: PlanResult | None
    rates: Rates
    need: Need | None = None
    #: Why no size is large enough, where the project needs a rate.
    too_small: str = ""
    service: ServiceMachines | None = None
    #: Where requests are served: the plan and load that represent the offer; None where no load keeps the bounds.
    load: LoadPoint | None = None
    #: Then: the nearest load, in words.
    misses: str = ""
    outcome: PurchaseOutcome | None = None
    #: Ranges of the outcome's days and dollars.
    likely: Likely | None = None
    weak: tuple[ScalingPoint, ...] = ()
    strong: tuple[ScalingPoint, ...] = ()
    uncertainty: uncertainty.PricedPlan | None = field(default=None, repr=False)
    searched: Searched | None = None

    @property
    def gpus(self) -> int:
        return int(self.result.cluster["gpus"])

    @property
    def device(self) -> str:
        return str(self.result.cluster["device"]["name"])

    @property
    def able(self) -> bool:
        """Whether it has a plan that runs and keeps the bounds; only such an offer can win."""
        return self.best is not None and not self.misses

    @property
    def rate_range(self) -> tuple[float, float] | None:
        """Range of the rate of :meth:`measure`; None where it is unknown."""
        if self.load is not None:
            low, high = self.load.spread
            return self.load.tokens_per_s * low, self.load.tokens_per_s * high
        spread = self.best.range if self.best is not None else None
        return (spread.low, spread.high) if spread is not None else None

    def measure(self, name: str) -> float | None:
        """A measure of :data:`MEASURES`; None where the offer lacks a plan, price or power, or a load within bounds."""
        if self.best is None or not self.able:
            return None
        rate = self.load.tokens_per_s if self.load is not None else self.best.tokens_per_s
        if name == "tokens_per_s":
            return rate
        per_gpu = rate / self.best.gpus
        if name == "tokens_per_s_per_gpu":
            return per_gpu
        if name == "tokens_per_usd":
            return per_gpu * 3600.0 / self.rates.usd if self.rates.usd else None
        if name == "tokens_per_joule":
            return per_gpu / self.rates.watts_per_gpu if self.rates.watts_per_gpu else None
        raise UnknownNameError("measure", name, MEASURES)

    def judged(self, measure: Measure) -> float | None:
        """The figure that the verdict compares. Where the project has users or requests: their number per dollar (or
        watt) of an hour. Otherwise tokens per dollar, joule or second. None where a part is missing."""
        if self.service is None:
            return self.measure(OBJECTIVES[measure].measure)
        weight = self.weighed(measure)
        return 1.0 / (self.service.share * self.gpus * weight) if weight and self.service.share else None

    def weighed(self, measure: Measure) -> float | None:
        """The objective's weight of one GPU: dollars per hour, watts, or 1; None where the offer has none."""
        of = {"tokens_per_dollar": self.rates.usd, "tokens_per_joule": self.rates.watts_per_gpu}
        return of.get(measure, 1.0)

    @property
    def plan(self) -> PlanResult | None:
        """The plan that represents the offer."""
        return self.load.plan if self.load is not None else self.best

    @property
    def headroom_bytes(self) -> float | None:
        """Memory per GPU that is free beside the best plan."""
        return self.best.memory.capacity_bytes - self.best.memory.peak_bytes if self.best else None
