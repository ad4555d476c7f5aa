"""A node and its fabrics fitted to measured collective tables: their catalog files with what was fitted put in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tspsim import catalog
from tspsim.errors import InputError
from tspsim.network import collective
from tspsim.program import COLLECTIVE_KINDS

from .collectives import cluster_of, custom_library, fabric_of
from .devices import device_name
from .kernels import MICROSECONDS
from .run import read, whole_rows
from .tables import TABLES

if TYPE_CHECKING:

    from tspsim.network.calibration import Curve, CustomAllReduce, FabricFactors, Spread
    from tspsim.network.fits import Fit, Measurement
    from tspsim.network.specs import CollectivesSpec

COLLECTIVES = "collectives/all.csv"
ENGINES = "collectives/custom_all_reduce.csv"
COLLECTIVE_TABLES = (COLLECTIVES, ENGINES)
#: What no table moves.
NEVER_MOVED = (
    "regimes between nodes (of which a fabric's factors move), lines of protocols without a curve",
    "dispatch and combine of experts (collectives/moe_dispatch_combine_*.csv are not fitted)",
)


@dataclass(frozen=True)
class MeasuredCollectives:
    """Rows of one device by the file they may move, and what was left out with its reason.

    ``nodes`` and ``fabrics`` are by catalog name.
    """

    nodes: Mapping[str, Sequence[Measurement]]
    fabrics: Mapping[str, Sequence[Measurement]]
    left_out: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(len(rows) for part in (self.nodes, self.fabrics) for rows in part.values())


@dataclass(frozen=True)
class CalibratedCollectives:
    """What was fitted, and the new files of nodes and fabrics as plain data, by kind and name."""

    fits: tuple[Fit, ...]
    left_out: tuple[str, ...]
    kept: tuple[str, ...]
    documents: Mapping[tuple[str, str], Mapping[str, Any]]


def measured_collectives(name: str, folder: Path) -> MeasuredCollectives:
    """Rows of a device in the collective tables of a folder."""
    nodes: dict[str, list[Measurement]] = {}
    fabrics: dict[str, list[Measurement]] = {}
    left_out: list[str] = []
    for path in COLLECTIVE_TABLES:
        if not (folder / path).is_file():
            continue
        frame, lacking = whole_rows(TABLES[path], read(folder / path))
        reasons = Counter(lacking)
        mine = frame[[device_name(gpu) == name for gpu in frame["gpu"]]]
        for row in mine.to_dict("records"):
            try:
                found = _measurement(path, {str(column): cell for column, cell in row.items()})
            except InputError as error:
                reasons[error.message] += 1
                continue
            cluster = found.cluster
            if cluster.nodes > 1 and cluster.fabric is not None:
                fabrics.setdefault(cluster.fabric.name, []).append(found)
            else:
                nodes.setdefault(cluster.node.name, []).append(found)
        left_out += [f"{path}: {reason} ({count} rows)" for reason, count in sorted(reasons.items())]
    return MeasuredCollectives(nodes, fabrics, tuple(left_out))


def calibrate_collectives(measured: MeasuredCollectives, source: str) -> CalibratedCollectives:
    """Fit the nodes and fabrics that rows are of; ``source`` says where the rows are from, and when."""
    from tspsim.network.fits import fit_fabric, fit_node

    documents: dict[tuple[str, str], Mapping[str, Any]] = {}
    done = []
    for name, rows in sorted(measured.nodes.items()):
        was = rows[0].cluster.node.collectives
        now, fits = fit_node(rows, source)
        done.append(fits)
        if now != was:
            documents["nodes", name] = _node_document(catalog.read_yaml(catalog.locate("nodes", name)), was, now)
    for name, rows in sorted(measured.fabrics.items()):
        factors, fits = fit_fabric(rows, source)
        done.append(fits)
        if factors is not None:
            document = catalog.read_yaml(catalog.locate("fabrics", name))
            documents["fabrics", name] = document | {"collectives": _stated_factors(factors)}
    return CalibratedCollectives(
        tuple(fit for fits in done for fit in fits.fits),
        (*measured.left_out, *(reason for fits in done for reason in fits.left_out)),
        (*(line for fits in done for line in fits.kept), *(NEVER_MOVED if done else ())),
        documents,
    )


def _measurement(path: str, row: Mapping[str, Any]) -> Measurement:
    """One row; raises InputError where it is no collective of the catalog's clusters."""
    from tspsim.network.fits import Measurement

    time_us = _number(row.get("time_us"))
    if not 0.0 < time_us < float("inf"):
        raise InputError("time_us is not a number of more than zero")
    written, gpus, size = str(row.get("library", "")).strip(), int(row["gpus"]), float(row["bytes"])
    if path == ENGINES:
        cluster, kind, library = cluster_of(row["gpu"], 1, gpus), "all_reduce", custom_library(written)
        asked: str | None = library
    else:
        cluster, kind = cluster_of(row["gpu"], int(row["nodes"]), gpus, fabric_of(written)), str(row["op"])
        library, asked = written or cluster.node.collectives.library, None
        if kind not in COLLECTIVE_KINDS:
            raise InputError(f"no collective '{kind}'")
    if not collective(cluster, range(gpus), kind, size, library=asked).links:
        raise InputError("one GPU alone exchanges nothing")
    return Measurement(cluster, kind, gpus, size, library, time_us / MICROSECONDS)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return float("nan")


def _node_document(original: Mapping[str, Any], was: CollectivesSpec, now: CollectivesSpec) -> dict[str, Any]:
    """A node's file with the curves and engines put in that moved; the others as they are written."""
    collectives = dict(original["collectives"])
    if now.default_library is not None:
        collectives = {"library": collectives["library"], "default_library": now.default_library, **collectives}
        collectives["default_library"] = now.default_library
    for part, stated in (("curves", _stated_curve), ("custom_all_reduce", _stated_engine)):
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
    return stated | {"libraries": libraries, **_told(curve)}


def _stated_engine(engine: CustomAllReduce) -> dict[str, Any]:
    stated: dict[str, Any] = {"library": engine.library}
    for way in ("one_shot", "two_shot", "fallback"):
        shot = getattr(engine, way)
        if shot is not None:
            parts = {"base": _microseconds(shot.base), "hop": _microseconds(shot.hop), "efficiency": shot.efficiency}
            stated[way] = parts
    return stated | _told(engine)


def _stated_factors(factors: FabricFactors) -> dict[str, Any]:
    return {"latency": factors.latency, "bandwidth": factors.bandwidth, **_told(factors)}


def _told(entry: Curve | CustomAllReduce | FabricFactors) -> dict[str, Any]:
    spread: Spread = entry.spread
    known = {"small": list(spread.small), "large": list(spread.large), "rows": spread.rows}
    return {"spread": known, "source": entry.source, "basis": entry.basis}


def _microseconds(value: float) -> str:
    return f"{value * 1e6:.6g} us"
