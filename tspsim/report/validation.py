"""Validation and calibration on the terminal: a table of errors, the skipped rows, and the fitted parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.errors import printable
from ..calibration import Calibration
from ..validation import Validation
from .tables import add_row, empty_table

if TYPE_CHECKING:
    from rich.console import RenderableType


#: The errors of a table, in the order of the columns.
ERRORS = ("median_ape", "mape", "p90_ape", "bias", "in_range")


def share(value: float | None, sign: str = "") -> str:
    """A share as percent with one decimal; a dash where there is none.

    >>> share(0.0371), share(0.0371, "+"), share(-0.00001, "+"), share(None)
    ('3.7 %', '+3.7 %', '0.0 %', '–')
    """
    if value is None:
        return "–"
    return "0.0 %" if abs(value) < 5e-4 else f"{100 * value:{sign}.1f} %"


def summary(validation: Validation) -> Sequence[RenderableType]:
    """Errors by table, rows skipped by reason, and files that are no known table."""
    from rich.text import Text

    numbers = ("rows", "predicted", "median", "mean", "90 %", "bias", "in range")
    table = empty_table(("table", "predicts"), numbers)
    reasons: list[RenderableType] = []
    for outcome in validation.outcomes:
        facts = outcome.summary()
        cells = [outcome.table.path, outcome.table.column, f"{facts['rows']:,}", f"{facts['predicted']:,}"]
        cells += [share(facts[key]) for key in ERRORS]
        add_row(table, map(printable, cells))
        for reason, rows in facts["skipped"].items():
            reasons.append(Text(printable(f"  {rows:>6,}  {outcome.table.path}: {reason}")))
    parts: list[RenderableType] = [table, ""]
    if reasons:
        parts += [Text("Rows skipped", style="bold"), *reasons, ""]
    if validation.unknown:
        parts += [Text(printable(f"Files that are no known table: {', '.join(validation.unknown)}")), ""]
    return parts


def calibrated(calibration: Calibration) -> Sequence[RenderableType]:
    """The fits with their errors on unused rows, the rows left out, and the parameters that stayed as they were."""
    from rich.text import Text

    table = empty_table(("kernels", "type", "library"), ("rows used", "not used", "median", "mean", "90 %"))
    for fit in calibration.fits:
        kind = fit.dtype if fit.kv_dtype in (None, fit.dtype) else f"{fit.dtype}/{fit.kv_dtype}"
        error = fit.held_out
        shown = ["0", "–", "–", "–"]
        if error is not None:
            shown = [f"{error.rows:,}", *map(share, (error.median, error.mape, error.p90))]
        cells = (fit.family, kind, fit.library, f"{fit.rows_used:,}", *shown)
        add_row(table, map(printable, cells))
    title = f"{calibration.device}: {calibration.rows:,} rows; errors are on rows that were not used"
    parts: list[RenderableType] = [Text(title, style="bold")]
    parts += [table, ""] if calibration.fits else []
    parts += [_collectives(calibration), ""] if calibration.collectives else []
    defaults = [
        f"{name}: {document['collectives']['default_library']}"
        for (kind, name), document in calibration.documents.items()
        if kind == "nodes" and "default_library" in document["collectives"]
    ]
    sections = (
        ("Library of collectives that name none", defaults), ("Left out", calibration.left_out),
        ("As it was", calibration.kept),
    )  # fmt: skip
    for heading, lines in sections:
        if lines:
            parts += [Text(heading, style="bold"), *(Text(printable(f"  {line}")) for line in lines), ""]
    return parts


def _collectives(calibration: Calibration) -> RenderableType:
    """The fits of nodes and fabrics: errors before and after."""
    table = empty_table(("collectives", "fitted", "library"), ("rows used", "not used", "median", "mean"))
    for fit in calibration.collectives:
        shown = ["0", "–", "–"]
        if fit.before is not None and fit.after is not None:
            pairs = ((fit.before.median, fit.after.median), (fit.before.mean, fit.after.mean))
            shown = [f"{fit.after.rows:,}", *(f"{100 * was:.1f} → {100 * now:.1f} %" for was, now in pairs)]
        cells = (fit.what, fit.moved, ", ".join(fit.libraries), f"{fit.rows_used:,}", *shown)
        add_row(table, map(printable, cells))
    return table
