"""The uncertainty of a verdict: the effect of each error, and the probability that the other side wins.

A :class:`PricedPlan` is a plan on hardware at a price. Its step is a sum of parts, each scaled by one uncertain
:class:`Factor`: the kernels of one family on one device, the transfers of one network, the bias of a generation's
tables, software, a price. All offers that name a factor share it: two plans on one device err together, plans on two
devices apart. To first order, with part ``p`` of
the step under factor ``f``,

    time = (step − Σ p) + Σ p·f,        cost of a token = time · price · f_price / tokens,

where exposed communication is the part of transfers, and idle time has no factor. The width of a factor may differ by
offer (kernels are better known at some shapes), yet it is high or low for all offers together. :func:`rerun` gives the
exact time instead, by a simulation with scaled costs; where transfers hide behind compute the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from ..base.errors import InfeasibleError, InputError, UnknownNameError
from ..hardware import Costs
from ..scenario import Scenario
from ..step import simulation
from ..step.description import TRANSFERS
from ..step.result import PlanResult
from .axes import choose

#: A number, or an array with one number per draw: shape (draws,).
Normal = Any

#: The compared rate: tokens per second, dollar or joule.
Measure = Literal["tokens_per_s", "tokens_per_dollar", "tokens_per_joule"]

#: Ranges hold nine times of ten: 5 % lie below and 5 % above.
COVERAGE = 0.90
TAILS = (0.5 - COVERAGE / 2, 0.5 + COVERAGE / 2)
#: Measured over simulated time of a GPU's published training runs, the median of each of twelve GPUs: nine of ten lie
#: in this range. It is the common error of one generation's tables, which come from one laboratory's library
#: (docs/validation-training.md; ``tspsim validate``, published/training.csv).
BETWEEN_TABLES = (0.90, 1.25)
#: The same for 36 runs of plain frameworks that no fit uses; with each framework left out, 78 % of its runs lie in
#: the others' range, all of them if the range of kernels is added (published/training_frameworks.csv). It is the width
#: of software that was not measured.
BETWEEN_FRAMEWORKS = (0.92, 1.18)
#: The least probability of a lead; below it the offers tie.
LEAST_LEAD = 0.6
#: A standard normal variable at the low end of a range.
Z_LOW = NormalDist().inv_cdf(0.5 - COVERAGE / 2)


@dataclass(frozen=True)
class Factor:
    """A multiplier of a time or a price: median 1, under ``low`` in 5 % and over ``high`` in 5 % of cases.

    Its logarithm is a normal distribution on either side of 0, each side with its own width.

    Examples
    --------
    >>> factor = Factor(0.9, 1.2)
    >>> round(float(factor.at(Z_LOW)), 12), round(float(factor.at(-Z_LOW)), 12)
    (0.9, 1.2)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 < self.low <= 1.0 <= self.high < math.inf:
            raise InputError(f"a range from {self.low:g} to {self.high:g} does not hold 1")

    def at(self, normal: Normal) -> Normal:
        """The factor where a standard normal variable is ``normal``: a number, or shape (draws,)."""
        width = np.where(np.less(normal, 0.0), -math.log(self.low), math.log(self.high)) / -Z_LOW
        factor: Normal = np.exp(normal * width)
        return factor


@dataclass(frozen=True)
class PricedPlan:
    """A plan on hardware at a price."""

    #: Its name in answers.
    name: str
    #: Tokens per step.
    tokens: float
    #: Seconds per step.
    step_s: float
    #: Seconds of the step under each factor, by name: of kernels and transfers together at most ``step_s``, and all of
    #: it under factors that are common to the step (its generation's tables, its software).
    parts_s: Mapping[str, float]
    #: The uncertain factors, by name. Offers that share a name share its draws: their factors are high together, each
    #: within its own range.
    factors: Mapping[str, Factor] = field(default_factory=dict)
    #: Number of GPUs.
    gpus: int = 1
    #: Price of a GPU hour; 0 where no price is needed.
    usd_per_gpu_hour: float = 0.0
    #: Name of the price's factor, if it is uncertain.
    price: str | None = None
    #: Addition to the price (the fabric), and the name of its factor.
    added_usd_per_gpu_hour: float = 0.0
    added: str | None = None
    #: Power of a GPU, all in; 0 where none is needed. It is stated, and certain.
    watts_per_gpu: float = 0.0
    #: Half the interval of the rate over the rate, by the drawn requests: a longer run may change it by as much. It
    #: decides whether two offers tie, and nothing else.
    drawn: float = 0.0

    def per_token(self, measure: Measure, normals: Mapping[str, Normal]) -> Normal:
        """Seconds, dollars or joules per token, with factors at ``normals``, the others at their medians."""
        step_s: Normal = self.step_s
        for name, part_s in self.parts_s.items():
            if name in normals:
                step_s = step_s + part_s * (self.factors[name].at(normals[name]) - 1.0)
        if measure == "tokens_per_s":
            return step_s / self.tokens
        if measure == "tokens_per_joule":
            if self.watts_per_gpu <= 0.0:
                raise InputError("has no power; state project.power in the scenario", key=self.name)
            return step_s * self.watts_per_gpu * self.gpus / self.tokens
        if self.usd_per_gpu_hour <= 0.0:
            raise InputError("has no price; state prices.gpu_hour in the scenario", key=self.name)
        price: Normal = 0.0
        for usd, factor in ((self.usd_per_gpu_hour, self.price), (self.added_usd_per_gpu_hour, self.added)):
            price = price + usd * (self.factors[factor].at(normals[factor]) if factor and factor in normals else 1.0)
        return step_s * price * (self.gpus / 3600.0) / self.tokens


