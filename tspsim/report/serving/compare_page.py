"""Several machines that serve the same requests, side by side: the best for the money, and the fastest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tspsim.base.units import compact, digits
from tspsim.report.numbers import seconds
from tspsim.report.page import render_sections
from tspsim.report.sections import answer as step_answer
from tspsim.serving.steady import tied

from . import words
from .page import CHAPTERS, Part, built
from .view import LoadRun, ServedView, ServingView

LINKS = """
<ul>{% for name, address in links %}<li><a href="{{ address }}">{{ name }}</a>: its own page</li>{% endfor %}</ul>
"""


def joined(offers: Sequence[tuple[str, ServingView]]) -> ServingView:
    """One view of all offers' plans; bounds and measured points are those of the first offer with some."""
    served = tuple(replace(plan, offer=name) for name, view in offers for plan in view.served)
    refused = [replace(plan, name=f"{plan.name} on {name}") for name, view in offers for plan in view.refused]
    slo = next((view.slo for _, view in offers if view.slo), {})
    published = list(dict.fromkeys(point for _, view in offers for point in view.published))
    return ServingView(served, refused, all(view.closed for _, view in offers), slo, published)


def page(
    offers: Sequence[tuple[str, ServingView]],
    further: Sequence[Part],
    drawn: dict[str, Any],
    *,
    title: str,
    description: str = "",
    kicker: str = "",
    sure: str = "",
    level: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
    plotly_js: str = "inline",
) -> str:
    """The whole page.

    Parameters
    ----------
    offers
        Name → view of its service.
    further, drawn
        Sections after those of the runs, and their figures.
    sure
        A sentence on the certainty of the verdict.
    level
        Offers that tie in the verdict.
    links
        Offer → address of its own page.
    """
    view = joined(offers)
    parts: list[Part] = [("answer", "", step_answer.TEMPLATE, answer(view, title, description, kicker, sure, level))]
    if view.served:
        first = cheapest(view)[:1]
        parts += built(CHAPTERS, replace(view, leading=first[0][1].name) if first else view, drawn)
    if links:
        parts.append(("pages", "Pages of the offers", LINKS, {"links": list(links.items()), "short": "Offers"}))
    parts += further
    return render_sections(
        parts,
        drawn,
        title=title,
        plotly_js=plotly_js,
        styles=("page.css", "comparison.css", "memo.css"),
        scripts=("memo.js",),
    )


def answer(
    view: ServingView, title: str, description: str, kicker: str, sure: str = "", level: Sequence[str] = ()
) -> dict[str, Any]:
    """The cheapest offer first where prices are known, else the one with the highest rate."""
    values: dict[str, Any] = {
        "name": title, "description": description, "kicker": kicker, "spread": "", "sentences": [], "ratios": [],
        "tiles": [],
    }  # fmt: skip
    refusals = [f"{plan.name} is refused: {str(plan.error).rstrip('.')}." for plan in view.refused]
    if not view.served:
        return values | {"headline": "No plan fits or can run.", "sentences": refusals}
    best = cheapest(view)
    misses = sorted({served.offer for served in view.served} - {served.offer for _, served, _ in best})
    if view.slo:
        refusals += [f"{offer} keeps the limits at no load." for offer in misses]
    if not best:
        return values | {
            "headline": words.headline(view), "ratios": words.ratios(view), "tiles": words.tiles(view),
            "sentences": [*words.sentences(view), *refusals],
        }  # fmt: skip
    usd, served, run = best[0]
    at = f", {view.load_in_words(run.load)}" if view.curve else ""
    price = f"${digits(usd)} per million output tokens"
    values["headline"] = f"{served.offer} is cheapest: {price} with {served.plan.name}{at}"
    basis = next(iter(run.prices("usd_per_million_output_tokens")), "")
    values["spread"] = f"price basis {basis}" if basis else ""
    tying = {other.offer for _, other, rival in best[1:] if even(run, rival) or {served.offer, other.offer} <= {*level}}
    values["ratios"] = [
        {
            "name": f"{other.offer} ({other.plan.name})",
            "times": f"{usd_other / usd:.2f}×" + (", a tie" if other.offer in tying else ""),
        }
        for usd_other, other, _ in best[1:]
    ]
    if best[1:] and best[1][1].offer in tying:
        values["headline"] = (
            f"{served.offer} and {best[1][1].offer} tie at ${digits(usd)} per million output tokens{at}"
        )
    lead = [sure, f"That is {words.dollars(run)} per million output tokens." if basis else ""]
    return values | {"sentences": [*filter(None, lead), *sentences(view, run), *refusals], "tiles": tiles(view, best)}


