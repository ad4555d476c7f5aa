"""The page of a serving run as a person meets it: opened from disk in Chromium with the network off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import serving_runs as made

from tspsim.report.serving import compare_page
from tspsim.report.serving.page import page
from tspsim.report.serving.view import ServedView, ServingView

pytestmark = pytest.mark.browser

FIGURES = ("serving-front", "serving-curves", "ttft", "tpot", "engines", "lives", "step-shares", "memory")
DRAWN = """() => Object.fromEntries([...document.querySelectorAll('.plot')].map(plot => [plot.id,
    plot.querySelectorAll('.trace').length]))"""
RANGE = "() => document.getElementById('figure-engines').layout.xaxis.range"

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "serving.html"
    view = made.view(limit=(0.5, 0.015))
    path.write_text(page(view, made.result(view), "8 × MI355X"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def shared(visit_once: Open, report: Path) -> Any:
    """A page for tests that each look at figures of their own."""
    return visit_once(report, 1400)


def test_every_figure_is_drawn_and_nothing_scrolls_sideways(shared: Any) -> None:
    check_drawn(shared)
    wide = "() => [...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth + 1).length"
    assert shared.evaluate(wide) == 0, "every table fits 1,400 pixels"


@pytest.mark.in_turn(2, group="phones")
def test_every_figure_is_drawn_on_a_phone_in_the_dark(visit: Open, report: Path) -> None:
    check_drawn(visit(report, 400, "dark"))


def check_drawn(shown: Any) -> None:
    drawn = shown.evaluate(DRAWN)
    assert set(drawn) == {f"figure-{name}" for name in FIGURES}
    assert all(count > 0 for count in drawn.values()), drawn
    assert shown.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    grids = shown.evaluate(
        "() => ['yaxis2', 'xaxis'].map(axis => document.getElementById('figure-engines').layout[axis].gridcolor)"
    )
    assert grids[0] == grids[1], "every axis follows the theme"


def test_the_engines_figure_zooms_and_changes_its_window(shared: Any) -> None:
    shown = shared
    whole = shown.evaluate(RANGE)
    shown.locator("#figure-engines").scroll_into_view_if_needed()
    box = shown.locator("#figure-engines .nsewdrag").nth(1).bounding_box()
    left, top = box["x"] + 0.25 * box["width"], box["y"] + box["height"] / 2
    shown.mouse.move(left, top)
    shown.mouse.down()
    shown.mouse.move(left + 0.25 * box["width"], top, steps=4)
    shown.mouse.up()
    shown.wait_for_function(f"() => ({RANGE})()[0] > 0.1")
    zoomed = shown.evaluate(RANGE)
    assert zoomed[1] - zoomed[0] < 0.5 * (whole[1] - whole[0])
    shown.mouse.dblclick(left, top)
    shown.wait_for_function(f"() => ({RANGE})()[0] === 0")

    shown.select_option("select[data-figure=engines]", label="B, 1 at once: the whole run")
    assert shown.evaluate(RANGE) != whole


def test_the_selectors_change_the_curve_and_the_life(shared: Any) -> None:
    shown = shared
    title = "() => document.getElementById('figure-serving-curves').layout.yaxis.title.text"
    before = shown.evaluate(title)
    shown.select_option("select[data-figure=serving-curves]", label="time to the first token, mean (s)")
    assert shown.evaluate(title) != before
    end = "() => document.getElementById('figure-lives').layout.xaxis.range[1]"
    before = shown.evaluate(end)
    options = shown.locator("select[data-figure=lives] option").all_text_contents()
    shown.select_option("select[data-figure=lives]", label=options[1])
    assert shown.evaluate(end) != before


def test_one_request_draws_what_there_is(visit: Open, tmp_path: Path) -> None:
    view = ServingView((ServedView(made.plan("TP8"), (made.run(1, count=1),), made.shares()),))
    file = tmp_path / "one.html"
    file.write_text(page(view, made.result(view), "8 × MI355X"), encoding="utf-8")
    drawn = visit(file).evaluate(DRAWN)
    assert set(drawn) == {f"figure-{name}" for name in ("engines", "lives", "step-shares", "memory")}
    assert all(count > 0 for count in drawn.values())


@pytest.mark.parametrize("width", [1400, 400])
def test_offers_with_long_names_stay_within_the_window(visit: Open, tmp_path: Path, width: int) -> None:
    names = ("eight GPUs of the older kind, rented", "eight GPUs of the newer kind, bought")
    offers = [(name, ServingView((made.served("DP8-EP8-in-halves", (1, 8)),))) for name in names]
    file = tmp_path / "offers.html"
    file.write_text(compare_page.page(offers, [], {}, title="offers"), encoding="utf-8")
    shown = visit(file, width, "dark")
    assert all(count > 0 for count in shown.evaluate(DRAWN).values())
    assert shown.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
