"""A fleet on the terminal: its classes of jobs, and the use of its GPU-hours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.units import duration, percent, several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ..fleet import FleetAnswer
    from ..studies.fleet_size import FleetSizes
    from ..studies.table import Table as SweepTable


def in_terminal(answer: FleetAnswer) -> Iterator[RenderableType]:
    """Machine and jobs, the table of classes, the waterfall of GPU-hours, assumptions."""
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
    use = f"Jobs have {percent(facts.allocated)} of all GPU-hours; {percent(facts.productive)} do work that lasts."
    yield Text(use, style="bold")
    for part, hours in facts.lost_gpu_hours.items():
        if hours:
            share = percent(hours / facts.gpu_hours)
            yield Padding(Text(f"{part.replace('_', ' ')}: {hours:,.0f} GPU-hours, {share}"), (0, 0, 0, 2))
    yield ""
    for title, sentences in (("Notes", notes_of(answer)), ("Assumed; each can be switched", answer.defaults)):
        if sentences:
            yield Text(title, style="bold")
            yield from (Padding(Text(sentence), (0, 0, 0, 2)) for sentence in sentences)
            yield ""


def notes_of(answer: FleetAnswer) -> list[str]:
    """Notes of the simulated steps, each once with its jobs."""
    about: dict[str, dict[str, None]] = {}
    for plan in answer.plans:
        for note in plan.notes:
            about.setdefault(note, {})[plan.name] = None
    return [f"{', '.join(names)}: {note}" for note, names in about.items()]


def sizes_in_terminal(sizes: FleetSizes) -> Iterator[RenderableType]:
    """The number of nodes of every offer that meets the needs, and why one less is too few."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in sizes.COLUMNS:
        table.add_column(name, justify="left" if name == "offer" else "right")
    for row in sizes.rows():
        table.add_row(*row)
    yield table
    yield ""
    yield from map(Text, sizes.in_words())
    if sizes.verdict:
        yield ""
        yield Text(sizes.verdict, style="bold")


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
