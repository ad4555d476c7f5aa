"""``plans: best``: every offer gets its best plan, stated ones beside it, and answers say what was searched."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
import yaml

import tspsim
from tspsim.base.errors import InfeasibleError, InputError
from tspsim.cli import main
from tspsim.scenario import Scenario, load
from tspsim.step.question import look_up
from tspsim.studies.best_plans import with_best
from tspsim.studies.planner import Planner


def written(plans: Any = "best", **changes: Any) -> dict[str, Any]:
    """A forward pass that is searched in a second."""
    return {
        "name": "small",
        "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki", "global_batch": 16},
        "plans": plans,
        "offers": [
            {"name": "A", "cluster": {"device": "mi300x", "nodes": 1}},
            {"name": "B", "cluster": {"device": "h200", "nodes": 1}, "plans": ["best"]},
        ],
        **changes,
    }


def asked(plans: Any = "best", **changes: Any) -> Scenario:
    return load(written(plans, **changes))


@pytest.fixture(scope="module")
def compared() -> tspsim.api.Comparison:
    few = {"name": "best", "search": {"limits": ["schemes=dp,tp"]}}
    with pytest.MonkeyPatch.context() as alone:
        alone.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)  # in this process, which starts sooner
        return tspsim.compare(asked([few, {"name": "TP8", "tp": 8}]))


def test_a_plan_that_is_searched_for_reads_back_as_it_was_written() -> None:
    for plans in ("best", ["best"], [{"name": "best", "search": True}], [{"name": "best", "search": {}}]):
        (told,) = asked(plans).to_dict()["plans"]
        assert told == {"name": "best", "search": {"limits": []}}
        assert asked([told]).plans == asked().plans


def test_every_offer_gets_the_plan_that_the_planner_finds(compared: tspsim.api.Comparison) -> None:
    a, b = compared.results
    assert [len(a.plans), len(b.plans)] == [2, 1]  # stated beside it; alone where the offer says so
    found = Planner(compared.questions[0], stated=False, jobs=1, budget_s=60.0, limits=["schemes=dp,tp"]).only_best()
    assert a.plans[0].name == found.best[0].candidate.name
    assert a.plans[0].tokens_per_s == pytest.approx(found.best[0].result.tokens_per_s)
    assert a.best is a.plans[0], "no stated plan is better than the best"


def test_answers_say_what_was_searched(compared: tspsim.api.Comparison) -> None:
    decision = compared.verdict
    assert decision is not None
    for row in decision.rows:
        assert row.searched is not None and row.best is not None
        assert row.searched.plan == row.best.name
        assert row.searched.bounded >= row.searched.simulated > 0
        assert row.searched.complete and "is the best of" in row.searched.in_words(row.name)
    entry = decision.to_json()["offers"][0]["searched"]
    assert set(entry) == {"plan", "error", "simulated", "bounded", "gap", "complete", "keys", "limits"}


def test_answers_say_within_which_limits_a_plan_is_the_best(compared: tspsim.api.Comparison) -> None:
    decision = compared.verdict
    assert decision is not None
    for row in decision.rows:
        assert row.searched is not None and row.searched.limits
        assert f"searched within {', '.join(row.searched.limits)};" in row.searched.in_words(row.name)


def test_the_verdict_has_its_range_its_probability_and_both_price_ratios(
    compared: tspsim.api.Comparison,
) -> None:
    assert compared.verdict is not None
    lead, against = compared.verdict.in_words()
    assert "gives most tokens a dollar (basis neocloud)" in lead
    assert "nine times of ten" in against and "more with a probability of" in against
    (verdict,) = compared.verdict.verdicts
    winner, rival = (next(row for row in compared.verdict.rows if row.name == name) for name in (verdict.a, verdict.b))
    today = (winner.rates.usd or 0.0) / (rival.rates.usd or 1.0)
    assert f"today {today:.2f}" in against
    assert compared.verdict.to_json()["verdicts"][0]["price_ratio_today"] == pytest.approx(today)
    # What the ratio of tokens a dollar says: the price is so far from turning it.
    assert verdict.break_even_price_ratio / today == pytest.approx(verdict.ratio)


def test_limits_of_the_search_are_kept() -> None:
    limits = [{"name": "best", "search": {"limits": ["schemes=tp"]}}]
    ((found, _),) = with_best([asked(limits, cluster="mi300x-8", offers=[])], jobs=1)
    (plan,) = found.plans
    assert plan.degrees(8)["tp"] > 1


def test_a_purchase_that_is_run_alone_answers_for_its_first_machine() -> None:
    few = {"name": "best", "search": {"limits": ["schemes=tp"]}}
    result, searched = tspsim.api.answered(asked([few]))
    assert result.best is not None and result.cluster["device"]["name"] == "mi300x" and searched


def test_what_does_not_fit_is_refused_by_its_leanest_plan() -> None:
    big = {"model": "llama-3.1-405b", "pass": "training", "sequence": "8Ki", "global_batch": 16}
    offers = [{"name": "A", "cluster": {"device": "h100", "nodes": 1}}]
    compared = tspsim.compare(asked(workload=big, offers=offers))
    ((refused,),) = [result.plans for result in compared.results]
    assert not refused.ran and "GiB more than" in (refused.error or "")
    (searched,) = compared.searched
    assert searched is not None and searched.plan == "" and "no plan fits" in searched.in_words("A")


def test_limits_that_no_plan_keeps_name_the_machine() -> None:
    one = {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki", "global_batch": 1}
    offers = [{"name": "A", "cluster": {"device": "h100", "nodes": 1}}]
    limited = asked([{"name": "best", "search": {"limits": ["schemes=dp", "step<=1ms"]}}], workload=one, offers=offers)
    with pytest.raises(InfeasibleError, match="A: no plan keeps"):
        tspsim.compare(limited)


@pytest.mark.parametrize(
    ("plans", "told"),
    [
        ([{"name": "best", "search": {}, "tp": 8}], "tp stands beside search"),
        ([{"name": "best", "search": {"limit": ["step<=1s"]}}], "unknown key"),
        (["bests"], "plans"),
        (["best", "best"], "two plans are named 'best'"),
    ],
)
def test_wrong_searches_are_told(plans: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        asked(plans)


def test_who_only_simulates_asks_for_degrees() -> None:
    with pytest.raises(InputError, match=r"plans.best: is searched for by `tspsim plan`, `compare` and `run`"):
        look_up(asked())


def test_commands_take_it(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "small.yaml"
    one = {"cluster": "mi300x-8", "offers": []}
    few = {"name": "best", "search": {"limits": ["schemes=dp,tp"]}}
    file.write_text(yaml.safe_dump(written([few, {"name": "TP8", "tp": 8}], **one)))
    assert main(["check", str(file)]) == 0
    assert main(["run", str(file), "--json", str(tmp_path / "a.json")]) == 0
    said = capsys.readouterr().out
    assert "no other can be better by more than 1 %" in said
    assert main(["plan", str(file), "--budget", "1 s", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "TP8 (stated)" in said and said.endswith("report: reports/small-plans.html\n")


def test_the_planner_answers_for_every_offer_and_writes_one_file(tmp_path, capsys) -> None:
    file, best, pages = tmp_path / "small.yaml", tmp_path / "best.yaml", tmp_path / "pages.html"
    few = [{"name": "best", "search": {"limits": ["schemes=dp"]}}]
    file.write_text(yaml.safe_dump(written(few)))
    asked_for = ["plan", str(file), "--jobs", "1", "--budget", "8 s", "--json", str(tmp_path / "a.json")]
    assert main([*asked_for, "--write", str(best), "--html", str(pages)]) == 0
    said = capsys.readouterr().out
    assert "A: Plans for 8 MI300X" in said and "B: Plans for 8 H200" in said
    told = json.loads((tmp_path / "a.json").read_text())["offers"]
    assert [each["name"] for each in told] == ["A", "B"]
    again = load(best)
    assert [offer.plans[0] for offer in again.offers] == [each["plan"]["best"][0]["name"] for each in told]
    assert all(row.tokens_per_s for row in tspsim.compare(again).plans)  # it runs as it is
    linked = re.findall(r'href="(pages-offers/[^"]+)"', pages.read_text(encoding="utf-8"))
    assert len(linked) == 2 and all((tmp_path / link).exists() for link in linked)


def test_the_best_plans_of_offers_are_launched_one_after_the_other(tmp_path, capsys) -> None:
    file = tmp_path / "small.yaml"
    training = {"model": "llama-3.1-8b", "pass": "training", "sequence": "8Ki", "global_batch": 8}
    few = ["--limit", "schemes=tp", "--budget", "1 s", "--jobs", "1"]
    lone = [{"name": "A", "cluster": "mi300x-8"}, {"name": "B", "cluster": "mi300x-8"}]
    file.write_text(yaml.safe_dump(written([{"name": "TP8", "tp": 8}], workload=training, offers=lone)))
    assert main(["plan", str(file), *few, "--emit", "megatron"]) == 0
    said = capsys.readouterr().out
    assert said.index("# A: ") < said.index("# B: ") and said.count("pretrain_gpt.py") == 2
