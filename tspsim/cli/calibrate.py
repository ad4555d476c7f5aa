"""``tspsim calibrate``: catalog files from measurements."""

from __future__ import annotations

import click

from ..errors import printable
from .completion import devices
from .logs import log_options, logs_of
from .outputs import files_of, print_rich, short, writable


@click.command()
@click.argument("gpu", shell_complete=devices)
@click.option("--data", metavar="DIR", help="Folder of measured kernel and collective tables.")
@log_options
@click.option("--out", "out_file", metavar="FILE", help="Where the device's file goes, the others beside it.")
def calibrate(
    gpu: str,
    data: str | None,
    log_files: tuple[str, ...],
    ops: tuple[str, ...],
    gpus: tuple[int, ...],
    nodes: tuple[int, ...],
    libraries: tuple[str, ...],
    node: str | None,
    out_file: str | None,
) -> None:
    """Fit GPU's kernels, and its node's and fabrics' collectives, to measurements and write their files.

    Measurements are the tables of --data, or logs of nccl-tests, or both; of collectives in GPU's usual node, or in the
    one that --node names. Files go to topologies/devices, nodes and
    fabrics of the current folder, where they are found before those that ship with tspsim; what exists there is only
    replaced when --out names it.
    """
    from pathlib import Path

    from ..calibration import calibrate as fit
    from ..calibration import places
    from ..files import atomic_write
    from ..report.validation import calibrated

    if data is None and not log_files:
        raise click.UsageError("Nothing to fit to: give --data DIR or --nccl-tests FILE")
    logs = logs_of(log_files, ops, gpus, nodes, libraries, node)
    out = writable(out_file, inputs=files_of(data, *log_files)) if out_file is not None else None
    targets: dict[tuple[str, str], Path] = {}
    found = fit(gpu, data, logs=logs, node=node, before=lambda entries: targets.update(places(entries, out)))
    for entry in found.documents:  # before anything is printed: a reader who leaves early must not cost a file
        atomic_write(targets[entry].absolute(), found.text(entry))
    print_rich(*calibrated(found))
    for entry in found.documents:
        click.echo(f"{entry[0].removesuffix('s')}: {printable(str(short(targets[entry])))}")
    if not found.documents:
        click.echo("nothing to write: every file stays as it was")
