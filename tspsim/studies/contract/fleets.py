"""Laws of the objects of a fleet: schedulers of jobs, placements, durations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...base.errors import InputError, TspsimError, shorten
from ...fleet import DURATIONS, JOB_SCHEDULERS, PLACEMENTS, FleetAnswer, answer, load
from .findings import Finding, judged

#: Key of a fleet that names an object of each group, and the registry.
KEYS = {
    JOB_SCHEDULERS.group: ("scheduler", JOB_SCHEDULERS),
    PLACEMENTS.group: ("placement", PLACEMENTS),
    DURATIONS.group: ("hours", DURATIONS),
}
MACHINE = {"device": "h100", "nodes": 12, "fabric": "fat-tree-400g"}


def hold(group: str, name: str, keys: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about an object of one of the groups; ``keys`` stand beside its name."""
    key, _ = KEYS[group]
    where, stated = f"{key} {name}", {"kind": name, **keys}
    hours = stated if key == "hours" else {"kind": "lognormal", "median": "2 h", "sigma": 1.2}
    beside = {} if key == "hours" else {key: stated}
    common = {"arrivals": {"kind": "poisson", "rate": "1/h"}, "hours": hours, "preemptible": True}
    jobs = [
        {"name": "wide", "nodes": 7, "count": 15, "user": "a", **common},
        {"name": "narrow", "nodes": 2, "count": 40, "priority": 1, "user": "b", **common},
        {"name": "small", "gpus": 2, "count": 40, "user": "c", **common},
    ]
    document = {"name": "fleet", "cluster": MACHINE, "jobs": jobs, "seed": 5, **beside}
    try:
        question = load(document)
    except InputError as error:
        yield Finding("it runs", where, "left out", shorten(f"{error}; state keys by --with", 200))
        return
    try:
        report = answer(question, _none)
    except TspsimError as error:
        yield Finding("it keeps the dispatcher's rules", where, "broken", shorten(error, 200))
        return
    yield from laws(report, where)
    again = answer(question, _none)
    yield judged("the same has the same answer", where, again.dumps() == report.dumps(), "another run differs")
    if group == JOB_SCHEDULERS.group and JOB_SCHEDULERS.get(name).starvation_free:
        yield starves_nobody(stated, where)


def starves_nobody(stated: Mapping[str, Any], where: str) -> Finding:
    """Narrow jobs fill the cluster for ten days; a job that needs all nodes must start within one day."""
    narrow = {"nodes": 2, "hours": "2 h", "arrivals": {"kind": "fixed", "rate": "3.3/h"}, "user": "a"}
    wide = {"name": "wide", "nodes": MACHINE["nodes"], "hours": "1 h", "submit": "10 h", "user": "b"}
    jobs = [{"name": "narrow", **narrow}, wide]
    document = {"name": "stream", "cluster": MACHINE, "jobs": jobs, "horizon": "10 days", "scheduler": stated}
    report = answer(load(document), _none)
    wait_s = next(job.wait_s for job in report.facts.jobs if job.name == "wide")
    wait = "a job on all nodes never starts" if wait_s is None else f"a job on all nodes waits {wait_s / 3600:.3g} h"
    return judged("no job starves", where, wait_s is not None and wait_s <= 86_400.0, wait)


def laws(report: FleetAnswer, where: str) -> Iterator[Finding]:
    """Findings about the jobs of a fleet's answer."""
    facts, times = report.facts, report.facts.times
    late = [job.name for job in facts.jobs if job.start_s is not None and job.start_s < job.submit_s]
    yield judged("no job starts before it is submitted", where, not late, ", ".join(late[:5]))
    open_ = [job.name for job in facts.jobs if job.state != "done"]
    yield judged("every job is done", where, not open_, ", ".join(open_[:5]))
    twice = used_twice(report)
    yield judged("no GPU has two jobs", where, not twice, twice)
    whole = facts.productive * facts.gpu_hours + sum(facts.lost_gpu_hours.values())
    sums = f"{whole:.6g} of {facts.gpu_hours:.6g} GPU-hours are accounted for"
    yield judged("every GPU-hour is counted once", where, abs(whole - facts.gpu_hours) <= 1e-9 * facts.gpu_hours, sums)
    held = sum((end - start) * facts.jobs[job].gpus for job, start, end in
               zip(times.spell_job, times.spell_start_s, times.spell_end_s, strict=True)) / 3600.0  # fmt: skip
    had = sum(job.gpu_hours for job in facts.jobs)
    yield judged("work is conserved", where, abs(held - had) <= 1e-9 * max(1.0, had), f"{held:.6g} of {had:.6g}")


def used_twice(report: FleetAnswer) -> str:
    """A node whose jobs hold more GPUs at once than it has, in words; empty where there is none."""
    times, jobs = report.facts.times, report.facts.jobs
    of_a_node = report.facts.gpus // report.facts.nodes
    changes: dict[int, list[tuple[float, int]]] = {}
    for job, start_s, end_s, nodes in zip(
        times.spell_job.tolist(),
        times.spell_start_s.tolist(),
        times.spell_end_s.tolist(),
        times.spell_nodes,
        strict=True,
    ):
        for node in nodes:
            wide = jobs[job].gpus // len(nodes) if len(nodes) == 1 else of_a_node
            changes.setdefault(node, []).extend(((start_s, wide), (end_s, -wide)))
    for node, moments in changes.items():
        used = 0
        for at_s, more in sorted(moments):
            used += more
            if used > of_a_node:
                return f"node {node} at {at_s:,.0f} s has {used} of {of_a_node} GPUs in use"
    return ""


def _none(scenario: Any) -> Any:
    raise InputError(f"no workload is known of {scenario}")
