"""A device, its node and its fabrics fitted to measured tables: their catalog files with the fits."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import catalog, dialect
from ..base.errors import InputError, UnknownNameError, shorten
from ..hardware.announced import DEVICES
from ..hardware.specification import DeviceSpec, KernelFit
from ..network.announced import NODES
from ..validation.devices import device_name
from ..validation.kernel_tables import KERNEL_TABLES, times_of
from ..validation.kernels import normalised
from ..validation.run import read, whole_rows
from ..validation.tables import TABLES
from .forms import TransferFit
from .kernels import KernelFits, fit_device, in_place
from .nccl_tests import NcclLog, is_log
from .network_files import COLLECTIVE_TABLES, calibrate_transfers, measured_transfers
from .sparse_modules import SPARSE_MODULES, fit_sparse_modules

if TYPE_CHECKING:
    import pandas as pd

#: Starting points of a fit.
STARTS = 2
#: Folders of the catalog by kind of file.
_FOLDERS: Mapping[str, str] = dict(catalog.FOLDERS.items())
#: A file of the catalog: its kind and name.
Entry = tuple[str, str]


@dataclass(frozen=True)
class Calibration:
    """The fits, and the catalog files that contain them."""

    #: Catalog name of the device.
    device: str
    #: One per kernel family, type and library of the tables.
    fits: tuple[KernelFit, ...]
    #: One per set of collectives of the node, or per fabric.
    collectives: tuple[TransferFit, ...]
    #: Rows of this device in the tables.
    rows: int
    #: Tables, rows and groups that could not be used, with the reason.
    left_out: tuple[str, ...]
    #: Parts of the files that stay unchanged.
    kept: tuple[str, ...]
    #: The new files as plain data, by kind and name; none for an unchanged file.
    documents: Mapping[Entry, Mapping[str, Any]]

    def yaml(self, kind: str = "devices") -> str:
        """The file of a kind. In ``topologies/KIND`` of the current folder it takes precedence over the catalog's."""
        return self.text(next(entry for entry in self.documents if entry[0] == kind))

    def text(self, entry: Entry) -> str:
        """The text of one file."""
        import yaml

        what = "kernel models" if entry[0] == "devices" else "collectives"
        head = f"# {entry[1]}: {what} fitted by tspsim calibrate; the rest as in the catalog\n"
        return head + yaml.safe_dump(
            dict(self.documents[entry]), sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
        )


def places(entries: Sequence[Entry], out: Path | None) -> dict[Entry, Path]:
    """Paths of the files.

    Without ``out`` they go to the catalog's folders within the current one. With ``out`` a single file gets that name.
    Of several files the device's gets it, and the others go beside it; if ``out`` lies in a folder ``devices``, the
    others go to the sibling folders of their kinds.

    Raises
    ------
    InputError
        Without ``out``: a file exists already. With it: two files would have the same path.
    """
    if out is None:
        paths = {(kind, name): Path(_FOLDERS[kind]) / f"{name}.yaml" for kind, name in entries}
        for path in paths.values():
            if path.exists():
                raise InputError("exists already; name it with --out to replace it", file=str(path))
        return paths
    if len(entries) == 1:
        return {entries[0]: out}
    ordered = out.parent.name == "devices"
    # If ``out`` lies in topologies/devices, files of workloads go beside topologies.
    root = out.parent.parent.parent if out.parent.parts[-2:] == Path(_FOLDERS["devices"]).parts else None

    def folder(kind: str) -> Path:
        if root is not None:
            return root / _FOLDERS[kind]
        return out.parent.parent / kind if ordered else out.parent

    paths = {(kind, name): folder(kind) / f"{name}.yaml" for kind, name in entries}
    paths |= {entry: out for entry in entries if entry[0] == "devices"}
    if len(set(paths.values())) < len(paths):
        raise InputError("is the place of another file too; name the device's", file=str(out))
    return paths


