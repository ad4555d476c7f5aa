"""The comparison page and the gallery as a person meets them: opened from disk in Chromium with the network off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tspsim.report.comparison_page import write_comparison
from tspsim.report.gallery import write_gallery
from tspsim.scenario import load
from tspsim.step.simulation import simulate
from tspsim.studies.purchase import decide, expand

pytestmark = pytest.mark.browser

FIGURES = {"figure-pareto", "figure-scaling", "figure-tornado"}
DRAWN = """() => Object.fromEntries([...document.querySelectorAll('.plot')].map(plot => [plot.id,
    plot.querySelectorAll('.trace, .bars').length]))"""
SHOWN = """() => [...document.querySelectorAll('#ranking tbody tr:not([hidden])')]
    .map(row => [row.cells[1].textContent, row.cells[2].textContent])"""
SIDEWAYS = "() => document.documentElement.scrollWidth > window.innerWidth"

Open = Callable[..., Any]


def purchase() -> dict[str, Any]:
    """Two offers, three plans, a project; one name that would be markup if anybody let it."""
    return {
        "name": "<b>small</b>",
        "workload": {"model": "llama-3.1-8b", "pass": "forward", "sequence": "8Ki"},
        "plans": [{"name": "TSP8", "tsp": 8}, {"name": "TP8", "tp": 8}, {"name": "TP4-SP2", "tp": 4, "sp": 2}],
        "offers": [
            {"name": "MI300X <script>", "cluster": {"device": "mi300x", "nodes": 2, "fabric": "rails-400g"}},
            {"name": "H200", "cluster": {"device": "h200", "nodes": 2, "fabric": "rail-optimised-400g"}},
        ],
        "project": {"tokens": "1T", "rate": "3 Mtokens/s", "fabric": {"nic": "1500 USD", "switch": "40000 USD"}},
    }


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("comparison") / "compare.html"
    scenario = load(purchase())
    questions = expand(scenario)
    results = [simulate(question) for question in questions]
    decision = decide(questions, results, jobs=1)
    write_comparison(results, path, decision, title=scenario.name, reports=True)
    return path


@pytest.fixture(scope="module")
def shared(visit_once: Open, comparison: Path) -> Any:
    """A page for tests that each change a part of their own."""
    return visit_once(comparison)


def test_every_figure_is_drawn_and_nothing_scrolls_sideways(shared: Any) -> None:
    check_drawn(shared)


@pytest.mark.in_turn(2, group="phones")
def test_every_figure_is_drawn_on_a_phone_in_the_dark(visit: Open, comparison: Path) -> None:
    check_drawn(visit(comparison, 400, "dark"))


def check_drawn(page: Any) -> None:
    drawn = page.evaluate(DRAWN)
    assert set(drawn) == FIGURES
    assert all(count > 0 for count in drawn.values()), drawn
    assert not page.evaluate(SIDEWAYS)
    sizes = page.evaluate(
        "() => [...document.querySelectorAll('main td, main p')].map(e => getComputedStyle(e).fontSize)"
    )
    assert min(float(size.removesuffix("px")) for size in sizes) >= 12


def test_long_names_of_plans_leave_what_they_are_ranked_by_in_sight(visit: Open, comparison: Path) -> None:
    page = visit(comparison, 1400)
    page.evaluate("""() => document.querySelectorAll('#ranking td:nth-child(3)').forEach(
        cell => { cell.textContent = 'SP8-DP16 gather Z3/64 mb1 keep ov b'; })""")
    room, needed = page.evaluate("""() => { const box = document.getElementById('ranking').parentElement;
        return [box.clientWidth, box.scrollWidth]; }""")
    assert needed <= room
    rate = page.text_content("#ranking tbody tr:first-child td:nth-of-type(4)")
    assert rate is not None and "\u00a0" in rate.strip()  # a number and its unit stay on one line


def test_the_ranking_sorts_by_the_chosen_measure_and_the_filters_narrow_it(shared: Any) -> None:
    page = shared
    assert {name for name, _ in page.evaluate(SHOWN)} == {"H200", "MI300X <script>"}  # the best plan of each at first
    assert page.inner_text("#shown") == "2 of 6 plans" and page.input_value("#measure") == "dollar"
    page.uncheck("#best-only")
    assert page.inner_text("#shown") == "6 of 6 plans"

    for measure in ("rate", "each", "dollar", "joule", "headroom", "mfu"):
        page.select_option("#measure", measure)
        values = page.evaluate(
            f"() => [...document.querySelectorAll('#ranking tbody tr')].map(r => +r.dataset.{measure})"
        )
        assert values == sorted(values, reverse=True) and values[0] > 0
        assert page.evaluate("() => document.querySelectorAll('#ranking tr.best').length") == 1
        widths = page.evaluate(
            "() => [...document.querySelectorAll('#ranking .bar i')].map(i => parseFloat(i.style.width))"
        )
        assert widths[0] == 100 and widths == sorted(widths, reverse=True)

    page.select_option("#device", "h200")
    assert {name for name, _ in page.evaluate(SHOWN)} == {"H200"}
    page.check("#best-only")
    assert len(page.evaluate(SHOWN)) == 1
    page.select_option("#device", "")
    assert {name for name, _ in page.evaluate(SHOWN)} == {"H200", "MI300X <script>"}
    page.uncheck("#best-only")
    page.fill("#words", "tsp8 mi300x")
    assert page.evaluate(SHOWN) == [["MI300X <script>", "TSP8"]]
    page.fill("#words", "nothing like it")
    assert page.evaluate(SHOWN) == [] and page.inner_text("#shown") == "0 of 6 plans"


def test_a_name_leads_to_the_report_with_the_timeline(visit: Open, comparison: Path) -> None:
    page = visit(comparison)
    page.click("#ranking tr:not([hidden]) a >> text=H200 >> nth=0")
    page.wait_for_selector("html[data-drawn]", timeout=20_000)
    assert page.evaluate("() => document.querySelectorAll('#gantt-plot .trace, #gantt-plot .point').length") > 0
    assert "H200" in page.title()


def test_the_choosers_change_price_basis_curve_and_rival(shared: Any) -> None:
    page = shared
    for figure, what in (
        ("pareto", "() => document.getElementById('figure-pareto').data[0].x"),
        ("scaling", "() => document.getElementById('figure-scaling').data[0].y"),
    ):
        before = page.evaluate(what)
        page.select_option(f"select[data-figure={figure}]", index=1)
        assert page.evaluate(what) != before
    symbols = page.evaluate("() => document.getElementById('figure-scaling').data[0].marker.symbol")
    assert "circle" in symbols and "circle-open" in symbols


def test_names_are_text_and_run_nothing(shared: Any) -> None:
    page = shared
    assert "<b>small</b>" in page.inner_text("h1")
    assert page.evaluate("() => document.querySelectorAll('script').length") == 5


def test_the_gallery_leads_to_every_page_and_table(visit: Open, tmp_path: Path) -> None:
    """And its pages find the bundle that they share."""
    write_gallery(tmp_path, ["ring-mesh-against-switch", "slow-gpu-mi300x"])
    for width in (1600, 400):
        page = visit(tmp_path / "index.html", width, drawn=False)
        assert not page.evaluate(SIDEWAYS)
        links = page.evaluate("() => [...document.querySelectorAll('a')].map(link => link.getAttribute('href'))")
        assert "../docs/studio.md" in links  # beside the gallery's own folder, which this one is not
        links.remove("../docs/studio.md")
        assert len(links) == 6 and all((tmp_path / link).is_file() for link in links)
    page.click("text=slow-gpu-mi300x")
    page.wait_for_selector("html[data-drawn]", timeout=20_000)
    assert page.evaluate("() => document.querySelectorAll('#gantt-plot .point').length") > 0
    compared = visit(tmp_path / "pages/ring-mesh-against-switch.html", 400)
    assert all(count > 0 for count in compared.evaluate(DRAWN).values())
