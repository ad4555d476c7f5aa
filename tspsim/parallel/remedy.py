"""What a plan that does not fit its GPUs may state besides, so that it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod

from ..model.attention import decoded
from .choices import legal
from .job import Job


def fitting(job: Job, fits: Callable[[Job], bool]) -> str:
    """Keys of a serving plan on the same GPUs with which it is legal and ``fits``, in words; empty: there are none.

    Experts are spread first (``ep``), over all ranks of a replica before others; then caches are divided by tokens
    (``dcp``).
    """
    for values in _ways(job):
        degrees = {**job.plan.degrees, **{key: value for key, value in values.items() if key == "ep"}}
        options = {key: value for key, value in values.items() if key != "ep"}
        other = replace(job, plan=replace(job.plan, degrees=degrees).with_values(options))
        if legal(other) and fits(other):
            return " and ".join(f"{key}: {value}" for key, value in values.items())
    return ""


def _ways(job: Job) -> Iterator[Mapping[str, int]]:
    """Further keys, fewest first."""
    plan = job.plan
    spread: list[Mapping[str, int]] = []
    if job.model.experts is not None:
        every, own = (prod(map(plan.degree, axes)) for axes in (plan.expert_axes, job.scheme.axes))
        counts = [count for count in range(plan.ep + 1, every + 1) if every % count == 0]
        # All ranks of the scheme's own axes first, then fewer of them, then replicas besides.
        spread = [{"ep": count} for count in sorted(counts, key=lambda count: (count > own, abs(own - count)))]
    yield from spread
    if plan.tp > 1 and decoded(job.rows) and job.scheme.context(plan).ranks == 1:
        yield {"dcp": plan.tp}
        yield from ({**each, "dcp": plan.tp} for each in spread)
