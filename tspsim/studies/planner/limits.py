"""How far a model goes on a cluster: questions that memory alone answers, by searches over a monotone yes or no."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...base.errors import InputError
from ...base.quick import replace
from ...network import Cluster
from ...parallel import Job, Plan, scheme_of
from ...parallel.choices import legal, with_defaults
from ...parallel.state.memory import stage_memory, workspace
from ...step.paths import CHECK_S, MEMORY_S
from .candidate import name_of
from .clock import NEVER, Deadline
from .room import memory_bytes
from .space import LEAST_TOKENS, Space

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
class FittingEnds:
    """The ends of what fits; None where nothing does. Each comes with the plan that reaches it."""

    #: Tokens a sequence, the batch in sequences as it is; a multiple of ``step``.
    longest_sequence: tuple[int, Lean] | None
    #: Sequences of a step in which every replica works on one micro-batch: without accumulating gradients.
    largest_batch: tuple[int, Lean] | None
    #: Whole nodes for the workload as it is.
    fewest_nodes: tuple[int, Lean] | None


def bytes_up_to(room_bytes: float, job: Job) -> float:
    """What a job's fullest rank needs, or where the first stage alone needs more than there is what that needs."""
    training = job.training and not job.unequal
    if training and (least := least_workspace(job)) > room_bytes:
        return least
    if job.plan.pp > 1:
        first = sum(stage_memory(job, scheme_of(job.plan).residency, 0).values())
        if first > room_bytes:
            return first
    return memory_bytes(job)


def least_workspace(job: Job) -> float:
    """What the layer at work needs, of layers that differ the one that needs least: every rank has that."""
    shards = scheme_of(job.plan).residency.compute_shards(job)
    return min(workspace(job, shards, block) for block, _ in job.model.kinds(0, job.model.layers))


def leanest(
    space: Space, room_bytes: float | None = None, needed: Callable[[Job], float] = memory_bytes
) -> Lean | None:
    """The plan of least memory, or the first that fits ``room_bytes``; None where no plan is legal.

    Only plans that can be it are looked at: micro-batches of one sequence, everything recomputed, regions where they
    can be, one chunk a stage, gradients or weights divided.
    """
    best: Lean | None = None
    for job in lean_jobs(space):
        space.effort.add(MEMORY_S)
        found = needed(job)
        if best is None or found < best.bytes:
            best = Lean(job, found)
            if room_bytes is not None and found <= room_bytes:
                break
    return best


def lean_jobs(space: Space, *, checked: bool = True) -> Iterator[Job]:
    """Legal plans among which that of least memory is, or with ``checked`` off those that may be legal."""
    step = space.work.step
    if space.work.unequal.tokens:
        families = (family for family in space.families() if family.plan.recomputation == step.recomputation)
        for family, zero in itertools.product(families, (1, 3) if step.trains else (0,)):
            job = replace(family, plan=replace(family.plan, zero=zero if family.copies > 1 else 0))
            if space.legal(job):
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
            job = Job(space.model, with_defaults(plan), work)
            if not checked or space.legal(job):
                yield job


def limits(
    space: Space, room_bytes: float, resized: Callable[[int], Cluster], deadline: Deadline = NEVER
) -> FittingEnds:
    """Search the three limits; ``resized`` makes the cluster of so many nodes. Raises TimeoutError after the
    deadline."""

    def needed(job: Job) -> float:
        if deadline.passed:
            raise TimeoutError
        space.effort.add(CHECK_S + MEMORY_S)
        return bytes_up_to(room_bytes, job)

    def fits(tried: Space) -> Lean | None:
        found = leanest(tried, room_bytes, needed)  # how much too large is not asked
        return found if found is not None and found.bytes <= room_bytes else None

    return FittingEnds(
        longest(space, room_bytes, needed), largest_batch(space, room_bytes, needed), fewest(space, fits, resized)
    )


def longest(space: Space, room_bytes: float, needed: Callable[[Job], float] = memory_bytes) -> tuple[int, Lean] | None:
    """Plan by plan, those with most token shards first. Memory grows with the sequence under every plan, so that one
    look tells whether a plan goes further than the best so far; if it does, doubling, then halving the step.

    Lengths are multiples of the largest power of two that divides the sequence asked about, and no shorter; where
    nothing fits that, multiples of the half, quarter, … of it.
    """
    asked = space.work.sequence
    step, least = asked & -asked, asked
    anywhere = replace(space, work=replace(space.work, sequence=LONGEST_SEQUENCE), _pipelines={})
    every = sorted(enumerate(lean_jobs(anywhere, checked=False)), key=lambda each: -each[1].plan.token_shards)
    best: tuple[int, Lean] | None = None
    number = 0
    while best is None and step:
        for index, job in every:
            # Of two that go as far the first.
            beyond = least if best is None else best[0] + (step if index > number else 0)
            found = _furthest(job, step, beyond, room_bytes, needed)
            if found is not None:
                best, number = found, index
        step, least = step // 2, step // 2
    return best


def _furthest(
    job: Job, step: int, least: int, room_bytes: float, needed: Callable[[Job], float]
) -> tuple[int, Lean] | None:
    """The longest sequence of at least ``least`` tokens, a multiple of ``step``, with which a plan fits; None where it
    fits none."""
    shards = job.plan.token_shards
    grid = math.lcm(step, 2 * shards if shards > 1 else 1)

    def fits(length: int) -> Lean | None:
        tried = replace(job, work=replace(job.work, sequence=length))
        if length > LONGEST_SEQUENCE or not legal(tried):
            return None
        lean = Lean(tried, needed(tried))
        return lean if lean.bytes <= room_bytes else None

    first = max(least, shards * LEAST_TOKENS if shards > 1 else 1)
    reached = -(-first // grid) * grid
    best = fits(reached)
    if best is None:
        return None
    stride = grid
    while (found := fits(reached + stride)) is not None:
        reached, best, stride = reached + stride, found, 2 * stride
    while stride > grid:
        stride //= 2
        found = fits(reached + stride)
        if found is not None:
            reached, best = reached + stride, found
    return reached, best


def largest_batch(
    space: Space, room_bytes: float, needed: Callable[[Job], float] = memory_bytes
) -> tuple[int, Lean] | None:
    """The most sequences at once: replicas times the largest micro-batch that fits, over all degrees."""
    best: tuple[int, Lean] | None = None
    for job in lean_jobs(replace(space, batch=space.cluster.gpus)):
        dp = job.plan.dp

        def alone(size: int, job: Job = job) -> Lean:
            plan, work = replace(job.plan, micro_batch=size), replace(job.work, sequences=size)
            grown = replace(job, plan=plan, work=work)
            return Lean(grown, needed(grown))

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
        found = fits(space.on(cluster))
        if found is not None:
            return nodes, found
    return None
