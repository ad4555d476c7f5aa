"""Timelines packed for the page: a few ranks in full as typed arrays, all ranks as shares.

A row of the timeline takes twelve bytes: the gap since the row before on its stream and its duration
(float32 seconds), its entry in the table of labels (uint16 or uint32) and its layer (int16). Layers are
separate from labels, so that a program of many equal layers needs one label per instruction. Rows beyond the
budget are left out evenly (ranks first, then the end of the step), and the packed timeline says so.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tspsim.engine.timeline import ON_HOST
from tspsim.step.result import PlanResult, RankClass

from .view import View

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tspsim.engine.timeline import Timeline

#: Most bytes of all timelines of a page, and most ranks that one plan shows in full.
BUDGET_BYTES = 4_500_000
MOST_RANKS = 16
#: Most columns of the shares of all ranks, drawn as steps.
MOST_COLUMNS = 1024

Columns = dict[str, "NDArray[Any]"]


def pack_all(view: View) -> list[dict[str, Any]]:
    """Every plan's timeline, in the scenario's order, within :data:`BUDGET_BYTES` together."""
    plans = [plan for plan in view.ran if plan.timeline is not None and len(plan.timeline)]
    return [pack(view, plan, BUDGET_BYTES // len(plans)) for plan in plans]


def pack(view: View, plan: PlanResult, budget_bytes: int) -> dict[str, Any]:
    """One plan's timeline as JSON data of at most ``budget_bytes`` (a single row always stays)."""
    assert plan.timeline is not None
    columns = plan.timeline.columns()
    present = np.unique(columns["rank"])
    chosen = choose(present, plan.classes, MOST_RANKS)
    until = last = float(columns["end_s"].max())
    while True:
        packed = _encode(view, plan, plan.timeline, columns, chosen, until)
        size = len(json.dumps(packed))
        if size <= budget_bytes or packed["rows"] <= 1:
            break
        if len(chosen) > 1:
            chosen = chosen[: max(1, min(len(chosen) - 1, int(len(chosen) * budget_bytes / size)))]
        else:
            until *= min(0.9, budget_bytes / size)
    packed["simulated"] = len(present)
    packed["until"] = until
    packed["cut"] = until < last
    return packed


def choose(present: NDArray[Any], classes: Sequence[RankClass], most: int) -> list[int]:
    """At most ``most`` of the ranks: first one per role, then ranks at equal distances."""
    if len(present) <= most:
        return [int(rank) for rank in present]
    simulated = {int(rank) for rank in present}
    roles: dict[str, int] = {}
    for entry in classes:
        if entry.representative in simulated:
            roles.setdefault(entry.role, entry.representative)
    first = _evenly(list(roles.values()), most)
    left = [int(rank) for rank in present if int(rank) not in set(first)]
    return sorted(first + _evenly(left, most - len(first)))


