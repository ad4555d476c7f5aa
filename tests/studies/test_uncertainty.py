"""Doubt: cases solved by hand, and first order against simulating again."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tspsim
from tspsim.base.errors import InputError, UnknownNameError
from tspsim.studies.purchase.verdict import against
from tspsim.studies.uncertainty import (
    BETWEEN_FRAMEWORKS,
    BETWEEN_TABLES,
    FAMILIES,
    TRANSFERS,
    Factor,
    PricedPlan,
    changes,
    compare,
    offer_of,
    rerun,
    tornado,
)

#: exp(±1.645 σ) holds nine times of ten; here σ = 0.1 and 0.2.
Z = NormalDist().inv_cdf(0.95)


def lognormal(sigma: float) -> Factor:
    return Factor(math.exp(-Z * sigma), math.exp(Z * sigma))


def whole(name: str, step_s: float, sigma: float, **more: object) -> PricedPlan:
    """An offer whose whole step is one kernel family with a lognormal error."""
    return PricedPlan(name, 1000.0, step_s, {f"{name} kernel": step_s}, {f"{name} kernel": lognormal(sigma)}, **more)  # type: ignore[arg-type]


def test_the_probability_of_two_lognormal_steps_is_the_normal_distribution_of_their_distance() -> None:
    a, b = whole("a", 1.0, 0.1), whole("b", 1.15, 0.2)
    verdict = compare(a, b, draws=40_000, seed=3)
    expected = NormalDist().cdf(math.log(1.15) / math.hypot(0.1, 0.2))
    assert verdict.probability == pytest.approx(expected, abs=4 * verdict.standard_error)
    assert verdict.ratio == pytest.approx(1.15)
    assert math.log(verdict.high) == pytest.approx(math.log(1.15) + Z * math.hypot(0.1, 0.2), abs=0.01)
    assert math.log(verdict.low) == pytest.approx(math.log(1.15) - Z * math.hypot(0.1, 0.2), abs=0.01)


def test_a_lead_as_likely_as_not_is_a_tie() -> None:
    for slower, tie in ((1.01, True), (1.3, False)):
        verdict = compare(whole("a", 1.0, 0.2), whole("b", slower, 0.2))
        assert verdict.tie == tie and not verdict.alike, verdict.probability
        assert ("a tie, " in against(verdict, "the tokens a dollar")) == tie


def test_an_error_that_both_share_changes_no_verdict() -> None:
    shared = {"kernel": lognormal(0.5)}
    a, b = (PricedPlan(name, 1000.0, step_s, {"kernel": step_s}, shared) for name, step_s in (("a", 1.0), ("b", 1.01)))
    verdict = compare(a, b)
    assert (verdict.probability, verdict.low, verdict.high) == (1.0, pytest.approx(1.01), pytest.approx(1.01))
    assert verdict.changes == ()


def test_break_even_is_the_ratio_of_tokens_a_second_and_gpu() -> None:
    a = whole("a", 1.0, 0.1, gpus=8, usd_per_gpu_hour=2.0)
    b = whole("b", 2.0, 0.1, gpus=16, usd_per_gpu_hour=1.0)
    verdict = compare(a, b, "tokens_per_dollar")
    assert verdict.break_even_price_ratio == pytest.approx(4.0)  # a: 1000 tokens/s on 8; b: 500 on 16
    assert verdict.ratio == pytest.approx(2.0)  # a: 16 $/h for 1000 tokens/s; b: 16 $/h for 500
    at_break_even = compare(whole("a", 1.0, 0.1, gpus=8, usd_per_gpu_hour=4.0), b, "tokens_per_dollar")
    assert at_break_even.ratio == pytest.approx(1.0)
    assert at_break_even.probability == pytest.approx(0.5, abs=4 * at_break_even.standard_error)


def test_the_price_counts_for_dollars_only() -> None:
    doubt = {"price": lognormal(0.3)}
    a = PricedPlan("a", 1.0, 1.0, {}, doubt, usd_per_gpu_hour=1.0, price="price")
    b = PricedPlan("b", 1.0, 1.3, {}, {}, usd_per_gpu_hour=1.0)
    assert compare(a, b).probability == 1.0
    dollars = compare(a, b, "tokens_per_dollar")
    assert dollars.probability == pytest.approx(NormalDist().cdf(math.log(1.3) / 0.3), abs=4 * dollars.standard_error)
    (change,) = dollars.changes
    assert change.value == pytest.approx(1.3)
    assert change.probability == pytest.approx(NormalDist().cdf(-math.log(1.3) / 0.3))


def test_what_would_change_the_verdict_by_hand() -> None:
    """a takes 1.0 s, of which 0.4 s are gemm; b 1.1 s: gemm 1.25 times as slow makes them tie."""
    a = PricedPlan("a", 1.0, 1.0, {"gemm": 0.4, "links": 0.01}, {"gemm": lognormal(0.2), "links": lognormal(0.2)})
    b = PricedPlan("b", 1.0, 1.1, {})
    (change,) = changes(a, b)
    assert change.factor == "gemm"
    assert change.value == pytest.approx(1.25)
    assert change.probability == pytest.approx(NormalDist().cdf(-math.log(1.25) / 0.2))


def test_the_sides_of_a_range_have_their_own_width() -> None:
    factor = Factor(0.5, 1.0)
    assert float(factor.at(2.0)) == 1.0
    assert float(factor.at(-Z)) == pytest.approx(0.5)
    for low, high in ((1.1, 1.2), (0.0, 1.0), (0.9, math.inf)):
        with pytest.raises(InputError):
            Factor(low, high)


def test_the_same_seed_gives_the_same_bits() -> None:
    a, b = whole("a", 1.0, 0.1), whole("b", 1.05, 0.2)
    assert compare(a, b, seed=7) == compare(a, b, seed=7)
    assert compare(a, b, seed=7) != compare(a, b, seed=8)
    with pytest.raises(InputError, match="draws"):
        compare(a, b, draws=10)


@given(st.floats(0.5, 2.0), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_swapping_the_offers_inverts_the_verdict(slower: float, sigma_a: float, sigma_b: float) -> None:
    a, b = whole("a", 1.0, sigma_a), whole("b", slower, sigma_b)
    one, other = compare(a, b, draws=200), compare(b, a, draws=200)
    assert one.ratio * other.ratio == pytest.approx(1.0)
    assert one.probability + other.probability == pytest.approx(1.0)
    assert one.low * other.high == pytest.approx(1.0, rel=0.05)


def test_dollars_need_a_price() -> None:
    with pytest.raises(InputError, match="has no price"):
        compare(whole("a", 1.0, 0.1), whole("b", 1.0, 0.1), "tokens_per_dollar")


QUESTION = {
    "name": "doubt",
    "cluster": "mi300x-8",
    "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "32Ki"},
    "plans": [{"name": "TP8", "tp": 8}, {"name": "SP8", "sp": 8}],
}


@pytest.mark.parametrize("plan", ["TP8", "SP8"])
def test_the_tornado_has_the_order_of_direct_reruns(plan: str) -> None:
    scenario = tspsim.load(QUESTION)
    offer = offer_of(scenario, plan)
    swings = [swing for swing in tornado(offer) if swing.factor.endswith((*FAMILIES, TRANSFERS))]
    widths = {}
    for swing in swings:
        factor = offer.factors[swing.factor]
        end = swing.factor.rpartition(" ")[2]
        low, high = (offer.tokens / rerun(scenario, plan, {end: value}) for value in (factor.low, factor.high))
        widths[swing.factor] = abs(low - high)
        # TP's ranks do the same at the same time: first order is all there is. SP's wait for the slowest among them,
        # which first order counts as communication.
        near = 1e-3 if plan == "TP8" else 0.1
        assert (swing.at_low, swing.at_high) == (pytest.approx(low, rel=near), pytest.approx(high, rel=near))
    assert [swing.factor for swing in swings] == sorted(widths, key=lambda name: -widths[name])


def test_everything_twice_as_slow_takes_twice_as_long() -> None:
    scenario = tspsim.load(QUESTION)
    once = rerun(scenario, "TP8", {})
    assert rerun(scenario, "TP8", dict.fromkeys((*FAMILIES, TRANSFERS), 2.0)) == pytest.approx(2 * once, rel=1e-12)
    assert rerun(scenario, "TP8", {TRANSFERS: 2.0}) > once
    with pytest.raises(UnknownNameError, match="attention"):
        rerun(scenario, "TP8", {"attentoin": 2.0})


def test_an_offer_takes_prices_from_the_scenario_or_the_device() -> None:
    scenario = tspsim.load(QUESTION)
    offer = offer_of(scenario, "TP8", basis="rental")
    assert offer.price is not None
    assert offer.factors[offer.price].low == 1.0 or offer.factors[offer.price].high == 1.0
    stated = offer_of(tspsim.load(QUESTION, ["prices.gpu_hour=3 USD/h"]), "TP8")
    assert (stated.usd_per_gpu_hour, stated.price) == (3.0, None)
    own = [part_s for name, part_s in offer.parts_s.items() if name.endswith((*FAMILIES, TRANSFERS))]
    assert sum(own) <= offer.step_s * (1 + 1e-9)


def test_two_generations_differ_by_what_their_tables_and_their_software_may() -> None:
    questions = [tspsim.load(QUESTION, [f"cluster={cluster}"]) for cluster in ("mi300x-8", "hgx-h100-8")]
    one, other = (offer_of(question, "TP8") for question in questions)
    common = {"cdna3 tables": BETWEEN_TABLES, "amd software": BETWEEN_FRAMEWORKS}
    assert {name for name, part_s in one.parts_s.items() if part_s == one.step_s} == set(common)
    assert {name: (one.factors[name].low, one.factors[name].high) for name in common} == common
    assert not common.keys() & other.factors.keys()
    verdict = compare(one, other)
    narrow = [replace(each, factors={k: v for k, v in each.factors.items() if not k.endswith(("tables", "software"))},
                      parts_s={k: v for k, v in each.parts_s.items() if not k.endswith(("tables", "software"))})
              for each in (one, other)]  # fmt: skip
    assert verdict.high / verdict.low > 1.3 * compare(*narrow).high / compare(*narrow).low
    assert abs(verdict.probability - 0.5) < abs(compare(*narrow).probability - 0.5)


def test_a_basis_that_no_device_has_is_refused() -> None:
    scenario = tspsim.load(QUESTION)
    with pytest.raises(UnknownNameError, match="rental"):
        offer_of(scenario, "TP8", basis="rentals")