def calibrate(
    gpu: str,
    folder: Path | str | None = None,
    *,
    logs: Sequence[NcclLog] = (),
    node: str | None = None,
    today: str | None = None,
    before: Callable[[Sequence[Entry]], object] = lambda entries: None,
) -> Calibration:
    """Fit a device's kernel models, and the collectives of its node and fabrics, to the tables of a folder.

    Every group (of kernels: a family, type and library; of collectives: those of a curve, an engine's kernels, or a
    fabric) is fitted on at most 70 % of its rows, by robust least squares (an outlier pulls no harder than a row that
    is slightly off), and judged on the others.

    Parameters
    ----------
    gpu
        A device of the catalog: the fits refer to its peak, bandwidth, compute units and links.
    folder
        Folder of tables, laid out as docs/validation.md says. None: only the logs.
    logs
        Logs of nccl-tests or rccl-tests, as printed.
    node
        Catalog name of the node whose collectives were measured; None: the GPU's usual one.
    today
        The date to write; None: today's.
    before
        Called with the files that may result, before anything is fitted.

    Raises
    ------
    UnknownNameError
        The catalog has no such device or node.
    InputError
        The node has another device; the folder is missing or has no such table; a log cannot be read; or the device
        has no rows, or too few.
    """
    name = device_name(gpu)
    if name is None:
        raise UnknownNameError("device", gpu, catalog.names("devices"))
    if node is not None:
        own_node(node, name)
    folder = Path(folder) if folder is not None else None
    sources = [*(tables_of(folder) if folder is not None else []), *(str(log.file) for log in logs)]
    place = shorten(", ".join([*([str(folder)] if folder else []), *(str(log.file) for log in logs)]), 200)
    calls, left_out = measured_calls(name, folder)
    modules = measured_modules(name, folder, left_out)
    measured = measured_transfers(name, folder, logs, node)
    if not len(calls) and not len(modules) and not measured.rows:
        lines = "; ".join([*left_out, *measured.left_out])
        raise InputError(
            f"no table has rows of {name}: {', '.join(sources)}" + (f" ({lines})" if lines else ""), file=place
        )
    before([
        *([("devices", name)] if len(calls) or len(modules) else []),
        *(("nodes", node) for node in sorted(measured.nodes)),
        *(("fabrics", fabric) for fabric in sorted(measured.fabrics)),
    ])  # fmt: skip
    date = today or datetime.date.today().isoformat()
    source = f"tspsim calibrate on {shorten(place, 120)}"
    kept = ["peaks, memory, clocks, power and prices", "sustained rates and overlap"]
    documents: dict[Entry, Mapping[str, Any]] = {}
    fits: tuple[KernelFit, ...] = ()
    if len(calls) or len(modules):
        report, spec, document = _kernels(name, calls, modules, date, source)
        fits = report.fits
        left_out += [f"{group}: {reason}" for group, reason in report.skipped]
        kept += _kept(spec, fits)
        if fits:
            documents["devices", name] = document
    done = calibrate_transfers(measured, f"{source} ({date})")
    left_out += done.left_out
    if not fits and not done.fits and not done.kept:
        raise InputError(f"too few rows of {name} in any group: {'; '.join(left_out)}", file=place)
    return Calibration(
        name, fits, done.fits, len(calls) + len(modules) + measured.rows, tuple(left_out),
        (*kept, *(done.kept or ["collectives of its node and fabrics"])), documents | dict(done.documents),
    )  # fmt: skip


def own_node(node: str, device: str | None = None) -> str:
    """The device of a node of the catalog.

    Raises
    ------
    InputError
        There is no such node, or it has another device than the one named.
    """
    if node not in catalog.names("nodes"):
        raise UnknownNameError("node", node, catalog.names("nodes"), key="--node")
    its = NODES.load(node).device
    if device is not None and its != device:
        raise InputError(f"node '{shorten(node)}' has {shorten(its)} GPUs, not {device}", key="--node")
    return its


def _kernels(
    name: str, rows: pd.DataFrame, modules: pd.DataFrame, date: str, source: str
) -> tuple[KernelFits, DeviceSpec, dict[str, Any]]:
    """The fits to calls of a device and to modules, the device as it is, and its new file."""
    spec = DEVICES.load(name)
    if spec.announced:
        missing = ", ".join(("visible_memory", "compute_units", "clock", "l2", "tdp", "sustained", "overlap"))
        remedy = f"take `announced` and `like` out of its file and state what is measured now ({missing}; relatives)"
        raise InputError(f"'{name}' is announced; {remedy}", file=str(catalog.locate("devices", name)), key="announced")
    relatives = tuple(DEVICES.load(relative) for relative in spec.relatives)
    report = KernelFits((), ())
    if len(rows):
        report = fit_device(spec, rows, date=date, source=source, starts=STARTS, relatives=relatives)
    if len(modules):
        fitted = spec.model_copy(update={"kernels": in_place(spec.kernels, report.fits)})
        more, skipped = fit_sparse_modules(fitted, relatives, modules, date=date, source=source, starts=STARTS)
        report = KernelFits((*report.fits, *more), (*report.skipped, *((SPARSE_MODULES, why) for why in skipped)))
    return report, spec, document(dialect.read_yaml(catalog.locate("devices", name)), spec, report.fits)