def cheapest(view: ServingView) -> list[tuple[float, ServedView, LoadRun]]:
    """For every offer the plan and load with the least cost per million output tokens, on the basis that ranks; the
    cheapest offer first.

    Under bounds only loads that keep them count; without bounds any load.
    """
    by_offer: dict[str, tuple[float, ServedView, LoadRun]] = {}
    for served in view.served:
        runs = [run for run in served.runs if run.kept]
        for run in runs:
            usd = run.price()
            if np.isnan(usd):
                continue
            if served.offer not in by_offer or usd < by_offer[served.offer][0]:
                by_offer[served.offer] = (usd, served, run)
    return sorted(by_offer.values(), key=lambda entry: entry[0])


def even(a: LoadRun, b: LoadRun) -> bool:
    """Whether two prices differ by no more than the drawn requests allow."""
    if not all(run.metrics.get("steady") for run in (a, b)):
        return False

    def dollars(run: LoadRun) -> tuple[float, float, float]:
        value, low, high = run.between("output_tokens_per_s")
        usd = run.price()
        return usd, usd * value / high if high else usd, usd * value / low if low else usd

    return tied(dollars(a), dollars(b))


def sentences(view: ServingView, run: LoadRun) -> Iterator[str]:
    """Waits of users, the highest rate, the fastest plan, and changes over the load."""
    yield words.users(run)
    yield from by_load(view)
    most = view.ranked[0]
    what = "within the limits" if view.slo else "per GPU"
    value = f"{digits(most.best.goodput)} requests/s" if view.slo else compact(
        most.best.lasting("output_tokens_per_s_per_gpu"), "output tokens/s"
    )  # fmt: skip
    yield f"Most {what}: {most.name}, {value} ({view.load_in_words(most.best.load)})."
    yield from quickest(view)


def quickest(view: ServingView) -> Iterator[str]:
    """The fastest plan for one user, or for the fewest stated."""
    least = view.loads[0] if view.loads else float("nan")
    answering = [(plan, run) for plan in view.served if (run := plan.at(least)) is not None and run.mean("tpot_s") > 0]
    if answering:
        quick, run = min(answering, key=lambda pair: pair[1].mean("tpot_s"))
        waits = f"a token every {seconds(run.mean('tpot_s'))}, the first after {seconds(run.mean('ttft_s'))}"
        yield f"Quickest with {view.load_in_words(least)}: {quick.name}, {waits}."


def by_load(view: ServingView) -> Iterator[str]:
    """The cheapest offer by load."""
    if not view.curve:
        return
    firsts: list[tuple[str, float]] = []
    for load in view.loads:
        priced = [
            (run.price(), plan.offer)
            for plan in view.served
            if (run := plan.at(load)) is not None and run.kept and not np.isnan(run.price())
        ]
        if len({offer for _, offer in priced}) > 1:
            firsts.append((min(priced)[1], load))
    if firsts:
        spans = ", ".join(words.in_a_row(firsts))
        yield f"Cheapest at equal load, by {'requests at once' if view.closed else 'requests/s sent'}: {spans}."


def tiles(view: ServingView, best: Sequence[tuple[float, ServedView, LoadRun]]) -> list[dict[str, str]]:
    """One tile per offer: its cheapest token, with plan and load."""
    return [
        {
            "what": served.offer,
            "value": f"${digits(usd)}",
            "more": f"per million output tokens; {served.plan.name}, {view.load_in_words(run.load)}: "
            f"{compact(run.lasting('output_tokens_per_s_per_gpu'))} tokens/s per GPU",
        }
        for usd, served, run in best
    ]
