"""docs/mi355x-vs-b200.md: its tables say what its numbers say, and its numbers what the package says now."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import documents

import tspsim
from tspsim.studies.axes import choose
from tspsim.studies.purchase.offers import expand

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return documents.script("generate_mi355x_vs_b200")


def test_the_tables_are_those_of_the_numbers(script: ModuleType) -> None:
    text, found = script.PAGE.read_text(encoding="utf-8"), script.numbers()
    for name, build in script.TABLES.items():
        (stands,) = script.pages.block(name).findall(text)
        assert stands == f"{build(found)}\n", "python docs/generate_mi355x_vs_b200.py --table"


def test_the_page_has_every_model_plan_and_load(script: ModuleType) -> None:
    found = script.numbers()
    for model in script.MODELS:
        assert len(found.plans(model)) == 2
        for plan in found.plans(model):
            for offer in script.OFFERS:
                for clients in script.CLIENTS:
                    assert found.point(model, offer, plan, clients)["output_tokens_per_s"][0] > 0


@pytest.mark.parametrize("model", ["Kimi K2.6", pytest.param("DeepSeek-V3.2", marks=pytest.mark.slow)])
@pytest.mark.in_turn(2, group="pages")
def test_a_number_of_the_page_is_what_the_package_says(script: ModuleType, model: str) -> None:
    """Of one client with the plan that drafts nothing, within a tenth."""
    plan = script.numbers().plans(model)[0]
    asked = tspsim.load(script.MODELS[model], ["traffic.arrivals.concurrency=1"])
    for offer, question in zip(script.OFFERS, expand(asked), strict=True):
        told = tspsim.simulate(choose(question, [plan])).plans[0].serving
        stands = script.numbers().point(model, offer, plan, 1)
        assert told["tpot_s"]["mean"] == pytest.approx(stands["tpot_s"][0], rel=0.1), "python docs/generate_mi355x…"
        assert told["ttft_s"]["mean"] == pytest.approx(stands["ttft_s"][0], rel=0.1)


def test_three_columns_are_what_the_package_says_and_improvements_switch_something(script: ModuleType) -> None:
    found = script.numbers()
    for model, title in (("Kimi K2.6", "MI355X, tuned"), ("DeepSeek-V3.2", "B200, drafts")):
        stands = found.cell(model, title, 1024)
        device, switch = script.COLUMNS[title]
        assert script.token_ms(model, device, switch, 1024, script.ONE) == pytest.approx(stands[0], rel=0.1)
        assert stands[0] < stands[1] < stands[2] < stands[3], "more clients take longer a token"
    for row in found.data["worth"]:
        assert any(gain and abs(gain - 1.0) > 0.005 for gain in row["gains"]), row["improvement"]


def test_a_verdict_turns_with_the_numbers(script: ModuleType) -> None:
    found = script.numbers()

    def turned(times: float) -> dict[str, list[dict[str, Any]]]:
        """With a B200 that takes as many times as long."""
        grid = [
            row | {"ms": [each and each * times for each in row["ms"]]} if row["column"] == "B200" else row
            for row in found.data["grid"]
        ]
        return found.data | {"grid": grid}

    for times, says in ((3.0, "does not follow"), (1.0, "in part"), (1 / 3, "follows")):
        (line,) = [
            each for each in script.claims(script.Numbers(turned(times))).splitlines() if "ahead of both" in each
        ]
        assert f"**{says}**" in line


def test_long_conversations_fall_out_of_the_smaller_memory_first(script: ModuleType) -> None:
    rows = {(row["clients"], row["offer"]): row for row in script.numbers().data["residency"]}
    few, *_, many = script.KEEPERS
    for offer in script.OFFERS:
        assert rows[few, offer]["hit_share"] > 0.8
    assert rows[many, "MI355X"]["hit_share"] > rows[many, "B200"]["hit_share"] + 0.1
    assert rows[many, "B200"]["last_turns_ttft_s"] > 5 * rows[many, "MI355X"]["last_turns_ttft_s"]
