"""Jobs whose flows share links between switches: how much slower each of them works.

What a job puts on every link comes from its own simulated step, run alone on its very nodes: the share of the link's
bytes over a step, and the share of the step in which it moves them. Two rules follow, and a job works at the slower:

- **in the mean** no link carries more than it can: rates are max-min fair (:mod:`tspsim.network.sharing`);
- **in bursts**: while a job moves data, another moves some for as large a share of the time as it does in its own step,
  for jobs know nothing of each other. Both then share the link. The step takes longer by what the exposed part of the
  job's communication does, at most all that crosses the link, and by as much of the hidden part as finds the link busy
  with the job's own data when it should catch up.

:func:`together` launches the real steps on one engine, as the check.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from ..costs import Costs
from ..engine.assignment import Assignment, Cost
from ..engine.core import Engine, Interference
from ..mesh import Mesh
from ..metrics import breakdown
from ..network import Cluster
from ..network.sharing import shares
from ..parallel import axes_of, build_mesh, scheme_of, write_program
from ..question import Question, look_up
from ..simulation import scheduled
from .asked import own_scenario
from .clock import Fleet, Run
from .question import FleetQuestion

#: Steps of a window in which jobs are launched together, and how many of them lie before it.
WINDOW_STEPS, FIRST_STEPS = 6, 1
#: Slower jobs than this share links that are busy most of the time (docs/fleet.md says how far off that was).
ROUGH_BELOW = 0.95
#: Sets of jobs that the JSON lists.
MOST_TOLD = 100
#: Less of a link's time is nobody's burden.
LEAST_SHARE = 1e-6


@dataclass(frozen=True)
class Loads:
    """What one job on its nodes puts on links between switches.

    Attributes
    ----------
    step_s
        Of its step alone, on these nodes.
    exposed
        Share of it in communication that no kernel hides.
    mean, busy
        Link → share of its bytes over a step, and share of the step in which the job's data moves there.
    """

    step_s: float
    exposed: float
    mean: Mapping[int, float]
    busy: Mapping[int, float]

    def burst(self, link: int) -> float:
        """Share of a link that it takes while it moves data there."""
        return min(1.0, self.mean[link] / self.busy[link])


@dataclass(frozen=True)
class Placed:
    """A job's step, ready to be launched on nodes of the whole cluster."""

    question: Question
    assignment: Assignment
    cost: Cost
    interference: Interference


def scarce(cluster: Cluster) -> bool:
    """Whether jobs on nodes of their own can meet on links at all: not where switches carry what all nodes send and
    flows spread over all paths."""
    if cluster.fabric is None or cluster.nodes < 2:
        return False
    layout = cluster.layout
    even = isinstance(layout.fabric, str) and not layout.routing.object.by_cable
    return not (even and cluster.oversubscription <= 1.0 and cluster.islands is None)


