"""The page of a fleet in Chromium: who had which nodes is zoomed from the whole time to an hour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_report_browser import CUT

import tspsim
from tspsim import report
from tspsim.report.fleet_gantt import MOST_DRAWN

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
WINDOW = "() => document.getElementById('figure-nodes').layout.xaxis.range"
DRAWN = "() => document.getElementById('figure-nodes').data.reduce((sum, trace) => sum + trace.x.length, 0)"


@pytest.fixture(scope="module")
def page_of_a_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty days of a job that fills half of the cluster, and of more small ones than are drawn at once."""
    small = {"arrivals": {"kind": "fixed", "rate": "200/day"}, "gpus": 2, "hours": "30 min"}
    jobs = [{"name": "long", "nodes": 4, "hours": "50 days"}, {"name": "small <b>ones</b>", **small}]
    machine = {"device": "h100", "nodes": 8, "fabric": "rails-400g"}
    answer = tspsim.simulate({"name": "fleet", "cluster": machine, "jobs": jobs, "horizon": "60 days"})
    path = tmp_path_factory.mktemp("fleet") / "fleet.html"
    path.write_text(report.render(answer), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def wide(visit_once: Open, page_of_a_fleet: Path) -> Any:
    """A page for tests that show all of it again when they end."""
    return visit_once(page_of_a_fleet, 1400)


def test_a_quarter_is_zoomed_to_an_hour(wide: Any) -> None:
    check_zoom(wide)


@pytest.mark.in_turn(2, group="phones")
def test_a_quarter_is_zoomed_to_an_hour_on_a_phone_in_the_dark(visit: Open, page_of_a_fleet: Path) -> None:
    check_zoom(visit(page_of_a_fleet, 390, "dark"))


def check_zoom(page: Any) -> None:
    assert page.evaluate(WINDOW) == [0, 60] and page.evaluate(DRAWN) == MOST_DRAWN
    assert page.evaluate(CUT) == [] and page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    for name, days in (("7 days", 7), ("1 day", 1), ("1 hour", 1 / 24)):
        page.get_by_role("button", name=name, exact=True).click()
        begin, end = page.evaluate(WINDOW)
        assert end - begin == pytest.approx(days) and (begin + end) / 2 == pytest.approx(30)
    # Jobs of half an hour, one every seven minutes: those of that hour are there, though they are the smallest of all.
    assert 8 <= page.evaluate(DRAWN) <= 20
    page.get_by_role("button", name="Later").click()
    assert page.evaluate(WINDOW)[0] == pytest.approx(30 + 0.5 / 24)
    # Another theme draws anew and keeps the window; Whole shows all again.
    page.click("#theme")
    assert page.evaluate(WINDOW)[0] == pytest.approx(30 + 0.5 / 24) and page.evaluate(DRAWN) <= 20
    page.get_by_role("button", name="Whole").click()
    assert page.evaluate(WINDOW) == [0, 60] and page.evaluate(DRAWN) == MOST_DRAWN
    assert "<b>" not in "".join(page.evaluate("() => document.getElementById('figure-nodes').data[1].text"))


def test_dragging_zooms(wide: Any) -> None:
    page = wide
    plot = page.locator("#figure-nodes .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.6 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.9 * box["height"], steps=4)
    page.mouse.up()
    page.wait_for_function("() => document.getElementById('figure-nodes').layout.xaxis.range[0] > 1")
    begin, end = page.evaluate(WINDOW)
    assert begin == pytest.approx(30, abs=0.5) and end == pytest.approx(36, abs=0.5)
    page.get_by_role("button", name="Whole").click()
