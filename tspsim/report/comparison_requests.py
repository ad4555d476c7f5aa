"""The comparison where requests are served: pages of :mod:`.serving.compare_page`, then uncertainty and terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tspsim.base.units import chance
from tspsim.studies.purchase.verdict import compared, turns

from . import comparison_figures as figures
from .comparison_terms import SIDES, UNCERTAINTY, sides, uncertainty
from .memo.purchase import memo_of, ties
from .memo.sheet import section
from .serving import adapter, compare_page

if TYPE_CHECKING:
    from tspsim.step.result import Result
    from tspsim.studies.purchase.decision import Decision


MACHINES = "<ul>{% for line in lines %}<li>{{ line }}</li>{% endfor %}</ul>"


def level_of(decision: Decision | None) -> list[str]:
    """The winner and the offers that tie with it; empty where the winner is better."""
    tying = ties(decision) if decision is not None else []
    return [decision.winner.name, *tying] if decision is not None and decision.winner is not None and tying else []


def how_sure(decision: Decision | None) -> str:
    """The winner against the nearest offer, in a sentence; empty where nothing was compared."""
    if decision is None or decision.winner is None or not decision.verdicts:
        return ""
    nearest = decision.verdicts[0]
    if any(row.service for row in decision.rows):
        return " ".join(decision.in_words())
    if nearest.tie:
        return " ".join(list(decision.in_words())[:2])
    rival = next(row for row in decision.rows if row.name == nearest.b)
    return (
        f"{decision.winner.name} gives {nearest.ratio:.2f} times the {compared(decision.winner, decision.measure)} of "
        f"{nearest.b} (nine times of ten {nearest.low:.2f} to {nearest.high:.2f}), and more with a probability of "
        f"{chance(nearest.probability)}. {turns(nearest, decision.winner, rival)}"
    )


def page_of_requests(
    results: Sequence[Result],
    decision: Decision | None,
    links: Mapping[int, str] | None,
    plotly_js: str,
    title: str,
    description: str,
) -> str:
    """The comparison page where requests are served (:mod:`tspsim.report.serving.compare_page`)."""
    names = [str(result.scenario["name"]) for result in results]
    rows_ = dict(enumerate(decision.rows)) if decision else {}
    offers = [
        (rows_[number].name if number in rows_ else name, adapter.view_of(result))
        for number, (name, result) in enumerate(zip(names, results, strict=True))
    ]
    further: list[tuple[str, str, str, dict[str, Any]]] = []
    drawn: dict[str, Any] = {}
    if decision is not None and any(row.service for row in decision.rows):
        lines = [row.service.in_words(row.name, row.rates.basis) for row in decision.rows if row.service]
        lines += [f"{row.name}: keeps the bounds at no load ({row.misses})." for row in decision.rows if row.misses]
        further.append(("machines", "Machines for the project", MACHINES, {"lines": lines, "short": "Machines"}))
    if decision is not None and decision.verdicts:
        drawn["tornado"] = {"choices": figures.tornados(decision)}
        further.append(("doubt", "Uncertainty", UNCERTAINTY, uncertainty(decision)))
    further.append(("assumptions", "Assumptions side by side", SIDES, sides(results, rows_)))
    heading = title or " · ".join(dict.fromkeys(names))
    if decision is not None:
        further.append(section(memo_of(decision, results, heading, description)))
    return compare_page.page(
        offers,
        further,
        drawn,
        sure=how_sure(decision),
        level=level_of(decision),
        title=heading,
        description=description,
        kicker=adapter.kicker(results[0]) if len(results) == 1 else adapter.traffic_in_words(results[0]),
        links={offers[number][0]: link for number, link in (links or {}).items()},
        plotly_js=plotly_js,
    )
