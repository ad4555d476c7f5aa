"""From the keys of a fleet to its jobs: classes are drawn, steps are simulated once per distinct job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import InfeasibleError, InputError
from ..base.units import WITH_UNITS
from ..hardware import Device
from ..scenario import Scenario, load
from ..step.result import PlanResult, Result
from .failure_keys import Checkpoints
from .jobs import FleetJob, JobPace
from .logs import Log, read
from .question import FleetQuestion, JobKeys

#: Answers the scenario of one job.
Ask = Callable[[Scenario], Result]


def own_scenario(question: FleetQuestion, job: JobKeys, nodes: int, limit_w: float | None = None) -> Scenario:
    """A job's own scenario: its workload and plan, alone on ``nodes`` nodes of the fleet's cluster, with an optional
    power limit per GPU.

    Raises
    ------
    InputError
        Its workload or plan is wrong; the key names the job.
    """
    cluster = question.cluster.model_dump(mode="json", by_alias=True, exclude_unset=True, context={WITH_UNITS: True})
    cluster |= _of_islands(cluster.get("islands") or (), nodes)
    part: dict[str, Any] = {"gpus_per_node": job.gpus} if job.gpus is not None else {}
    if limit_w is not None:
        part["power_limit"] = f"{limit_w!r} W"
    plan = job.plan if job.plan == "best" else {"name": job.name[:60], **(job.plan or {})}
    data: dict[str, Any] = {
        "name": f"{question.name}: {job.name}",
        "cluster": {**cluster, "nodes": nodes, **part},
        "workload": job.workload,
        "plans": [plan],
        "prices": question.prices.model_dump(mode="json", exclude_unset=True, context={WITH_UNITS: True}),
    }
    data |= {key: value for key in ("traffic", "loop") if (value := getattr(job, key)) is not None}
    try:
        return load(data)
    except InputError as error:
        raise of_job(error, job) from None


def _of_islands(islands: Sequence[Mapping[str, Any]], nodes: int) -> dict[str, Any]:
    """The cluster's keys for its first ``nodes`` nodes: the islands that contain them."""
    if not islands:
        return {}
    kept: list[dict[str, Any]] = []
    for island in islands:
        left = nodes - sum(chosen["nodes"] for chosen in kept)
        if left > 0:
            kept.append({**island, "nodes": min(left, island["nodes"])})
    if len(kept) == 1:
        return {"islands": [], "fabric": kept[0]["fabric"]}
    return {"islands": kept}


def of_job(error: InputError, job: JobKeys) -> InputError:
    """An error of a job's own scenario, with the job's key."""
    key = error.key or ""
    for plan in (f"plans.{job.name[:60]}", "plans.0", "plans.best"):
        key = key.replace(plan, "plan")
    return InputError(error.message, file=error.file, key=".".join(filter(None, ("jobs", job.name, key))))


class Paces:
    """Speeds of jobs, simulated once per distinct job."""

    def __init__(self, question: FleetQuestion, ask: Ask, gpus_per_node: int) -> None:
        self.question, self.ask = question, ask
        self.gpus_per_node = gpus_per_node
        #: Entry of a log → rows that are left out, by reason.
        self.left_out: dict[str, dict[str, int]] = {}
        self._ordinary = question.failures.checkpoint if question.failures is not None else None
        self._known: dict[str, Result] = {}
        #: Distinct simulated jobs in order: name of the entry and nodes → the answer.
        self.answers: dict[tuple[str, int], Result] = {}

    def of(self, job: JobKeys, nodes: int) -> JobPace:
        """A job's pace on ``nodes`` nodes.

        Raises
        ------
        InputError
            Its workload or plan is wrong.
        InfeasibleError
            It does not fit its nodes.
        """
        if job.workload is None:
            return _checkpointed(JobPace(), job, self._ordinary)
        answer = self.answers[job.name, nodes] = self._answer(job, nodes)
        return _checkpointed(pace_of(best_of(answer, job, nodes)), job, self._ordinary)

    def speed_at(self, job: JobKeys, nodes: int, limit_w: float, device: Device) -> float:
        """A job's speed with its GPUs limited to ``limit_w``, relative to the device's own limit."""
        if job.traffic is not None:
            return 1.0  # a service runs for its stated time
        if job.workload is None:
            return device.power_limited(limit_w).spec.clock_at_limit / device.spec.clock_at_limit
        slow = pace_of(best_of(self._answer(job, nodes, limit_w), job, nodes))
        own = pace_of(best_of(self._answer(job, nodes), job, nodes))
        return min(1.0, own.step_s / slow.step_s)

    def _answer(self, job: JobKeys, nodes: int, limit_w: float | None = None) -> Result:
        return self.answer(own_scenario(self.question, job, nodes, limit_w), job)

    def answer(self, scenario: Scenario, job: JobKeys) -> Result:
        """The answer of one job's own scenario, memoized; raises InputError."""
        stated = scenario.to_dict()
        for entry in (stated, *stated["plans"]):
            entry.pop("name", None)
        key = json.dumps(stated, sort_keys=True, default=str)
        if key not in self._known:
            try:
                self._known[key] = self.ask(scenario)
            except InputError as error:
                raise of_job(error, job) from None
        return self._known[key]


