"""Ranges of a run's days and dollars, and the probability that it keeps its deadline and budget.

A range holds nine times of ten. A run's expected time is proportional to the time of its work (:mod:`.checkpoints`),
and so to the seconds per token that :meth:`tspsim.studies.uncertainty.PricedPlan.per_token` draws. Its dollars are that
time at a drawn price, plus separately stated electricity, which scales with the time alone. Failures, power and terms
of owning are stated, and certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...scenario.project import Project
from .. import uncertainty
from .costs import Rates
from .outcome import PurchaseOutcome

DRAWS = 20_000


@dataclass(frozen=True)
class Likely:
    """Nine times of ten a run takes ``days[0]`` to ``days[1]`` days and ``usd[0]`` to ``usd[1]`` dollars, on the basis
    that ranks (None without a price). The probabilities are None without a deadline or budget."""

    days: tuple[float, float]
    usd: tuple[float, float] | None
    in_time: float | None = None
    in_budget: float | None = None


def likely_of(done: PurchaseOutcome, rates: Rates, offer: uncertainty.PricedPlan, project: Project) -> Likely:
    """The ranges of ``done``, a run of ``offer``'s plan on any number of its machines.

    Parameters
    ----------
    done
        The run as predicted.
    rates, offer
        Prices, and the uncertain factors: kernels, transfers, the price.
    project
        States ``deadline`` and ``budget``, or neither.
    """
    slower = _factor(offer, "tokens_per_s")
    days = done.days * slower
    usd = None
    if rates.basis is not None and offer.usd_per_gpu_hour > 0.0:
        rent = done.gpu_hours * rates.usd_per_gpu_hour[rates.basis]
        apart = done.usd[rates.basis] - rent
        usd = rent * _factor(offer, "tokens_per_dollar") + apart * slower
    return Likely(
        _ends(days),
        _ends(usd) if usd is not None else None,
        None if project.deadline is None else float(np.mean(days * 86_400.0 <= project.deadline)),
        None if project.budget is None or usd is None else float(np.mean(usd <= project.budget)),
    )


def slack_of(offer: uncertainty.PricedPlan | None, project: Project) -> float:
    """The speed-up over the required rate that a prediction needs, to be fast enough with the project's ``confidence``;
    1 where none is stated or no factor is uncertain."""
    if offer is None or project.confidence is None:
        return 1.0
    return float(np.quantile(_factor(offer, "tokens_per_s"), project.confidence, method="higher"))


def _factor(offer: uncertainty.PricedPlan, measure: uncertainty.Measure) -> uncertainty.Normal:
    """Drawn seconds or dollars per token over the predicted ones; the same draws in every call."""
    random = np.random.default_rng(0)
    normals = {name: random.standard_normal(DRAWS) for name in uncertainty.factors_of(offer)}
    drawn = offer.per_token(measure, normals) / offer.per_token(measure, {})
    return np.broadcast_to(drawn, (DRAWS,))


def _ends(values: uncertainty.Normal) -> tuple[float, float]:
    low, high = np.quantile(values, uncertainty.TAILS)
    return float(low), float(high)
