"""The decision memo says what a buyer signs: days, dollars, ranges, what would change it, ties and open searches."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import tspsim
from tspsim.cli import main
from tspsim.report import printing
from tspsim.report.comparison_terms import money_table
from tspsim.report.memo import purchase, results
from tspsim.report.memo.sheet import LENGTH, ROWS, Memo, sheet
from tspsim.studies.purchase import Decision
from tspsim.studies.purchase.likely import likely_of
from tspsim.studies.searched import Searched
from tspsim.studies.uncertainty import Factor

PLAN = {"name": "TSP8", "tsp": 8, "tsp_schedule": "published"}


def asked(**project: Any) -> dict[str, Any]:
    """One plan on two offers; at these prices neither is surely the better buy."""
    return {
        "name": "buy <it>",
        "description": "One node of what?",
        "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki"},
        "plans": [PLAN],
        "offers": [
            {"name": "A", "cluster": {"device": "mi300x"}},
            {"name": "B", "cluster": {"device": "h200"}, "prices": {"gpu_hour": "2 USD/h"}},
        ],
        "project": {"tokens": "1T", "deadline": "30 days", "budget": "10 kUSD", **project},
    }


@pytest.fixture(scope="module")
def compared() -> tspsim.api.Comparison:
    return tspsim.compare(asked(), jobs=1)


@pytest.fixture(scope="module")
def decision(compared: Any) -> Decision:
    found: Decision = compared.verdict
    return found


def memo(decision: Decision, compared: Any) -> Memo:
    return purchase.memo_of(decision, compared.results, "buy <it>", "One node of what?")


def test_days_and_dollars_have_the_ends_of_what_errs(decision: Decision) -> None:
    """With no doubt at all both ends are the prediction; a price alone moves dollars and no days."""
    row = decision.rows[0]
    done, offer, terms = row.outcome, row.uncertainty, decision.project
    assert row.likely and done and offer and terms and row.likely.usd
    assert row.likely.days[0] < done.days < row.likely.days[1]
    assert row.likely.usd[0] < done.usd["neocloud"] < row.likely.usd[1]
    sure = likely_of(done, row.rates, replace(offer, factors={}, parts_s={}, price=None), terms)
    assert sure.days == pytest.approx((done.days,) * 2) and sure.usd == pytest.approx((done.usd["neocloud"],) * 2)
    assert sure.in_time == float(done.days <= 30) and sure.in_budget == float(done.usd["neocloud"] <= 10_000)
    priced = replace(offer, factors={"price": Factor(0.5, 2.0)}, parts_s={}, price="price")
    moved = likely_of(done, row.rates, priced, terms)
    assert moved.days == sure.days and moved.usd is not None
    assert moved.usd == pytest.approx((0.5 * done.usd["neocloud"], 2.0 * done.usd["neocloud"]), rel=0.03)


def test_the_memo_says_what_is_signed(decision: Decision, compared: Any) -> None:
    text = unescape(re.sub(r"<[^>]*>", " ", sheet(memo(decision, compared)).partition("<main>")[2]))
    winner = decision.winner
    assert winner is not None and winner.outcome is not None
    told = [
        "1 T tokens, within 30 days, for at most $10 k", "buy <it>", "bf16", "ideal", "is level when a GPU hour of",
        "folded on 8 GPUs", "SemiAnalysis" if winner.rates.basis == "neocloud" else "stated in the scenario",
        "Decided by", "Approved by", "419 unexpected interruptions", f"{winner.outcome.days:.3g}",
    ]  # fmt: skip
    assert [words for words in told if words not in text] == []


def test_the_memo_ties_where_the_verdict_does_and_says_how_likely_a_lead_is(decision: Decision, compared: Any) -> None:
    (verdict,) = decision.verdicts
    for low, drawn, standing in ((0.9, 0.0, "likely"), (1.1, 0.0, "sure"), (0.9, 0.6, "tie")):
        told = replace(verdict, low=low, ratio=1.5, high=2.0, drawn=drawn)
        assert told.tie == (standing == "tie")
        found = memo(replace(decision, verdicts=(told,)), compared)
        assert found.standing == standing and ("tie" in found.verdict) == (standing == "tie")
        assert ("with a probability of" in found.verdict) == (standing == "likely")


def test_a_decision_in_doubt_names_no_winner(decision: Decision, compared: Any) -> None:
    doubt = "Not searched enough: A leads B by 3.0 %, and B may have a plan that is 20.0 % better."
    found = memo(replace(decision, winner=None, verdicts=(), doubt=doubt), compared)
    assert (found.standing, found.verdict) == ("open", doubt)
    rows = tuple(replace(row, searched=Searched("TSP8", gap=0.2, complete=False)) for row in decision.rows)
    found = memo(replace(decision, rows=rows, winner=None, verdicts=(), doubt=doubt), compared)
    assert any("another may be" in sentence for _, sentences in found.lists for sentence in sentences)


def test_a_budget_needs_work_and_wrong_money_is_one_line() -> None:
    for project, told in (({"tokens": None}, "needs the work"), ({"budget": "500"}, "'500 kUSD'")):
        with pytest.raises(tspsim.errors.InputError, match=told):
            tspsim.load(asked(**project, **({"deadline": None} if "tokens" in project else {})))


def test_the_terminal_has_days_and_totals(decision: Decision) -> None:
    table = money_table(decision)
    assert table is not None
    assert [str(column.header) for column in table.columns][3:] == [
        "days", "likely", "$", "likely", "in time", "in budget", "MWh",
    ]  # fmt: skip
    sizes = [row.need is not None and row.need.nodes != 1 for row in decision.rows]
    assert table.row_count == 2 + sum(sizes)
    assert money_table(replace(decision, project=None)) is None


def test_a_memo_of_plans_ties_what_cannot_be_told_apart() -> None:
    plans = [{"name": "TP8", "tp": 8}, {"name": "same", "tp": 8}, PLAN]
    result = tspsim.simulate({**asked(), "offers": [], "project": None, "cluster": "mi300x-8", "plans": plans})
    found = results.memo_of([result])
    assert found.standing == "tie" and {"TP8", "same"} <= set(re.split(r"[ ,]", found.verdict))
    assert results.memo_of([replace(result, plans=result.plans[1:])]).standing == "sure"


def test_what_the_sheet_has_no_room_for_is_counted() -> None:
    rows = [(f"P{number}", "1") for number in range(ROWS + 3)]
    long = Memo("t", "k", "q " * 500, "v", "sure", [], [], "w", ("Plan", "Rate"), rows, [("h", ["s " * 500])], [])
    fitted = long.fitted()
    assert len(fitted.rows) == ROWS and "3 more" in fitted.note
    assert len(fitted.question) <= 2 * LENGTH and fitted.lists[0][1][0].endswith("…")


def test_a_sheet_of_few_offers_cuts_no_sentence() -> None:
    rows = [(f"P{number}", "1") for number in range(3)]
    terms = [(name, "word " * 30) for name in ("Plan", "Prices", "Failures")]
    short = Memo("t", "k", "q", "v", "sure", [], [], "w", ("Plan", "Rate"), rows, [("h", ["s " * 60] * 6)], terms)
    fitted = short.fitted()
    assert not any("…" in told for _, told in fitted.terms) and len(fitted.lists[0][1]) == 6
    crowded = replace(short, rows=rows * 3, terms=terms * 2).fitted()
    assert all(told.endswith("…") for _, told in crowded.terms)


@pytest.mark.parametrize("command", ["run", "plan", "compare"])
def test_without_a_browser_the_memo_is_refused_before_the_work(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    assert main([command, "tsp-8x-h100", "--pdf", "memo.pdf"]) == 2
    told = capsys.readouterr().err
    assert "print CSS" in told and told.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_a_browser_that_fails_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHROMIUM", "false")
    with pytest.raises(tspsim.errors.InputError, match="did not print: exit code 1"):
        printing.write_pdf("<p>memo</p>", tmp_path / "memo.pdf")
    assert list(tmp_path.iterdir()) == []
