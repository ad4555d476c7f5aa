"""Answers as a notebook or a terminal shows them: tables, pictures, pages, and a bar while one waits."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas

#: Called with the name of the current task and the share that is done.
Progress = Callable[[str, float], None]
#: Seconds before a bar is shown: shorter tasks need none.
PROGRESS_AFTER_S = 1.0


class Pictured:
    """An answer with a picture and a page. Both are made by :mod:`tspsim.report.notebook`, floors above, which is
    imported when one is wanted."""

    def plot(self) -> Any:
        """The answer as one plotly figure: a ``plotly.graph_objects.Figure``, which a notebook shows."""
        return _pictures().plot(self)

    def to_html(self, path: str | Path) -> Path:
        """Write the page to ``path``, whole or not at all; returns where it is.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        _pictures().write(self, Path(path))
        return Path(path)


def _pictures() -> Any:
    return importlib.import_module("..report.notebook", __package__)


class Lined(Protocol):
    """An object that describes itself in a line."""

    @property
    def name(self) -> str: ...
    def in_a_line(self) -> str: ...


class ShownPlans(Pictured):
    """An answer of plans: ``repr`` prints one line per plan, a notebook shows a table."""

    def shown_title(self) -> str:
        """The question in a few words."""
        raise NotImplementedError

    def shown_plans(self) -> Iterable[tuple[str, Lined]]:
        """The plans with their names, the best first."""
        raise NotImplementedError

    @property
    def opening(self) -> str:
        """A sentence before the plans; empty where there is none."""
        return ""

    def __repr__(self) -> str:
        first = [f"  {self.opening}"] if self.opening else []
        lines = [f"  {name}  {plan.in_a_line()}" for name, plan in self.shown_plans()]
        return "\n".join([f"<{type(self).__name__} {self.shown_title()}", *first, *lines]) + ">"

    def to_frame(self) -> pandas.DataFrame:
        """One row per plan, the best first, under its shown name, with the columns of a result's table."""
        return importlib.import_module("..step.cells", __package__).frame(self.shown_plans())  # type: ignore[no-any-return]

    def _repr_html_(self) -> str:
        rows = [(name, plan.in_a_line()) for name, plan in self.shown_plans()]
        title = f"{self.shown_title()}: {self.opening}" if self.opening else self.shown_title()
        return html_table(title, ("plan", "what it does"), rows)


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """A title, a table whose first column names the rows, and sentences below it; all text is escaped.

    >>> shown = html_table("t", ["plan", "step"], [["<A>", "1 s"]])
    >>> "<tr><th>&lt;A&gt;</th><td>1 s</td></tr>" in shown
    True
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for tag, cell in zip(_tags(row), row, strict=True)) + "</tr>"
        for row in rows
    )
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<p><strong>{escape(title)}</strong></p>{table}{below}"


def _tags(row: Sequence[str]) -> list[str]:
    return ["th", *["td"] * (len(row) - 1)]


#: Whether a bar stands already: a call within a call shows no second one.
_standing: ContextVar[bool] = ContextVar("standing", default=False)


@contextlib.contextmanager
def progress_bar(progress: Progress | None = None) -> Iterator[Progress | None]:
    """``progress`` itself where it is given. Otherwise a bar for a call of over a second: in a terminal on stderr, in a
    notebook below the cell. No bar elsewhere, and none within a call that has one."""
    if progress is not None or _standing.get() or not (in_notebook() or sys.stderr.isatty()):
        yield progress
        return
    import threading

    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from .errors import printable

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    console = Console() if in_notebook() else Console(stderr=True)
    bar = Bar(*columns, console=console, transient=True, refresh_per_second=5)
    task = bar.add_task("", total=1.0)
    timer = threading.Timer(PROGRESS_AFTER_S, bar.start)
    timer.daemon = True
    timer.start()
    standing = _standing.set(True)
    try:
        yield lambda name, share: bar.update(task, description=printable(name), completed=share)
    finally:
        _standing.reset(standing)
        timer.cancel()
        timer.join()
        bar.stop()


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")
