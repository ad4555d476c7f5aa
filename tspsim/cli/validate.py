"""``tspsim validate``: predictions against measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..base.display import progress_bar
from ..base.errors import InputError, UnknownNameError
from .completion import devices
from .grammar import jobs_option, json_option
from .logs import log_options, logs_of
from .outputs import Outputs, files_of, json_text, print_rich

if TYPE_CHECKING:
    import pandas as pd

    from ..calibration import NcclLog


@click.command()
@click.option("--data", metavar="DIR", help="Folder of measured tables; the rows that ship with tspsim if left out.")
@log_options
@click.option("--gpu", metavar="NAME", shell_complete=devices, help="Its GPU; that of --node if left out.")
@click.option("--rows", "rows_folder", metavar="DIR", help="Write every row with its prediction, a file per table.")
@json_option
@click.option("--html", "html_file", metavar="FILE", help="Write predicted-over-measured plots and the worst rows.")
@jobs_option
def validate(
    data: str | None,
    log_files: tuple[str, ...],
    ops: tuple[str, ...],
    gpus: tuple[int, ...],
    nodes: tuple[int, ...],
    libraries: tuple[str, ...],
    node: str | None,
    gpu: str | None,
    rows_folder: str | None,
    json_file: str | None,
    html_file: str | None,
    jobs: int | None,
) -> None:
    """Predictions against measured tables, and logs of nccl-tests: errors by table and GPU; skipped rows with their
    reasons."""
    from functools import partial
    from pathlib import Path

    from .. import validation
    from ..report.validation import summary
    from ..report.validation_page import write_page
    from ..studies.executors import in_order

    inputs = files_of(data, *log_files)
    outputs = Outputs(inputs=inputs, json=json_file, html=html_file)
    if rows_folder is not None and data is not None and os.path.realpath(rows_folder) == os.path.realpath(data):
        raise InputError("are the measured tables; name another folder for the rows", file=rows_folder)
    if rows_folder is not None and Path(rows_folder).is_file():
        raise InputError("is a file; name a folder for the rows", file=rows_folder)
    tables = _tables(logs_of(log_files, ops, gpus, nodes, libraries, node), gpu, node)
    with progress_bar() as progress:
        scores = validation.validate(data, tables=tables, progress=progress, mapper=partial(in_order, jobs))
    if rows_folder is not None:
        scores.write_rows(Path(rows_folder))
    outputs.write(
        {"json": lambda: json_text(scores.to_json()), "html": lambda path: write_page(scores, path)},
        show=lambda: print_rich(*summary(scores)),
    )


def _tables(logs: Sequence[NcclLog], gpu: str | None, node: str | None) -> dict[str, pd.DataFrame]:
    """The rows of logs, as the table they belong to; raises InputError."""
    from ..base.catalog import names
    from ..calibration.network_files import COLLECTIVES
    from ..calibration.run import own_node
    from ..validation.devices import device_name

    if not logs:
        beside = next((option for option, stated in (("--gpu", gpu), ("--node", node)) if stated is not None), None)
        if beside is not None:
            raise InputError("describes logs; name them with --nccl-tests", file=beside)
        return {}
    if node is None and gpu is None:
        raise InputError("is needed for a log, or --node NAME of the catalog", file="--gpu")
    import pandas as pd

    name = device_name(gpu) if gpu is not None else None
    if gpu is not None and name is None:
        raise UnknownNameError("device", gpu, names("devices"), key="--gpu")
    if node is not None:
        name = own_node(node, name)
    assert name is not None
    return {COLLECTIVES: pd.concat([log.rows(name) for log in logs], ignore_index=True)}