def _evenly(values: list[int], count: int) -> list[int]:
    """``count`` of the values at equal steps, or all where there are fewer."""
    if len(values) <= count:
        return values
    return [values[index * len(values) // count] for index in range(count)]


def shares(timeline: Timeline, step_time_s: float) -> tuple[NDArray[Any], Columns]:
    """Shares of the step in which every simulated rank computed, only communicated, or did neither.

    Returns
    -------
    ranks : array of int
    shares : dict of arrays of the same length
        ``compute``, ``communication`` (exposed: no compute meanwhile) and ``idle`` (including launches by the
        host); they add up to one.
    """
    columns = timeline.columns()
    ranks, position = np.unique(columns["rank"], return_inverse=True)
    computing = timeline.labelled(lambda entry: entry.is_compute, bool)
    working = timeline.labelled(lambda entry: entry.kind != ON_HOST, bool)
    busy = _union(position[working], columns["start_s"][working], columns["end_s"][working], len(ranks))
    compute = _union(position[computing], columns["start_s"][computing], columns["end_s"][computing], len(ranks))
    step = max(step_time_s, 1e-30)
    return ranks, {
        "compute": compute / step,
        "communication": (busy - compute) / step,
        "idle": np.maximum(0.0, 1.0 - busy / step),
    }


def _union(group: NDArray[Any], start: NDArray[Any], end: NDArray[Any], groups: int) -> NDArray[Any]:
    """Seconds that at least one interval covers, for each group."""
    covered = np.zeros(groups)
    if not len(group):
        return covered
    order = np.lexsort((start, group))
    group, start, end = group[order], start[order], end[order]
    # A shift of every group beyond the one before lets one running maximum serve them all.
    shift = group * (float(end.max()) + 1.0)
    reached = np.maximum.accumulate(end + shift)
    before = np.concatenate(([-np.inf], reached[:-1]))
    fresh = np.maximum(0.0, end + shift - np.maximum(start + shift, before))
    np.add.at(covered, group, fresh)
    return covered


def _encode(
    view: View, plan: PlanResult, timeline: Timeline, columns: Columns, chosen: list[int], until: float
) -> dict[str, Any]:
    folded = len(np.unique(columns["rank"])) <= len(plan.classes)
    kept = np.isin(columns["rank"], chosen) & (columns["start_s"] <= until)
    labels, number = timeline.kinds()
    rank, layer = columns["rank"][kept], timeline.layers()[kept].astype(np.int16)
    start, end = columns["start_s"][kept], columns["end_s"][kept]
    used, row_label = np.unique(number[kept], return_inverse=True)
    entries = [labels[index] for index in used]
    streams = list(dict.fromkeys(entry.stream for entry in entries))
    computing = {entry.stream for entry in entries if entry.is_compute}
    streams.sort(key=lambda name: name not in computing)
    stream = np.array([streams.index(entry.stream) for entry in entries], dtype=np.int32)[row_label]
    table, short = _labels(view, entries)
    order = np.lexsort((end, start, stream, rank))
    rank, stream, start, end = rank[order], stream[order], start[order], end[order]
    tracks = np.flatnonzero(np.diff(rank, prepend=-1) | np.diff(stream, prepend=-1))
    gap = start.copy()
    gap[1:] -= end[:-1]
    gap[tracks] = start[tracks]
    kind = np.uint16 if len(table["name"]) <= 0xFFFF else np.uint32
    return {
        "name": plan.name,
        "step": plan.step_time_s,
        "rows": len(rank),
        "ranks": [_rank(plan, number, folded) for number in chosen],
        "streams": streams,
        "tracks": [
            {"rank": chosen.index(int(rank[first])), "stream": int(stream[first]), "first": int(first), "count": int(n)}
            for first, n in zip(tracks, np.diff(np.append(tracks, len(rank))), strict=True)
        ],
        "labels": table,
        "wide": kind is np.uint32,
        "gap": _text(gap.astype("<f4")),
        "duration": _text((end - start).astype("<f4")),
        "label": _text(short[row_label][order].astype(kind)),
        "layer": _text(layer[order].astype("<i2")),
        "layers": _layers(rank, stream, layer[order], start, end),
    }


def _rank(plan: PlanResult, number: int, folded: bool) -> dict[str, Any]:
    """A rank of the chart; in a folded run it represents its class."""
    entry = next((member for member in plan.classes if member.representative == number), None)
    role = entry.role if entry else ""
    return {"rank": number, "role": role, "stands_for": entry.size if entry and folded else 1}


def _labels(view: View, entries: list[Any]) -> tuple[dict[str, Any], NDArray[Any]]:
    """The table of labels without their layers, texts stored once, and the row of each entry."""
    peaks = view.device.get("peak_flops_per_s")
    peaks = peaks if isinstance(peaks, Mapping) else {}
    usual = str(view.workload.get("precision", "bf16"))
    texts: dict[str, int] = {}
    rows: dict[tuple[Any, ...], int] = {}
    place = np.zeros(len(entries), dtype=np.int64)
    for index, entry in enumerate(entries):
        dtype = entry.shape.rsplit(" ", 1)[-1]
        peak = peaks.get(dtype if dtype in peaks else usual, 0.0)
        strings = (texts.setdefault(text, len(texts)) for text in (entry.name, entry.kind, entry.part, entry.shape))
        numbers = (entry.size_bytes, entry.flops, entry.alone_s, float(peak))
        row = (*strings, *map(_short, numbers), int(entry.is_compute))
        place[index] = rows.setdefault(row, len(rows))
    names = ("name", "kind", "part", "shape", "bytes", "flops", "alone", "peak", "computes")
    table: dict[str, Any] = {name: [row[column] for row in rows] for column, name in enumerate(names)}
    table["texts"] = list(texts)
    table["hbm"] = float(view.device.get("hbm_bytes_per_s", 0.0) or 0.0)
    return table, place


def _layers(
    rank: NDArray[Any], stream: NDArray[Any], layer: NDArray[Any], start: NDArray[Any], end: NDArray[Any]
) -> list[list[float]]:
    """``[layer, start, end]`` of every visit of a layer by the first rank's computing."""
    own = (rank == rank[0]) & (stream == stream[0])
    layer, start, end = layer[own], start[own], end[own]
    first = np.flatnonzero(np.diff(layer, prepend=-2))
    last = np.append(first[1:], len(layer)) - 1
    visits = zip(layer[first], start[first], end[last], strict=True)
    return [[int(number), _short(float(a)), _short(float(b))] for number, a, b in visits if number >= 0]


def _short(value: float) -> float:
    """Seven significant digits, the precision of float32."""
    return float(f"{value:.7g}")


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode("ascii")