class Neighbours:
    """Rates of the jobs of a fleet, kept up to date as they come and go.

    Attributes
    ----------
    met
        Sets of (entry, size, nodes) that slowed each other, with their rates, in order of first meeting.
    """

    def __init__(self, fleet: Fleet, question: FleetQuestion, cluster: Cluster) -> None:
        self.question, self.cluster = question, cluster
        self._loads: dict[tuple[int, int, tuple[int, ...]], Loads | None] = {}
        self._running: frozenset[int] = frozenset()
        self.met: dict[tuple[tuple[int, int, tuple[int, ...]], ...], list[float]] = {}
        fleet.listeners.append(self.changed)

    def changed(self, fleet: Fleet) -> None:
        """Set the rates of all that runs."""
        runs = [run for run in fleet.desk.running.values() if isinstance(run, Run) and len(run.nodes) > 1]
        now = frozenset(id(run) for run in runs)
        if now == self._running:
            return
        self._running = now
        known = [(run, loads) for run in runs if not run.hung and (loads := self.loads_of(run)) is not None]
        found = rates([loads for _, loads in known])
        for (run, _), rate in zip(known, found, strict=True):
            fleet.set_rate(run, rate, "neighbours")
        slowed = [(self._key(run), rate) for (run, _), rate in zip(known, found, strict=True) if rate < 1.0]
        if slowed:
            self.met.setdefault(tuple(key for key, _ in slowed), [rate for _, rate in slowed])

    def _key(self, run: Run) -> tuple[int, int, tuple[int, ...]]:
        return run.job.entry, run.size, run.nodes

    def loads_of(self, run: Run) -> Loads | None:
        """Of a job whose step is known, on its nodes; None of others."""
        key = self._key(run)
        if key not in self._loads:
            keys = self.question.jobs[run.job.entry]
            steps = keys.workload is not None and keys.traffic is None and keys.loop is None
            self._loads[key] = loads(placed(self.question, key, self.cluster), self.cluster) if steps else None
        return self._loads[key]

    def check(self) -> list[dict[str, Any]]:
        """Every set of jobs that met, by the rule and with their real steps on one engine."""
        checked = []
        for keys, told in self.met.items():
            steps = [placed(self.question, key, self.cluster) for key in keys]
            if any(each.interference != steps[0].interference for each in steps):
                continue
            alone = [found.step_s for key in keys if (found := self._loads[key]) is not None]
            simulated = together(steps, self.cluster, alone)
            names = [self.question.jobs[entry].name for entry, _, _ in keys]
            checked.append({"jobs": names, "rates": told, "every_job_step": simulated})
        return checked

    def in_words(self) -> tuple[str, ...]:
        """What rates rest on, and where they are rough, as a sentence."""
        slowest = min((rate for told in self.met.values() for rate in told), default=1.0)
        if slowest >= 1.0:
            return ()
        rough = " Links that are busy most of the time make it rough." if slowest < ROUGH_BELOW else ""
        return (
            f"Jobs whose flows share links slow each other to {slowest:.2f} of their speed alone at worst, by a rule "
            f"over their own steps (`neighbours`).{rough} --every-job-step launches their real steps together.",
        )

    def to_json(self) -> dict[str, Any]:
        """The entry ``neighbours``."""
        rows = [
            {"jobs": [self.question.jobs[entry].name for entry, _, _ in keys], "rates": told}
            for keys, told in self.met.items()
        ]
        slowest = min((rate for told in self.met.values() for rate in told), default=1.0)
        return {"sets": len(rows), "slowest": slowest, "met": rows[:MOST_TOLD]}


