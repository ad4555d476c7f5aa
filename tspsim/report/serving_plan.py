"""The planner's answer about a serving step, on the terminal and as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tspsim.files import atomic_write
from tspsim.units import GIB, compact, gib

from .figures import ACCENT, value_axis
from .fronts import Line, Marks, front_figure
from .numbers import label, seconds
from .page import render_sections
from .plan_page import FIGURE, HEADLINE, LIST, TABLE
from .served import sessions, user
from .view import price_range

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tspsim.studies.planner import ServingPlanned
    from tspsim.studies.planner.limit import Limit
    from tspsim.studies.planner.serving import Served

COLUMNS = (
    "Plan", "Batch a replica", "Tokens/s", "A GPU", "First token", "Output token", "A user", "Sessions", "Memory free",
    "$ a million tokens", "What limits it",
)  # fmt: skip
#: Limits in words, by name; the value follows.
LIMITED = {"tpot": "time an output token", "ttft": "time to the first token", "step": "time of a step",
           "memory_free": "memory free a GPU"}  # fmt: skip


def told(planned: ServingPlanned) -> tuple[list[str], list[list[str]]]:
    """Columns that have anything to say, and their rows."""
    every = rows(planned)
    shown = [index for index in range(len(COLUMNS)) if any(row[index] != "–" for row in every)]
    return [COLUMNS[index] for index in shown], [[row[index] for index in shown] for row in every]


def rows(planned: ServingPlanned) -> list[tuple[str, ...]]:
    """The best plans, the rest of the front, and the stated ones, as cells of :data:`COLUMNS`."""
    shown = [*planned.best, *(each for each in planned.front if each not in planned.best)]
    others = [each for each in planned.stated if each not in shown]
    return [*(cells(each) for each in shown), *(cells(each, " (stated)") for each in others)]


def cells(served: Served, mark: str = "") -> tuple[str, ...]:
    result, seen = served.result, served.result.inference
    free = (result.memory.capacity_bytes - result.memory.peak_bytes) / GIB
    first, token = seen.get("time_to_first_token_s"), seen.get("time_per_output_token_s")
    return (
        served.name + mark,
        "–" if served.batch is None else f"{served.batch:,}",
        compact(result.tokens_per_s),
        compact(result.tokens_per_s_per_gpu),
        seconds(first) if first else "–",
        seconds(token) if token else "–",
        user(result)[0],
        sessions(result)[0],
        f"{free:.1f} GiB",
        price_range(result) or "–",
        result.bottleneck,
    )


def sure(planned: ServingPlanned) -> list[str]:
    """What was looked at, and what may be left."""
    said = [
        f"{planned.bounded:,} plans bounded, {planned.simulated:,} simulated; searched: {', '.join(planned.searched)}."
    ]
    if planned.limits:
        said.append(f"Limits: {', '.join(map(limit_in_words, planned.limits))}.")
    if planned.interrupted:
        said.append("Interrupted: the best so far.")
    elif not planned.complete:
        said.append("Time ran out (--budget): plans were left that may be better.")
    return said


def limit_in_words(limit: Limit) -> str:
    """A limit for people."""
    from tspsim.studies.planner.limit import LIMITS

    value = gib(limit.value) if LIMITS[limit.name].unit == "bytes" else seconds(limit.value)
    end = "at most" if limit.compare == "<=" else "at least"
    return f"{LIMITED.get(limit.name, limit.name)} {end} {value}"


def keys_of(served: Served) -> str:
    """The plan as the ``plans`` of a scenario."""
    from tspsim.studies.planner.written import keys_text

    return keys_text(served.keys)


def summary(planned: ServingPlanned) -> list[RenderableType]:
    """For the terminal."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    columns, every = told(planned)
    for number, heading in enumerate(columns[:-1]):
        table.add_column(heading.lower(), justify="right" if number else "left", no_wrap=number > 0)
    best = {each.name for each in planned.best}
    for index, row in enumerate(every):
        if index == len(best):
            table.add_section()
        table.add_row(*(Text(cell) for cell in row[:-1]), style="" if index else "bold")
    parts: list[RenderableType] = [Text(headline(planned), style="bold"), "", table, ""]
    parts += [Padding(Text(sentence), (0, 0, 0, 2)) for sentence in (*sure(planned), keys_of(planned.best[0]))]
    stated = {plan.name for plan in planned.scenario.plans}
    refused = [f"{name}: {why}" for name, why in planned.refused if name in stated]
    return [*parts, *(Text(text, style="yellow") for text in refused)]


