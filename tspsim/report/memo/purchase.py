"""The memo of a purchase: the offer to take, its days and dollars, and what would change the decision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tspsim.base.errors import together
from tspsim.base.units import chance, compact, digits, percent
from tspsim.report.memo.sheet import Memo
from tspsim.report.memo.words import plan_in_words, precision, stack, work
from tspsim.studies.purchase.costs import BASES, STATED, STATED_WORDS
from tspsim.studies.purchase.row import OBJECTIVES
from tspsim.studies.purchase.verdict import ceiling, compared, level, likely_changes, mixed_bases, today_s_ratio

if TYPE_CHECKING:
    from tspsim.step.result import Result
    from tspsim.studies.purchase.decision import Decision
    from tspsim.studies.purchase.likely import Likely
    from tspsim.studies.purchase.row import OfferRow

#: Hours of a month.
MONTH_H = 730.5
COLUMNS = ("Offer", "Machine", "Plan", "Days", "Dollars", "In time", "In budget", "Enough nodes", "$/M tokens")


#: Beginnings of notes that are left out of the memo.
OF_OTHER_PAGES = ("chosen for this machine", "sentences tell the best of")


def money(usd: float) -> str:
    """Dollars to three digits.

    >>> money(19_312.0), money(540_000.0), money(812.4)
    ('$19.3 k', '$540 k', '$812')
    """
    return f"${compact(usd)}" if usd >= 1000 else f"${digits(usd)}"


def memo_of(decision: Decision, results: Sequence[Result], title: str, description: str) -> Memo:
    """The sheet of a decision about ``results``."""
    ranked = _ranked(decision)
    winner = ranked[0] if ranked and ranked[0].plan is not None else None
    standing, verdict = headline(decision, winner)
    return Memo(
        title=title,
        kicker=f"Decision memo · {len(decision.rows)} offers" + (f" · {work(results[0])}" if results else ""),
        question=question(decision, description),
        verdict=verdict,
        standing=standing,
        reasons=list(_reasons(decision, winner, standing)),
        tiles=list(_tiles(winner, standing)) if winner is not None else [],
        what="Offers, the best first",
        columns=(*COLUMNS, f"{_measured(decision)}, × the first"),
        rows=[_cells(decision, row) for row in ranked],
        note=_note(decision),
        lists=[
            ("What would change it", list(turns(decision))),
            ("To know before signing", list(_caveats(decision))),
        ],
        terms=list(_terms(decision, results, winner)),
    )


def _ranked(decision: Decision) -> list[OfferRow]:
    """The winner, then the others by the deciding measure; offers without a plan last."""
    return sorted(decision.ranked(OBJECTIVES[decision.measure].measure), key=lambda row: row is not decision.winner)


def ties(decision: Decision) -> list[str]:
    """Offers that tie with the winner, by the same rule as everywhere (``Verdict.tie``)."""
    return [verdict.b for verdict in decision.verdicts if verdict.tie]


def headline(decision: Decision, winner: OfferRow | None) -> tuple[str, str]:
    """The standing of the verdict, and the verdict in a sentence."""
    if winner is None or winner.plan is None:
        return "open", "No plan fits or can run on any offer."
    if decision.doubt:
        return "open", decision.doubt
    if level := ties(decision):
        return "tie", f"{together([winner.name, *level])} tie: the difference lies within its range."
    near = [verdict for verdict in decision.verdicts if verdict.low <= 1.0]
    if near:
        least = min(verdict.probability for verdict in near)
        against = together([verdict.b for verdict in near])
        return "likely", (
            f"{winner.name}, better than {against} with a probability of {chance(least)}: {_answer(decision, winner)}."
        )
    return "sure", f"{winner.name}: {_answer(decision, winner)}."


def _answer(decision: Decision, row: OfferRow) -> str:
    if row.outcome is not None:
        usd = row.outcome.usd.get(row.rates.basis or "")
        return f"{digits(row.outcome.days)} days" + (f" and {money(usd)}" if usd is not None else "")
    basis = row.rates.basis or ""
    if row.service is not None and basis in row.service.usd_per_hour:
        nodes = f"{row.service.nodes:,} node{'s' * (row.service.nodes > 1)}"
        return f"{nodes} at {money(row.service.usd_per_hour[basis] * MONTH_H)} a month"
    objective = OBJECTIVES[decision.measure]
    return f"{compact(row.measure(objective.measure) or 0.0)} {objective.words}"


def _measured(decision: Decision) -> str:
    """The unit that the verdict compares."""
    return compared(decision.winner, decision.measure)


def question(decision: Decision, description: str) -> str:
    """The description, with the required work and its bounds."""
    terms = decision.project
    if terms is None or not (terms.tokens or terms.users or terms.requests):
        return description
    bounds = [f"{_round(compact(terms.tokens))} tokens"] if terms.tokens else []
    bounds += [f"{terms.users:,} users"] if terms.users else []
    bounds += [f"{terms.requests:,.4g} requests/s"] if terms.requests else []
    bounds += [f"within {terms.deadline / 86_400.0:.4g} days"] if terms.deadline else []
    bounds += [f"for at most {_round(money(terms.budget))}"] if terms.budget else []
    said = description if not description or description.endswith((".", "?", "!")) else f"{description}."
    return f"{said} Required: {', '.join(bounds)}.".strip()


def _round(text: str) -> str:
    """A stated amount without the zeros of its precision.

    >>> _round("1.00 T"), _round("$10.0 k"), _round("200 G")
    ('1 T', '$10 k', '200 G')
    """
    return re.sub(r"\.0+(?= )", "", text)


def _reasons(decision: Decision, winner: OfferRow | None, standing: str) -> Iterator[str]:
    if winner is None or not decision.verdicts:
        return
    for verdict in [verdict for verdict in decision.verdicts if standing != "tie" or verdict.tie][:1]:
        lead = f"{winner.name} has {verdict.ratio:.2f} times the {_measured(decision)} of {verdict.b}"
        yield (
            f"{lead} (nine times of ten {verdict.low:.2f} to {verdict.high:.2f}), and more with a probability of "
            f"{chance(verdict.probability)}."
        )
    if standing == "tie":
        yield "None of these is the better buy by this simulation: terms, delivery or a measurement may decide."
    terms = decision.project
    for row in [winner] if winner.likely is not None and terms is not None else []:
        assert row.likely is not None and terms is not None
        if terms.deadline is not None and row.likely.in_time is not None:
            yield f"{row.name} as offered is in time with a probability of {chance(row.likely.in_time)}."
        if row.likely.in_budget is not None:
            yield f"{row.name} stays within the budget with a probability of {chance(row.likely.in_budget)}."


def _tiles(row: OfferRow, standing: str) -> Iterator[tuple[str, str, str]]:
    """The winner's main figures, at most four, with its name where the verdict is not sure."""
    for what, value, more in _figures(row):
        yield (what if standing == "sure" else f"{row.name}: {what}"), value, more


