"""A fleet in a terminal: its classes of jobs, and where its GPU-hours went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..units import duration, percent, several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ..fleet import FleetAnswer
    from ..studies.fleet_size import FleetSizes
    from ..studies.table import Table as SweepTable


def in_terminal(answer: FleetAnswer) -> Iterator[RenderableType]:
    """What was asked, the table of classes, the waterfall, what was assumed."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    facts = answer.facts
    device = answer.cluster["device"]["name"].upper()
    kicker = (
        f"{several(len(facts.jobs), 'job')} on {several(facts.nodes, 'node')}, {facts.gpus:,} × {device}, "
        f"{duration(facts.horizon_s)}"
    )
    yield Text(kicker, style="bold")
    yield ""
    table = Table(box=None, pad_edge=False)
    for name in ("class", "jobs", "done", "GPU-hours", "mean wait", "95 % wait", "restarts"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for kind in facts.classes():
        waits = ("–" if kind[key] is None else duration(kind[key]) for key in ("mean_wait_s", "p95_wait_s"))
        had = f"{kind['gpu_hours']:,.0f}"
        table.add_row(kind["class"], f"{kind['jobs']:,}", f"{kind['done']:,}", had, *waits, f"{kind['restarts']:,}")
    yield table
    yield ""
    told = f"Jobs have {percent(facts.allocated)} of all GPU-hours; {percent(facts.productive)} do work that lasts."
    yield Text(told, style="bold")
    for part, hours in facts.lost_gpu_hours.items():
        if hours:
            share = percent(hours / facts.gpu_hours)
            yield Padding(Text(f"{part.replace('_', ' ')}: {hours:,.0f} GPU-hours, {share}"), (0, 0, 0, 2))
    yield ""
    for title, sentences in (("Worth knowing", notes_of(answer)), ("Assumed; each can be switched", answer.defaults)):
        if sentences:
            yield Text(title, style="bold")
            yield from (Padding(Text(sentence), (0, 0, 0, 2)) for sentence in sentences)
            yield ""


def notes_of(answer: FleetAnswer) -> list[str]:
    """Notes of the simulated steps, each once with the jobs that it is about."""
    about: dict[str, dict[str, None]] = {}
    for plan in answer.plans:
        for note in plan.notes:
            about.setdefault(note, {})[plan.name] = None
    return [f"{', '.join(names)}: {note}" for note, names in about.items()]


def size_rows(sizes: FleetSizes) -> Iterator[tuple[str, ...]]:
    """Of every offer its nodes, those of single draws, GPUs, dollars and MWh."""
    for size in sizes.sizes:
        if size.error:
            yield (size.offer, "–", "–", "–", "–", "–")
            continue
        draws = f"{size.low:,}" if size.low == size.high else f"{size.low:,} to {size.high:,}"
        usd = "–" if size.usd is None else f"{size.usd:,.0f}"
        energy = "–" if size.energy_kwh is None else f"{size.energy_kwh / 1000.0:,.0f}"
        yield (size.offer, f"{size.nodes:,}", draws, f"{size.gpus:,}", usd, energy)


def size_sentences(sizes: FleetSizes) -> Iterator[str]:
    """What every offer reaches, and what one node less misses."""
    for size in sizes.sizes:
        if size.error:
            yield f"{size.offer}: {size.error}."
            continue
        told = "; ".join(each.in_words() for each in size.reached)
        missed = "; ".join(each.in_words() for each in size.fewer if not each.kept)
        less = f" With one node less {missed}." if missed else ""
        yield f"{size.offer}: in the worst of {size.draws} draws {told}.{less}"


def sizes_in_terminal(sizes: FleetSizes) -> Iterator[RenderableType]:
    """How many nodes of every offer reach what is needed, and why one less does not."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("offer", "nodes", "of single draws", "GPUs", "USD", "MWh"):
        table.add_column(name, justify="left" if name == "offer" else "right")
    for row in size_rows(sizes):
        table.add_row(*row)
    yield table
    yield ""
    for sentence in size_sentences(sizes):
        yield Text(sentence)
    yield ""
    yield Text("Steps of jobs are those of their stacks; how far these may be off is not in the numbers of nodes.")
    best = sizes.cheapest
    if best is not None and len(sizes.sizes) > 1:
        yield ""
        yield Text(f"Cheapest: {best.offer}, {best.usd:,.0f} USD for the time that is looked at.", style="bold")


def fleet_rows(table: SweepTable) -> Iterator[RenderableType]:
    """The points of a sweep over a fleet."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False)
    for name in (*table.swept, "jobs done", "allocated", "productive", "half wait", "95 % wait", "USD"):
        shown.add_column(name, justify="right")
    for row in table.rows():
        swept = [str(row[path]) for path in table.swept]
        if row["error"] is not None:
            shown.add_row(*swept, "–", "–", "–", "–", "–", "–")
            continue
        half, most = (
            "–" if row[key] is None else duration(float(str(row[key]))) for key in ("p50_wait_s", "p95_wait_s")
        )
        shares = (percent(float(str(row[key]))) for key in ("allocated", "productive"))
        usd = "–" if row["cost_usd"] is None else f"{float(str(row['cost_usd'])):,.0f}"
        shown.add_row(*swept, f"{row['done']:,} of {row['jobs']:,}", *shares, half, most, usd)
    yield shown
    for number, row in enumerate(table.rows()):
        if row["error"] is not None:
            yield Text(f"point {number + 1}: {row['error']}")
