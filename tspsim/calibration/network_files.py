"""A node and its fabrics fitted to measured collective tables: their catalog files with the new numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import catalog, dialect
from ..base.errors import InputError
from ..network import Cluster, collective
from ..network.calibration import CollectivesSpec, Curve, CustomAllReduce, ExpertCurve, FabricFactors, TransferSpread
from ..program import COLLECTIVE_KINDS
from ..validation.collectives import cluster_of, custom_library, fabric_of, node_of
from ..validation.devices import device_name
from ..validation.experts import MeasuredPhase, deepep, mori
from ..validation.kernels import MICROSECONDS
from ..validation.run import read, whole_rows
from ..validation.tables import TABLES
from .collectives import TransferFits, fit_fabric, fit_node
from .measurements import MeasuredCollective, MeasuredExchange, MeasuredTransfer
from .nccl_tests import NcclLog

COLLECTIVES = "collectives/all.csv"
ENGINES = "collectives/custom_all_reduce.csv"
MORI = "collectives/moe_dispatch_combine_amd.csv"
DEEPEP = "collectives/moe_dispatch_combine_deepep.csv"
COLLECTIVE_TABLES = (COLLECTIVES, ENGINES, MORI, DEEPEP)
#: Numbers that no table moves.
NEVER_MOVED = ("regimes between nodes (a fabric's factors scale them), lines of protocols without a curve",)


@dataclass(frozen=True)
class MeasuredTransfers:
    """Rows of one device by the file that they may move, and the rows left out with the reason.

    ``nodes`` and ``fabrics`` are by catalog name.
    """

    nodes: Mapping[str, Sequence[MeasuredTransfer]]
    fabrics: Mapping[str, Sequence[MeasuredTransfer]]
    left_out: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(len(rows) for part in (self.nodes, self.fabrics) for rows in part.values())


def measured_transfers(
    name: str, folder: Path | None, logs: Sequence[NcclLog] = (), node: str | None = None
) -> MeasuredTransfers:
    """Rows of a device in the collective tables of a folder, and in logs of nccl-tests. ``node``: catalog name of the
    node of rows that name none.

    Raises
    ------
    InputError
        A table or log cannot be read.
    """
    nodes: dict[str, list[MeasuredTransfer]] = {}
    fabrics: dict[str, list[MeasuredTransfer]] = {}
    left_out: list[str] = []
    tables = [(path, read(folder / path)) for path in COLLECTIVE_TABLES if folder and (folder / path).is_file()]
    tables += [(COLLECTIVES, log.rows(name)) for log in logs]
    for path, table in tables:
        frame, lacking = whole_rows(TABLES[path], table)
        reasons = Counter(lacking)
        mine = frame
        if len(frame):  # a table that lacks the column has no whole row
            mine = frame[[device_name(gpu) == name for gpu in frame["system" if path == DEEPEP else "gpu"]]]
        for row in mine.to_dict("records"):
            try:
                cells = {str(column): cell for column, cell in row.items()}
                transfers = _READ[path](cells if node_of(cells) else cells | {"node": node or ""})
            except InputError as error:
                reasons[error.message] += 1
                continue
            for transfer in transfers:
                cluster = transfer.cluster
                if cluster.fabric is None or path in (MORI, DEEPEP):
                    nodes.setdefault(cluster.node.name, []).append(transfer)
                else:
                    fabrics.setdefault(cluster.fabric.name, []).append(transfer)
        left_out += [f"{path}: {reason} ({count} rows)" for reason, count in sorted(reasons.items())]
    return MeasuredTransfers(nodes, fabrics, tuple(left_out))


def calibrate_transfers(measured: MeasuredTransfers, source: str, *, held_out: bool = True) -> TransferFits:
    """Fit the nodes and fabrics of the rows. ``source``: origin and date of the rows. Without ``held_out`` all rows are
    fitted and only crossed folds judge: steps have few sizes, each many times."""
    documents: dict[tuple[str, str], Mapping[str, Any]] = {}
    done = []
    for name, rows in sorted(measured.nodes.items()):
        was = rows[0].cluster.node.collectives
        now, fits = fit_node(rows, source, held_out=held_out)
        done.append(fits)
        if now != was:
            documents["nodes", name] = _node_document(dialect.read_yaml(catalog.locate("nodes", name)), was, now)
    for name, rows in sorted(measured.fabrics.items()):
        factors, fits = fit_fabric(rows, source, held_out=held_out)
        done.append(fits)
        if factors is not None:
            document = dialect.read_yaml(catalog.locate("fabrics", name))
            documents["fabrics", name] = document | {"collectives": _stated_factors(factors)}
    return TransferFits(
        tuple(fit for fits in done for fit in fits.fits),
        (*measured.left_out, *(reason for fits in done for reason in fits.left_out)),
        (*(line for fits in done for line in fits.kept), *(NEVER_MOVED if done else ())),
        documents,
    )


def _collective(row: Mapping[str, Any]) -> list[MeasuredTransfer]:
    """A row of nccl-tests. Raises InputError where it is no collective of the catalog's clusters."""
    written, gpus, kind = str(row.get("library", "")).strip(), int(row["gpus"]), str(row["op"])
    cluster = cluster_of(row["gpu"], int(row["nodes"]), gpus, fabric_of(written), node_of(row))
    if kind not in COLLECTIVE_KINDS:
        raise InputError(f"no collective '{kind}'")
    return [_measurement(row, cluster, kind, None, written or cluster.node.collectives.library)]


def _engine(row: Mapping[str, Any]) -> list[MeasuredTransfer]:
    """An all-reduce by the kernels of a serving engine."""
    library = custom_library(str(row["library"]))
    cluster = cluster_of(row["gpu"], 1, int(row["gpus"]), node=node_of(row))
    return [_measurement(row, cluster, "all_reduce", library, library)]


