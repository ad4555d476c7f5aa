"""Several machines that serve the same requests, side by side: who gives most for the money, and who is quickest."""

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
from .page import Part, chapters
from .view import LoadRun, ServedView, ServingView

LINKS = """
<ul>{% for name, address in links %}<li><a href="{{ address }}">{{ name }}</a>: its own page</li>{% endfor %}</ul>
"""


def joined(offers: Sequence[tuple[str, ServingView]]) -> ServingView:
    """One view of all offers' plans; bounds and measured points are those of the first that has some."""
    served = tuple(replace(each, offer=name) for name, view in offers for each in view.served)
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
        Name → what it serves.
    further, drawn
        Sections behind those of the runs, and their figures.
    sure
        A sentence on how sure the verdict is.
    level
        Offers that the verdict does not tell apart.
    links
        Offer → address of its own page.
    """
    view = joined(offers)
    parts: list[Part] = [("answer", "", step_answer.TEMPLATE, answer(view, title, description, kicker, sure, level))]
    if view.served:
        first = cheapest(view)[:1]
        parts += chapters(replace(view, leading=first[0][1].name) if first else view, drawn)
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
    """The cheapest offer first where prices are known, else the one that does most."""
    told: dict[str, Any] = {
        "name": title, "description": description, "kicker": kicker, "spread": "", "sentences": [], "ratios": [],
        "tiles": [],
    }  # fmt: skip
    refusals = [f"{plan.name} is refused: {str(plan.error).rstrip('.')}." for plan in view.refused]
    if not view.served:
        return told | {"headline": "No plan fits or can run.", "sentences": refusals}
    best = cheapest(view)
    misses = sorted({served.offer for served in view.served} - {served.offer for _, served, _ in best})
    if view.slo:
        refusals += [f"{offer} keeps the limits at no load." for offer in misses]
    if not best:
        return told | {
            "headline": words.headline(view), "ratios": words.ratios(view), "tiles": words.tiles(view),
            "sentences": [*words.sentences(view), *refusals],
        }  # fmt: skip
    usd, served, run = best[0]
    at = f", {view.load_in_words(run.load)}" if view.curve else ""
    price = f"${digits(usd)} per million output tokens"
    told["headline"] = f"{served.offer} is cheapest: {price} with {served.plan.name}{at}"
    basis = next(iter(run.prices("usd_per_million_output_tokens")), "")
    told["spread"] = f"price basis {basis}" if basis else ""
    tying = {other.offer for _, other, rival in best[1:] if even(run, rival) or {served.offer, other.offer} <= {*level}}
    told["ratios"] = [
        {
            "name": f"{other.offer} ({other.plan.name})",
            "times": f"{usd_other / usd:.2f}×" + (", a tie" if other.offer in tying else ""),
        }
        for usd_other, other, _ in best[1:]
    ]
    if best[1:] and best[1][1].offer in tying:
        told["headline"] = f"{served.offer} and {best[1][1].offer} tie at ${digits(usd)} per million output tokens{at}"
    lead = [sure, f"That is {words.dollars(run)} per million output tokens." if basis else ""]
    return told | {"sentences": [*filter(None, lead), *sentences(view, run), *refusals], "tiles": tiles(view, best)}


def cheapest(view: ServingView) -> list[tuple[float, ServedView, LoadRun]]:
    """Of every offer its plan and load that cost least per million output tokens by the basis that ranks, the cheapest
    offer first.

    Under bounds the loads count at which a plan keeps them; without, any load.
    """
    found: dict[str, tuple[float, ServedView, LoadRun]] = {}
    for served in view.served:
        runs = [run for run in served.runs if run.kept]
        for run in runs:
            usd = run.price()
            if np.isnan(usd):
                continue
            if served.offer not in found or usd < found[served.offer][0]:
                found[served.offer] = (usd, served, run)
    return sorted(found.values(), key=lambda entry: entry[0])


def even(a: LoadRun, b: LoadRun) -> bool:
    """Whether two prices differ by no more than the requests that were drawn allow."""
    if not all(run.metrics.get("steady") for run in (a, b)):
        return False

    def dollars(run: LoadRun) -> tuple[float, float, float]:
        value, low, high = run.between("output_tokens_per_s")
        usd = run.price()
        return usd, usd * value / high if high else usd, usd * value / low if low else usd

    return tied(dollars(a), dollars(b))


def sentences(view: ServingView, run: LoadRun) -> Iterator[str]:
    """What users see there, who does most, who is quickest, and how that changes with the load."""
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
    """For one user, or for the fewest that were asked."""
    least = view.loads[0] if view.loads else float("nan")
    known = [(each, run) for each in view.served if (run := each.at(least)) is not None and run.mean("tpot_s") > 0]
    if known:
        quick, run = min(known, key=lambda pair: pair[1].mean("tpot_s"))
        told = f"a token every {seconds(run.mean('tpot_s'))}, the first after {seconds(run.mean('ttft_s'))}"
        yield f"Quickest with {view.load_in_words(least)}: {quick.name}, {told}."


def by_load(view: ServingView) -> Iterator[str]:
    """Which offer is cheapest from which load on."""
    if not view.curve:
        return
    firsts: list[tuple[str, float]] = []
    for load in view.loads:
        known = [
            (run.price(), each.offer)
            for each in view.served
            if (run := each.at(load)) is not None and run.kept and not np.isnan(run.price())
        ]
        if len({offer for _, offer in known}) > 1:
            firsts.append((min(known)[1], load))
    if firsts:
        told = ", ".join(words.in_a_row(firsts))
        yield f"Cheapest at equal load, by {'requests at once' if view.closed else 'requests/s sent'}: {told}."


def tiles(view: ServingView, best: Sequence[tuple[float, ServedView, LoadRun]]) -> list[dict[str, str]]:
    """An offer each: its cheapest token, and what it does there."""
    return [
        {
            "what": served.offer,
            "value": f"${digits(usd)}",
            "more": f"per million output tokens; {served.plan.name}, {view.load_in_words(run.load)}: "
            f"{compact(run.lasting('output_tokens_per_s_per_gpu'))} tokens/s per GPU",
        }
        for usd, served, run in best
    ]