@dataclass(frozen=True)
class Swing:
    """The effect of one factor alone: a quantity with the factor at its low end, and at its high end."""

    factor: str
    at_low: float
    at_high: float

    @property
    def width(self) -> float:
        return abs(self.at_high - self.at_low)


@dataclass(frozen=True)
class VerdictChange:
    """A change of the verdict: with this factor at ``value`` the offers tie.

    ``value`` is the factor of the first offer that has it; it is as far or farther with ``probability``.
    """

    factor: str
    value: float
    probability: float


@dataclass(frozen=True)
class Verdict:
    """Whether ``a`` beats ``b``."""

    a: str
    b: str
    measure: Measure
    #: Rate of ``a`` over rate of ``b``: as predicted, and its range.
    ratio: float
    low: float
    high: float
    #: Probability that ``a`` beats ``b``; a tie counts half.
    probability: float
    #: Standard error of ``probability``, by the number of draws.
    standard_error: float
    #: Price of a GPU hour of ``a`` over that of ``b`` at which a dollar buys equally many tokens, with its range: the
    #: ratio of their tokens/s/GPU.
    break_even_price_ratio: float
    break_even_low: float
    break_even_high: float
    #: The effect of each factor alone on ``ratio``, the strongest first.
    tornado: tuple[Swing, ...]
    #: Single factors that would change the verdict, the most likely first.
    changes: tuple[VerdictChange, ...]
    #: Half the interval of ``ratio`` by the requests drawn for both; 0 where none were drawn.
    drawn: float = 0.0

    @property
    def alike(self) -> bool:
        """Whether the two differ by no more than the drawn requests allow."""
        return abs(self.ratio - 1.0) <= self.drawn * self.ratio if self.drawn else False

    @property
    def tie(self) -> bool:
        """Whether neither is better: they are alike, or the lead is less likely than :data:`LEAST_LEAD`."""
        return self.alike or self.probability < LEAST_LEAD


def compare(
    a: PricedPlan, b: PricedPlan, measure: Measure = "tokens_per_s", *, draws: int = 20_000, seed: int = 0
) -> Verdict:
    """Monte Carlo over every factor of both offers; the same seed gives the same bits.

    Raises
    ------
    InputError
        Fewer than 100 draws, or an offer without a price or power where dollars or joules are compared.
    """
    if draws < 100:
        raise InputError(f"{draws} draws are too few; use 100 or more")
    normals = _drawn(a, b, draws, seed)
    ratios = np.broadcast_to(ratio(a, b, measure, normals), (draws,))
    probability = float(np.mean(ratios > 1.0) + 0.5 * np.mean(ratios == 1.0))
    per_gpu = b.gpus / a.gpus
    low, high = np.quantile(ratios, TAILS)
    break_low, break_high = np.quantile(per_gpu * ratio(a, b, "tokens_per_s", normals), TAILS)
    return Verdict(
        a.name,
        b.name,
        measure,
        float(ratio(a, b, measure)),
        float(low),
        float(high),
        probability,
        math.sqrt(probability * (1.0 - probability) / draws),
        float(per_gpu * ratio(a, b, "tokens_per_s")),
        float(break_low),
        float(break_high),
        tornado(a, b, measure),
        changes(a, b, measure),
        math.hypot(a.drawn, b.drawn),
    )


