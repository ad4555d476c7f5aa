"""The plans as a table on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tspsim.result import PlanResult, Result
from tspsim.units import GIB, compact, percent

from .numbers import seconds
from .sections.plans import exposed_share
from .view import View, price_range

if TYPE_CHECKING:
    from rich.table import Table

#: heading on a wide and on a narrow terminal
_COLUMNS = (
    ("tokens/s", "tok/s"),
    ("tokens/s\na GPU", "a GPU"),
    ("block-forward\ntokens/s", "block\ntok/s"),
    ("step", "step"),
    ("MFU", "MFU"),
    ("exposed\ncommunication", "exp.\ncomm."),
    ("memory, GiB", "GiB"),
)


def table(result: Result, width: int = 160) -> Table:
    """Rows in the scenario's order; the fastest is bold, refused plans say why below the table.

    Parameters
    ----------
    width
        Columns of the terminal. Under 120 the headings are short and capacity and range are left out.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    view = View(result)
    wide = width >= 120
    priced = any(price_range(plan) for plan in view.ran)
    answer = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    answer.add_column("plan", no_wrap=True, max_width=24 if wide else 12)
    for long, short in _COLUMNS:
        answer.add_column(long if wide else short, justify="right", no_wrap=True)
    if priced:
        answer.add_column("$ a million\ntokens" if wide else "$/M\ntok", justify="right", no_wrap=True)
    for plan in view.plans:
        if plan.ran:
            style = "bold" if plan is view.best else ""
            answer.add_row(Text(plan.name), *(Text(cell) for cell in _cells(plan, wide, priced)), style=style)
        else:
            blanks = [""] * (len(_COLUMNS) - 2)
            answer.add_row(
                Text(plan.name), Text("refused"), *blanks, Text(_memory(plan, wide)), style="yellow"
            )
    if view.refused:
        answer.caption = Text(
            "\n".join(f"{plan.name} is refused: {plan.error}" for plan in view.refused), "yellow"
        )
        answer.caption_justify = "left"
    return answer


def _cells(plan: PlanResult, wide: bool, priced: bool) -> list[str]:
    spread = (
        "" if plan.range is None or not wide else f" ({compact(plan.range.low)} – {compact(plan.range.high)})"
    )
    cells = [
        compact(plan.tokens_per_s) + spread,
        compact(plan.tokens_per_s_per_gpu),
        compact(plan.block_forward_tokens_per_s),
        seconds(plan.step_time_s),
        percent(plan.mfu),
        percent(exposed_share(plan)),
        _memory(plan, wide),
    ]
    if priced:
        cells.append(price_range(plan) or "–" if wide else price_range(plan).split(" ")[0] or "–")
    return cells


def _memory(plan: PlanResult, wide: bool) -> str:
    return f"{plan.memory.peak_bytes / GIB:.1f}" + (
        f" of {plan.memory.capacity_bytes / GIB:.1f}" if wide else ""
    )
