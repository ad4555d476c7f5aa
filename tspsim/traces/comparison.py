"""The results of a comparison: operators side by side, time by kind, left-over kernels, gaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.units import duration
from .alignment import anchors_of
from .causes import Causes
from .kinds import HEAVY
from .simulated import RankTimeline
from .steps import TracedBatch
from .table import Trace, busy_s

#: Version of the JSON.
SCHEMA_VERSION = 1
#: Most left-over kernels and gaps in the JSON.
MOST = 20
#: Kind for the time in which kernels wait for other ranks.
WAIT = "wait"


@dataclass(frozen=True)
class LayerRow:
    """An operator of the model (all layers together) or a kind of kernel, measured and simulated."""

    name: str
    kind: str
    count: int
    measured_s: float
    simulated_s: float
    phase: str = ""

    @property
    def lost_s(self) -> float:
        return self.measured_s - self.simulated_s


@dataclass(frozen=True)
class LeftOver:
    """Kernels of one name without an operator."""

    name: str
    kind: str
    count: int
    seconds: float

    @property
    def heavy(self) -> bool:
        return self.kind in HEAVY


@dataclass(frozen=True)
class Gap:
    """A stretch without a running kernel."""

    start_s: float
    seconds: float
    after: str
    before: str


@dataclass(frozen=True)
class Laid:
    """The comparison of one step of one rank."""

    trace: Trace
    #: ``trace`` has the rows of the step, in order of start; ``operation`` is the index of each row's operation in
    #: ``lane``, −1 for left-over rows.
    lane: RankTimeline
    operation: NDArray[np.int64]
    plan: str
    rank: int
    step: int
    measured_s: float
    simulated_s: float
    layer_s: tuple[float, float] | None
    matched_share: float
    kinds: tuple[LayerRow, ...]
    operators: tuple[LayerRow, ...]
    causes: Causes
    left_over: tuple[LeftOver, ...]
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...] = ()
    batch: TracedBatch | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: Whether the trace has the next step too, and so the host's time between them.
    followed: bool = False

    @property
    def worst(self) -> tuple[LayerRow, ...]:
        """The three operators that lose most time against the simulation."""
        return tuple(row for row in self.operators[:3] if row.lost_s > 0.0)

    @property
    def in_a_sentence(self) -> str:
        """The three worst operators, as a sentence."""
        if not self.worst:
            return "No operator takes longer than simulated."
        losses = [f"{row.name} ({row.kind}) {duration(row.lost_s)}" for row in self.worst]
        return f"Most time is lost in {'; '.join(losses)}."

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON."""
        left = [{"name": x.name, "kind": x.kind, "count": x.count, "seconds": x.seconds} for x in self.left_over[:MOST]]
        return {
            "schema": SCHEMA_VERSION,
            "scenario": self.lane.question.scenario.name,
            "plan": self.plan,
            "rank": self.rank,
            "step_index": self.step,
            "matched_share": self.matched_share,
            "step": {"measured_s": self.measured_s, "simulated_s": self.simulated_s},
            "layer": {"measured_s": self.layer_s[0], "simulated_s": self.layer_s[1]} if self.layer_s else None,
            "kinds": [
                {"kind": row.kind, "measured_s": row.measured_s, "simulated_s": row.simulated_s} for row in self.kinds
            ],
            "operators": [
                {"name": row.name, "kind": row.kind, "phase": row.phase, "count": row.count,
                 "measured_s": row.measured_s, "simulated_s": row.simulated_s}
                for row in self.operators
            ],
            "causes": self.causes.to_json(),
            "left_over": left,
            "host_gaps": [vars(gap) for gap in self.gaps],
            "notes": list(self.notes),
        }  # fmt: skip


def layers_of(lane: RankTimeline, measured: Trace, operation: NDArray[np.int64]) -> tuple[float, float] | None:
    """Measured and simulated period of a layer: the time from one layer's attention to the next one's."""
    first: dict[int, float] = {}
    for row, index in enumerate(operation.tolist()):
        if index >= 0:
            instruction = lane.operations[index].instruction
            first.setdefault(instruction, float(measured.columns["start_s"][row]))
    anchors = [anchor for anchor in anchors_of(lane) if anchor.instruction in first]
    if len(anchors) < 2:
        return None
    # The median, because layers at the ends of a visit to a stage have less beside them.
    measured_s = float(np.median(np.diff([first[anchor.instruction] for anchor in anchors])))
    return measured_s, float(np.median(np.diff([anchor.start_s for anchor in anchors])))


