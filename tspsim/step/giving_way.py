"""The same step with replicas' gathers and sums behind the exchanges of a layer, or ahead of them, and not beside them.

Transfers that meet on a link share it, and the one on the critical path may lose: a better link then makes the step
longer (Graham 1969, *Bounds on multiprocessing timing anomalies*; docs/network.md). What a plan could not choose shows
where the step is shorter when one of the two gives way. Weights of the next layer that replicas gather, and sums of
gradients, are wanted a layer later than K and V or a layer's own weights; but where they take longer than the rest of a
step it is they that are waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..engine.timeline import Timeline
from ..parallel import Job
from ..program import Collective, Instruction, Program, SendReceive
from ..program.excerpts import waiting

#: Streams of what replicas say to each other.
OF_REPLICAS = frozenset({"parameters", "gradients"})
#: Of a step, how long both must be under way at once before other orders are tried, and how much one must save before a
#: reader is told.
TOGETHER, SAVED = 0.02, 0.01


def may_give_way(job: Job) -> bool:
    """Whether replicas have something to say beside exchanges of a step that is the same for all micro-batches."""
    return job.training and not job.unequal and job.plan.zero > 0 and job.copies > 1


def together_s(timeline: Timeline) -> float:
    """Seconds in which the first rank of a timeline has a transfer of replicas under way and another one."""
    columns = timeline.columns()
    if not len(timeline):
        return 0.0
    labels = timeline.labels
    here = columns["rank"] == columns["rank"][0]
    kinds = np.array([_kind(labels[number]) for number in columns["label"][here].tolist()])
    spans = [_joined(columns["start_s"][here][kinds == kind], columns["end_s"][here][kinds == kind]) for kind in (1, 2)]
    return _common_s(*spans)


def _kind(label: object) -> int:
    """1 of a transfer of replicas, 2 of another between ranks, else 0."""
    stream, axis, computes = (getattr(label, name) for name in ("stream", "axis", "is_compute"))
    if computes or not axis:
        return 0
    return 1 if stream in OF_REPLICAS else 2


def _joined(start_s: np.ndarray, end_s: np.ndarray) -> list[tuple[float, float]]:
    """Spans of time, those that overlap as one, in order."""
    spans: list[tuple[float, float]] = []
    for start, end in sorted(zip(start_s.tolist(), end_s.tolist(), strict=True)):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((start, end))
    return spans


def _common_s(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    """How long spans of both lists run at once."""
    total = 0.0
    place = 0
    for start, end in some:
        while place < len(others) and others[place][1] <= start:
            place += 1
        index = place
        while index < len(others) and others[index][0] < end:
            total += min(end, others[index][1]) - max(start, others[index][0])
            index += 1
    return total


def replicas_give_way(program: Program) -> Program:
    """The program in which what replicas say waits for the exchange that was issued last before it."""
    return waiting(program, _of_replicas, _exchanges)


def exchanges_give_way(program: Program) -> Program:
    """The program in which a layer's own exchanges wait for what replicas said last before them."""
    return waiting(program, _exchanges, _of_replicas)


#: Orders that are tried in the place of none, and in words who goes first.
ORDERS: Mapping[str, Callable[[Program], Program]] = {
    "those exchanges first": replicas_give_way,
    "replicas first": exchanges_give_way,
}


def _of_replicas(instruction: Instruction) -> bool:
    return isinstance(instruction, Collective) and instruction.stream in OF_REPLICAS


def _exchanges(instruction: Instruction) -> bool:
    return isinstance(instruction, Collective | SendReceive) and instruction.stream not in OF_REPLICAS
