"""The front's plans with one thing changed: another length, another number of nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...base.errors import InputError
from ...base.quick import replace
from ...network import Cluster
from ...parallel import Job, build_mesh, located, peak_memory, scheme_axes, scheme_of
from ...parallel.checks import check
from .branch import Search
from .candidate import Candidate, name_of
from .simulated_plan import SimulatedPlan
from .space import Space


@dataclass(frozen=True)
class Sensitivity:
    """One changed place: its fastest plans with their steps, and the plans that do not fit.

    ``batch`` is in sequences.
    """

    what: str
    nodes: int
    sequence: int
    batch: int
    ranking: tuple[tuple[str, float], ...]
    unfit: tuple[str, ...]

    @property
    def tokens_per_s(self) -> float:
        return self.batch * self.sequence / self.ranking[0][1] if self.ranking else 0.0


@dataclass(frozen=True)
class Place:
    """A changed length or number of nodes."""

    what: str
    nodes: int
    sequence: int
    batch: int


def places(cluster: Cluster, sequence: int, batch: int) -> Iterator[Place]:
    """Half and double the sequence (constant tokens per step) and the nodes (constant batch), where possible."""
    if sequence % 2 == 0:
        yield Place("half the sequence", cluster.nodes, sequence // 2, batch * 2)
    if batch % 2 == 0:
        yield Place("double the sequence", cluster.nodes, sequence * 2, batch // 2)
    if cluster.nodes % 2 == 0:
        yield Place("half the nodes", cluster.nodes // 2, sequence, batch)
    if cluster.fabric is not None:
        yield Place("double the nodes", cluster.nodes * 2, sequence, batch)


def ranked(plans: Iterable[SimulatedPlan], place: Place, search: Search, gap: float = 0.0) -> Sensitivity:
    """The plans at a place, or where none runs, the best of one round of simulations.

    The first is simulated; of the others those that may be faster than the simulated ones by more than ``gap``.
    """
    tried: list[tuple[bool, float, str, Candidate]] = []
    unfit = []
    for number, plan in enumerate({plan.candidate.name: plan for plan in plans}.values()):
        candidate = adapted(plan.candidate.job, search.space, search.capacity_bytes)
        if candidate is None:
            unfit.append(plan.candidate.name)
        else:
            bound_s = search.bound.step_s(candidate.job, candidate.mesh)
            tried.append((number > 0, bound_s, candidate.name, candidate))
    ran: list[tuple[str, float]] = []
    for _, bound_s, name, candidate in sorted(tried, key=lambda entry: entry[:3]):
        if ran and bound_s * (1.0 + gap) >= min(step_s for _, step_s in ran):
            continue  # cannot be the fastest there
        answer = search.simulate([candidate])[0]
        if answer is not None and answer.ran:
            ran.append((name, answer.step_time_s))
    if not ran:
        found_there = search.best(1, most_rounds=1, gap=gap).plans
        ran = [(plan.candidate.name, plan.step_s) for plan in found_there]
    ranking = tuple(sorted(ran, key=lambda pair: pair[1]))
    return Sensitivity(place.what, place.nodes, place.sequence, place.batch, ranking, tuple(unfit))


def adapted(job: Job, space: Space, room_bytes: float) -> Candidate | None:
    """A plan in another space, with as many replicas as fit; None where degrees do not divide or it does not fit."""
    gpus = space.cluster.gpus
    replica = math.prod(job.plan.degree(axis) for axis in (*scheme_axes(), "pp"))
    if gpus % replica or space.batch % (gpus // replica):
        return None
    dp = gpus // replica
    sequences = space.batch // dp
    plan = replace(job.plan, degrees={**job.plan.degrees, "dp": dp}, micro_batch=math.gcd(job.sequences, sequences))
    plan = replace(plan, name=name_of(plan))
    try:
        plan = located(plan, gpus, space.cluster.gpus_per_node)
        moved = Job(space.model, plan, replace(space.work, sequences=sequences))
        check(moved)
        mesh = build_mesh(plan, gpus, space.cluster.gpus_per_node)
    except InputError:
        return None
    needed = sum(peak_memory(moved, scheme_of(plan).residency).values())
    return Candidate(moved, mesh, ()) if needed <= room_bytes else None
