"""``tspsim calibrate``: catalog files from measurements."""

from __future__ import annotations

import click

from ..outputs import print_rich, printable, short, writable


@click.command()
@click.argument("gpu")
@click.option("--data", metavar="DIR", required=True, help="Folder of measured kernel and collective tables.")
@click.option("--out", "out_file", metavar="FILE", help="Where the device's file goes, the others beside it.")
def calibrate(gpu: str, data: str, out_file: str | None) -> None:
    """Fit GPU's kernels, and its node's and fabrics' collectives, to measurements and write their files.

    They go to topologies/devices, nodes and fabrics of the current folder, where they are found before those that ship
    with tspsim; what exists there is only replaced when --out names it.
    """
    from pathlib import Path

    from ..report.files import atomic_write
    from ..validation.calibrate import calibrate as fit
    from ..validation.calibrate import places
    from ..validation.terminal import calibrated

    out = writable(out_file) if out_file is not None else None
    targets: dict[tuple[str, str], Path] = {}
    found = fit(gpu, data, before=lambda entries: targets.update(places(entries, out)))
    for entry in found.documents:  # before anything is printed: a reader who leaves early must not cost a file
        atomic_write(targets[entry].absolute(), found.text(entry))
    print_rich(*calibrated(found))
    for entry in found.documents:
        click.echo(f"{entry[0].removesuffix('s')}: {printable(str(short(targets[entry])))}")
    if not found.documents:
        click.echo("nothing to write: every file stays as it was")
