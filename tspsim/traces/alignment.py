"""Which operation of a simulated rank each measured kernel is, and which stretch of its step a trace shows."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kinds import COLLECTIVES
from .match import align
from .names import narrow, waits
from .simulated import Operation, RankTimeline, Simulated, ordered
from .table import Trace, busy_s

_ATTENTION = ("attention", "linear_attention")
_BACKWARD_KERNEL = re.compile(r"bwd|backward", re.IGNORECASE)


def attention_rows(measured: Trace, phase: str = "forward") -> NDArray[Any]:
    """Rows of the attention kernel that takes most of their time, of a phase where phases are stated."""
    kinds, phases = measured.word("kind"), measured.word("phase")
    rows = np.flatnonzero(np.isin(kinds, _ATTENTION))
    if phase != "forward":
        rows = rows[phases[rows] == phase]
    elif np.isin(phases[rows], ["forward"]).any():
        rows = rows[np.isin(phases[rows], ["forward", ""])]
    else:
        # Without phases the names of backward kernels are all that tells them from forward ones.
        names = measured.word("name")[rows]
        rows = rows[[_BACKWARD_KERNEL.search(name) is None for name in names.tolist()]]
    by_name: dict[int, float] = defaultdict(float)
    for row in rows.tolist():
        by_name[int(measured.columns["name"][row])] += float(measured.columns["duration_s"][row])
    if not by_name:
        return rows
    longest: NDArray[Any] = rows[measured.columns["name"][rows] == max(by_name, key=lambda name: by_name[name])]
    return longest


def anchors_of(lane: RankTimeline) -> list[Operation]:
    """Forward attention, the first operator of each instruction that has some."""
    firsts: dict[int, Operation] = {}
    for operation in lane.operations:
        if operation.kind in _ATTENTION and operation.phase == "forward" and operation.layer >= 0:
            firsts.setdefault(operation.instruction, operation)
    return ordered(list(firsts.values()))


def lane_shown(simulated: Simulated, measured: Trace, rank: int) -> tuple[RankTimeline, list[str]]:
    """The simulated rank, and of many micro-batches the stretch that the trace shows: as many layers forward and back,
    from the middle of the step."""
    own = simulated.stands_for(rank)
    lane = simulated.lane(own)
    anchors, forward = anchors_of(lane), measured.columns["start_s"][attention_rows(measured)]
    shown = len(forward)
    if not anchors or not shown or shown >= 0.8 * len(anchors):
        return lane, []
    if simulated.job.plan.pp == 1 and shown < 0.8 * lane.layers:
        return lane, []  # fewer layers than every step of this plan has: another model's
    backward = measured.columns["start_s"][attention_rows(measured, "backward")]
    pattern = np.searchsorted(backward, forward)[1:] - np.searchsorted(backward, forward)[:-1]
    best: tuple[int, int, float, float] | None = None
    kinds, names = measured.word("kind").tolist(), measured.word("name").tolist()
    transfers = Counter(
        kind for kind, name in zip(kinds, names, strict=True) if kind in COLLECTIVES and not waits(name)
    )
    # Stages in the middle of a pipeline show what all of them do most of the time.
    stages = simulated.stages()
    for candidate in sorted(stages, key=lambda rank: abs(stages.index(rank) - len(stages) // 2)):
        stretch = _window(simulated.lane(candidate), shown, pattern, len(backward), transfers)
        if stretch is not None and (best is None or stretch[0] < best[0]):
            best = (stretch[0], candidate, stretch[1], stretch[2])
        if best is not None and best[0] <= 1:
            break
    if best is None:
        return lane, []
    _, candidate, start, end = best
    said = f"the trace shows {shown} layers; they are laid over as many of rank {candidate}, in the middle of its step"
    return replace(simulated.lane(candidate).window(start, end), makespan_s=end - start), [said]


def _window(
    lane: RankTimeline, layers: int, pattern: NDArray[Any], backward: int, transfers: Mapping[str, int]
) -> tuple[int, float, float] | None:
    """The stretch of so many layers forward whose backward ones lie between them most as ``pattern`` has it, nearest to
    the middle: how many are elsewhere, begin, end."""
    anchors = anchors_of(lane)
    if len(anchors) <= layers:
        return None
    back = np.array(sorted(o.start_s for o in lane.operations if o.kind == "attention" and o.phase == "backward"))
    begins = [_begin(lane, anchor) for anchor in anchors]
    middle = lane.makespan_s / 2
    times = np.array([anchor.start_s for anchor in anchors])
    moved = [kind for kind in ("dispatch", "combine", "all_reduce") if transfers.get(kind)]
    at = {kind: np.array(sorted(o.start_s for o in lane.operations if o.kind == kind)) for kind in moved}
    best: tuple[int, float, float, float] | None = None
    for first in range(len(anchors) - layers):
        # The layers of one visit to the stage: a stretch that does not jump from the last layer to the first.
        if anchors[first + layers - 1].layer - anchors[first].layer != layers - 1:
            continue
        start, end = begins[first], begins[first + layers]
        there = np.diff(np.searchsorted(back, times[first : first + layers]))
        off = abs(int(((back >= start) & (back < end)).sum()) - backward) + int(np.abs(there - pattern).sum())
        off += sum(abs(int(((at[kind] >= start) & (at[kind] < end)).sum()) - transfers[kind]) for kind in moved)
        entry = (off, abs((start + end) / 2 - middle), start, end)
        if best is None or entry[:2] < best[:2]:
            best = entry
    return (best[0], best[2], best[3]) if best is not None else None


def _begin(lane: RankTimeline, anchor: Operation) -> float:
    """When the layer's forward pass begins: its instructions up to attention follow each other on one stream."""
    place = anchor.instruction
    while place > 0:
        step = lane.steps[place - 1]
        if step.stream != lane.steps[anchor.instruction].stream or lane.steps[place].after != (place - 1,):
            break
        place -= 1
        if anchor.instruction - place >= 2:
            break
    return lane.steps[place].start_s


