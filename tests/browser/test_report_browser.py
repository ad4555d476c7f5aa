"""The report as a person meets it: opened from disk in Chromium with the network off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import reports as fixtures

from tspsim.report import write_report

pytestmark = pytest.mark.browser

FIGURES = ("rates-model", "rates-block", "breakdown", "fabric", "memory", "volume", "breakeven")
DRAWN = """() => Object.fromEntries([...document.querySelectorAll('.plot')].map(plot => [plot.id,
    plot.querySelectorAll('.trace, .heatmaplayer image').length]))"""
WINDOW = "() => document.getElementById('gantt-plot').layout.xaxis.range"
BARS = "() => document.querySelectorAll('#gantt-plot .point path').length"
BESIDE_MARKS = """() => { const marks = document.getElementById('figure-fabric').data.at(-1);
    return marks.text.filter((text, at) => marks.textposition[at] !== 'middle center'); }"""

#: Words of figures that stick out of them, and legends that would have to be scrolled.
CUT = """() => [...document.querySelectorAll('.plot')].flatMap(plot => {
    const frame = plot.getBoundingClientRect();
    const out = [...plot.querySelectorAll('.xtitle, .xtick text, .ytick text, .legendtext')].filter(text => {
        const box = text.getBoundingClientRect();
        return box.left < frame.left - 2 || box.right > frame.right + 2; });
    const bars = [...plot.querySelectorAll('.legend .scrollbar')].filter(bar => bar.getBoundingClientRect().height > 0);
    return [...out.map(text => text.textContent), ...bars.map(() => `${plot.id}: a legend to scroll`)]; })"""

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(fixtures.result(), path)
    return path


@pytest.fixture(scope="module")
def on_load(visit_once: Open, report: Path) -> tuple[Any, dict[str, int], list[float]]:
    """A page with its figures and the window of its timeline as they were when it was opened."""
    page = visit_once(report, 1400)
    return page, page.evaluate(DRAWN), page.evaluate(WINDOW)


@pytest.fixture
def shared(on_load: tuple[Any, dict[str, int], list[float]]) -> Any:
    """That page, for tests that put back what they change, or set first what they look at."""
    return on_load[0]


def test_every_figure_is_drawn_on_load_and_nothing_scrolls_sideways(
    on_load: tuple[Any, dict[str, int], list[float]],
) -> None:
    page, drawn, _ = on_load
    check_drawn(page, drawn, "light", named=True)


@pytest.mark.in_turn(2, group="phones")
def test_every_figure_is_drawn_on_a_phone_in_the_dark(visit: Open, report: Path) -> None:
    page = visit(report, 400, "dark")
    check_drawn(page, page.evaluate(DRAWN), "dark", named=False)


def check_drawn(page: Any, drawn: dict[str, int], scheme: str, *, named: bool) -> None:
    """Marks of the fabric have names where there is room."""
    assert set(drawn) == {"gantt-plot", *(f"figure-{name}" for name in FIGURES)}
    assert all(count > 0 for count in drawn.values()), drawn
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 150) == (scheme == "dark")
    assert page.evaluate(CUT) == []
    texts = page.evaluate(BESIDE_MARKS)
    assert texts and all(texts) == named and any(texts) == named


def test_the_timeline_opens_on_two_layers_and_its_buttons_change_the_window(
    on_load: tuple[Any, dict[str, int], list[float]],
) -> None:
    page, _, (start, end) = on_load
    step_ms = fixtures.plan(0).step_time_s * 1e3
    assert start == 0
    assert end == pytest.approx(2 / 32 * step_ms, rel=0.1)

    page.click("[data-view=layer]")
    assert page.evaluate(WINDOW)[1] == pytest.approx(end / 2, rel=0.1)
    assert page.evaluate(BARS) > 100
    page.click("[data-view=next]")
    assert page.evaluate(WINDOW)[0] == pytest.approx(end / 2, rel=0.1)
    page.click("[data-view=step]")
    assert page.evaluate(WINDOW)[1] >= 0.95 * step_ms
    assert 1000 < page.evaluate(BARS) < 12_000
    page.click("[data-view=layer]")


def test_the_order_switch_moves_tables_and_figures(shared: Any) -> None:
    page = shared
    table = """() => [...document.querySelectorAll('#plans-table tbody th')]
        .map(each => each.firstChild.textContent.trim())"""
    ticks = "key => document.getElementById(`figure-${key}`).layout.yaxis.ticktext"
    rates = """() => { const [bars] = document.getElementById('figure-rates-model').data;
        return Object.fromEntries([...bars.y].map((row, at) => [row, bars.x[at]])); }"""
    ranked, stated = ["TSP8", "TP4-SP2", "TP2-SP4", "TP8", "SP8"], ["TSP8", "TP8", "TP4-SP2", "TP2-SP4", "SP8"]
    assert page.evaluate(table) == page.evaluate(ticks, "memory") == ranked
    fastest = page.evaluate(rates)
    assert list(fastest.values()) == sorted(fastest.values(), reverse=True)
    page.check("input[data-order]")
    assert page.evaluate(table) == page.evaluate(ticks, "memory") == stated
    assert page.evaluate(ticks, "rates-model") == page.evaluate(ticks, "breakdown") == stated[:4]
    moved = page.evaluate(rates)
    assert [moved[str(row)] for row in range(4)] == [fastest[str(ranked.index(name))] for name in stated[:4]]
    page.uncheck("input[data-order]")
    assert page.evaluate(table) == page.evaluate(ticks, "memory") == ranked


def test_a_drag_zooms_a_double_click_returns_and_keys_move(shared: Any) -> None:
    page = shared
    page.click("[data-view=step]")
    whole = page.evaluate(WINDOW)
    page.locator("#gantt").scroll_into_view_if_needed()
    box = page.locator("#gantt-plot .nsewdrag").first.bounding_box()
    left, top = box["x"] + 0.25 * box["width"], box["y"] + box["height"] / 2
    page.mouse.move(left, top)
    page.mouse.down()
    page.mouse.move(left + 0.25 * box["width"], top, steps=4)
    page.mouse.up()
    page.wait_for_function(f"() => ({WINDOW})()[1] < {0.6 * whole[1]}")
    zoomed = page.evaluate(WINDOW)
    assert zoomed[0] == pytest.approx(0.25 * whole[1], rel=0.05)
    assert page.evaluate(BARS) > 100

    page.focus("#gantt-plot")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(WINDOW)[0] == pytest.approx(zoomed[1])
    page.keyboard.press("+")
    moved = page.evaluate(WINDOW)
    assert moved[1] - moved[0] == pytest.approx((zoomed[1] - zoomed[0]) / 2)

    page.mouse.dblclick(left, top)
    page.wait_for_function(f"() => ({WINDOW})()[1] > {0.95 * whole[1]}")
    page.click("[data-view=layer]")


def test_pointing_at_a_bar_tells_shape_work_and_achieved_rate(shared: Any) -> None:
    page = shared
    page.select_option("#gantt-plan", label="TSP8")
    texts = page.evaluate("() => document.getElementById('gantt-plot').data.flatMap(t => t.hovertext)")
    attention = next(text for text in texts if text.startswith("<b>attention</b><br>rank 0"))
    for part in (
        "layer 0",
        "8192×8192 + 8192×131072 causal",
        "300 MB to and from HBM",
        "2.20 TFLOP",
        "% of peak",
    ):
        assert part in attention


def test_the_selectors_change_plan_and_ranks(shared: Any) -> None:
    page = shared
    title = "() => document.getElementById('gantt-plot').layout.xaxis.title.text"
    rows = "() => document.getElementById('gantt-plot').layout.yaxis.tickvals.length"
    page.select_option("#gantt-plan", label="TP8")
    assert "TP8" in page.evaluate(title)
    assert page.evaluate(BARS) > 50
    page.select_option("#gantt-plan", label="TSP8")
    page.select_option("#gantt-ranks", "1")
    assert page.evaluate(rows) == 3
    page.select_option("#gantt-ranks", "8")
    assert page.evaluate(rows) == 24

    colours = "() => document.getElementById('figure-fabric').data.map(t => t.line && t.line.color)"
    before = page.evaluate(colours)
    page.select_option("select[data-figure=fabric]", label="TP2-SP4")
    assert page.evaluate(colours) != before


def test_the_toggle_turns_the_whole_page_dark_and_back(shared: Any) -> None:
    page = shared
    ink = "() => document.getElementById('figure-memory').layout.font.color"
    light = page.evaluate(ink)
    page.click("#theme")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(ink) != light
    page.click("#theme")
    assert page.evaluate(ink) == light


def test_hostile_names_run_nothing(visit: Open, tmp_path: Path) -> None:
    write_report(fixtures.hostile_result(), tmp_path / "hostile.html")
    page = visit(tmp_path / "hostile.html")
    page.on("dialog", lambda dialog: pytest.fail(f"ran: {dialog.message}"))
    assert fixtures.HOSTILE in page.inner_text("body")
    assert page.evaluate("() => document.querySelectorAll('script').length") == 4
    assert page.title() == f"{fixtures.HOSTILE} · tspsim"


def test_a_thousand_ranks_are_drawn(visit: Open, tmp_path: Path) -> None:
    """How long that takes stands in docs/reading-the-report.md: a clock on a busy machine proves nothing."""
    write_report(fixtures.result(ranks=list(range(1024))), tmp_path / "large.html")
    page = visit(tmp_path / "large.html")
    assert "16 of 1,024 simulated ranks" in page.inner_text("#gantt-note")
    assert page.evaluate(DRAWN)["figure-shares"] > 0
