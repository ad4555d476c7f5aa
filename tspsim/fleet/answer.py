"""From the question of a fleet to its answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.display import Progress
from ..base.errors import InputError
from ..base.units import several
from ..hardware import Device, load_device
from ..network import Cluster, build_cluster
from ..scenario import Faults
from ..step.description import describe_cluster
from ..step.question import in_islands, measured_between, with_faults
from ..step.result import PlanResult
from .clock import Fleet
from .failing import Failing
from .jobs import FleetJob
from .life import LOSSES, Life
from .neighbours import Neighbours, scarce
from .nodes import Nodes
from .paces import Ask, Paces, checked_sizes, jobs_of
from .power import FleetPower
from .question import FleetQuestion
from .replica import ServiceReplica, replicas_of
from .result import FleetAnswer, FleetFacts, FleetTimes, JobAnswer
from .scaling import Scaling


def answer(
    question: FleetQuestion, ask: Ask, *, every_job_step: bool = False, progress: Progress | None = None
) -> FleetAnswer:
    """The history of every job, and of the cluster.

    Parameters
    ----------
    question
        What :func:`tspsim.fleet.load` returns.
    ask
        Answers the scenario of one job: :func:`tspsim.answer.kinds.simulate`.
    every_job_step
        Also run the real steps of jobs that shared links together, and report them beside the rule.
    progress
        Called with the current task and the share done.

    Raises
    ------
    InputError
        A job is wrong, or needs more than the cluster has.
    InfeasibleError
        A job does not fit its nodes' memory.
    """
    cluster = cluster_of(question)
    device = load_device(cluster.device_name)
    if question.cluster.power_limit is not None:
        device = device.power_limited(question.cluster.power_limit)
    paces = Paces(question, ask, cluster.gpus_per_node)
    if progress is not None:
        progress("steps of its jobs", 0.0)
    jobs = jobs_of(question, paces)
    checked_sizes(question, cluster.gpus_per_node, jobs)
    if progress is not None:
        progress(several(len(jobs), "job"), 0.5)
    fleet = Fleet(
        jobs,
        Nodes.of(cluster),
        question.scheduler,
        question.placement,
        random=np.random.default_rng([question.seed, 1]),
        restart_s=question.failures.restart if question.failures is not None else 0.0,
        horizon_s=question.horizon,
    )
    parts: dict[str, Any] = {}
    failing = None
    if question.failures is not None or question.maintenance:
        chance = np.random.default_rng([question.seed, 2])
        failing = Failing(fleet, question.failures, question.maintenance, chance)
    services = [Scaling(fleet, *service) for service in replicas_of(question, paces)]
    neighbours = None
    if question.neighbours and scarce(cluster):
        neighbours = Neighbours(fleet, question, cluster)
    power = None
    if question.power is not None:

        def speed_at(job: FleetJob, size: int, limit_w: float) -> float:
            return paces.speed_at(question.jobs[job.entry], job.sizes[size], limit_w, device)

        own_w = {entry: job.busy for entry, job in enumerate(question.jobs) if job.busy is not None}
        power = FleetPower(question.power, device, fleet, speed_at, own_w)
        for entry, watts in own_w.items():
            if watts > power.busy_w:
                problem = f"{watts:,.0f} W of a GPU; at most power.busy, {power.busy_w:,.0f} W"
                raise InputError(problem, key=f"jobs.{question.jobs[entry].name}.busy")
        fleet.occupancy.watts, fleet.dispatcher.allows = lambda: power.watts, power.allows
    fleet.run()
    if services:
        parts["services"] = [
            service.to_json(ServiceReplica(paces, service.keys, service.replica.nodes)) for service in services
        ]
    if power is not None:
        parts["power"] = power.to_json()
    if neighbours is not None:
        parts["neighbours"] = neighbours.to_json()
        if every_job_step:
            parts["neighbours"]["checked"] = neighbours.check()
    if failing is not None:
        parts["failures"] = failing.to_json()
    facts = replace(facts_of(question, cluster, device, fleet), parts=parts)
    if power is not None:
        facts = replace(facts, energy_kwh=parts["power"]["energy_kwh"])
    plans = tuple(_plans(paces))
    provenance = {(row["what"], row["source"]): row for result in paces.answers.values() for row in result.provenance}
    unexplained = dict.fromkeys(text for result in paces.answers.values() for text in result.unexplained)
    return FleetAnswer(
        scenario=question.to_dict(),
        cluster=describe_cluster(cluster, device),
        plans=plans,
        provenance=tuple(provenance.values()),
        defaults=(
            *question.in_words(),
            *_in_words(jobs, paces),
            *(neighbours.in_words() if neighbours is not None else ()),
        ),
        unexplained=(*UNEXPLAINED, *unexplained),
        fleet=facts,
        question=question,
    )


def cluster_of(question: FleetQuestion) -> Cluster:
    """The whole cluster, with its faults."""
    inline = question.cluster
    parts = (inline.device, inline.nodes, inline.fabric, inline.node, inline.oversubscription, inline.library)
    cluster = build_cluster(*parts, inline.gpus_per_node, inline.transport, inline.nic_bandwidth)
    if inline.islands and inline.nodes > 1:
        cluster = in_islands(cluster, inline.islands)
    if inline.measured is not None:
        cluster = measured_between(cluster, inline.measured)
    if inline.routing is not None:
        cluster = cluster.with_routing(inline.routing)
    return with_faults(cluster, inline.faults or Faults())


def _plans(paces: Paces) -> Iterator[PlanResult]:
    """The simulated steps, named by job and nodes."""
    for (name, nodes), result in paces.answers.items():
        for plan in result.plans:
            yield replace(plan, name=f"{name}, {several(nodes, 'node')}")


def _in_words(jobs: list[FleetJob], paces: Paces) -> Iterator[str]:
    """Assumptions about the jobs, as sentences."""
    for name, why in paces.left_out.items():
        if why:
            reasons = ", ".join(f"{count:,} {words}" for words, count in why.items())
            yield f"Rows of `{name}` that are left out: {reasons}."
    unknown = sum(job.paces[0].plan is None for job in jobs)
    if unknown:
        every = several(len(jobs), "job")
        yield f"{unknown:,} of {every} have no workload: they take nodes for a stated time."


def facts_of(question: FleetQuestion, cluster: Cluster, device: Device, fleet: Fleet) -> FleetFacts:
    """The facts of a fleet that has run."""
    ended_s = fleet.ended_s
    gpus, of_a_node = cluster.gpus, cluster.gpus_per_node
    price = _price(question, device)
    jobs = tuple(_job(fleet.lives[job.number], job, of_a_node, price, fleet) for job in fleet.jobs)
    lost_s = dict.fromkeys(LOSSES, 0.0)
    for part, seconds in fleet.occupancy.idle_gpu_s.items():
        lost_s[part] += seconds
    held_s = productive_s = 0.0
    for life in fleet.lives:
        if not life.ran_s:
            continue
        wide = life.gpu_s / life.ran_s
        held_s += life.gpu_s
        lost = 0.0
        for part, seconds in life.lost_s.items():
            lost_s[part] += seconds * wide
            lost += seconds
        productive_s += (life.ran_s - lost) * wide
    total_s = gpus * ended_s
    series, spells = fleet.occupancy.series, fleet.spells
    times = FleetTimes(
        at_s=np.array(series.at_s),
        allocated_gpus=np.array(series.allocated),
        waiting_jobs=np.array(series.waiting),
        nodes_down=np.array(series.down),
        watts=np.array(series.watts),
        spell_job=np.array(spells.job, dtype=np.int64),
        spell_start_s=np.array(spells.start_s),
        spell_end_s=np.array(spells.end_s),
        spell_nodes=tuple(spells.nodes),
        spell_why=tuple(spells.why),
    )
    watts = device.all_in_watts
    return FleetFacts(
        nodes=cluster.nodes,
        gpus=gpus,
        horizon_s=ended_s,
        allocated=held_s / total_s if total_s else 0.0,
        productive=productive_s / total_s if total_s else 0.0,
        lost_gpu_hours={part: seconds / 3600.0 for part, seconds in lost_s.items()},
        energy_kwh=None if watts is None else total_s / 3600.0 * watts / 1000.0,
        cost_usd=None if price is None else total_s / 3600.0 * price,
        jobs=jobs,
        times=times,
    )


def _price(question: FleetQuestion, device: Device) -> float | None:
    """USD per GPU-hour: as stated, or the first price in the device's file."""
    if question.prices.gpu_hour is not None:
        return question.prices.gpu_hour
    return next(iter(device.prices_usd_per_hour.values()), None)


def _job(life: Life, job: FleetJob, of_a_node: int, price: float | None, fleet: Fleet) -> JobAnswer:
    started, ended = life.started_s, life.ended_s
    wall_s = None if started is None else (ended if ended is not None else fleet.ended_s) - started
    hours = life.gpu_s / 3600.0
    nodes = life.nodes or job.nodes
    return JobAnswer(
        name=job.name,
        kind=job.kind,
        user=job.user,
        nodes=nodes,
        gpus=job.gpus_at(nodes, of_a_node),
        submit_s=job.submit_s,
        start_s=started,
        end_s=ended,
        wait_s=None if started is None else started - job.submit_s,
        ettr=min(1.0, max(0.0, life.productive_s / wall_s)) if wall_s else None,
        slowdown=life.slowdown,
        restarts=life.restarts,
        state=fleet.state_of(job),
        gpu_hours=hours,
        cost_usd=None if price is None else hours * price,
        deadline_s=job.deadline_s,
    )


#: What the model leaves out, knowingly.
UNEXPLAINED = (
    "Storage that jobs share: files of one job never wait for those of another.",
    "People: jobs that are cancelled, edited or submitted again by hand.",
)
