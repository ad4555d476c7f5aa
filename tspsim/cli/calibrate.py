"""``tspsim calibrate``: catalog files from measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from ..errors import InputError, printable
from .completion import devices
from .outputs import files_of, print_rich, short, writable

if TYPE_CHECKING:
    from ..calibration import Log

Stated = TypeVar("Stated", int, str)


@click.command()
@click.argument("gpu", shell_complete=devices)
@click.option("--data", metavar="DIR", help="Folder of measured kernel and collective tables.")
@click.option(
    "--nccl-tests",
    "log_files",
    multiple=True,
    metavar="FILE",
    help="A log of nccl-tests or rccl-tests as printed; repeatable, with the next four once for all or once each.",
)
@click.option("--op", "ops", multiple=True, metavar="NAME", help="What a log timed: all_reduce, all_gather, ….")
@click.option("--gpus", multiple=True, type=click.IntRange(1), help="Its GPUs, if it does not list them.")
@click.option("--nodes", multiple=True, type=click.IntRange(1), help="Its machines, if it does not list its ranks.")
@click.option("--library", "libraries", multiple=True, metavar="NAME", help="Its library, such as 'NCCL 2.29.2'.")
@click.option("--out", "out_file", metavar="FILE", help="Where the device's file goes, the others beside it.")
def calibrate(
    gpu: str,
    data: str | None,
    log_files: tuple[str, ...],
    ops: tuple[str, ...],
    gpus: tuple[int, ...],
    nodes: tuple[int, ...],
    libraries: tuple[str, ...],
    out_file: str | None,
) -> None:
    """Fit GPU's kernels, and its node's and fabrics' collectives, to measurements and write their files.

    Measurements are the tables of --data, or logs of nccl-tests, or both. Files go to topologies/devices, nodes and
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
    logs = _logs(log_files, ops, gpus, nodes, libraries)
    out = writable(out_file, inputs=files_of(data, *log_files)) if out_file is not None else None
    targets: dict[tuple[str, str], Path] = {}
    found = fit(gpu, data, logs=logs, before=lambda entries: targets.update(places(entries, out)))
    for entry in found.documents:  # before anything is printed: a reader who leaves early must not cost a file
        atomic_write(targets[entry].absolute(), found.text(entry))
    print_rich(*calibrated(found))
    for entry in found.documents:
        click.echo(f"{entry[0].removesuffix('s')}: {printable(str(short(targets[entry])))}")
    if not found.documents:
        click.echo("nothing to write: every file stays as it was")


def _logs(
    files: Sequence[str], ops: Sequence[str], gpus: Sequence[int], nodes: Sequence[int], libraries: Sequence[str]
) -> list[Log]:
    """One a file; every option stands once for all of them or once for each, in their order."""
    from pathlib import Path

    from ..calibration import Log

    def each(option: str, stated: Sequence[Stated]) -> Sequence[Stated | None]:
        if stated and not files:
            raise InputError("describes logs; name them with --nccl-tests", file=option)
        if len(stated) > 1 and len(stated) != len(files):
            problem = f"stands {len(stated)} times for {len(files)} logs; give it once for all or once for each"
            raise InputError(problem, file=option)
        if len(stated) == len(files):
            return stated
        return [stated[0] if stated else None] * len(files)

    parts = (each("--op", ops), each("--gpus", gpus), each("--nodes", nodes), each("--library", libraries))
    if files and not ops:
        raise InputError("is needed for a log: all_reduce, all_gather, …", file="--op")
    return [
        Log(Path(file), op or "", its_gpus, its_nodes, library or "")
        for file, op, its_gpus, its_nodes, library in zip(files, *parts, strict=True)
    ]