def _figures(row: OfferRow) -> Iterator[tuple[str, str, str]]:
    assert row.plan is not None
    basis = row.rates.basis or ""
    if row.outcome is not None:
        yield "Days", digits(row.outcome.days), _ends(row.likely.days) if row.likely else ""
        if basis in row.outcome.usd:
            yield f"Dollars ({basis})", money(row.outcome.usd[basis]), _usd_range(row.likely)
    elif row.service is not None:
        service = row.service
        yield "Nodes", f"{service.nodes:,}", f"{service.gpus:,} GPUs"
        if basis in service.usd_per_hour:
            month = service.usd_per_hour[basis] * MONTH_H
            yield f"A month ({basis})", money(month), f"{money(service.usd_per_hour[basis])} an hour"
    if rate := row.measure("tokens_per_s"):
        ends = row.rate_range
        yield "Tokens/s", compact(rate), f"{compact(ends[0])} – {compact(ends[1])}" if ends is not None else ""
    if per_usd := row.measure("tokens_per_usd"):
        yield "$/M tokens", digits(1e6 / per_usd), f"{digits(row.rates.usd or 0.0)} $ per GPU hour"


def _cells(decision: Decision, row: OfferRow) -> list[str]:
    machine = f"{row.gpus:,} {row.device.upper()}"
    blank = [row.name, machine, "–" if row.plan is None else row.plan.name]
    if row.plan is None:
        return [*blank, *["–"] * (len(COLUMNS) - 3), "no plan fits"]
    basis = row.rates.basis or ""
    days = usd = in_time = in_budget = "–"
    if row.outcome is not None:
        days = digits(row.outcome.days) + (f"\n{_ends(row.likely.days)}" if row.likely else "")
        if basis in row.outcome.usd:
            usd = f"{money(row.outcome.usd[basis])}\n{_usd_range(row.likely)}"
    elif row.service is not None and basis in row.service.usd_per_hour:
        usd = f"{money(row.service.usd_per_hour[basis] * MONTH_H)} a month"
    if row.likely is not None:
        in_time = "–" if row.likely.in_time is None else chance(row.likely.in_time)
        in_budget = "–" if row.likely.in_budget is None else chance(row.likely.in_budget)
    enough = f"{row.need.nodes:,}" if row.need else f"{row.service.nodes:,}" if row.service else "–"
    per_usd = row.measure("tokens_per_usd")
    per_million = digits(1e6 / per_usd) if per_usd else "–"
    return [*blank, days, usd, in_time, in_budget, enough, per_million, _against(decision, row)]


