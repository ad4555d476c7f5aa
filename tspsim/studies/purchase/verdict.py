"""The verdict in sentences, for the terminal, the page and the worked example alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...base.units import chance, compact, digits
from ...steps import STEPS
from ..ceiling import CEILING, USUAL
from ..uncertainty import Measure, Verdict, VerdictChange
from .row import OBJECTIVES, OfferRow


def today_s_ratio(a: OfferRow, b: OfferRow, measure: Measure) -> float | None:
    """Price of a GPU hour of ``a`` over that of ``b``, on the basis that ranks; ratio of their power where joules are
    compared; None where one is missing."""
    weighed: Measure = measure if measure == "tokens_per_joule" else "tokens_per_dollar"
    own, other = a.weighed(weighed), b.weighed(weighed)
    return own / other if own and other else None


def mixed_bases(rows: Sequence[OfferRow]) -> str:
    """A note that offers have different price bases, which a ratio of dollars hides; empty where all have one."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.rates.basis is not None:
            names.setdefault(row.rates.basis, []).append(row.name)
    if len(names) < 2:
        return ""
    parts = [f"{', '.join(those)} {basis}" for basis, those in names.items()]
    return f"Prices are of different kinds: {'; '.join(parts)}."


def ceiling(rows: Sequence[OfferRow]) -> str:
    """A note that rates are ceilings, where no training offer states a stack; else empty."""
    workloads = [row.result.scenario.get("workload", {}) for row in rows if row.load is None]
    trained = [work for work in workloads if work.get("pass") in STEPS and STEPS.get(work["pass"]).trains]
    if {str(work.get("stack")) for work in trained} != {CEILING}:
        return ""
    return (
        f"No stack is stated, and `{CEILING}` is a ceiling for every offer: nothing but the devices' best kernels. "
        f"`--set workload.stack={USUAL}`, plain PyTorch as most people run it, says what that takes."
    )


#: Least probability of a change that the report names.
LEAST_LIKELY = 0.01


def likely_changes(verdict: Verdict) -> list[VerdictChange]:
    """Single factors that would level two offers, without the very unlikely; the likeliest first."""
    return [change for change in verdict.changes if change.probability >= LEAST_LIKELY]


def compared(winner: OfferRow | None, measure: Measure) -> str:
    """The unit of a verdict's ratio: tokens per dollar; with users and requests service for a dollar."""
    apiece = {"tokens_per_dollar": "service for a dollar", "tokens_per_joule": "service for a watt"}
    served = winner is not None and winner.service is not None
    return apiece.get(measure, OBJECTIVES[measure].words) if served else OBJECTIVES[measure].words


def level(verdict: Verdict) -> str:
    """What makes the two offers level, in words: ``a GPU hour of A costs 1.10 times that of B (0.90 to 1.30)``."""
    objective = OBJECTIVES[verdict.measure]
    words = objective.level.format(a=verdict.a, b=verdict.b), objective.of_other.format(a=verdict.a, b=verdict.b)
    return (
        f"{words[0]} {verdict.break_even_price_ratio:.2f} times {words[1]} "
        f"({verdict.break_even_low:.2f} to {verdict.break_even_high:.2f})"
    )


def sentences(
    winner: OfferRow | None, rows: Sequence[OfferRow], verdicts: Sequence[Verdict], measure: Measure
) -> Iterator[str]:
    """The winner, its lead and probability, and the price that would change the verdict."""
    yield from (f"{row.name} keeps the bounds at no load ({row.misses})." for row in rows if row.misses)
    if winner is None or winner.best is None:
        return
    per_dollar, objective = measure == "tokens_per_dollar", OBJECTIVES[measure]
    name, words = objective.measure, objective.words
    basis = f" (basis {winner.rates.basis})" if per_dollar else ""
    assert winner.plan is not None
    tied = [verdict.b for verdict in verdicts if verdict.tie]
    lead = f"{winner.name} and {' and '.join(tied)} tie: {winner.name}" if tied else winner.name
    if winner.service is not None:
        least = "takes" if tied else "serves the project for least" + " energy" * (measure == "tokens_per_joule")
        yield f"{lead} {least}{basis}{'' if tied else ':'} {_demand(winner)}, with {winner.plan.name}."
    else:
        most = compact(winner.measure(name) or 0.0)
        gives = f"gives {most} {words}{basis}" if tied else f"gives most {words}{basis}: {most}"
        yield f"{lead} {gives}, with {winner.plan.name}."
    others = {row.name: row for row in rows}
    what = f"the {compared(winner, measure)}"
    yield from (f"{against(verdict, what)} {turns(verdict, winner, others[verdict.b])}" for verdict in verdicts)


def _demand(winner: OfferRow) -> str:
    """The winner's nodes and price for the project's users and requests."""
    service = winner.service
    assert service is not None
    nodes = f"{service.nodes:,} node{'s' * (service.nodes > 1)}"
    usd = service.usd_per_hour.get(winner.rates.basis or "")
    usd_exact = service.share * winner.gpus * (winner.rates.usd or 0.0)
    exact = f" (${digits(usd_exact)} before nodes are whole)" if usd is not None else ""
    return nodes if usd is None else f"{nodes} at ${digits(usd)} an hour{exact}"


def against(verdict: Verdict, what: str) -> str:
    """One rival: the winner's ratio to it and its range; a tie where neither is named as better."""
    if verdict.alike:
        return (
            f"Against {verdict.b}: a tie, {verdict.ratio:.2f} times {what} and ±{100 * verdict.drawn:.1f} % "
            f"by the requests that were drawn; with what kernels and prices may be off "
            f"{verdict.low:.2f} to {verdict.high:.2f}."
        )
    return (
        f"Against {verdict.b}: {'a tie, ' * verdict.tie}{verdict.ratio:.2f} times {what}, nine times of ten "
        f"{verdict.low:.2f} to {verdict.high:.2f}, more with a probability of {chance(verdict.probability)}."
    )


def turns(verdict: Verdict, winner: OfferRow, rival: OfferRow) -> str:
    """The ratio of prices, or power, at which the two are level, and today's."""
    text = (
        f"{'In dollars the two are level' if verdict.measure == 'tokens_per_s' else 'It turns'} when {level(verdict)}"
    )
    today = today_s_ratio(winner, rival, verdict.measure)
    text += f"; today {today:.2f}" if today is not None else ""
    if winner.gpus != rival.gpus:
        text += f"; {winner.gpus:,} GPUs against {rival.gpus:,}"
    return f"{text}."
