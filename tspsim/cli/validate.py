"""``tspsim validate``: predictions against measurements."""

from __future__ import annotations

import os

import click

from ..errors import InputError
from .grammar import jobs_option, json_option
from .outputs import Outputs, files_of, json_text, print_rich, progress_bar


@click.command()
@click.option("--data", metavar="DIR", help="Folder of measured tables; the rows that ship with tspsim if left out.")
@click.option("--rows", "rows_folder", metavar="DIR", help="Write every row with its prediction, a file a table.")
@json_option
@click.option("--html", "html_file", metavar="FILE", help="Write predicted-over-measured plots and the worst rows.")
@jobs_option
def validate(
    data: str | None, rows_folder: str | None, json_file: str | None, html_file: str | None, jobs: int | None
) -> None:
    """Predictions against measured tables: errors by table and GPU; rows that are skipped, and why."""
    from functools import partial
    from pathlib import Path

    from .. import validation
    from ..report.validation import summary
    from ..report.validation_page import write_page
    from ..studies.executors import in_order

    inputs = files_of(data)
    outputs = Outputs(inputs=inputs, json=json_file, html=html_file)
    if rows_folder is not None and data is not None and os.path.realpath(rows_folder) == os.path.realpath(data):
        raise InputError("are the measured tables; name another folder for the rows", file=rows_folder)
    if rows_folder is not None and Path(rows_folder).is_file():
        raise InputError("is a file; name a folder for the rows", file=rows_folder)
    with progress_bar() as progress:
        found = validation.validate(data, progress=progress, mapper=partial(in_order, jobs))
    if rows_folder is not None:
        found.write_rows(Path(rows_folder))
    outputs.write(
        {"json": lambda: json_text(found.to_json()), "html": lambda path: write_page(found, path)},
        show=lambda: print_rich(*summary(found)),
    )
