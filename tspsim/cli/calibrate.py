"""``tspsim calibrate``: catalog files from measurements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ..base.errors import printable
from .completion import devices
from .logs import log_options, logs_of
from .outputs import files_of, print_rich, short, writable

if TYPE_CHECKING:
    from rich.table import Table

    from ..calibration.collectives import TransferFits
    from ..calibration.traced_host import CalibratedHosts


@click.command()
@click.argument("gpu", shell_complete=devices)
@click.option("--data", metavar="DIR", help="Folder of measured kernel and collective tables.")
@log_options
@click.option(
    "--trace", "traces", multiple=True, metavar="FILE", help="A profile of steps; repeatable, each with --scenario."
)
@click.option("--scenario", "scenarios", multiple=True, metavar="SCENARIO", help="What a --trace ran, in their order.")
@click.option("--out", "out_file", metavar="FILE", help="The device's file; the others go beside it.")
def calibrate(
    gpu: str,
    data: str | None,
    log_files: tuple[str, ...],
    ops: tuple[str, ...],
    gpus: tuple[int, ...],
    nodes: tuple[int, ...],
    libraries: tuple[str, ...],
    node: str | None,
    traces: tuple[str, ...],
    scenarios: tuple[str, ...],
    out_file: str | None,
) -> None:
    """Fit GPU's kernels, and its node's and fabrics' collectives, to measurements and write their files.

    Measurements are the tables of --data, logs of nccl-tests, or both. Collectives are of GPU's usual node, or of
    --node. Files go to topologies/devices, nodes and fabrics of the current folder, which is searched before the
    catalog that ships with tspsim; an existing file is only replaced when --out names it. With --trace a measured step
    is laid over its --scenario, and the device's file gets factors for each family of operators.
    """
    from pathlib import Path

    from ..base.files import atomic_write
    from ..calibration import calibrate as fit
    from ..calibration import places
    from ..report.validation import calibrated

    if traces or scenarios:
        _from_traces(gpu, traces, scenarios, out_file, other=data is not None or bool(log_files))
        return
    if data is None and not log_files:
        raise click.UsageError("Nothing to fit to: give --data DIR, --nccl-tests FILE or --trace FILE")
    logs = logs_of(log_files, ops, gpus, nodes, libraries, node)
    out = writable(out_file, inputs=files_of(data, *log_files)) if out_file is not None else None
    targets: dict[tuple[str, str], Path] = {}
    fitted = fit(gpu, data, logs=logs, node=node, before=lambda entries: targets.update(places(entries, out)))
    for entry in fitted.documents:  # before anything is printed: a reader who leaves early must not cost a file
        atomic_write(targets[entry].absolute(), fitted.text(entry))
    print_rich(*calibrated(fitted))
    for entry in fitted.documents:
        click.echo(f"{entry[0].removesuffix('s')}: {printable(str(short(targets[entry])))}")
    if not fitted.documents:
        click.echo("nothing to write: every file stays as it was")


def _from_traces(
    gpu: str, traces: tuple[str, ...], scenarios: tuple[str, ...], out_file: str | None, *, other: bool
) -> None:
    """Fit to profiles, write the device's file, and print the time of each step before and after."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..base.errors import InputError
    from ..base.files import atomic_write
    from ..base.units import duration
    from ..calibration import places
    from ..calibration.traces import calibrate_traces

    if other:
        raise InputError("is fitted by itself; leave --data and --nccl-tests out", file="--trace")
    if len(traces) != len(scenarios):
        problem = f"stands {len(scenarios)} times for {len(traces)} traces; give each trace its scenario"
        raise InputError(problem, file="--scenario")
    out = writable(out_file, inputs=files_of(*traces)) if out_file is not None else None
    fitted = calibrate_traces(gpu, list(zip(traces, scenarios, strict=True)))
    moved = list(fitted.moved)
    targets = places([("devices", fitted.device), *moved], out)
    target = targets["devices", fitted.device]
    atomic_write(target.absolute(), fitted.text())
    for entry in moved:
        atomic_write(targets[entry].absolute(), fitted.text(entry))
    fits = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("operator", "start", "factor", "range", "shapes"):
        fits.add_column(name, justify="left" if name == "operator" else "right")
    for fit in fitted.fits:
        factor = f"{fit.factor:.3f}" if fit.factor is not None else "–"
        cells = (duration(fit.start_s), factor, f"{fit.low:.2f} to {fit.high:.2f}", str(fit.rows))
        of = f", {fit.dtype}" if fit.dtype else ""
        by = f", bound by its {fit.bound}" if fit.bound else ""
        under = f", {fit.stack}" if fit.stack else ""
        fits.add_row(Text(f"{fit.operator}{of}{by}{under}"), *cells)
    steps = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("kernels of", "measured", "before", "after", "by the others"):
        steps.add_column(name, justify="left" if name == "kernels of" else "right")
    for check in fitted.checks:
        others = duration(check.others_s) if check.others_s is not None else "–"
        cells = (duration(check.measured_s), duration(check.before_s), duration(check.after_s), others)
        steps.add_row(Text(check.name), *cells)
    print_rich(fits, steps)
    if fitted.hosts.fits:
        print_rich(*_of_hosts(fitted.hosts))
    click.echo(f"device: {printable(str(short(target)))}")
    for line in (*_of_transfers(fitted.transfers), *(f"left out: {reason}" for reason in fitted.hosts.left_out)):
        click.echo(printable(line))
    for entry in moved:
        click.echo(f"{entry[0].removesuffix('s')}: {printable(str(short(targets[entry])))}")


def _of_hosts(hosts: CalibratedHosts) -> tuple[Table, Table]:
    """Host times of stacks, and idle times of devices."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..base.units import duration

    fits = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("stack", "before", "after", "range", "steps"):
        fits.add_column(name, justify="left" if name == "stack" else "right")
    for fit in hosts.fits:
        span = f"{duration(fit.low_s)} to {duration(fit.high_s)}"
        cells = (duration(fit.before_s), duration(fit.value_s), span, str(fit.steps))
        fits.add_row(Text(f"{fit.stack}: {fit.key}"), *cells)
    idle = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("device idle in", "measured", "before", "after", "by the others"):
        idle.add_column(name, justify="left" if name == "device idle in" else "right")
    for check in hosts.checks:
        others = duration(check.others_s) if check.others_s is not None else "–"
        cells = (duration(check.measured_s), duration(check.before_s), duration(check.after_s), others)
        idle.add_row(Text(check.name), *cells)
    return fits, idle


def _of_transfers(transfers: TransferFits | None) -> Iterator[str]:
    """Transfers of steps: what their fits rest on, and which are left out."""
    for fit in transfers.fits if transfers is not None else ():
        yield f"transfers: {fit.what}, {fit.moved}, by {fit.rows_used} of them"
    for reason in transfers.left_out if transfers is not None else ():
        yield f"left out: {reason}"