def best_of(answer: Result, job: JobKeys, nodes: int) -> PlanResult:
    """The best plan of a job's own scenario. Raises InfeasibleError where none runs."""
    if answer.best is None:
        reason = answer.plans[0].error if answer.plans else "no plan was found"
        raise InfeasibleError(f"job {job.name} does not run on {nodes} nodes: {reason}")
    return answer.best


def pace_of(plan: PlanResult) -> JobPace:
    """The pace of a simulated plan: of a step, of an iteration of a loop, or of a service."""
    if plan.serving:
        # Answered requests are not lost.
        return JobPace(plan=plan, every_s=1.0)
    step_s = plan.step_time_s
    exposed_s = sum(plan.breakdown_s["exposed_communication"].values()) if plan.breakdown_s else 0.0
    written = plan.checkpoint
    if not written:
        return JobPace(step_s, plan.tokens_per_step, exposed_s / step_s, plan=plan)
    # The mean step contains its share of the stall, as exposed communication.
    plain_s = written["step_without_s"]
    held_s = max(0.0, step_s - plain_s)
    every = max(1, round(written["stall_s"] / held_s)) if held_s else 1
    return JobPace(
        step_s,
        plan.tokens_per_step,
        max(0.0, exposed_s - held_s) / plain_s,
        every_s=every * plain_s,
        stall_s=written["stall_s"],
        read_s=written["file_s"] + written["copy_s"],
        plan=plan,
    )


def _checkpointed(pace: JobPace, job: JobKeys, ordinary: Checkpoints | None) -> JobPace:
    """The pace with the job's checkpoints, or else the fleet's."""
    # A service has no work to lose.
    checkpoint, plan = job.checkpoint or (ordinary if job.traffic is None else None), pace.plan
    if checkpoint is None or (job.checkpoint is None and pace.every_s < inf):
        return pace
    plain_s = plan.checkpoint["step_without_s"] if plan is not None and plan.checkpoint else pace.step_s
    step_s = plain_s * (1.0 + checkpoint.write / checkpoint.every)
    return replace(pace, step_s=step_s, every_s=checkpoint.every, stall_s=checkpoint.write, read_s=checkpoint.read)


def jobs_of(question: FleetQuestion, paces: Paces) -> list[FleetJob]:
    """All jobs of a fleet, in order of submission.

    Raises
    ------
    InputError
        An entry is wrong.
    InfeasibleError
        A job does not fit its nodes.
    """
    seeds = np.random.SeedSequence(question.seed).spawn(len(question.jobs))
    entries = {job.name: number for number, job in enumerate(question.jobs)}
    jobs: list[FleetJob] = []
    for number, keys in enumerate(question.jobs):
        after = entries[keys.after] if keys.after is not None else None
        if keys.replicas is not None:
            continue
        if keys.file is not None:
            jobs += _logged(keys, number, paces)
            continue
        jobs += _jobs_of_entry(question, keys, number, after, paces, np.random.default_rng(seeds[number]))
    jobs.sort(key=lambda job: (job.submit_s, job.entry, job.number))
    return [replace(job, number=number) for number, job in enumerate(jobs)]


