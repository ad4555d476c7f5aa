"""Why one plan is faster than another: the seconds of both steps by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...engine.timeline import ON_HOST
from ...step import metrics
from ...step.result import PlanResult

#: Part for seconds in which kernels and transfers wait for the host, which launches or computes.
HOST = "the host"


@dataclass(frozen=True)
class StepPart:
    """Seconds of one part of a step, in both plans."""

    name: str
    best_s: float
    other_s: float

    @property
    def saved_s(self) -> float:
        """Seconds that the best plan saves."""
        return self.other_s - self.best_s


def parts_s(result: PlanResult) -> dict[str, float]:
    """Seconds of a step by part, mean over ranks.

    ``compute`` without recomputation, ``recomputation``, exposed communication by mesh axis (``host`` for
    copies from and to the host), launches by the host, ``waiting`` (pipeline bubbles and waits for others). A result
    without timeline has communication by kind instead.
    """
    breakdown = result.breakdown_s
    host_s = float(breakdown.get("host", 0.0))
    waiting = float(breakdown["bubble"]) + float(breakdown["idle"]) - host_s
    if result.timeline is None:
        exposed = {f"exposed {kind}": float(time_s) for kind, time_s in breakdown["exposed_communication"].items()}
        launched = {HOST: host_s} if host_s else {}
        return {"compute": float(breakdown["compute"]), **exposed, **launched, "waiting": waiting}
    kinds = metrics.Kinds.of(result.timeline)
    by_axis = [label._replace(kind=label.axis) if label.axis else label for label in kinds.labels]
    again = np.array([label.is_compute and label.part.endswith(" again") for label in kinds.labels], dtype=bool)
    columns = result.timeline.columns()
    origin_s = float(columns["start_s"].min(initial=0.0))
    total = sum(rank_class.size for rank_class in result.classes)
    makespan_s = float(columns["end_s"].max(initial=0.0)) - origin_s
    exposed_s: dict[str, float] = {}
    compute_s = again_s = 0.0
    idle_s = result.step_time_s - makespan_s
    for rank_class in result.classes:
        rows = columns["rank"] == rank_class.representative
        which = kinds.number[rows]
        start_s, end_s = columns["start_s"][rows] - origin_s, columns["end_s"][rows] - origin_s
        kernels, exposed_here, idle = metrics.of_rank(metrics.Kinds(by_axis, which), which, start_s, end_s, makespan_s)
        share = rank_class.size / total
        again_s += share * float((end_s - start_s)[again[which]].sum())
        compute_s += share * sum(kernels.values())
        idle_s += share * idle
        for axis, time_s in exposed_here.items():
            exposed_s[axis] = exposed_s.get(axis, 0.0) + share * time_s
    launched = {HOST: exposed_s.pop(ON_HOST)} if ON_HOST in exposed_s else {}
    named = {f"exposed on {axis}": exposed_s[axis] for axis in sorted(exposed_s)}
    return {"compute": compute_s - again_s, "recomputation": again_s, **named, **launched, "waiting": idle_s}


def compare(best: Mapping[str, float], other: Mapping[str, float]) -> tuple[StepPart, ...]:
    """Every part of either step, the largest saving first."""
    names = dict.fromkeys((*best, *other))
    parts = [StepPart(name, best.get(name, 0.0), other.get(name, 0.0)) for name in names]
    return tuple(sorted(parts, key=lambda part: -abs(part.saved_s)))
