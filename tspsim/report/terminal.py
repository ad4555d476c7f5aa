"""The plans as a table on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tspsim.base.units import GIB, compact, percent
from tspsim.step.result import PlanResult, Result

from . import served
from .numbers import seconds
from .sections.plans import exposed_share
from .tables import add_refused, add_row, empty_table
from .view import View, price_range

if TYPE_CHECKING:
    from rich.table import Table

#: The least width of a terminal that shows every column.
WIDE, WIDE_SERVED = 120, 155
#: heading on a wide and on a narrow terminal
_COLUMNS = (
    ("tokens/s", "tok/s"),
    ("tokens/s\nper GPU", "per GPU"),
    ("block-forward\ntokens/s", "block\ntok/s"),
    ("step", "step"),
    ("MFU", "MFU"),
    ("exposed\ncommunication", "exp.\ncomm."),
    ("memory, GiB", "GiB"),
)


def table(result: Result, width: int = 160) -> Table:
    """Rows in the scenario's order; the fastest plan is bold, and the reasons of refused plans stand below the table.

    Parameters
    ----------
    width
        Columns of the terminal. Under 120 (of a serving step 155) headings are short; capacity and range are left out.
    """
    view = View(result)
    wide = width >= (WIDE if view.load is None else WIDE_SERVED)
    priced = any(price_range(plan) for plan in view.ran)
    answer = empty_table((), padding=(0, 1))
    answer.add_column("plan", no_wrap=True, max_width=24 if wide else 12)
    headings = _headings(view, wide)
    for long, short in headings:
        answer.add_column(long if wide else short, justify="right", no_wrap=True)
    if priced:
        answer.add_column("$/M\ntokens" if wide else "$/M\ntok", justify="right", no_wrap=True)
    for plan in view.plans:
        if plan.ran:
            add_row(answer, (plan.name, *_cells(view, plan, wide, priced)), "bold" if plan is view.best else "")
        else:
            add_row(answer, (plan.name, "refused", *[""] * (len(headings) - 2), _memory(plan, wide)), "yellow")
    add_refused(answer, [f"{plan.name} is refused: {plan.error}" for plan in view.refused])
    return answer


def _headings(view: View, wide: bool) -> tuple[tuple[str, str], ...]:
    if view.load is None:
        return _COLUMNS
    shown = [column for column in served.columns(view) if wide or not column.wide]
    return tuple((_in_two_lines(column.long), column.short) for column in shown)


def _in_two_lines(heading: str) -> str:
    """The first word above the others; ``per GPU`` and the like stay together."""
    first, _, rest = heading.partition(" per ")
    return f"{first}\nper {rest}" if rest else "\n".join(heading.rsplit(" ", 1))


def _cells(view: View, plan: PlanResult, wide: bool, priced: bool) -> list[str]:
    cells = _served(view, plan, wide) if view.load is not None else _rates(plan, wide)
    if priced:
        cells.append(price_range(plan) or "–" if wide else price_range(plan).split(" ")[0] or "–")
    return cells


def _served(view: View, plan: PlanResult, wide: bool) -> list[str]:
    """The cells of a serving plan: the first with its range, the last with the capacity."""
    cells = [column.cell(plan) for column in served.columns(view) if wide or not column.wide]
    shown = [value for value, _ in cells]
    if wide and cells[0][1]:
        shown[0] += f" ({cells[0][1]})"
    return [*shown[:-1], _memory(plan, wide)]


def _rates(plan: PlanResult, wide: bool) -> list[str]:
    spread = "" if plan.range is None or not wide else f" ({compact(plan.range.low)} – {compact(plan.range.high)})"
    return [
        compact(plan.tokens_per_s) + spread,
        compact(plan.tokens_per_s_per_gpu),
        compact(plan.block_forward_tokens_per_s),
        seconds(plan.step_time_s),
        percent(plan.mfu),
        percent(exposed_share(plan)),
        _memory(plan, wide),
    ]


def _memory(plan: PlanResult, wide: bool) -> str:
    return f"{plan.memory.peak_bytes / GIB:.1f}" + (f" of {plan.memory.capacity_bytes / GIB:.1f}" if wide else "")
