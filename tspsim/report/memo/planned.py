"""The memo of a search for plans: the best plan, its certainty, and the best plans by other measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tspsim.base.units import compact, gib, percent
from tspsim.report import offers_plan
from tspsim.report.memo.results import figures
from tspsim.report.memo.sheet import Memo
from tspsim.report.memo.words import plan_in_words, recomputation_in_words
from tspsim.report.numbers import seconds
from tspsim.report.plan import kicker, rows_of, sensitivity, what_fits, why
from tspsim.report.view import price_range

if TYPE_CHECKING:
    from tspsim.report.searched import SearchedView
    from tspsim.studies.planner import OffersPlanned, Planned


def of_steps(planned: Planned) -> Memo:
    """The best plans of one machine."""
    best = planned.best[0]
    close = planned.ahead is not None and planned.ahead.close and len(planned.best) > 1
    open_ = planned.gap > 0.01 or planned.interrupted
    name = best.candidate.name
    verdict = f"{name}: {compact(best.result.tokens_per_s, 'tokens/s')}."
    if open_:
        verdict = f"Not searched enough: {name} is the best so far, another may be {percent(planned.gap)} better."
    elif close:
        verdict = f"{name} and {planned.best[1].candidate.name} tie: the difference lies within its range."
    rows = [
        (
            name,
            compact(result.tokens_per_s)
            + (f"\n{compact(result.range.low)} – {compact(result.range.high)}" if result.range else ""),
            seconds(result.step_time_s),
            percent(result.mfu),
            gib(result.memory.capacity_bytes - result.memory.peak_bytes),
            price_range(result) or "–",
        )
        for name, result in rows_of(planned)
    ]
    device = planned.question.device
    prices = ", ".join(f"{basis} {usd:g}" for basis, usd in device.prices_usd_per_hour.items())
    return Memo(
        title=planned.scenario.name,
        kicker=f"Decision memo · {kicker(planned)}",
        question=planned.scenario.description,
        verdict=verdict,
        standing="open" if open_ else "tie" if close else "sure",
        reasons=[f"{best.result.bottleneck[:1].upper()}{best.result.bottleneck[1:]}.", *why(planned)[1:2]],
        tiles=list(figures(best.result)),
        what="The best plans, then those of the front and those stated",
        columns=("Plan", "Tokens/s", "Step", "MFU", "Memory left", "$/M tokens"),
        rows=rows,
        lists=[
            ("What would change it", sensitivity(planned)),
            ("How sure", [*_counted(planned), *what_fits(planned)]),
        ],
        terms=[
            ("Plan", f"{plan_in_words(best.result)}."),
            ("Backward", recomputation_in_words(best.result)),
            ("Precision", str(planned.scenario.workload.precision)),
            ("Stack", planned.scenario.workload.stack),
            ("Prices", f"$ per GPU hour: {prices}" if prices else ""),
            ("Left out", "keys that were not searched; the page (--html) names them, with the reason."),
        ],
    )


def _counted(planned: Planned) -> Iterator[str]:
    yield (
        f"{planned.batch:,} sequences a step in every plan; {planned.bounded:,} layouts bounded, {planned.simulated} "
        "plans simulated."
    )
    if planned.gap > 0.0:
        yield f"Plans that were searched and not simulated are at most {percent(planned.gap)} better."


def of_searched(searched: SearchedView) -> Memo:
    """The best plans of a service or of a serving step, as on their page."""
    columns, rows = searched.shown(searched.wide)
    return Memo(
        title=searched.scenario.name,
        kicker=f"Decision memo · {searched.kicker}",
        question=searched.scenario.description,
        verdict=searched.headline,
        standing="sure",
        reasons=[],
        tiles=[],
        what="The best plans",
        columns=columns,
        rows=rows,
        lists=[
            ("How sure", searched.sentences),
            ("Refused", [f"{name}: {reason}" for name, reason in searched.refused[:3]]),
        ],
        terms=[("Keys", searched.keys), ("Stack", searched.scenario.workload.stack)],
    )


def of_offers(answer: OffersPlanned) -> Memo:
    """The best plan of every offer; ``compare`` weighs the offers."""
    return Memo(
        title=answer.scenario.name,
        kicker=f"Decision memo · the best plan of each of {len(answer.offers)} offers",
        question=answer.scenario.description,
        verdict="The best plan of every offer; `tspsim compare` weighs the offers.",
        standing="open",
        reasons=[],
        tiles=[],
        what="The best plan of every offer",
        columns=offers_plan.COLUMNS,
        rows=offers_plan.rows(answer),
        lists=[("Refused", offers_plan.refused(answer))],
        terms=[(name, f"{plan_in_words(planned.best[0].result)}.") for name, planned in answer.answered[:6]],
    )
