"""The validation on the terminal: a table of errors, and what was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .run import Validation

if TYPE_CHECKING:
    from rich.console import RenderableType


def summary(validation: Validation) -> Sequence[RenderableType]:
    """Errors by table, rows skipped by reason, and the files nobody knows."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("table", overflow="fold")
    table.add_column("predicts", overflow="fold")
    for heading in ("rows", "predicted", "median", "mean", "90 %", "bias", "in range"):
        table.add_column(heading, justify="right", no_wrap=True)
    reasons: list[RenderableType] = []
    for outcome in validation.outcomes:
        facts = outcome.summary()
        errors = [facts[key] for key in ("median_ape", "mape", "p90_ape", "bias", "in_range")]
        cells = [outcome.table.path, outcome.table.column, f"{facts['rows']:,}", f"{facts['predicted']:,}"]
        cells += ["–" if value is None else f"{100 * value:.1f} %" for value in errors]
        table.add_row(*(Text(cell) for cell in cells))
        for reason, rows in facts["skipped"].items():
            reasons.append(Text(f"  {rows:>6,}  {outcome.table.path}: {reason}"))
    parts: list[RenderableType] = [table, ""]
    if reasons:
        parts += [Text("Rows skipped", style="bold"), *reasons, ""]
    if validation.unknown:
        parts += [Text(f"Files that are no known table: {', '.join(validation.unknown)}"), ""]
    return parts
