"""Alternative orders of a step: replicas' gathers and reductions after the exchanges of a layer, or before them.

Transfers that meet on a link share it, which may delay the one on the critical path: a better link can then make the
step longer (Graham 1969, *Bounds on multiprocessing timing anomalies*; docs/network.md). Such a step is shorter if one
of the two kinds waits for the other. Gathers of the next layer's weights and reductions of gradients are needed one
layer later than K and V or a layer's own weights; but if they take longer than the rest of the step, they are the
critical path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..engine.timeline import Timeline
from ..parallel import Job
from ..program import Collective, Instruction, Program, SendReceive
from ..program.excerpts import waiting

#: Streams of the exchanges between replicas.
OF_REPLICAS = frozenset({"parameters", "gradients"})
#: Share of a step in which both kinds overlap before other orders are tried, and share of a step that an order must
#: save to be reported.
TOGETHER, SAVED = 0.02, 0.01


def may_give_way(job: Job) -> bool:
    """Whether replicas exchange data beside a layer's exchanges, in a step with equal micro-batches."""
    return job.training and not job.unequal and job.plan.zero > 0 and job.copies > 1


def together_s(timeline: Timeline) -> float:
    """Seconds in which the first rank has both a transfer between replicas and another transfer under way."""
    columns = timeline.columns()
    if not len(timeline):
        return 0.0
    labels = timeline.labels
    here = columns["rank"] == columns["rank"][0]
    kinds = np.array([_kind(labels[number]) for number in columns["label"][here].tolist()])
    spans = [_joined(columns["start_s"][here][kinds == kind], columns["end_s"][here][kinds == kind]) for kind in (1, 2)]
    return _common_s(*spans)


def _kind(label: object) -> int:
    """1: a transfer between replicas; 2: another transfer between ranks; 0: neither."""
    stream, axis, computes = (getattr(label, name) for name in ("stream", "axis", "is_compute"))
    if computes or not axis:
        return 0
    return 1 if stream in OF_REPLICAS else 2


def _joined(start_s: np.ndarray, end_s: np.ndarray) -> list[tuple[float, float]]:
    """Intervals in order, overlapping ones joined."""
    spans: list[tuple[float, float]] = []
    for start, end in sorted(zip(start_s.tolist(), end_s.tolist(), strict=True)):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((start, end))
    return spans


def _common_s(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    """Seconds in which intervals of both lists overlap."""
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
    """The program in which exchanges between replicas wait for the last exchange issued before them."""
    return waiting(program, _of_replicas, _exchanges)


def exchanges_give_way(program: Program) -> Program:
    """The program in which a layer's own exchanges wait for the last exchange between replicas before them."""
    return waiting(program, _exchanges, _of_replicas)


#: Orders that are tried, by the words that reports use.
ORDERS: Mapping[str, Callable[[Program], Program]] = {
    "those exchanges first": replicas_give_way,
    "replicas first": exchanges_give_way,
}


def _of_replicas(instruction: Instruction) -> bool:
    return isinstance(instruction, Collective) and instruction.stream in OF_REPLICAS


def _exchanges(instruction: Instruction) -> bool:
    return isinstance(instruction, Collective | SendReceive) and instruction.stream not in OF_REPLICAS