def headline(planned: ServingPlanned) -> str:
    """Which machine the plans are for, and what is served."""
    work, cluster = planned.question.work, planned.question.cluster
    nodes = f" in {cluster.nodes:,} nodes" if cluster.nodes > 1 else ""
    machine = f"{cluster.gpus:,} {planned.question.device.name.upper()}{nodes}"
    free = "batch" in planned.searched
    load = replace(work.load, batch=0) if free else work.load
    amount = load.in_words or f"at {replace(work.load, batch=1).in_words.partition(' at ')[2]}"
    return f"Plans for {machine}: {work.step.title} of {planned.question.model.name}, {amount}"


def page(planned: ServingPlanned, plotly_js: str = "inline") -> str:
    """The whole page."""
    drawn: dict[str, Any] = {"front": drawn_front(planned)}
    best = planned.best[0]
    columns, every = told(planned)
    sections: list[tuple[str, str, str, dict[str, Any]]] = [
        ("answer", "", HEADLINE, {
            "kicker": headline(planned), "title": planned.scenario.name, "description": planned.scenario.description,
            "headline": f"{best.name}: {best.result.in_a_line().rpartition(', ')[0]}", "sentences": sure(planned),
            "yaml": keys_of(best),
        }),
        ("plans", "The best plans", TABLE, {
            "caption": "The best plans", "columns": columns, "table": every,
            "refused": [f"{name}: {why}" for name, why in planned.refused[:8]],
        }),
        ("front", "The front", FIGURE, {
            "sentences": [], "key": "front",
            "caption": "Plans that were simulated: tokens a second and GPU over what one user sees. The line joins "
            "those that no other beats in both.",
        }),
        ("searched", "What was searched", LIST, {"sentences": sure(planned)}),
    ]  # fmt: skip
    return render_sections(sections, drawn, title=f"{planned.scenario.name}, plans", plotly_js=plotly_js)


def drawn_front(planned: ServingPlanned) -> dict[str, Any]:
    """Rate a GPU over the rate of a user, or over the wait for the first token."""
    decodes = any("tokens_per_s_per_user" in each.result.inference for each in planned.known)
    key = "tokens_per_s_per_user" if decodes else "time_to_first_token_s"
    title = "tokens/s a user" if decodes else "time to the first token, s"

    def marks(name: str, colour: str, chosen: Sequence[Served]) -> Marks:
        rates = [each.result.tokens_per_s_per_gpu for each in chosen]
        said = [f"{compact(rate)} tokens/s a GPU" for rate in rates]
        texts = [f"<b>{label(each.name, 60)}</b><br>{rate}" for each, rate in zip(chosen, said, strict=True)]
        return Marks(name, colour, [each.result.inference[key] for each in chosen], rates, texts)

    others = [each for each in planned.known if each not in planned.best]
    groups = [marks("best", ACCENT, planned.best), *([marks("simulated", "#8a94a6", others)] if others else [])]
    joined = sorted((float(e.result.inference[key]), e.result.tokens_per_s_per_gpu) for e in planned.front)
    return front_figure(groups, Line("front", joined, "vh"), value_axis(title, rangemode="normal"), "tokens/s a GPU")


def write_page(planned: ServingPlanned, path: Path) -> None:
    """Write the page, whole or not at all; raises InputError where the file cannot be written."""
    atomic_write(Path(path), page(planned))
