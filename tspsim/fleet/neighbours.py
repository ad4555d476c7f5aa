"""Slowdown of jobs whose flows share links between switches.

A job's load on every link comes from its own simulated step, run alone on its very nodes and reduced to the transfers
that cross those links (:mod:`tspsim.fleet.step_graph`). Where its nodes are further apart than those of its own
scenario, that step takes longer by itself. The reduced steps of jobs that share links run beside each other in a window
of several steps, from several begins, since jobs start at any time. :func:`together` checks this with the real steps on
one engine.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from ..engine.classes import joined
from ..engine.core import Interference, SimulationEngine
from ..engine.instances import Assignment, Cost
from ..hardware import Costs
from ..network import Cluster
from ..network.fluid import Channel
from ..parallel import axes_of, build_mesh, scheme_of, write_program
from ..program.instructions import Mesh
from ..step.question import Question, look_up
from ..step.simulation import scheduled
from .bursts import beside
from .clock import Fleet
from .paces import own_scenario
from .question import FleetQuestion
from .running_job import RunningJob
from .step_graph import StepGraph, graph_of

#: Steps of a window in which jobs run beside each other, steps before it, and number of begins.
WINDOW_STEPS, FIRST_STEPS, PHASES = 6, 1, 4
#: Most transfers of all jobs and begins for one set of jobs, which bounds the work for many jobs on shared spines.
#: Larger sets need fewer begins, for their jobs meet in more ways.
MOST_TRANSFERS = 50_000
#: Speeds that differ by less are equal.
SAME = 1e-9
#: Most sets of jobs that the JSON lists.
MOST_TOLD = 100
#: A job's entry, its size, and its nodes.
Key = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True)
class PlacedStep:
    """A job's step, ready to run on nodes of the whole cluster."""

    question: Question
    #: Assignments to nodes of the job's own scenario, and of the cluster.
    own: Assignment
    assignment: Assignment
    cost: Cost
    interference: Interference


def scarce(cluster: Cluster) -> bool:
    """Whether jobs on separate nodes can meet on links at all: not where switches carry what all nodes send and flows
    spread over all paths."""
    if cluster.fabric is None or cluster.nodes < 2:
        return False
    layout = cluster.layout
    even = isinstance(layout.fabric, str) and not layout.routing.object.by_cable
    return not (even and cluster.oversubscription <= 1.0 and cluster.islands is None)


