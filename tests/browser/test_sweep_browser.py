"""The page of a sweep in Chromium: every figure drawn, nothing cut, on a desk, on a phone, dark, and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_report_browser import CUT

from tspsim.report.sweep import write_page
from tspsim.studies import Sweep

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
DRAWN = """() => Object.fromEntries([...document.querySelectorAll('.plot')].map(plot => [plot.id.slice(7),
    plot.querySelectorAll('.trace, .heatmaplayer image, .bars').length]))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two axes and two plans; the longest sequences of one plan do not fit."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.html"
    over = ["workload.sequence=32Ki,512Ki", "cluster.nodes=1,2", "plans=TSP8,SP8,TP8"]
    table = Sweep("tsp-memory-8x-mi300x", over, overrides=["cluster.fabric=rails-400g"]).run(jobs=1)
    assert 0 < table.ran < len(table)
    write_page(table, path, "a <b>sweep</b>", "what moves what")
    return path


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_every_figure_is_drawn_and_nothing_is_cut(visit: Open, report: Path, width: int, scheme: str) -> None:
    page = visit(report, width, scheme)
    drawn = page.evaluate(DRAWN)
    assert set(drawn) == {"lines", "heat", "strands", "reach", "efficiency"} and all(drawn.values()), drawn
    assert page.evaluate(CUT) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    page.select_option("select[data-figure=heat]", label="tokens/s, SP8")
    assert "×" in page.inner_text("#figure-heat") and "<b>sweep</b>" in page.inner_text("h1")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 710, "height": 900})
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")  # figures as wide as paper, and light
    assert page.evaluate("() => document.documentElement.scrollWidth <= 710")
    assert page.evaluate("() => document.getElementById('figure-lines').layout.width") <= 710
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("() => document.documentElement.dataset.theme") is None