def _drawn(a: PricedPlan, b: PricedPlan, draws: int, seed: int) -> dict[str, Normal]:
    """Standard normal variables, (draws,) each, for every factor of both."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(draws) for name in factors_of(a, b)}


def ratio(a: PricedPlan, b: PricedPlan, measure: Measure, normals: Mapping[str, Normal] | None = None) -> Normal:
    """Rate of ``a`` over rate of ``b``."""
    given = normals or {}
    return b.per_token(measure, given) / a.per_token(measure, given)


def tornado(a: PricedPlan, b: PricedPlan | None = None, measure: Measure = "tokens_per_s") -> tuple[Swing, ...]:
    """The effect of each factor alone on the rate of ``a``, or on its ratio to ``b``'s; the strongest first."""

    def value(name: str, normal: float) -> float:
        return float(1.0 / a.per_token(measure, {name: normal}) if b is None else ratio(a, b, measure, {name: normal}))

    names = factors_of(a) if b is None else factors_of(a, b)
    swings = [Swing(name, value(name, Z_LOW), value(name, -Z_LOW)) for name in names]
    return tuple(sorted(swings, key=lambda swing: (-swing.width, swing.factor)))


def changes(a: PricedPlan, b: PricedPlan, measure: Measure = "tokens_per_s") -> tuple[VerdictChange, ...]:
    """For each factor that can change the verdict alone, its value there; the most likely first."""
    turns = []
    for name in factors_of(a, b):
        normal = _tie(a, b, measure, name)
        if normal is not None:
            factor = (a if name in a.factors else b).factors[name]
            turns.append(VerdictChange(name, float(factor.at(normal)), NormalDist().cdf(-abs(normal))))
    return tuple(sorted(turns, key=lambda change: (-change.probability, change.factor)))


def _tie(a: PricedPlan, b: PricedPlan, measure: Measure, name: str) -> float | None:
    """The normal variable nearest to 0 at which the offers tie, to 1e-9; None where there is none."""
    grid = np.linspace(-FARTHEST, FARTHEST, 1201)
    ahead = np.broadcast_to(ratio(a, b, measure, {name: grid}) > 1.0, grid.shape)
    crossings = np.flatnonzero(ahead[1:] != ahead[:-1])
    if not crossings.size:
        return None
    nearest = crossings[np.argmin(np.abs(grid[crossings] + grid[crossings + 1]))]
    left, right = float(grid[nearest]), float(grid[nearest + 1])
    while right - left > 1e-9:
        middle = (left + right) / 2
        if bool(ratio(a, b, measure, {name: middle}) > 1.0) == bool(ahead[nearest]):
            left = middle
        else:
            right = middle
    return (left + right) / 2


#: Standard deviations that the search for a tie covers.
FARTHEST = 6.0


def factors_of(*offers: PricedPlan) -> list[str]:
    """All names of factors, once each, sorted."""
    return sorted({name for offer in offers for name in offer.factors})


# --- from simulations ---------------------------------------------------------------------------------------


def offer_of(
    scenario: Scenario,
    plan: str,
    *,
    basis: str = "neocloud",
    name: str | None = None,
    lookups: simulation.Lookups | None = None,
) -> PricedPlan:
    """Simulate one plan of a scenario and split its step into parts.

    Kernel families have the ranges of the device's fits (:meth:`tspsim.hardware.Costs.errors`), transfers that of the
    network's anchors. The whole step has the common range of its generation's tables and that of the software: the
    stack's where it was measured, else the range between frameworks. The price is the scenario's, which is certain, or
    the device's on ``basis``, with a range over all bases of its file.

    Raises
    ------
    InputError
        The scenario or plan is wrong, or the device has no price on this basis.
    InfeasibleError
        The plan does not fit.
    """
    question = simulation.look_up(choose(scenario, [plan]), lookups or simulation.Lookups())
    costs = Costs(question.device)
    answer = simulation.run_plan(question, question.plans[0], costs=costs)
    if not answer.ran:
        raise InfeasibleError(f"{plan}: {answer.error}")
    errors, name = costs.errors() | {TRANSFERS: costs.transfers}, name or f"{plan} on {question.cluster.name}"
    return offer_from(question, answer, errors, basis=basis, name=name)


