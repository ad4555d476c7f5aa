"""Buying beside renting: what an hour costs whoever owns the machine, as a basis of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.report.comparison_page import page
from tspsim.scenario import load
from tspsim.scenario.project import Owning
from tspsim.studies.purchase.owning import HOURS_A_MONTH, HOURS_A_YEAR, owned

TERMS = {"years": 4, "utilisation": 0.8, "electricity": "0.08 USD/kWh", "hosting": "150 USD"}


def purchase(price: str = "owned", **changes: Any) -> dict[str, Any]:
    return {
        "name": "buy or rent",
        "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki"},
        "plans": [{"name": "TP8", "tp": 8}],
        "offers": [
            {"name": "A", "cluster": {"device": "mi300x", "nodes": 1}, "prices": {"capex": "25000 USD"}},
            {"name": "B", "cluster": {"device": "h200", "nodes": 1}, "prices": {"capex": "38000 USD"}},
        ],
        "project": {"tokens": "1T", "price": price, "own": TERMS},
    } | changes


@pytest.fixture(scope="module")
def bought() -> tspsim.api.Comparison:
    return tspsim.compare(purchase())


def test_an_hour_bears_purchase_and_place_of_idle_hours_too_and_its_own_power() -> None:
    terms = Owning.model_validate(TERMS | {"years": 5, "resale": 0.2, "utilisation": 0.5, "hosting": "200 USD"})
    hour = owned(terms, 30_000.0, 1_500.0)
    assert hour.purchase == pytest.approx(30_000 * 0.8 / (5 * HOURS_A_YEAR * 0.5))
    assert hour.hosting == pytest.approx(1.5 * 200 / HOURS_A_MONTH / 0.5)
    assert hour.electricity == pytest.approx(0.12)
    # All it costs over its life is what its hours of work cost together.
    work_h = 5 * HOURS_A_YEAR * 0.5
    life = 30_000 * 0.8 + 1.5 * 200 * 12 * 5 + work_h * 1.5 * 0.08
    assert hour.usd_per_gpu_hour * work_h == pytest.approx(life)


def test_it_stands_beside_renting_and_may_rank(bought: tspsim.api.Comparison) -> None:
    assert bought.verdict is not None
    for row, capex in zip(bought.verdict.rows, (25_000.0, 38_000.0), strict=True):
        assert row.rates.basis == "owned" and row.rates.watts_per_gpu is not None
        hour = owned(Owning.model_validate(TERMS), capex, row.rates.watts_per_gpu)
        assert row.rates.usd == pytest.approx(hour.usd_per_gpu_hour)
        assert set(row.rates.usd_per_gpu_hour) == {"hyperscaler", "neocloud", "rental", "owned"}
        assert row.outcome is not None
        assert row.outcome.usd["owned"] == pytest.approx(row.outcome.gpu_hours * hour.usd_per_gpu_hour)
    assert "(basis owned)" in bought.verdict.in_words()[0]
    (verdict,) = bought.verdict.verdicts
    assert not any("price" in swing.factor for swing in verdict.tornado)  # stated terms have no doubt of their own


def test_it_ranks_only_where_it_is_asked_to() -> None:
    rented = tspsim.compare(purchase("rental")).verdict
    assert rented is not None
    assert {row.rates.basis for row in rented.rows} == {"rental"}
    assert all("owned" in row.rates.usd_per_gpu_hour for row in rented.rows)


def test_power_that_is_added_to_rent_is_not_added_twice() -> None:
    offers = purchase()["offers"]
    offers[0]["prices"] |= {"electricity": "1 USD/kWh"}
    decision = tspsim.compare(purchase(offers=offers)).verdict
    assert decision is not None
    outcome, rates = decision.rows[0].outcome, decision.rows[0].rates
    assert outcome is not None and outcome.kwh is not None
    assert outcome.usd["owned"] == pytest.approx(outcome.gpu_hours * rates.usd_per_gpu_hour["owned"])
    assert outcome.usd["rental"] == pytest.approx(outcome.gpu_hours * rates.usd_per_gpu_hour["rental"] + outcome.kwh)


def test_the_page_says_what_the_bases_are_and_what_an_hour_is_made_of(bought: tspsim.api.Comparison) -> None:
    text = page(bought.results, bought.verdict)
    assert "owned, bought: the purchase over its years, hosting and power, without staff and interest" in text
    assert "purchase + " in text and "hosting + " in text
    assert "price ratio today" in text


def test_a_scenario_that_buys_nothing_says_nothing_of_it() -> None:
    plain = load(purchase(project={"tokens": "1T"}, offers=[{"name": "A", "cluster": "mi300x-8"}])).to_dict()
    assert "own" not in plain["project"] and "capex" not in plain["prices"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"project": {"price": "owned"}}, "price: owned needs own"),
        ({"project": {"price": "owned", "own": {"years": 4}}}, "electricity"),
        ({"project": {"own": TERMS | {"utilisation": 1.2}}}, "utilisation"),
        ({"project": {"own": TERMS | {"hosting": "150 USD/h"}}}, "hosting"),
    ],
)
def test_wrong_terms_are_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        load(purchase(**changes))


def test_an_offer_without_its_purchase_price_is_named() -> None:
    offers = purchase()["offers"]
    del offers[1]["prices"]
    with pytest.raises(InputError, match=r"owned: 'B' does not state prices\.capex"):
        _ = tspsim.compare(purchase(offers=offers)).verdict


def test_the_terminal_s_dollars_have_the_basis_that_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(json.dumps(purchase()))
    assert main(["compare", "own.yaml", "--json", "own.json"]) == 0
    told = capsys.readouterr().out
    offers = json.loads(Path("own.json").read_text())["purchase"]["offers"]
    for offer in offers:
        rates = offer["rates"]
        assert rates["basis"] == "owned"
        usd = [1e6 * hour / 3600.0 / offer["tokens_per_s_per_gpu"] for hour in rates["usd_per_gpu_hour"].values()]
        assert f"{min(usd):.3g} – {max(usd):.3g}\n" in told
    assert offers[1]["rates"]["usd_per_gpu_hour"]["owned"] == max(offers[1]["rates"]["usd_per_gpu_hour"].values())
