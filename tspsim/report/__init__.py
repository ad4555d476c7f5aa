"""Output for people: the offline HTML report, the table on the terminal, the trace for Perfetto.

Everything here reads a :class:`tspsim.step.result.Result` and changes nothing in it. The functions import Jinja2,
numpy, rich and the plotly bundle when they are called, so that the import of this package costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from tspsim.step.result import Result

__all__ = ["render", "table", "write_memo", "write_report", "write_trace"]


def render(result: Result, plotly_js: str = "inline") -> str:
    """The report as one HTML page.

    Parameters
    ----------
    result
        An answer of :func:`tspsim.simulate`.
    plotly_js
        ``"inline"`` puts the plotly bundle (4.8 MB) into the page; any other value is the relative URL of a bundle
        that several pages of a gallery share.
    """
    from .pages import render

    return render(result, plotly_js)


def write_report(result: Result, path: Path) -> None:
    """Write :func:`render`'s page to ``path``, whole or not at all.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    from tspsim.base.files import atomic_write

    from .pages import render

    atomic_write(Path(path), render(result))


def write_trace(result: Result, path: Path) -> None:
    """Write every timeline as Chrome trace JSON, which Perfetto opens, whole or not at all.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    from tspsim.base.files import atomic_write

    from .trace import chunks

    atomic_write(Path(path), chunks(result))


def write_memo(result: Result, path: Path) -> None:
    """Print the decision memo, one sheet, by a browser of this machine (:mod:`.printing`), whole or not at all.

    Raises
    ------
    InputError
        There is no browser, or the file cannot be written.
    """
    from .memo import results, sheet
    from .printing import write_pdf

    write_pdf(sheet.sheet(results.memo_of([result])), Path(path))


def table(result: Result, width: int = 160) -> Table:
    """The plans as a table for a terminal of ``width`` columns; below 120 columns a brief one that fits in 80."""
    from .terminal import table

    return table(result, width)