def _jobs_of_entry(
    question: FleetQuestion, keys: JobKeys, entry: int, after: int | None, paces: Paces, random: np.random.Generator
) -> Iterator[FleetJob]:
    # Of several sizes only those count that the cluster has.
    spares = question.failures.spares if question.failures is not None else 0
    sizes = tuple(size for size in keys.nodes or (1,) if size <= question.cluster.nodes - spares)
    own = tuple(paces.of(keys, size) for size in sizes)
    submits = _submissions(question, keys, random)
    drawn = keys.hours.draw(random, len(submits)).tolist() if keys.hours is not None else [None] * len(submits)
    several = keys.arrivals is not None
    for number, (submit_s, hours_s) in enumerate(zip(submits, drawn, strict=True)):
        work_s = tuple(_work_s(keys, pace, own[0], hours_s) for pace in own)
        if not all(0.0 < seconds < inf for seconds in work_s):
            raise InputError("takes no time; its end is before its first step", key=f"jobs.{keys.name}")
        yield FleetJob(
            number,
            f"{keys.name}-{number + 1}" if several else keys.name,
            keys.counted_as,
            keys.user or keys.counted_as,
            entry,
            submit_s,
            sizes,
            work_s,
            keys.limit or work_s[0],
            keys.gpus or 0,
            keys.priority,
            keys.preemptible,
            keys.deadline,
            after,
            own,
        )


def _logged(keys: JobKeys, entry: int, paces: Paces) -> Iterator[FleetJob]:
    """The jobs of a log, from the first one's submission on. Raises InputError where a row is wrong or does not fit."""
    assert keys.file is not None
    log, of_a_node, most = Log(Path(keys.file)), paces.gpus_per_node, paces.question.cluster.nodes
    rows = list(read(log.path, log))
    if not rows:
        left = ", ".join(f"{count:,} {why}" for why, count in log.left_out.items())
        raise InputError(f"no row is a job to run{f' ({left})' if left else ''}", file=keys.file)
    paces.left_out[keys.name] = log.left_out
    begin_s, pace = min(row.submit_s for row in rows), paces.of(keys, 1)
    for row in rows:
        part = row.gpus if 0 < row.gpus < of_a_node else 0
        nodes = row.nodes or -(-row.gpus // of_a_node)
        if nodes > most:
            size = f"{row.gpus:,} GPUs" if row.gpus else f"{row.nodes:,} nodes"
            problem = (
                f"row {row.row}: job {row.name} has {size}; at most the cluster's {most:,} nodes of {of_a_node} GPUs"
            )
            raise InputError(problem, file=keys.file)
        if row.gpus > of_a_node and row.gpus % of_a_node:
            log.leave_out("rounded up to whole nodes")
        yield FleetJob(
            row.row,
            row.name,
            keys.kind or row.kind or keys.name,
            row.user or keys.name,
            entry,
            keys.submit + row.submit_s - begin_s,
            (1 if part else nodes,),
            (row.runs_s,),
            row.limit_s or row.runs_s,
            part,
            keys.priority,
            keys.preemptible,
            paces=(pace,),
        )


def _submissions(question: FleetQuestion, keys: JobKeys, random: np.random.Generator) -> list[float]:
    """Submission times of an entry's jobs."""
    if keys.arrivals is None:
        return [keys.submit]
    horizon_s, count = question.horizon or inf, keys.count
    if count is None:
        rate = keys.arrivals.mean_rate or 1.0
        expected = (horizon_s - keys.submit) * rate
        count = max(1, int(expected + 10.0 * max(1.0, expected) ** 0.5 + 10))
    times = keys.arrivals.times(random, count)
    assert times is not None
    return [time for time in (keys.submit + times).tolist() if time < horizon_s]


def _work_s(keys: JobKeys, pace: JobPace, preferred: JobPace, hours_s: float | None) -> float:
    """Seconds at a pace until the job's stated end. Hours are those at the preferred size."""
    if keys.steps is not None:
        return keys.steps * pace.step_s
    if keys.tokens is not None:
        return keys.tokens / pace.tokens_per_step * pace.step_s
    assert hours_s is not None
    if not pace.step_s or pace is preferred:
        return hours_s
    return hours_s * (pace.step_s / pace.tokens_per_step) / (preferred.step_s / preferred.tokens_per_step)


def checked_sizes(question: FleetQuestion, gpus_per_node: int, jobs: Sequence[FleetJob]) -> None:
    """Checks that every job fits the cluster; raises InputError."""
    for job in jobs:
        if job.gpus > gpus_per_node:
            problem = f"{job.gpus} of one node, which has {gpus_per_node}; use nodes"
            raise InputError(problem, key=f"jobs.{question.jobs[job.entry].name}.gpus")
        if min(job.sizes) > question.cluster.nodes:
            problem = f"job {job.name} needs {min(job.sizes)} nodes, and the cluster has {question.cluster.nodes}"
            raise InputError(problem, key=f"jobs.{question.jobs[job.entry].name}")