class Neighbours:
    """Rates of a fleet's jobs, updated as jobs come and go.

    Attributes
    ----------
    furthest
        The lowest speed of a job alone on its nodes, relative to its own scenario's nodes.
    met
        Sets of (entry, size, nodes) that slowed each other, with their rates, in order of first meeting.
    """

    def __init__(self, fleet: Fleet, question: FleetQuestion, cluster: Cluster) -> None:
        self.question, self.cluster = question, cluster
        self._graphs: dict[Key, StepGraph | None] = {}
        self._rates: dict[tuple[Key, ...], list[float]] = {}
        #: Seconds of a step on nodes of its own scenario, by entry and size.
        self._own_s: dict[tuple[int, int], float] = {}
        self._running: frozenset[int] = frozenset()
        self.furthest = 1.0
        self.met: dict[tuple[Key, ...], list[float]] = {}
        fleet.listeners.append(self.changed)

    def changed(self, fleet: Fleet) -> None:
        """Sets the rates of all running jobs."""
        runs = [run for run in fleet.dispatcher.running.values() if isinstance(run, RunningJob) and len(run.nodes) > 1]
        now = frozenset(id(run) for run in runs if not run.hung)
        if now == self._running:
            return
        self._running = now
        for run in runs:
            if "placement" not in run.speeds:
                fleet.set_speed(run, "placement", self.speed_on(run))
        sound = [(run, graph) for run in runs if not run.hung and (graph := self.graph_of(run)) is not None]
        for numbers in meeting([graph for _, graph in sound]):
            those = [sound[number] for number in numbers]
            keys = tuple(self._key(run) for run, _ in those)
            if keys not in self._rates:
                self._rates[keys] = rates([graph for _, graph in those])
            speeds = self._rates[keys]
            for (run, _), rate in zip(those, speeds, strict=True):
                fleet.set_speed(run, "neighbours", rate)
            if min(speeds) < 1.0:
                self.met.setdefault(keys, speeds)

    def _key(self, run: RunningJob) -> Key:
        return run.job.entry, run.size, run.nodes

    def graph_of(self, run: RunningJob) -> StepGraph | None:
        """The reduced step of a job on its nodes; None where the job has no simulated step."""
        key = self._key(run)
        if key not in self._graphs:
            keys = self.question.jobs[run.job.entry]
            steps = keys.workload is not None and keys.traffic is None and keys.loop is None
            self._graphs[key] = reduced(placed(self.question, key, self.cluster), self.cluster) if steps else None
        return self._graphs[key]

    def speed_on(self, run: RunningJob) -> float:
        """A job's speed alone on its nodes, relative to its own scenario's nodes; 1 without a simulated step."""
        graph = self.graph_of(run)
        if graph is None:
            return 1.0
        size = run.job.entry, run.size
        if size not in self._own_s:
            self._own_s[size] = alone_s(placed(self.question, self._key(run), self.cluster))
        share = self._own_s[size] / graph.step_s
        self.furthest = min(self.furthest, share)
        return share if share < 1.0 - SAME else 1.0

    def check(self) -> list[dict[str, Any]]:
        """Every set of jobs that met, by the rule and with their real steps on one engine."""
        checked = []
        for keys, speeds in self.met.items():
            steps = [placed(self.question, key, self.cluster) for key in keys]
            if any(step.interference != steps[0].interference for step in steps):
                continue
            alone = [graph.step_s for key in keys if (graph := self._graphs[key]) is not None]
            simulated = together(steps, self.cluster, alone)
            names = [self.question.jobs[entry].name for entry, _, _ in keys]
            checked.append({"jobs": names, "rates": speeds, "every_job_step": simulated})
        return checked

    def in_words(self) -> tuple[str, ...]:
        """The basis of the rates, as sentences."""
        sentences = []
        if self.furthest < 1.0:
            sentences.append(
                f"Jobs whose nodes are further apart than in their own scenarios work at {self.furthest:.2f} of their "
                "speed there at worst (lost to `placement`)."
            )
        slowest = min((rate for speeds in self.met.values() for rate in speeds), default=1.0)
        if slowest < 1.0:
            sentences.append(
                f"Jobs whose flows share links slow each other to {slowest:.2f} of their speed alone at worst, by the "
                "transfers of their own steps beside each other (`neighbours`). --every-job-step launches the whole "
                "steps together."
            )
        return tuple(sentences)

    def to_json(self) -> dict[str, Any]:
        """The entry ``neighbours``."""
        rows = [
            {"jobs": [self.question.jobs[entry].name for entry, _, _ in keys], "rates": speeds}
            for keys, speeds in self.met.items()
        ]
        slowest = min((rate for speeds in self.met.values() for rate in speeds), default=1.0)
        return {"sets": len(rows), "slowest": slowest, "met": rows[:MOST_TOLD]}


