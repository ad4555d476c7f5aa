"""Remedies: keys with which a plan that does not fit its GPUs would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ..model.attention import decoded
from .choices import legal, with_defaults
from .job import Job
from .plan import Plan, mesh_axes, scheme_axes

#: Keys to add to a plan, or to replace its own axes, that divide both matrices and caches.
EXPERTS, TENSOR, CONTEXTS = "ep", "tp", "dcp"


def fitting(job: Job, fits: Callable[[Job], bool]) -> str:
    """Keys of a serving plan on the same GPUs with which it is legal and ``fits``, in words; empty: there are none.

    First experts are spread (``ep``), over all ranks of a replica before others; then caches are divided by tokens
    (``dcp``). If no further key helps, tensor parallelism over the GPUs of one replica, or several, replaces the plan's
    own axes.
    """
    for values in _ways(job):
        options = {key: value for key, value in values.items() if key != EXPERTS}
        degrees = {**job.plan.degrees, **{key: value for key, value in values.items() if key == EXPERTS}}
        if _runs(replace(job, plan=replace(job.plan, degrees=degrees).with_values(options)), fits):
            return _words(values)
    for degrees, options in _others(job.plan):
        if _runs(replace(job, plan=with_defaults(Plan(job.plan.name, degrees).with_values(options))), fits):
            stated = {key: value for key, value in {**degrees, **options}.items() if key != "pp" and value > 1}
            kept = {key: value for key, value in stated.items() if job.plan.degrees.get(key) == value}
            taken = {axis: job.plan.degree(axis) for axis in (*scheme_axes(), "dp") if job.plan.degree(axis) > 1}
            place = {axis: value for axis, value in taken.items() if axis not in kept}
            return f"{_words({key: stated[key] for key in stated if key not in kept})} instead of {_words(place)}"
    return ""


def _runs(job: Job, fits: Callable[[Job], bool]) -> bool:
    return legal(job) and fits(job)


def _words(values: Mapping[str, int]) -> str:
    return " and ".join(f"{key}: {value}" for key, value in values.items())


def _ways(job: Job) -> Iterator[Mapping[str, int]]:
    """Further keys, fewest first."""
    plan = job.plan
    spread: list[Mapping[str, int]] = []
    if job.model.experts is not None:
        every, own = (prod(map(plan.degree, axes)) for axes in (plan.expert_axes, job.scheme.axes))
        counts = [count for count in range(plan.ep + 1, every + 1) if every % count == 0]
        # First all ranks of the scheme's own axes, then fewer of them, then also replicas.
        spread = [{EXPERTS: count} for count in sorted(counts, key=lambda count: (count > own, abs(own - count)))]
    yield from spread
    if plan.tp > 1 and decoded(job.rows) and job.scheme.context(plan).ranks == 1:
        yield {CONTEXTS: plan.tp}
        yield from ({**degrees, CONTEXTS: plan.tp} for degrees in spread)


def _others(plan: Plan) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """Degrees and options of plans with tensor parallelism alone on as many GPUs: first with as many replicas, then
    with fewer and larger ones."""
    replica, replicas = prod(map(plan.degree, scheme_axes())), plan.degree("dp")
    for joined in (count for count in range(1, replicas + 1) if replicas % count == 0):
        tp = replica * joined
        if tp == 1 or (joined == 1 and tp == plan.tp):
            continue
        degrees = {**dict.fromkeys(mesh_axes(), 1), TENSOR: tp, "pp": plan.pp, "dp": replicas // joined}
        for options in ({}, {CONTEXTS: tp}):
            yield from (({**degrees, EXPERTS: experts}, options) for experts in (1, tp))
