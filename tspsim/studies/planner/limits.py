"""How far a model goes on a cluster: questions that memory alone answers, by searches over a monotone yes or no."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace

from ...errors import InputError
from ...network import Cluster
from ...parallel import Job, Plan, peak_memory, scheme_of
from ...parallel.choices import legal
from .clock import NEVER, Deadline
from .space import Space, name_of

#: No model is asked about a longer sequence.
LONGEST_SEQUENCE = 2**30


@dataclass(frozen=True)
class Lean:
    """A plan that needs little memory, and what its fullest rank needs."""

    job: Job
    bytes: float

    @property
    def name(self) -> str:
        return name_of(self.job.plan)


@dataclass(frozen=True)
class Limits:
    """The ends of what fits; None where nothing does. Each comes with the plan that reaches it.

    Attributes
    ----------
    longest_sequence
        Tokens a sequence, the batch in sequences as it is; a multiple of ``step``.
    largest_batch
        Sequences of a step in which every replica works on one micro-batch: without accumulating gradients.
    fewest_nodes
        Whole nodes for the workload as it is.
    """

    longest_sequence: tuple[int, Lean] | None
    largest_batch: tuple[int, Lean] | None
    fewest_nodes: tuple[int, Lean] | None


def memory_bytes(job: Job) -> float:
    """What a job's fullest rank needs."""
    return sum(peak_memory(job, scheme_of(job.plan).residency).values())


def leanest(
    space: Space, room_bytes: float | None = None, needed: Callable[[Job], float] = memory_bytes
) -> Lean | None:
    """The plan of least memory, or the first that fits ``room_bytes``; None where no plan is legal.

    Only plans that can be it are looked at: micro-batches of one sequence, everything recomputed, regions where they
    can be, one chunk a stage, gradients or weights divided.
    """
    best: Lean | None = None
    for job in lean_jobs(space):
        found = needed(job)
        if best is None or found < best.bytes:
            best = Lean(job, found)
            if room_bytes is not None and found <= room_bytes:
                break
    return best


def lean_jobs(space: Space) -> Iterator[Job]:
    """Legal plans among which that of least memory is."""
    step = space.work.step
    if space.work.unequal.tokens:
        families = (family for family in space.families() if family.plan.recomputation == step.recomputation)
        for family, zero in itertools.product(families, (1, 3) if step.trains else (0,)):
            job = replace(family, plan=replace(family.plan, zero=zero if family.copies > 1 else 0))
            if legal(job):
                yield job
        return
    for degrees in space.degrees():
        dp, lone = degrees["dp"], Plan("", degrees)
        work = replace(space.work, sequences=space.batch // dp)
        every = itertools.product(
            space.expert_degrees(space.cluster.gpus // lone.pp),
            space.exchanges(lone),
            (False, True) if lone.tp > 1 else (False,),
            (2, 3) if step.trains and dp * lone.sp > 1 else (0,),
        )
        for ep, exchange, regions, zero in every:
            plan = Plan(
                "",
                {**degrees, "ep": ep},
                exchange=exchange,
                sequence_regions=regions,
                recomputation=step.recomputation,
                micro_batch=1,
                zero=zero,
            )
            job = Job(space.model, plan, work)
            if legal(job):
                yield job


def limits(
    space: Space, room_bytes: float, resized: Callable[[int], Cluster], deadline: Deadline = NEVER
) -> Limits:
    """Search the three limits; ``resized`` makes the cluster of so many nodes. Raises TimeoutError after the
    deadline."""

    def in_time(job: Job) -> float:
        if deadline.passed:
            raise TimeoutError
        return memory_bytes(job)

    def fits(tried: Space) -> Lean | None:
        found = leanest(tried, room_bytes, in_time)
        return found if found is not None and found.bytes <= room_bytes else None

    def needed(length: int) -> Callable[[Job], float]:
        """Memory of a plan at a length: what did not fit at a shorter one does not fit."""

        def of(job: Job) -> float:
            key = (tuple(job.plan.degrees.items()), job.plan.exchange, job.plan.sequence_regions, job.plan.zero)
            if refused.get(key, length + 1) <= length:
                return math.inf
            found = in_time(job)
            if found > room_bytes:
                refused[key] = min(length, refused.get(key, length))
            return found

        return of

    refused: dict[Hashable, int] = {}

    def of_length(sequence: int) -> Lean | None:
        asked = replace(space, work=replace(space.work, sequence=sequence))
        found = leanest(asked, room_bytes, needed(sequence))
        return found if found is not None and found.bytes <= room_bytes else None

    return Limits(longest(space, of_length), largest_batch(space, room_bytes), fewest(space, fits, resized))


def longest(space: Space, fits: Callable[[int], Lean | None]) -> tuple[int, Lean] | None:
    """Doubling, then halving the step: memory grows with the sequence under every plan.

    Lengths are multiples of the largest power of two that divides the sequence asked about, so that the same degrees
    divide them.
    """
    asked = space.work.sequence
    step = asked & -asked
    best = fits(asked)
    reached = asked
    while best is None and step > 1:  # shorter ones: the largest half, quarter, … that fits
        step //= 2
        reached, best = step, fits(step)
    if best is None:
        return None
    stride = step
    while reached + stride <= LONGEST_SEQUENCE:
        found = fits(reached + stride)
        if found is None:
            break
        reached, best = reached + stride, found
        stride *= 2
    while stride > step:
        stride //= 2
        found = fits(reached + stride)
        if found is not None:
            reached, best = reached + stride, found
    return reached, best


def largest_batch(space: Space, room_bytes: float) -> tuple[int, Lean] | None:
    """The most sequences at once: replicas times the largest micro-batch that fits, over all degrees."""
    best: tuple[int, Lean] | None = None
    for job in lean_jobs(replace(space, batch=space.cluster.gpus)):
        dp = job.plan.dp

        def alone(size: int, job: Job = job) -> Lean:
            plan, work = replace(job.plan, micro_batch=size), replace(job.work, sequences=size)
            grown = replace(job, plan=plan, work=work)
            return Lean(grown, memory_bytes(grown))

        # Nothing to gain unless it beats the best so far.
        size = (best[0] // dp + 1) if best is not None else 1
        found = alone(size)
        if found.bytes > room_bytes:
            continue
        stride = 1
        while True:
            further = alone(size + stride)
            if further.bytes > room_bytes:
                break
            size, found, stride = size + stride, further, stride * 2
        while stride > 1:
            stride //= 2
            further = alone(size + stride)
            if further.bytes <= room_bytes:
                size, found = size + stride, further
        best = (size * dp, found)
    return best


def fewest(
    space: Space, fits: Callable[[Space], Lean | None], resized: Callable[[int], Cluster]
) -> tuple[int, Lean] | None:
    """The smallest number of nodes, counting up: which degrees divide it changes from number to number."""
    most = space.cluster.nodes
    for nodes in range(1, most + 1):
        try:
            cluster = space.cluster if nodes == most else resized(nodes)
        except InputError:
            continue
        found = fits(replace(space, cluster=cluster, _placed={}, _meshes={}))
        if found is not None:
            return nodes, found
    return None
