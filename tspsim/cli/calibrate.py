"""``tspsim calibrate``: a device file from measurements."""

from __future__ import annotations

import click

from ..errors import InputError
from ..outputs import print_rich, printable, writable


@click.command()
@click.argument("gpu")
@click.option("--data", metavar="DIR", required=True, help="Folder of measured kernel tables.")
@click.option("--out", "out_file", metavar="FILE", help="Where it goes; topologies/devices/GPU.yaml if left out.")
def calibrate(gpu: str, data: str, out_file: str | None) -> None:
    """Fit GPU's kernel models to measurements and write its device file.

    A file in topologies/devices of the current folder is found before the one that ships with tspsim.
    """
    from pathlib import Path

    from ..report.files import atomic_write
    from ..validation.calibrate import calibrate as fit
    from ..validation.devices import device_name
    from ..validation.terminal import calibrated

    usual = Path("topologies") / "devices" / f"{device_name(gpu) or 'device'}.yaml"
    if out_file is None and usual.exists():
        raise InputError("exists already; name it with --out to replace it", file=str(usual))
    target = usual.absolute() if out_file is None else writable(out_file)
    found = fit(gpu, data)
    print_rich(*calibrated(found))
    atomic_write(target, found.yaml())
    click.echo(f"device: {printable(str(out_file or usual))}")
