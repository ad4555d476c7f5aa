"""``tspsim sweep``: one question at many points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..base.display import progress_bar
from ..base.errors import InfeasibleError, InputError, printable, shorten
from .completion import scenarios
from .grammar import jobs_option, set_option
from .outputs import Outputs, files_of, print_rich, writable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..studies.sweeping import Sweeping
    from ..studies.table import Table

#: A table with at most as many rows is printed too when it is written to a file.
_ROWS_SHOWN = 40


@click.command()
@click.argument("scenario", shell_complete=scenarios)
@click.option("--over", multiple=True, required=True, metavar="PATH=VALUES", help="What to vary; repeatable.")
@click.option("--zip", "zipped", is_flag=True, help="Step through all --over together instead of every combination.")
@set_option
@click.option("--out", "out_file", metavar="FILE", help="Write the table here (.parquet or .csv), the store beside it.")
@jobs_option
@click.option("--scheduler", metavar="ADDRESS", help="Scheduler of a Dask cluster that runs already: tcp://HOST:PORT.")
@click.option("--resume", is_flag=True, help="Continue the store beside --out; its points are not simulated again.")
@click.option("--html", "html_file", metavar="FILE", help="Write the effect of each path as an HTML page.")
def sweep(
    scenario: str,
    over: tuple[str, ...],
    zipped: bool,
    overrides: tuple[str, ...],
    out_file: str | None,
    jobs: int | None,
    scheduler: str | None,
    resume: bool,
    html_file: str | None,
) -> None:
    """Answer SCENARIO at many points; answers are kept as they come, in FILE.sqlite beside --out.

    VALUES are separated by commas, or ranges: 1..8 (steps of one), 1..4+0.5 (equal steps), 32Ki..1Mi*2 (equal
    factors). The path plans chooses plans by name: --over plans=TSP8,TP8.
    """
    from ..studies.table import check_suffix

    if jobs is not None and scheduler is not None:
        raise InputError("names other workers than --scheduler; give one of the two", file="--jobs")
    if resume and out_file is None:
        raise InputError("goes on with the store beside --out; name that", file="--resume")
    question, inputs, shown, write_page = _kind(scenario, over, zipped, overrides)
    out = store = None
    if out_file is not None:
        out = writable(out_file, inputs=inputs)
        check_suffix(out)
        store = writable(str(out.with_suffix(".sqlite")), inputs=inputs)
    outputs = Outputs(inputs=inputs, html=html_file)
    if html_file is not None and writable(html_file) in (out, store):
        raise InputError("is the place of another output too; name two", file=shorten(html_file))
    with progress_bar() as progress:
        table = question.run(store=store, resume=resume, jobs=jobs, scheduler=scheduler, progress=progress)
    if out is not None:
        table.write(out)

    def show() -> None:
        if out is None or len(table) <= _ROWS_SHOWN:
            print_rich(*shown(table), "")
        click.echo(f"{len(table):,} rows of {len(question.points):,} points; {table.ran:,} ran")
        if out_file is not None:
            click.echo(f"table: {printable(out_file)}")

    words = {"title": question.base.name, "description": question.base.description}
    outputs.write({"html": lambda path: write_page(table, path, **words)}, show)
    if not table.ran:
        first = next(error for error in table.columns["error"] if error is not None)
        raise InfeasibleError(f"nothing ran at any point; the first: {first}")


def _kind(
    scenario: str, over: tuple[str, ...], zipped: bool, overrides: tuple[str, ...]
) -> tuple[Sweeping[Any], tuple[Path, ...], Callable[[Table], Iterable[RenderableType]], Callable[..., None]]:
    """The sweep of a scenario or a fleet, its input files, the rows of its table, and the writer of its page."""
    from ..fleet import is_fleet

    if is_fleet(scenario):
        from ..report.fleet import fleet_rows
        from ..report.sweep.fleets import write_page as page_of_fleets
        from ..studies.fleet_sweep import FleetSweep

        fleets = FleetSweep(scenario, over, zipped=zipped, overrides=overrides)
        return fleets, fleets.base.files(), fleet_rows, page_of_fleets
    from ..report import comparison
    from ..report.sweep import write_page
    from ..studies import Sweep

    plans = Sweep(scenario, over, zipped=zipped, overrides=overrides)
    return plans, tuple(files_of(plans.base)), lambda table: [comparison.table(table.results)], write_page