def matched(operations: Sequence[Operation], measured: Trace) -> NDArray[np.int64]:
    """The operation of every kernel, by lane: transfers apart from kernels, and phases apart where the trace names
    them."""
    kinds, phases, shapes, names = (measured.word(column) for column in ("kind", "phase", "shapes", "name"))
    transfer = np.isin(kinds, COLLECTIVES)
    waiting = np.array([waits(name) for name in names.tolist()], bool)
    eight = np.array([narrow(name) for name in names.tolist()], bool)
    takers = np.full(len(measured), -1, np.int64)
    named = set(phases.tolist()) - {""}
    for of_transfers in (False, True):
        rows = np.flatnonzero(transfer == of_transfers)
        pool = [index for index, operation in enumerate(operations) if operation.is_transfer == of_transfers]
        splits: dict[str, int] | None = None
        for own in _lanes(named, of_transfers):
            mine = rows[np.isin(phases[rows], own)] if own else rows
            theirs = [index for index in pool if not own or operations[index].phase in own]
            theirs.sort(key=lambda index: (operations[index].start_s, index))
            if len(mine) and theirs:
                if "grouped_gemm" not in kinds[mine]:  # a kernel an expert
                    theirs = [index for index in theirs for _ in range(operations[index].calls)]
                if splits:
                    theirs = [i for i in theirs for _ in range(splits.get(operations[i].joins, 1))]
                given = align(
                    kinds[mine].tolist(), shapes[mine].tolist(), [operations[index] for index in theirs],
                    waiting[mine].tolist(), eight[mine].tolist(), may_split=splits is None,
                )  # fmt: skip
                takers[mine] = np.where(given >= 0, np.array([*theirs, -1])[given], -1)
                if splits is None and not any(shapes[mine].tolist()):
                    splits = _splits(operations, theirs, Counter(takers[mine[kinds[mine] == "gemm"]].tolist()))
    return takers


def _splits(operations: Sequence[Operation], own: Sequence[int], kernels: Mapping[int, int]) -> dict[str, int]:
    """How many kernels a product of several weights is: who runs one a weight does so backward as well."""
    counts: dict[str, list[int]] = defaultdict(list)
    for index in own:
        if operations[index].joins:
            counts[operations[index].joins].append(kernels.get(index, 0))
    return {role: max(1, int(np.median(count))) for role, count in counts.items()}


def _lanes(named: set[str], of_transfers: bool) -> list[tuple[str, ...]]:
    """Phases that are kept in order among themselves; an empty one is all of them."""
    if not {"forward", "backward"} <= named:
        return [()]
    if of_transfers:
        return [("forward", ""), ("backward", "weight gradient"), ("optimizer",)]
    if "weight gradient" in named:
        return [("forward", ""), ("backward",), ("weight gradient",), ("optimizer",)]
    return [("forward", ""), ("backward", "weight gradient"), ("optimizer",)]


def measured_of(
    lane: RankTimeline, measured: Trace, operation: NDArray[np.int64], waiting: NDArray[np.bool_]
) -> tuple[dict[int, float], dict[int, float]]:
    """Measured seconds of the instructions: kernels that were left over count to the operator before them on their
    stream, and an operator without a kernel takes none."""
    owner = operation.copy()
    streams = measured.columns["stream"]
    for stream in np.unique(streams).tolist():
        last = -1
        for row in np.flatnonzero(streams == stream).tolist():
            if owner[row] >= 0:
                last = int(owner[row])
            elif last >= 0:
                owner[row] = last
    spans: dict[int, list[int]] = defaultdict(list)
    for row, index in enumerate(owner.tolist()):
        if index >= 0 and not waiting[row]:
            spans[lane.operations[index].instruction].append(row)
    starts, ends = measured.columns["start_s"], measured.end_s
    kernels: dict[int, float] = {}
    transfers: dict[int, float] = {}
    for item in lane.operations:
        into = transfers if item.is_transfer else kernels
        if item.instruction not in into:
            rows = spans.get(item.instruction, [])
            into[item.instruction] = busy_s(starts[rows], ends[rows]) if rows else 0.0
    return kernels, transfers
