"""Candidate values of the switches that a plan leaves to the tuner.

Switches change when bytes move and over which links, never how many. :mod:`tspsim.step.tuning` simulates the candidates
and takes the fastest that fits, like a collective library's tuner; the planner tries all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..base.errors import InputError
from ..base.quick import replace
from .checks import check
from .context.method import CONTEXT_METHODS
from .feature import plan_options
from .job import Job
from .plan import Plan
from .scheme import choices_of, scheme_of, switches_of


def with_defaults(plan: Plan) -> Plan:
    """The plan with default options of its scheme and its context method added."""
    brought = (*plan_options(scheme_of(plan)), *CONTEXT_METHODS.get(plan.exchange).options)
    values = {option.name: option.default for option in brought if option.default is not None} | dict(plan.options)
    return replace(plan, options=values) if len(values) > len(plan.options) else plan


def candidates_of(job: Job, mesh: bool, *, few: bool = False) -> Iterator[Plan]:
    """The plans that a job's open switches allow, simplest first; some may not be legal.

    ``mesh``: whether the GPUs of a node have links of their own; ``few``: only what a search tries.
    """
    seen: list[Plan] = []
    for choice in choices_of(job.plan):
        still_open = tuple(name for name in choice.switches if name in job.plan.open)
        if not still_open:
            continue
        for values in choice.options(job, mesh):
            if few and not choice.searched(values):
                continue
            plan = replace(job.plan, open=(), chosen=still_open).with_values(values)
            if plan not in seen:
                seen.append(plan)
                yield plan


def options_of(job: Job, mesh: bool, *, few: bool = False) -> tuple[Plan, ...]:
    """The legal plans of :func:`candidates_of`."""
    return tuple(plan for plan in candidates_of(job, mesh, few=few) if legal(replace(job, plan=plan)))


def schedules_of(family: Job, mesh: bool) -> Iterator[Job]:
    """Every schedule of a family's ranks: each variant of its scheme with each choice; some may not be legal."""
    for values in scheme_of(family.plan).variants(family.plan):
        variant = family.plan.with_values(values)
        job = replace(family, plan=replace(variant, open=switches_of(variant)))
        yield from (replace(job, plan=plan) for plan in options_of(job, mesh, few=True)) if job.plan.open else (job,)


def legal(job: Job) -> bool:
    """Whether :func:`~tspsim.parallel.checks.check` accepts a job."""
    try:
        check(job)
    except InputError:
        return False
    return True
