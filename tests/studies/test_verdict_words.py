"""What a verdict says of its prices, its stack, its searches and what may turn it: the same on every surface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tspsim.report.memo import purchase as memo
from tspsim.scenario import load
from tspsim.step.simulation import simulate
from tspsim.studies.purchase import Decision, decide, decision, expand
from tspsim.studies.purchase.verdict import ceiling, likely_changes, mixed_bases, turns
from tspsim.studies.searched import Searched
from tspsim.studies.uncertainty import VerdictChange


def asked(**changes: Any) -> dict[str, Any]:
    """A training step on two offers, one of them at a stated price."""
    return {
        "name": "words",
        "description": "Two nodes",
        "workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": "4Ki", "global_batch": 16},
        "plans": [{"name": "TP8", "tp": 8}],
        "offers": [
            {"name": "A", "cluster": {"device": "mi300x"}, "prices": {"gpu_hour": "1.5 USD/h"}},
            {"name": "B", "cluster": {"device": "h200"}},
        ],
        "project": {"tokens": "1T"},
    } | changes


def decided(**changes: Any) -> Decision:
    questions = expand(load(asked(**changes)))
    return decide(questions, [simulate(question) for question in questions], curves=False, jobs=1)


@pytest.fixture(scope="module")
def two() -> Decision:
    return decided()


def test_prices_of_several_kinds_are_told_with_every_offer_s_own(two: Decision) -> None:
    assert mixed_bases(two.rows) == "Prices are of different kinds: A stated; B neocloud."
    assert mixed_bases(two.rows[:1]) == ""
    told = memo.prices(two, two.winner)
    assert "A $1.50 (stated in the scenario)" in told and "B $1.7" in told and "neocloud: what a GPU hour costs" in told
    sheet = memo.memo_of(two, [row.result for row in two.rows], "t", "Two nodes")
    assert sheet.question == "Two nodes. Required: 1 T tokens."
    assert mixed_bases(two.rows) in dict(sheet.lists)["To know before signing"]


def test_a_purchase_under_the_stack_that_nobody_runs_says_that_it_is_a_ceiling(two: Decision) -> None:
    assert "is a ceiling for every offer" in ceiling(two.rows)
    stated = [
        replace(row, result=replace(row.result, scenario={"workload": {"pass": "training", "stack": "fsdp2"}}))
        for row in two.rows
    ]
    assert ceiling(stated) == "" == ceiling([])


def test_the_price_at_which_a_verdict_turns_has_the_gap_of_the_search_in_it(two: Decision) -> None:
    winner = two.winner
    assert winner is not None and winner.uncertainty is not None
    rival = next(row for row in two.rows if row is not winner)
    sure = decision._with_doubt(winner.uncertainty, rival, two.measure)
    left = replace(rival, searched=Searched("TP8", gap=0.5, complete=False))
    doubted = decision._with_doubt(winner.uncertainty, left, two.measure)
    assert doubted.break_even_low == pytest.approx(sure.break_even_low / 1.5)
    assert doubted.low == pytest.approx(sure.low / 1.5) and doubted.probability < sure.probability


def test_what_hardly_ever_happens_turns_nothing(two: Decision) -> None:
    (verdict,) = two.verdicts
    changes = (VerdictChange("a price", 1.2, 0.2), VerdictChange("a kernel", 10.9, 0.000025))
    told = replace(verdict, changes=changes)
    assert likely_changes(told) == [changes[0]]
    said = list(memo.turns(replace(two, verdicts=(replace(told, changes=changes[1:]),))))
    assert len(said) == 1 and "10.9" not in " ".join(said)


def test_an_offer_that_cannot_win_does_not_take_the_dollars_out_of_the_verdict(two: Decision) -> None:
    """One without a price that keeps no bounds leaves the others' dollars; one that can win is told to lack it."""
    bare = replace(two.rows[1].rates, basis=None, usd_per_gpu_hour={})
    rows = (two.rows[0], replace(two.rows[1], rates=bare))
    assert decision._measure(two.project, rows) == "tokens_per_s"
    assert decision._measure(two.project, (rows[0], replace(rows[1], misses="0 % keep them"))) == "tokens_per_dollar"
    ranked = replace(two, rows=rows, measure="tokens_per_s")
    assert ranked.unpriced.startswith("B: no price is known (`prices.gpu_hour`)")
    assert ranked.in_words()[0] == ranked.unpriced and two.unpriced == ""
    (verdict,) = two.verdicts
    by_rate = replace(verdict, measure="tokens_per_s")
    assert turns(by_rate, two.rows[0], two.rows[1]).startswith("In dollars the two are level when")
    assert turns(verdict, two.rows[0], two.rows[1]).startswith("It turns when")