def placed(question: FleetQuestion, key: tuple[int, int, tuple[int, ...]], cluster: Cluster) -> Placed:
    """A job's step on nodes of the whole cluster, with the schedule of its own scenario."""
    entry, _, nodes = key
    own = look_up(own_scenario(question, question.jobs[entry], len(nodes)))
    job = scheduled(own, own.plans[0])
    mesh = build_mesh(job.plan, own.cluster.gpus, own.cluster.gpus_per_node)
    of_a_node = cluster.gpus_per_node
    there = np.array(nodes, dtype=np.int64)[mesh.ranks // of_a_node] * of_a_node + mesh.ranks % of_a_node
    mesh = Mesh(mesh.axes, there, mesh.made_of)
    roles, role_of = mesh.coordinates(axes_of(job))
    programs = tuple(write_program(scheme_of(job.plan), job, role) for role in roles)
    stack, device = job.work.stack, own.device
    interference = Interference(stack.slowdown(device), device.communication_slowdown)
    return Placed(
        own, Assignment(mesh, programs, role_of), stack.cost(Costs(device), device, job.capture), interference
    )


def loads(step: Placed, cluster: Cluster) -> Loads:
    """Of a step run alone on its nodes, every rank for itself."""
    engine = Engine(cluster, step.cost, interference=step.interference, every_rank=True)
    submission = engine.launch(engine.prepare(step.assignment))
    engine.run()
    makespan_s = submission.makespan_s
    exposed = sum(breakdown(submission).exposed_s.values()) / makespan_s
    bandwidth, first = cluster.bandwidth_bytes_per_s, cluster.layout.switch_start
    carried: dict[int, float] = {}
    # Groups that do the same move at the same time: of those on a link the longest counts.
    moving_s: dict[int, dict[int, float]] = {}
    uses = submission.system.uses()
    for instance, channel in submission.system.instances:
        traffic, times = instance.traffic, uses[channel]
        for link, size in zip(traffic.links, traffic.link_bytes, strict=True):
            if link >= first:
                carried[link] = carried.get(link, 0.0) + times * size
                same = moving_s.setdefault(link, {})
                same[instance.template] = max(same.get(instance.template, 0.0), times * traffic.fluid_s)
    mean = {link: size / (float(bandwidth[link]) * makespan_s) for link, size in carried.items()}
    mean = {link: share for link, share in mean.items() if share > LEAST_SHARE}
    # No longer than the step, no shorter than the bytes take.
    busy = {link: min(1.0, max(share, sum(moving_s[link].values()) / makespan_s)) for link, share in mean.items()}
    return Loads(makespan_s, exposed, mean, busy)


def rates(every: Sequence[Loads]) -> list[float]:
    """How fast each job works beside the others, alone = 1."""
    if len(every) < 2:
        return [1.0] * len(every)
    users: dict[int, list[int]] = {}
    for number, each in enumerate(every):
        for link in each.mean:
            users.setdefault(link, []).append(number)
    shared = {link: numbers for link, numbers in users.items() if len(numbers) > 1}
    loaded: list[Mapping[Hashable, float]] = [
        {link: each.mean[link] for link in each.mean if link in shared} for each in every
    ]
    # Flows on a full link get equal bytes/s: who needs least is held up least.
    in_the_mean = shares(loaded, [1.0 / max(each.values(), default=1.0) for each in loaded])
    return [
        min(mean, 1.0 / longer)
        for mean, longer in zip(
            in_the_mean, (_longer(number, every, shared) for number in range(len(every))), strict=True
        )
    ]


def _longer(number: int, every: Sequence[Loads], shared: Mapping[int, Sequence[int]]) -> float:
    """How much longer a job's step is for bursts of others on its links, at the link where it is longest."""
    own, longest = every[number], 1.0
    for link, numbers in shared.items():
        if number not in numbers:
            continue
        lost = 0.0
        for other in numbers:
            if other != number:
                both = own.burst(link), every[other].burst(link)
                mine = shares([{link: each} for each in both], [1.0 / each for each in both])[0]
                lost += every[other].busy[link] * (1.0 - mine)
        if lost > 0.0:
            busy = own.busy[link]
            exposed = min(own.exposed, busy)
            # What is hidden finds kernels to hide behind, unless the link is busy then with its own as well.
            waits = exposed + (busy - exposed) * busy
            longest = max(longest, 1.0 + waits * (1.0 / (1.0 - min(lost, 0.999)) - 1.0))
    return longest


def together(steps: Sequence[Placed], cluster: Cluster, alone_s: Sequence[float], phases: int = 4) -> list[float]:
    """Rates of jobs whose real steps run beside each other on one engine, one after the other in a window: the mean
    over several begins, for jobs start when they like. A job begins later than the first by shares of its step that are
    spread evenly (multiples of the golden ratio)."""
    golden = (5.0**0.5 - 1.0) / 2.0
    means = []
    for phase in range(phases):
        begins = [
            0.0 if not number else (phase + 0.5 + number * golden) / phases % 1.0 * alone_s[number]
            for number in range(len(steps))
        ]
        ends = _window(steps, cluster, begins)
        means.append([alone / took for alone, took in zip(alone_s, ends, strict=True)])
    return [float(each) for each in np.mean(means, axis=0)]


def _window(steps: Sequence[Placed], cluster: Cluster, begins_s: Sequence[float]) -> list[float]:
    """Mean seconds of a step of each job, all under way for as long as the slowest takes for its window."""
    engine = Engine(cluster, steps[0].cost, interference=steps[0].interference)
    prepared = [engine.prepare(step.assignment) for step in steps]
    ends: list[list[float]] = [[] for _ in steps]

    def under_way() -> bool:
        return any(len(each) < FIRST_STEPS + WINDOW_STEPS for each in ends)

    def loop(number: int) -> Generator[simpy.Event, Any, None]:
        if begins_s[number]:
            yield engine.env.timeout(begins_s[number])
        while under_way():
            yield engine.launch(prepared[number]).done
            ends[number].append(float(engine.env.now))

    for number in range(len(steps)):
        engine.env.process(loop(number))
    engine.run()
    enough = [each[: max(FIRST_STEPS + WINDOW_STEPS, 2)] for each in ends]
    return [(each[-1] - each[FIRST_STEPS - 1]) / (len(each) - FIRST_STEPS) for each in enough]