def tables_of(folder: Path) -> list[str]:
    """Paths of the tables in a folder that calibration reads. Raises InputError with the reason where it has none."""
    place = shorten(folder, 200)
    if not folder.is_dir():
        remedy = "; give a log of nccl-tests with --nccl-tests FILE --op OP" if folder.exists() else ""
        raise InputError(f"is a file, not a folder of tables{remedy}" if remedy else "no such folder", file=place)
    paths = [path for path in (*KERNEL_TABLES, SPARSE_MODULES, *COLLECTIVE_TABLES) if (folder / path).is_file()]
    logs = [path for path in paths if is_log(folder / path)]
    if logs:
        remedy = f"give it with --nccl-tests {shorten(folder / logs[0], 120)} --op all_reduce (or what it timed)"
        raise InputError(f"is the log of nccl-tests as printed, not a table; {remedy}", file=str(folder / logs[0]))
    if not paths:
        raise InputError(
            f"holds no kernel table, such as {KERNEL_TABLES[0]}, nor one of collectives ({COLLECTIVE_TABLES[0]}); "
            "logs of nccl-tests are given with --nccl-tests FILE --op OP",
            file=place,
        )
    return paths


def measured_calls(name: str, folder: Path | None) -> tuple[pd.DataFrame, list[str]]:
    """Normalised rows of a device in all kernel tables of a folder, and the rows left out with the reason. Without a
    folder both are empty."""
    import pandas as pd

    parts: list[pd.DataFrame] = []
    left_out: list[str] = []
    if folder is None:
        return pd.DataFrame(), left_out
    for path in [path for path in KERNEL_TABLES if (folder / path).is_file()]:
        frame, reasons = whole_rows(TABLES[path], read(folder / path))
        left_out += [f"{path}: {reason} ({rows} rows)" for reason, rows in reasons.items()]
        if not len(frame):
            continue
        for column in times_of(path):
            normal = normalised(path, frame, column)
            normal["gpu"] = frame["gpu"].map(device_name)
            unusable = normal["reason"] != ""
            for reason, group in normal[unusable & (normal["gpu"] == name)].groupby("reason"):
                left_out.append(f"{path}: {reason} ({len(group)} rows)")
            parts.append(normal[~unusable & (normal["gpu"] == name) & (normal["time_us"] > 0.0)])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(), left_out


def measured_modules(name: str, folder: Path | None, left_out: list[str]) -> pd.DataFrame:
    """Rows of a device in a folder's table of sparse attention, with numeric times; rows that lack a cell are added to
    ``left_out``."""
    import pandas as pd

    if folder is None or not (folder / SPARSE_MODULES).is_file():
        return pd.DataFrame()
    frame, reasons = whole_rows(TABLES[SPARSE_MODULES], read(folder / SPARSE_MODULES))
    left_out += [f"{SPARSE_MODULES}: {reason} ({rows} rows)" for reason, rows in reasons.items()]
    frame["time_us"] = pd.to_numeric(frame["time_us"], errors="coerce")
    return frame[(frame["gpu"].map(device_name) == name) & (frame["time_us"] > 0.0)]


def document(original: Mapping[str, Any], spec: DeviceSpec, fits: tuple[KernelFit, ...]) -> dict[str, Any]:
    """The device's file with the fits; a family's default library becomes the one with most rows here."""
    fitted = {_group(fit) for fit in fits}
    kept = [
        entry
        for entry, fit in zip(original.get("kernels") or [], spec.kernels, strict=True)
        if _group(fit) not in fitted
    ]
    defaults = dict(original.get("defaults") or {})
    for family in dict.fromkeys(fit.family for fit in fits):
        if family != "memory_bound":  # its libraries are operations, and copying stands for unknown ones
            usual = defaults.get(family)  # stays the default unless another has more rows
            here = [fit for fit in fits if fit.family == family]
            defaults[family] = max(here, key=lambda fit: (fit.rows_used, fit.library == usual)).library
    new = [fit.model_dump(mode="json", exclude_none=True) for fit in fits]
    return {**original, "defaults": defaults, "kernels": [*new, *kept]}


def _group(fit: KernelFit) -> tuple[str, str, str | None, str]:
    return fit.family, fit.dtype, fit.kv_dtype, fit.library


def _kept(spec: DeviceSpec, fits: tuple[KernelFit, ...]) -> list[str]:
    """Kernels of the device that no row changed."""
    fitted = {_group(fit) for fit in fits}
    kept = []
    for fit in spec.kernels:
        if _group(fit) not in fitted:
            second = "" if fit.kv_dtype in (None, fit.dtype) else f"/{fit.kv_dtype}"
            kept.append(f"{fit.family} {fit.dtype}{second}, {fit.library}")
    return kept
