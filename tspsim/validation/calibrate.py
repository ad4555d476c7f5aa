"""A device fitted to measured kernel tables: its catalog file with the fits in place of those it had."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tspsim import catalog
from tspsim.errors import InputError, UnknownNameError, shorten
from tspsim.hardware.tables import KERNEL_TABLES

from .devices import device_name
from .kernels import normalised
from .run import read, whole_rows
from .tables import TABLES

if TYPE_CHECKING:
    import pandas as pd

    from tspsim.hardware.specification import DeviceSpec, KernelFit

#: Starting points of a fit.
STARTS = 2


@dataclass(frozen=True)
class Calibration:
    """What was fitted, and the device file that says so.

    Attributes
    ----------
    device
        Catalog name.
    fits
        One a kernel family, type and library of the tables.
    rows
        Rows of the tables that are of this device.
    left_out
        Tables, rows and groups that could not be used, and why.
    kept
        What the device file keeps as it was.
    document
        The new device file as plain data.
    """

    device: str
    fits: tuple[KernelFit, ...]
    rows: int
    left_out: tuple[str, ...]
    kept: tuple[str, ...]
    document: Mapping[str, Any]

    def yaml(self) -> str:
        """The device file, found first when it lies in ``topologies/devices`` of the current folder."""
        import yaml

        head = f"# {self.device}: kernel models fitted by tspsim calibrate; the rest as in the catalog\n"
        return head + yaml.safe_dump(dict(self.document), sort_keys=False, default_flow_style=None, width=110)


def calibrate(gpu: str, folder: Path | str, *, today: str | None = None) -> Calibration:
    """Fit a device's kernel models to the tables of a folder.

    Every group of one kernel family, type and library is fitted on at most 70 % of its rows, by robust least squares
    (a row far off pulls no harder than one a little off), and judged on the others.

    Parameters
    ----------
    gpu
        A device of the catalog: the fits refer to its peak, bandwidth and compute units.
    folder
        Laid out as docs/validation.md says; only its kernel tables are read.
    today
        The date that is written; None: the calendar's.

    Raises
    ------
    UnknownNameError
        The catalog has no such device.
    InputError
        The folder has no kernel table, none with rows of this device, or too few of them.
    """
    from tspsim.hardware.fit import fit_device
    from tspsim.hardware.specification import DeviceSpec

    name = device_name(gpu)
    if name is None:
        raise UnknownNameError("device", gpu, catalog.names("devices"))
    path = catalog.locate("devices", name)
    spec = catalog.load("devices", name, DeviceSpec)
    rows, left_out = measured_calls(name, Path(folder))
    date = today or datetime.date.today().isoformat()
    relatives = tuple(catalog.load("devices", relative, DeviceSpec) for relative in spec.relatives)
    source = f"tspsim calibrate on {shorten(folder, 120)}"
    report = fit_device(spec, rows, date=date, source=source, starts=STARTS, relatives=relatives)
    left_out += [f"{group}: {reason}" for group, reason in report.skipped]
    if not report.fits:
        raise InputError(f"too few rows of {name} in any group: {'; '.join(left_out)}", file=shorten(folder, 200))
    return Calibration(
        name, report.fits, len(rows), tuple(left_out), tuple(_kept(spec, report.fits)),
        document(catalog.read_yaml(path), spec, report.fits),
    )  # fmt: skip


def measured_calls(name: str, folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """Rows of a device in all kernel tables of a folder, normalised, and what was left out with its reason."""
    import pandas as pd

    found = [path for path in KERNEL_TABLES if (folder / path).is_file()]
    if not found:
        raise InputError(f"holds no kernel table, such as {KERNEL_TABLES[0]}", file=shorten(folder, 200))
    parts, left_out = [], []
    for path in found:
        frame, reasons = whole_rows(TABLES[path], read(folder / path))
        left_out += [f"{path}: {reason} ({rows} rows)" for reason, rows in reasons.items()]
        if not len(frame):
            continue
        normal = normalised(path, frame)
        normal["gpu"] = frame["gpu"].map(device_name)
        unusable = normal["reason"] != ""
        for reason, group in normal[unusable & (normal["gpu"] == name)].groupby("reason"):
            left_out.append(f"{path}: {reason} ({len(group)} rows)")
        parts.append(normal[~unusable & (normal["gpu"] == name) & (normal["time_us"] > 0.0)])
    rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if not len(rows):
        raise InputError(f"no table has rows of {name}: {', '.join(found)}", file=shorten(folder, 200))
    return rows, left_out


def document(original: Mapping[str, Any], spec: DeviceSpec, fits: tuple[KernelFit, ...]) -> dict[str, Any]:
    """The device's file with the fits put in; a family's default library becomes the one with most rows here."""
    fitted = {_group(fit) for fit in fits}
    kept = [
        entry
        for entry, fit in zip(original.get("kernels") or [], spec.kernels, strict=True)
        if _group(fit) not in fitted
    ]
    defaults = dict(original.get("defaults") or {})
    for family in dict.fromkeys(fit.family for fit in fits):
        if family != "memory_bound":  # there a library is an operation, and copying stands for the unknown ones
            defaults[family] = max((fit for fit in fits if fit.family == family), key=lambda fit: fit.rows_used).library
    new = [fit.model_dump(mode="json", exclude_none=True) for fit in fits]
    return {**original, "defaults": defaults, "kernels": [*new, *kept]}


def _group(fit: KernelFit) -> tuple[str, str, str | None, str]:
    return fit.family, fit.dtype, fit.kv_dtype, fit.library


def _kept(spec: DeviceSpec, fits: tuple[KernelFit, ...]) -> list[str]:
    """What no row of the tables changed."""
    fitted = {_group(fit) for fit in fits}
    kept = [
        "peaks, memory, clocks, power and prices",
        "sustained rates and overlap",
        "collectives (of its node's file)",
    ]
    for fit in spec.kernels:
        if _group(fit) not in fitted:
            second = "" if fit.kv_dtype in (None, fit.dtype) else f"/{fit.kv_dtype}"
            kept.append(f"{fit.family} {fit.dtype}{second}, {fit.library}")
    return kept
