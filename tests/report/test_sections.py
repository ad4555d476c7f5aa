"""Single sections: what the navigation calls them, sources that can be followed, prices on the basis that ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import reports as fixtures

import tspsim
from tspsim.report import render
from tspsim.report.page import sourced
from tspsim.report.sections import SECTIONS, answer, breakeven, fabric
from tspsim.report.view import View


def test_the_navigation_s_words_are_short() -> None:
    words = [section.short or section.title for section in SECTIONS]
    assert sum(map(len, words)) < 90 and len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("https://a.example/b, p. 3", "https://a.example/b"),
        ("arXiv:2407.21783, §3", "https://arxiv.org/abs/2407.21783"),
        ("by NVIDIA/nccl@744d01e, src", "https://github.com/NVIDIA/nccl/tree/744d01e"),
    ],
)
def test_sources_can_be_followed(source: str, address: str) -> None:
    assert f'href="{address}"' in sourced(source)
    assert "<b>" not in sourced(f"<b>{source}") and "href" not in sourced("measured, own table")


def test_a_switch_in_the_middle_holds_its_name_and_others_stand_clear_of_their_links() -> None:
    place = {"switch": (0.0, 0.0), "0": (0.0, 1.0), "nic0": (0.0, 1.4), "nic3": (1.0, -1.0), "nic2": (1.4, 0.0)}
    drawn = fabric._vertices(place)
    beside = dict(zip(place, drawn["textposition"], strict=True))
    assert beside["switch"] == beside["0"] == "middle center"
    assert (beside["nic0"], beside["nic3"], beside["nic2"]) == ("middle right", "middle right", "bottom center")
    assert drawn["textfont"]["color"][0] == "#ffffff" and drawn["marker"]["size"][0] > drawn["marker"]["size"][1]


def test_ratios_have_ranges_of_their_own_in_which_common_errors_cancel() -> None:
    work = {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki"}
    plans = [{"name": "TP8", "tp": 8}, {"name": "Again", "tp": 8}, {"name": "TP4", "tp": 4}]
    result = tspsim.simulate({"name": "r", "cluster": "hgx-h100-8", "workload": work, "plans": plans})
    told = {each["name"]: each for each in answer.build(View(result))["ratios"]}
    best = result.best
    assert best is not None and best.name == "TP4"
    tp8 = result.plan("TP8")
    low, high = map(float, told["TP8"]["likely"].split(" – "))
    assert low < best.tokens_per_s / tp8.tokens_per_s < high
    assert best.range is not None and tp8.range is not None
    assert high / low < best.range.high / best.range.low  # surer than a rate
    assert told["TP8"]["likely"] == told["Again"]["likely"]
    assert answer.likely(tp8, result.plan("Again")) == "1.00 – 1.00"
    assert answer.likely(tp8, replace(tp8, range=replace(best.range, factors={}))) == ""
    page = render(result, "plotly.js")
    assert f'title="nine times of ten">{told["TP8"]["likely"]}' in page


def test_the_price_on_the_tile_is_the_one_that_ranks() -> None:
    result = fixtures.result()
    cost = {"usd_per_million_tokens": {"hyperscaler": 1.0, "neocloud": 2.0, "rental": 3.0}}
    result = replace(result, plans=tuple(replace(plan, cost=cost) for plan in result.plans))
    (usual,) = [tile for tile in answer.tiles(View(result)) if tile["what"] == "Cost"]
    assert usual["value"] == "$2.00" and "(neocloud)" in usual["more"]
    rented = replace(result, scenario={**result.scenario, "project": {"price": "rental"}})
    (tile,) = [tile for tile in answer.tiles(View(rented)) if tile["what"] == "Cost"]
    assert tile["value"] == "$3.00"


def test_who_came_to_buy_finds_the_break_even_folded() -> None:
    result = fixtures.result()
    bought = replace(result, scenario={**result.scenario, "project": {"price": "rental"}})
    built, folded = breakeven.build(View(result)), breakeven.build(View(bought))
    assert built is not None and folded is not None and (built["shut"], folded["shut"]) == (False, True)
    assert render(bought, "x.js").count("<details") == render(result, "x.js").count("<details") + 1


def test_links_that_carry_nothing_are_named_and_not_tabled() -> None:
    result = fixtures.result()
    first = result.plans[0]
    uses = (first.links[0], *(replace(use, carried_bytes=0.0) for use in first.links[1:]))
    built = fabric.build(View(replace(result, plans=(replace(first, links=uses),))))
    assert built is not None
    (row,) = built["rows"]
    assert len(row["uses"]) == 1 and row["unused"] == ", ".join(use.kind for use in first.links[1:])
