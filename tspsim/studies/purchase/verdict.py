"""The verdict in sentences, for the terminal, the page and the worked example alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...base.units import chance, compact, digits
from ...steps import STEPS
from ..ceiling import CEILING, USUAL
from ..uncertainty import Measure, Verdict, VerdictChange
from .row import OBJECTIVES, OfferRow


def today_s_ratio(a: OfferRow, b: OfferRow, measure: Measure) -> float | None:
    """What a GPU hour of ``a`` costs today over one of ``b``, on the basis that ranks, or what a GPU of it draws where
    joules are compared; None where one has none."""
    weighed: Measure = measure if measure == "tokens_per_joule" else "tokens_per_dollar"
    own, other = a.weighed(weighed), b.weighed(weighed)
    return own / other if own and other else None


def mixed_bases(rows: Sequence[OfferRow]) -> str:
    """That offers are priced on several bases, which a ratio of dollars hides; empty where all have one."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.rates.basis is not None:
            names.setdefault(row.rates.basis, []).append(row.name)
    if len(names) < 2:
        return ""
    parts = [f"{', '.join(those)} {basis}" for basis, those in names.items()]
    return f"Prices are of different kinds: {'; '.join(parts)}."


def ceiling(rows: Sequence[OfferRow]) -> str:
    """That rates are those of the stack that nobody runs, where no offer that trains states another; else empty."""
    workloads = [row.result.scenario.get("workload", {}) for row in rows if row.load is None]
    trained = [work for work in workloads if work.get("pass") in STEPS and STEPS.get(work["pass"]).trains]
    if {str(work.get("stack")) for work in trained} != {CEILING}:
        return ""
    return (
        f"No stack is stated, and `{CEILING}` is a ceiling for every offer: nothing but the devices' best kernels. "
        f"`--set workload.stack={USUAL}`, plain PyTorch as most people run it, says what that takes."
    )


#: What is less likely is not told as what would turn a verdict.
LEAST_LIKELY = 0.01


def likely_changes(verdict: Verdict) -> list[VerdictChange]:
    """What alone makes two offers level, but for what hardly ever does; the likeliest first."""
    return [change for change in verdict.changes if change.probability >= LEAST_LIKELY]


def compared(winner: OfferRow | None, measure: Measure) -> str:
    """What a verdict's ratio is of: tokens a dollar, or of a project's users and requests service for a dollar."""
    apiece = {"tokens_per_dollar": "service for a dollar", "tokens_per_joule": "service for a watt"}
    served = winner is not None and winner.service is not None
    return apiece.get(measure, OBJECTIVES[measure].words) if served else OBJECTIVES[measure].words


def level(each: Verdict) -> str:
    """What makes the two level, in words: ``a GPU hour of A costs 1.10 times that of B (0.90 to 1.30)``."""
    objective = OBJECTIVES[each.measure]
    told = objective.level.format(a=each.a, b=each.b), objective.of_other.format(a=each.a, b=each.b)
    return (
        f"{told[0]} {each.break_even_price_ratio:.2f} times {told[1]} "
        f"({each.break_even_low:.2f} to {each.break_even_high:.2f})"
    )


def sentences(
    winner: OfferRow | None, rows: Sequence[OfferRow], verdicts: Sequence[Verdict], measure: Measure
) -> Iterator[str]:
    """Who gives most, by how much, how likely, and what turns it."""
    yield from (f"{row.name} keeps the bounds at no load ({row.misses})." for row in rows if row.misses)
    if winner is None or winner.best is None:
        return
    per_dollar, objective = measure == "tokens_per_dollar", OBJECTIVES[measure]
    name, words = objective.measure, objective.words
    basis = f" (basis {winner.rates.basis})" if per_dollar else ""
    assert winner.plan is not None
    tied = [each.b for each in verdicts if each.tie]
    lead = f"{winner.name} and {' and '.join(tied)} tie: {winner.name}" if tied else winner.name
    if winner.service is not None:
        least = "takes" if tied else "serves the project for least" + " energy" * (measure == "tokens_per_joule")
        yield f"{lead} {least}{basis}{'' if tied else ':'} {_demand(winner)}, with {winner.plan.name}."
    else:
        most = compact(winner.measure(name) or 0.0)
        told = f"gives {most} {words}{basis}" if tied else f"gives most {words}{basis}: {most}"
        yield f"{lead} {told}, with {winner.plan.name}."
    others = {row.name: row for row in rows}
    what = f"the {compared(winner, measure)}"
    yield from (f"{against(each, what)} {turns(each, winner, others[each.b])}" for each in verdicts)


def _demand(winner: OfferRow) -> str:
    """What the project's users and requests take of it."""
    service = winner.service
    assert service is not None
    nodes = f"{service.nodes:,} node{'s' * (service.nodes > 1)}"
    usd = service.usd_per_hour.get(winner.rates.basis or "")
    each = service.share * winner.gpus * (winner.rates.usd or 0.0)
    exact = f" (${digits(each)} before nodes are whole)" if usd is not None else ""
    return nodes if usd is None else f"{nodes} at ${digits(usd)} an hour{exact}"


def against(each: Verdict, what: str) -> str:
    """One rival: how many times ``what`` it has, and how surely; a tie where neither is named as better."""
    if each.alike:
        return (
            f"Against {each.b}: a tie, {each.ratio:.2f} times {what} and ±{100 * each.drawn:.1f} % by the requests "
            f"that were drawn; with what kernels and prices may be off {each.low:.2f} to {each.high:.2f}."
        )
    return (
        f"Against {each.b}: {'a tie, ' * each.tie}{each.ratio:.2f} times {what}, nine times of ten {each.low:.2f} to "
        f"{each.high:.2f}, more with a probability of {chance(each.probability)}."
    )


def turns(each: Verdict, winner: OfferRow, rival: OfferRow) -> str:
    """The price, or power, at which the two are level, and today's."""
    told = f"{'In dollars the two are level' if each.measure == 'tokens_per_s' else 'It turns'} when {level(each)}"
    today = today_s_ratio(winner, rival, each.measure)
    told += f"; today {today:.2f}" if today is not None else ""
    if winner.gpus != rival.gpus:
        told += f"; {winner.gpus:,} GPUs against {rival.gpus:,}"
    return f"{told}."
