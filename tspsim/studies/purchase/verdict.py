"""The verdict in sentences, for the terminal, the page and the worked example alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...units import chance, compact, digits
from ..uncertainty import Measure, Verdict
from .row import Row


def price_ratio(a: Row, b: Row) -> float | None:
    """What a GPU hour of ``a`` costs today over one of ``b``, on the basis that ranks; None where one has no price."""
    return a.rates.usd / b.rates.usd if a.rates.usd and b.rates.usd else None


def sentences(winner: Row | None, rows: Sequence[Row], verdicts: Sequence[Verdict], measure: Measure) -> Iterator[str]:
    """Who gives most, by how much, how likely, and what turns it."""
    yield from (f"{row.name} keeps the bounds at no load ({row.misses})." for row in rows if row.misses)
    if winner is None or winner.best is None:
        return
    per_dollar = measure == "tokens_per_dollar"
    name, words = ("tokens_per_usd", "tokens a dollar") if per_dollar else ("tokens_per_s", "tokens/s")
    basis = f" (basis {winner.rates.basis})" if per_dollar else ""
    assert winner.plan is not None
    level = [each.b for each in verdicts if each.tie]
    lead = f"{winner.name} and {' and '.join(level)} tie: {winner.name}" if level else winner.name
    if winner.service is not None:
        least = "takes" if level else "serves the project for least"
        yield f"{lead} {least}{basis}{'' if level else ':'} {_demand(winner)}, with {winner.plan.name}."
    else:
        most = compact(winner.measure(name) or 0.0)
        told = f"gives {most} {words}{basis}" if level else f"gives most {words}{basis}: {most}"
        yield f"{lead} {told}, with {winner.plan.name}."
    others = {row.name: row for row in rows}
    what = "the service for a dollar" if winner.service is not None and per_dollar else f"the {words}"
    yield from (f"{against(each, what)} {turns(each, winner, others[each.b])}" for each in verdicts)


def _demand(winner: Row) -> str:
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


def turns(each: Verdict, winner: Row, rival: Row) -> str:
    """The price at which the two are level, and today's."""
    told = (
        f"It turns when a GPU hour of {each.a} costs {each.break_even_price_ratio:.2f} times that of {each.b} "
        f"({each.break_even_low:.2f} to {each.break_even_high:.2f})"
    )
    today = price_ratio(winner, rival)
    told += f"; today {today:.2f}" if today is not None else ""
    if winner.gpus != rival.gpus:
        told += f"; {winner.gpus:,} GPUs against {rival.gpus:,}"
    return f"{told}."