def placed(question: FleetQuestion, key: Key, cluster: Cluster) -> PlacedStep:
    """A job's step on nodes of the whole cluster, with the schedule of its own scenario."""
    entry, _, nodes = key
    own = look_up(own_scenario(question, question.jobs[entry], len(nodes)))
    job = scheduled(own, own.plans[0])
    mesh = build_mesh(job.plan, own.cluster.gpus, own.cluster.gpus_per_node)
    of_a_node = cluster.gpus_per_node
    there = np.array(nodes, dtype=np.int64)[mesh.ranks // of_a_node] * of_a_node + mesh.ranks % of_a_node
    roles, role_of = mesh.coordinates(axes_of(job))
    programs = tuple(write_program(scheme_of(job.plan), job, role) for role in roles)
    stack, device = job.work.stack, own.device
    on_nodes = Mesh(mesh.axes, there, mesh.made_of)
    _, role_there = on_nodes.coordinates(axes_of(job))
    return PlacedStep(
        own,
        Assignment(mesh, programs, role_of),
        Assignment(on_nodes, programs, role_there),
        stack.cost(Costs(device), device, job.capture),
        Interference.of(job, device),
    )


def alone_s(step: PlacedStep) -> float:
    """Seconds of a step on the nodes of its own scenario."""
    engine = SimulationEngine(step.question.cluster, step.cost, interference=step.interference)
    submission = engine.launch(engine.prepare(step.own))
    engine.run()
    return submission.makespan_s


def reduced(step: PlacedStep, cluster: Cluster) -> StepGraph:
    """A step, run alone on its nodes and reduced to the transfers over links between switches."""
    engine = SimulationEngine(cluster, step.cost, interference=step.interference)
    submission = engine.launch(engine.prepare(step.assignment))
    engine.run()
    # The links of all ranks, folded ones included.
    every = SimulationEngine(cluster, step.cost, interference=step.interference, every_rank=True)
    instances = [instance for instance, _ in every.system(every.prepare(step.assignment)).instances]
    first, role_of = cluster.layout.switch_start, step.assignment.role_of
    own: dict[Hashable, Channel] = {}
    for instance, channel in submission.system.instances:
        own[instance.template, instance.ranks] = channel
        own.setdefault((instance.template, role_of[list(instance.ranks)].tobytes()), channel)
    carried: dict[Channel, dict[int, float]] = {}
    for instance in instances:
        traffic = instance.traffic
        crossed = [(link, share) for link, share in zip(traffic.links, instance.shares, strict=True) if link >= first]
        if crossed:
            same = instance.template, role_of[list(instance.ranks)].tobytes()
            links = carried.setdefault(own.get((instance.template, instance.ranks)) or own[same], {})
            for link, share in crossed:
                links[link] = links.get(link, 0.0) + share * traffic.fluid_s
    return graph_of(submission, carried, step.interference.compute)


def meeting(graphs: Sequence[StepGraph]) -> list[list[int]]:
    """Sets of jobs (by number) that can fill a link together, directly or through others. A job that meets no other is
    a set of its own."""
    users: dict[int, list[int]] = {}
    for number, graph in enumerate(graphs):
        for link in graph.peaks:
            users.setdefault(link, []).append(number)
    crowded = (
        numbers for link, numbers in users.items()
        if len(numbers) > 1 and sum(graphs[number].peaks[link] for number in numbers) > 1.0
    )  # fmt: skip
    return joined(len(graphs), ((number, numbers[0]) for numbers in crowded for number in numbers[1:]))


def rates(graphs: Sequence[StepGraph]) -> list[float]:
    """Speed of each job beside the others, alone = 1."""
    if len(graphs) < 2:
        return [1.0] * len(graphs)
    alone_s = [beside([graph], [0.0], 1)[0][0] for graph in graphs]
    steps = FIRST_STEPS + WINDOW_STEPS
    transfers = (
        steps * max(alone_s) * sum(len(graph.transfers) / own for graph, own in zip(graphs, alone_s, strict=True))
    )
    phases = int(min(PHASES, max(1, MOST_TRANSFERS // transfers)))
    if transfers > MOST_TRANSFERS:
        steps = max(FIRST_STEPS + 1, int(steps * MOST_TRANSFERS / transfers))
    windows = [mean_steps(beside(graphs, begins_s, steps), steps) for begins_s in spread(alone_s, phases)]
    return [
        min(1.0, float(np.mean([own / window[number] for window in windows]))) for number, own in enumerate(alone_s)
    ]


def spread(alone_s: Sequence[float], phases: int) -> Iterator[list[float]]:
    """Begins of the jobs, after the first by even shares of their steps (multiples of the golden ratio)."""
    golden = (5.0**0.5 - 1.0) / 2.0
    for phase in range(phases):
        yield [
            0.0 if not number else (phase + 0.5 + number * golden) / phases % 1.0 * own_s
            for number, own_s in enumerate(alone_s)
        ]


def mean_steps(ends_s: Sequence[Sequence[float]], steps: int) -> list[float]:
    """Mean seconds of a step of each job, from the end of its first steps until the slowest has done ``steps``."""
    last_s = max(ends[steps - 1] for ends in ends_s)
    means = []
    for ends in ends_s:
        there = [end_s for end_s in ends[FIRST_STEPS - 1 :] if end_s <= last_s]
        means.append((there[-1] - there[0]) / (len(there) - 1))
    return means


def together(steps: Sequence[PlacedStep], cluster: Cluster, alone_s: Sequence[float]) -> list[float]:
    """Rates of jobs whose real steps run beside each other on one engine in a window of steps: the mean over several
    begins, since jobs start at any time."""
    count = FIRST_STEPS + WINDOW_STEPS
    windows = [mean_steps(_window(steps, cluster, begins_s), count) for begins_s in spread(alone_s, PHASES)]
    return [float(np.mean([own / window[number] for window in windows])) for number, own in enumerate(alone_s)]


def _window(steps: Sequence[PlacedStep], cluster: Cluster, begins_s: Sequence[float]) -> list[list[float]]:
    """Ends of the steps of each job, all running until the slowest has finished its window."""
    engine = SimulationEngine(cluster, steps[0].cost, interference=steps[0].interference)
    prepared = [engine.prepare(step.assignment) for step in steps]
    ends: list[list[float]] = [[] for _ in steps]

    def under_way() -> bool:
        return any(len(job_ends) < FIRST_STEPS + WINDOW_STEPS for job_ends in ends)

    def loop(number: int) -> Generator[simpy.Event, Any, None]:
        if begins_s[number]:
            yield engine.env.timeout(begins_s[number])
        while under_way():
            yield engine.launch(prepared[number]).done
            ends[number].append(float(engine.env.now))

    for number in range(len(steps)):
        engine.env.process(loop(number))
    engine.run()
    return ends