def kinds_of(
    lane: RankTimeline, measured: Trace, operation: NDArray[np.int64], waiting: NDArray[np.bool_]
) -> tuple[LayerRow, ...]:
    """Time by kind, each as a union. A product or transfer counts to the kind of its operator, and so do all kernels of
    an operator that is priced with them. A small kernel of a kind that the simulated step does not have counts to its
    small operator."""
    words = measured.word("kind").tolist()
    rows: dict[str, list[int]] = defaultdict(list)
    simulated = {item.kind for item in lane.operations}
    for row, (word, index) in enumerate(zip(words, operation.tolist(), strict=True)):
        kind = WAIT if waiting[row] else word
        if index >= 0 and not waiting[row]:
            taker = lane.operations[index]
            # Sums and copies of an eager framework are parts of norms, rotations and activations.
            if word in HEAVY or taker.is_whole or (word not in simulated and taker.kind not in HEAVY):
                kind = taker.kind
        rows[kind].append(row)
    starts, ends = measured.columns["start_s"], measured.end_s
    there = {kind: busy_s(starts[own], ends[own]) for kind, own in rows.items()}
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for item in lane.operations:
        spans[item.kind].append((item.start_s, item.end_s))
    here = {kind: busy_s(*np.array(own).T) for kind, own in spans.items()}
    layer_rows = [
        LayerRow(kind, kind, len(rows.get(kind, ())), there.get(kind, 0.0), here.get(kind, 0.0))
        for kind in {**here, **there}
    ]
    return tuple(sorted(layer_rows, key=lambda row: (-row.measured_s, -row.simulated_s, row.kind)))


def operators_of(lane: RankTimeline, measured: Trace, operation: NDArray[np.int64]) -> tuple[LayerRow, ...]:
    """Time by operator over all layers, the largest loss first; helpers count to their operator."""
    spans: dict[int, list[int]] = defaultdict(list)
    for row, index in enumerate(operation.tolist()):
        if index >= 0:
            spans[index].append(row)
    starts, ends = measured.columns["start_s"], measured.end_s
    sums: dict[tuple[str, str, str], list[float]] = {}
    for index, item in enumerate(lane.operations):
        entry = sums.setdefault((item.name, item.kind, item.phase), [0.0, 0.0, 0.0])
        own = spans.get(index, [])
        entry[0] += 1
        entry[1] += busy_s(starts[own], ends[own]) if own else 0.0
        entry[2] += item.seconds
    layer_rows = [
        LayerRow(name, kind, int(n), there, here, phase) for (name, kind, phase), (n, there, here) in sums.items()
    ]
    return tuple(sorted(layer_rows, key=lambda row: (-row.lost_s, row.name, row.phase)))


def left_over_of(measured: Trace, operation: NDArray[np.int64]) -> tuple[LeftOver, ...]:
    rows = np.flatnonzero(operation < 0)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    names, kinds = measured.word("name")[rows], measured.word("kind")[rows]
    for name, kind, seconds in zip(names, kinds, measured.columns["duration_s"][rows].tolist(), strict=True):
        entry = sums[name, kind]
        entry[0] += 1
        entry[1] += seconds
    groups = [LeftOver(name, kind, int(count), seconds) for (name, kind), (count, seconds) in sums.items()]
    return tuple(sorted(groups, key=lambda group: (-group.seconds, group.name)))


def gaps_of(measured: Trace, start_s: float, length_s: float) -> tuple[Gap, ...]:
    """The longest stretches without a kernel."""
    order = np.argsort(measured.columns["start_s"], kind="stable")
    starts, ends = measured.columns["start_s"][order], measured.end_s[order]
    last = np.maximum.accumulate(ends)
    gaps = starts[1:] - last[:-1]
    names = measured.word("name")[order]
    longest = []
    for place in np.argsort(-gaps, kind="stable")[:MOST].tolist():
        if gaps[place] > 0.0:
            before = int(np.argmax(ends[: place + 1]))
            begin = float(last[place] - start_s)
            longest.append(Gap(begin, float(gaps[place]), names[before][:80], names[place + 1][:80]))
    return tuple(longest)