def _against(decision: Decision, row: OfferRow) -> str:
    verdict = next((other for other in decision.verdicts if other.b == row.name), None)
    if verdict is None:
        return "first" if row is decision.winner else "–"
    ratio = f"{1 / verdict.ratio:.2f}" + (", tie" if verdict.tie else "")
    return f"{ratio}\n{1 / verdict.high:.2f} – {1 / verdict.low:.2f}"


def turns(decision: Decision) -> Iterator[str]:
    """Prices at which the nearest rivals are level, and single factors that would change the verdict."""
    rows = {row.name: row for row in decision.rows}
    for verdict in decision.verdicts[:3]:
        today = today_s_ratio(rows[verdict.a], rows[verdict.b], verdict.measure)
        now = f", today {today:.2f}" if today is not None else ""
        lead = "In dollars " if verdict.measure == "tokens_per_s" else ""
        yield f"{lead}{verdict.b} is level when {level(verdict)}{now}."
    for verdict in decision.verdicts[:2]:
        for change in likely_changes(verdict)[:1]:
            yield (
                f"{change.factor} at {change.value:.2f} times its assumed value makes {verdict.b} level "
                f"({percent(change.probability)} likely, all else as predicted)."
            )


def _caveats(decision: Decision) -> Iterator[str]:
    from tspsim.step.statements import is_announced

    for row in decision.rows:
        if row.searched is not None and (row.searched.gap > 0.01 or not row.searched.complete):
            yield row.searched.in_words(row.name)
    refused = [row.name for row in decision.rows if row.plan is None and not row.misses]
    if refused:
        yield f"No plan fits on {together(refused)}."
    yield from (f"{row.name} keeps the bounds at no load ({row.misses})." for row in decision.rows if row.misses)
    if decision.unpriced:
        yield decision.unpriced.replace("`", "")
    yield from dict.fromkeys(text for row in decision.rows for text in row.result.defaults if is_announced(text))
    if decision.measure == "tokens_per_dollar" and (mixed := mixed_bases(decision.rows)):
        yield mixed
    if beside := ceiling(decision.rows):
        yield beside.partition(". ")[0].replace("`", "") + "."
    notes = decision.winner.plan.notes if decision.winner is not None and decision.winner.plan is not None else ()
    yield from (note for note in notes if not note.startswith(OF_OTHER_PAGES))


def _terms(decision: Decision, results: Sequence[Result], winner: OfferRow | None) -> Iterator[tuple[str, str]]:
    shown = winner.result if winner is not None else results[0]
    if winner is not None and winner.plan is not None:
        yield "Plan", f"{winner.plan.name}: {plan_in_words(winner.plan)}."
        yield "Limit", f"{winner.plan.bottleneck}."
    yield "Precision", precision(shown)
    yield "Stack", stack(results)
    yield "Prices", prices(decision, winner)
    terms = decision.project
    if terms is not None and terms.tokens is not None:
        mtbf = digits(terms.failures.node_mtbf / 86_400.0)
        yield "Failures", f"a node every {mtbf} days: {terms.failures.source}"
    yield "Left out", "staff, storage, delivery and negotiation; the page lists what the model does not explain."


def prices(decision: Decision, winner: OfferRow | None) -> str:
    """Price of a GPU hour of every offer, with basis, date and source; equal terms are grouped, the winner's first."""
    rows = sorted(decision.rows, key=lambda row: row is not winner)
    priced: dict[str, list[str]] = {}
    for row in (row for row in rows if row.rates.basis is not None):
        rates, basis = row.rates, row.rates.basis or ""
        words = BASES.get(basis, basis) if basis == STATED else f"{basis}: {BASES.get(basis, basis)}"
        source = "" if rates.source == STATED_WORDS else rates.source
        terms = ", ".join(filter(None, [words, rates.date, source]))
        priced.setdefault(terms, []).append(f"{row.name} ${digits(rates.usd or 0.0)}")
    return "; ".join(f"{', '.join(names)} ({terms})" for terms, names in priced.items())


def _note(decision: Decision) -> str:
    sentences = []
    if any(row.outcome for row in decision.rows):
        sentences.append("Days and dollars are of the offer as it stands, with failures and checkpoints.")
    if any(row.need for row in decision.rows):
        sure = decision.project.confidence if decision.project is not None else None
        how = f", with a probability of {chance(sure)}" if sure is not None else " as predicted"
        sentences.append(f"Enough nodes: the number for the deadline or the rate{how}, simulated at that size.")
    return " ".join(sentences)


def _ends(ends: tuple[float, float]) -> str:
    return f"{digits(ends[0])} – {digits(ends[1])}"


def _usd_range(likely: Likely | None) -> str:
    if likely is None or likely.usd is None:
        return "–"
    return f"{money(likely.usd[0])} – {money(likely.usd[1])}"