def _measurement(
    row: Mapping[str, Any], cluster: Cluster, kind: str, requested: str | None, library: str
) -> MeasuredTransfer:
    gpus, size = int(row["gpus"]), float(row["bytes"])
    if not collective(cluster, range(gpus), kind, size, library=requested).links:
        raise InputError("one GPU alone exchanges nothing")
    return MeasuredCollective(cluster, kind, gpus, size, library, _seconds(row, "time_us"))


def _mori(row: Mapping[str, Any]) -> list[MeasuredTransfer]:
    """A phase of one of mori's kernels."""
    return [_exchange(mori(row), _seconds(row, "latency_us"))]


def _deepep(row: Mapping[str, Any]) -> list[MeasuredTransfer]:
    """The phases of DeepEP with a time in a row; in normal mode the time of transmitting."""
    transfers = []
    for phase in deepep(row):
        columns = (f"{phase.phase}_avg_t_us", f"{phase.phase}_transmit_us")
        timed = [column for column in columns if str(row.get(column, "")).strip()]
        if timed:
            transfers.append(_exchange(phase, _seconds(row, timed[0])))
    if not transfers:
        raise InputError("no time of a dispatch or combine")
    return transfers


def _exchange(phase: MeasuredPhase, seconds: float) -> MeasuredTransfer:
    if not phase.traffic().links:
        raise InputError("one GPU alone exchanges nothing")
    return MeasuredExchange.of(phase.cluster, phase.phase, phase.mode, phase.ranks, phase.exchange, seconds)


def _seconds(row: Mapping[str, Any], column: str) -> float:
    try:
        microseconds = float(row[column])
    except (KeyError, TypeError, ValueError):
        microseconds = 0.0
    if not 0.0 < microseconds < float("inf"):
        raise InputError(f"{column} is not a number of more than zero")
    return microseconds / MICROSECONDS


_READ: Mapping[str, Callable[[Mapping[str, Any]], list[MeasuredTransfer]]] = {
    COLLECTIVES: _collective, ENGINES: _engine, MORI: _mori, DEEPEP: _deepep,
}  # fmt: skip


def _node_document(original: Mapping[str, Any], was: CollectivesSpec, now: CollectivesSpec) -> dict[str, Any]:
    """A node's file with the moved curves and engines; the others as they are written."""
    collectives = dict(original["collectives"])
    if now.default_library is not None:
        collectives = {"library": collectives["library"], "default_library": now.default_library, **collectives}
        collectives["default_library"] = now.default_library
    parts = (("curves", _stated_curve), ("custom_all_reduce", _stated_engine), ("experts", _stated_exchange))
    for part, stated in parts:
        old, entries, written = getattr(was, part), getattr(now, part), collectives.get(part, [])
        if entries != old:
            collectives[part] = [
                written[i] if i < len(old) and entry == old[i] else stated(entry) for i, entry in enumerate(entries)
            ]
    return {**original, "collectives": collectives}


def _stated_curve(curve: Curve) -> dict[str, Any]:
    stated: dict[str, Any] = {
        "algorithms": list(curve.algorithms),
        "kinds": list(curve.kinds),
        "ranks": list(curve.ranks),
        "base": [_microseconds(value) for value in curve.base],
        "hop": [_microseconds(value) for value in curve.hop],
        "efficiency": list(curve.efficiency),
        "growth": _microseconds(curve.growth),
    }
    if curve.own is not None:
        stated["own"] = f"{curve.own / 1e9:.6g} GB/s"
    if curve.switch is not None:
        stated |= {"switch": f"{curve.switch:.0f} B", "switch_exponent": curve.switch_exponent}
    libraries = {name: factors.model_dump(exclude_none=True) for name, factors in curve.libraries.items()}
    return stated | {"libraries": libraries, **_provenance(curve)}


def _stated_engine(engine: CustomAllReduce) -> dict[str, Any]:
    stated: dict[str, Any] = {"library": engine.library}
    for way in ("one_shot", "two_shot", "fallback"):
        shot = getattr(engine, way)
        if shot is not None:
            times = {"base": _microseconds(shot.base), "hop": _microseconds(shot.hop)}
            stated[way] = times | {"efficiency": _six(shot.efficiency)}
    return stated | _provenance(engine)


def _stated_exchange(curve: ExpertCurve) -> dict[str, Any]:
    stated: dict[str, Any] = {
        "library": curve.library, "mode": curve.mode, "phase": curve.phase, "copies": curve.copies,
        "nodes": curve.nodes,
    }  # fmt: skip
    stated |= {name: _microseconds(getattr(curve, name)) for name in ("base", "doubling", "node", "per_copy")}
    stated |= {name: _six(getattr(curve, name)) for name in ("efficiency", "fabric_efficiency", "fabric_loss")}
    stated |= {name: f"{rate / 1e9:.6g} GB/s" for name, rate in curve.multiprocessor_rates.items()}
    return stated | _provenance(curve)


def _stated_factors(factors: FabricFactors) -> dict[str, Any]:
    return {"latency": factors.latency, "bandwidth": factors.bandwidth, **_provenance(factors)}


def _provenance(entry: Curve | CustomAllReduce | ExpertCurve | FabricFactors) -> dict[str, Any]:
    spread: TransferSpread = entry.spread
    range_ = {"small": list(spread.small), "large": list(spread.large), "rows": spread.rows}
    return {"spread": range_, "source": entry.source, "basis": entry.basis}


def _microseconds(value: float) -> str:
    return f"{value * 1e6:.6g} us"


def _six(value: float) -> float:
    """Six digits, as quantities are written."""
    return float(f"{value:.6g}")
