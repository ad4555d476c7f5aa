"""The memo of the nodes that a fleet needs: offer, nodes, dollars, and the needs that one node less misses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tspsim.base.units import duration, several
from tspsim.report.memo.purchase import money
from tspsim.report.memo.sheet import Memo

if TYPE_CHECKING:
    from tspsim.fleet import FleetQuestion
    from tspsim.studies.fleet_size import FleetSize, FleetSizes

COLUMNS = ("Offer", "Nodes", "GPUs", "Dollars", "MWh", "Reached", "With one node less")


def memo_of(sizes: FleetSizes, question: FleetQuestion) -> Memo:
    """The sheet for the purchase of a fleet's nodes."""
    able = sorted((size for size in sizes.sizes if not size.error), key=_dollars)
    standing, verdict = headline(able)
    first = able[0] if able else None
    return Memo(
        title=sizes.name,
        kicker=f"Decision memo · nodes for {several(len(question.jobs), 'kind')} of jobs · "
        f"{several(len(sizes.sizes), 'offer')}",
        question=question.description,
        verdict=verdict,
        standing=standing,
        reasons=list(_reasons(able)),
        tiles=list(_tiles(first)) if first is not None else [],
        what="Offers, the cheapest first",
        columns=COLUMNS,
        rows=[_cells(size) for size in able],
        lists=[
            ("What would change it", list(_turns(able))),
            ("To know before signing", [*_refused(sizes), CAVEAT]),
        ],
        terms=list(_terms(sizes, question)),
        foot="Ranges are from the best to the worst draw.",
    )


CAVEAT = "Step times are those of the jobs' stacks; their uncertainty is not in the numbers of nodes."


def _dollars(size: FleetSize) -> float:
    return size.usd if size.usd is not None else float("inf")


def headline(able: list[FleetSize]) -> tuple[str, str]:
    """Standing and verdict: sure where the cheapest offer's dollars lie below all others' in all draws."""
    if not able:
        return "open", "No offer meets the needs."
    first = able[0]
    purchase = f"{several(first.nodes, 'node')} of {first.offer}"
    if len(able) == 1:
        return "sure", f"{purchase}: enough in every draw."
    if any(size.usd_of_draws is None for size in able):
        every = ", ".join(f"{several(size.nodes, 'node')} of {size.offer}" for size in able)
        return "open", f"Enough in every draw: {every}. Not all prices are known."
    assert first.usd_of_draws is not None
    level = [size.offer for size in able[1:] if size.usd_of_draws and size.usd_of_draws[0] <= first.usd_of_draws[1]]
    if level:
        return "tie", f"{first.offer} and {' and '.join(level)} tie: their dollars overlap between draws."
    return "sure", f"{purchase}: enough in every draw, and cheapest."


def _reasons(able: list[FleetSize]) -> Iterator[str]:
    for size in able[:2]:
        yield f"{size.offer}: {'; '.join(need.in_words() for need in size.reached)} in the worst of {size.draws} draws."


def _tiles(size: FleetSize) -> Iterator[tuple[str, str, str]]:
    draws = f"{size.low:,}" if size.low == size.high else f"{size.low:,} to {size.high:,}"
    yield "Nodes", f"{size.nodes:,}", f"single draws take {draws}"
    yield "GPUs", f"{size.gpus:,}", size.device.upper()
    if size.usd is not None and size.usd_of_draws is not None:
        yield "Dollars", money(size.usd), _money_between(size.usd_of_draws)


def _money_between(ends: tuple[float, float]) -> str:
    low, high = map(money, ends)
    return low if low == high else f"{low} – {high}"


def _cells(size: FleetSize) -> list[str]:
    nodes = f"{size.nodes:,}" + ("" if size.low == size.high else f"\n{size.low:,} – {size.high:,}")
    usd = "–"
    if size.usd is not None and size.usd_of_draws is not None:
        ends = _money_between(size.usd_of_draws)
        usd = money(size.usd) + (f"\n{ends}" if "–" in ends else "")
    missed = "; ".join(need.in_words() for need in size.fewer if not need.kept)
    return [
        size.offer,
        nodes,
        f"{size.gpus:,}",
        usd,
        "–" if size.energy_kwh is None else f"{size.energy_kwh / 1000.0:,.0f}",
        "; ".join(need.in_words() for need in size.reached),
        missed or "–",
    ]


def _refused(sizes: FleetSizes) -> Iterator[str]:
    return (f"{size.offer}: {size.error}." for size in sizes.sizes if size.error)


def _turns(able: list[FleetSize]) -> Iterator[str]:
    """Prices at which other offers would be the cheapest, and the needs that one node less misses."""
    for size in able[1:]:
        if size.usd and able[0].usd:
            share = able[0].usd / size.usd
            yield f"{size.offer} at {share:.0%} of its price a GPU-hour costs as much as {able[0].offer}."
    for size in able:
        missed = "; ".join(need.in_words() for need in size.fewer if not need.kept)
        if missed:
            yield f"{size.offer} with one node less: {missed}."


def _terms(sizes: FleetSizes, question: FleetQuestion) -> Iterator[tuple[str, str]]:
    draws = max((size.draws for size in sizes.sizes), default=0)
    yield "Jobs", ", ".join(job.name for job in question.jobs)
    yield "Draws", f"{draws}, seeds {question.seed} to {question.seed + draws - 1}"
    yield "Time", "until all jobs are done" if question.horizon is None else duration(question.horizon)
    yield "Jobs start", f"{question.scheduler.in_words()}; {question.placement.in_words()}"
    yield "Failures", "as stated" if question.failures is not None else "none"
