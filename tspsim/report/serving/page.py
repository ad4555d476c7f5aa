"""The page of a serving run: the answer, the load, waits, engines, one life, steps, sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tspsim.report.page import render_sections
from tspsim.report.sections import answer as step_answer
from tspsim.report.sections import assumptions, memory, unexplained
from tspsim.report.sections.section import PageSection, Seen
from tspsim.report.view import View
from tspsim.step.result import Result
from tspsim.studies.purchase.machines import machines_in_words

from . import curves, engines, life, plans, shares, waits, ways, words
from .adapter import kicker, view_of
from .view import ServingView

#: ``(key, heading, template, values)``, as :func:`tspsim.report.page.render_sections` takes it.
Part = tuple[str, str, str, Mapping[str, Any]]


CHAPTERS: tuple[PageSection[ServingView], ...] = (
    PageSection("plans", "Plans", plans.build, plans.TEMPLATE),
    PageSection("load", "Users against GPUs, over the load", curves.build, curves.TEMPLATE, short="Load"),
    PageSection("waits", "Waits of users", waits.build, waits.TEMPLATE, short="Waits"),
    PageSection("engines-over-time", "Engines over time", engines.build, engines.TEMPLATE, short="Engines"),
    PageSection("ways", "Cache transfers", ways.build, ways.TEMPLATE, short="Caches"),
    PageSection("life", "One request's life", life.build, life.TEMPLATE, short="One life"),
    PageSection("steps", "Time of a step by part", shares.build, shares.TEMPLATE, short="Steps"),
)


def render(result: Result, plotly_js: str = "inline") -> str:
    """The page of a result (see :func:`tspsim.report.render`)."""
    return page(view_of(result), result, kicker(result), plotly_js)


def page(view: ServingView, result: Result, kicker: str, plotly_js: str = "inline") -> str:
    """The whole page.

    Parameters
    ----------
    view
        The run, as data of its figures.
    result
        For its names, defaults and sources.
    kicker
        The machine and the work, in a line.
    plotly_js
        ``inline``, or the address of the plotly bundle.
    """
    drawn: dict[str, Any] = {}
    parts: list[Part] = [("answer", "", step_answer.TEMPLATE, answer(view, result, kicker))]
    if view.served:
        parts += built(CHAPTERS, view, drawn)
    whole = View(result)
    parts += built((memory.SECTION, assumptions.SECTION, unexplained.SECTION), whole, drawn)
    return render_sections(parts, drawn, title=whole.name, plotly_js=plotly_js, styles=("page.css",))


def built(sections: Iterable[PageSection[Seen]], view: Seen, drawn: dict[str, Any]) -> list[Part]:
    """The sections with values; their figures are added to ``drawn``."""
    parts: list[Part] = []
    for section in sections:
        values = section.build(view)
        if values is not None:
            drawn |= values.get("figures", {})
            parts.append((section.key, section.title, section.template, {**values, "short": section.short}))
    return parts


def answer(view: ServingView, result: Result, kicker: str) -> dict[str, Any]:
    """The answer, which is the first part of the page."""
    values: dict[str, Any] = {
        "name": str(result.scenario.get("name", "scenario")),
        "description": result.scenario.get("description", ""),
        "kicker": kicker,
        "spread": "",
        "sentences": [],
        "ratios": [],
        "tiles": [],
    }
    refusals = [f"{plan.name} is refused: {str(plan.error).rstrip('.')}." for plan in view.refused]
    if not view.served:
        return values | {"headline": "No plan fits or can run.", "sentences": refusals}
    return values | {
        "headline": words.headline(view),
        "spread": words.spread(view.ranked[0].best),
        "ratios": words.ratios(view),
        "sentences": [*machines_in_words(result), *words.sentences(view), *refusals],
        "tiles": words.tiles(view),
    }