def offer_from(
    question: simulation.Question,
    answer: PlanResult,
    errors: Mapping[str, tuple[float, float]],
    *,
    name: str,
    basis: str = "neocloud",
) -> PricedPlan:
    """A plan that ran, with ``errors`` of its kernel families and transfers, as in its range."""
    device = question.device.name
    parts = {f"{device} {family}": seconds for family, seconds in answer.compute_by_kind_s.items()}
    factors = {f"{device} {family}": Factor(*errors[family]) for family in answer.compute_by_kind_s}
    transfers = f"{question.cluster.node.name} {TRANSFERS}"
    parts[transfers] = sum(answer.breakdown_s["exposed_communication"].values())
    factors[transfers] = Factor(*errors[TRANSFERS])
    spec, stack = question.device.spec, question.work.stack
    software = f"{spec.vendor} software" if stack.spread == (1.0, 1.0) else f"{stack.name} on {spec.vendor}"
    spread = BETWEEN_FRAMEWORKS if stack.spread == (1.0, 1.0) else stack.spread
    for common, width in ((f"{spec.family} tables", BETWEEN_TABLES), (software, spread)):
        parts[common], factors[common] = answer.step_time_s, Factor(*width)
    return _priced(PricedPlan(name, answer.tokens_per_step, answer.step_time_s, parts, factors), question, basis)


def priced_plan_of(answer: PlanResult) -> PricedPlan | None:
    """A plan from its answer, to compare with others of the same question; None where the answer has no factors."""
    if answer.range is None or not answer.range.factors:
        return None
    exposed = sum(answer.breakdown_s["exposed_communication"].values())
    parts = {**answer.compute_by_kind_s, TRANSFERS: exposed}
    factors = {name: Factor(*answer.range.factors[name]) for name in parts}
    return PricedPlan(answer.name, answer.tokens_per_step, answer.step_time_s, parts, factors)


def likely_ratio(a: PricedPlan, b: PricedPlan) -> tuple[float, float]:
    """The range of the rate of ``a`` over that of ``b``, by the draws of :func:`compare`."""
    normals = _drawn(a, b, 20_000, 0)
    low, high = np.quantile(np.broadcast_to(ratio(a, b, "tokens_per_s", normals), (20_000,)), TAILS)
    return float(low), float(high)


def offer_served(
    question: simulation.Question,
    *,
    name: str,
    tokens_per_s: float,
    spread: tuple[float, float],
    drawn: float,
    basis: str = "neocloud",
) -> PricedPlan:
    """A plan that served requests at a steady rate: all its steps are faster or slower together.

    Parameters
    ----------
    spread
        Low and high end of the rate over the rate, nine times of ten.
    drawn
        Half the interval of the rate over the rate, by the drawn requests.
    """
    steps = f"{question.device.name} steps"
    low, high = spread
    parts, factors = {steps: 1.0}, {steps: Factor(1.0 / high, 1.0 / low)}
    return replace(_priced(PricedPlan(name, tokens_per_s, 1.0, parts, factors), question, basis), drawn=drawn)


def _priced(offer: PricedPlan, question: simulation.Question, basis: str) -> PricedPlan:
    """The offer with its GPUs, its price and the range of the price."""
    usd, spread = _price(question, basis)
    price = f"{question.device.name} price" if spread else None
    factors = {**offer.factors, price: spread} if price and spread else offer.factors
    return replace(offer, factors=factors, gpus=question.cluster.gpus, usd_per_gpu_hour=usd, price=price)


def _price(question: simulation.Question, basis: str) -> tuple[float, Factor | None]:
    """USD per GPU hour, and its factor."""
    stated = question.scenario.prices.gpu_hour
    if stated is not None:
        return stated, None
    prices = question.device.prices_usd_per_hour
    if not prices:
        return 0.0, None
    if basis not in prices:
        raise UnknownNameError("price basis", basis, prices)
    middle = prices[basis]
    low, high = min(prices.values()) / middle, max(prices.values()) / middle
    return middle, Factor(low, high)


def rerun(scenario: Scenario, plan: str, values: Mapping[str, float]) -> float:
    """Seconds per step, simulated again with slower or faster kernel families and transfers.

    Parameters
    ----------
    values
        Factor of a family's time (``gemm``, ``attention``, ``memory_bound``) or of all ``transfers``.

    Notes
    -----
    Transfers that take f times as long beside the same kernels equal kernels that take 1/f as long beside the same
    transfers, on a clock that runs f times as slow.
    """
    question = simulation.look_up(choose(scenario, [plan]))
    unknown: Sequence[str] = [name for name in values if name not in (*FAMILIES, TRANSFERS)]
    if unknown:
        raise UnknownNameError("factor", unknown[0], (*FAMILIES, TRANSFERS))
    transfers = values.get(TRANSFERS, 1.0)
    scales = {family: values.get(family, 1.0) / transfers for family in FAMILIES}
    answer = simulation.run_plan(question, question.plans[0], costs=Costs(question.device, scales))
    if not answer.ran:
        raise InfeasibleError(f"{plan}: {answer.error}")
    return answer.step_time_s * transfers


#: Kinds of operators (see :mod:`tspsim.operators`) whose time can be scaled.
FAMILIES = ("gemm", "attention", "memory_bound")
