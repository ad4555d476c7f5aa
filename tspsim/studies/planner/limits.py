"""The largest problems that fit a cluster: questions of memory only, answered by search over a monotone condition."""

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

#: The longest sequence that is tried.
LONGEST_SEQUENCE = 2**30


@dataclass(frozen=True)
class LeanPlan:
    """A plan that needs little memory, and the bytes of its fullest rank."""

    job: Job
    bytes: float

    @property
    def name(self) -> str:
        return name_of(self.job.plan)


@dataclass(frozen=True)
class FittingEnds:
    """The limits of what fits, each with the plan that reaches it; None where nothing fits."""

    #: Tokens per sequence at the stated batch; a multiple of ``step``.
    longest_sequence: tuple[int, LeanPlan] | None
    #: Sequences of a step with one micro-batch per replica: without gradient accumulation.
    largest_batch: tuple[int, LeanPlan] | None
    #: Whole nodes for the workload as stated.
    fewest_nodes: tuple[int, LeanPlan] | None


def bytes_up_to(room_bytes: float, job: Job) -> float:
    """Bytes of a job's fullest rank; where the first stage alone exceeds ``room_bytes``, the bytes of that stage."""
    training = job.training and not job.unequal
    if training and (least := least_workspace(job)) > room_bytes:
        return least
    if job.plan.pp > 1:
        first = sum(stage_memory(job, scheme_of(job.plan).residency, 0).values())
        if first > room_bytes:
            return first
    return memory_bytes(job)


def least_workspace(job: Job) -> float:
    """Workspace of the active layer (of unlike layers the smallest): every rank has at least that."""
    shards = scheme_of(job.plan).residency.compute_shards(job)
    return min(workspace(job, shards, block) for block, _ in job.model.kinds(0, job.model.layers))


def leanest(
    space: Space, room_bytes: float | None = None, needed: Callable[[Job], float] = memory_bytes
) -> LeanPlan | None:
    """The plan of least memory, or the first that fits ``room_bytes``; None where no plan is legal.

    Only plans that can be the leanest are considered: micro-batches of one sequence, full recomputation, sequence
    regions where possible, one chunk per stage, gradients or weights divided.
    """
    best: LeanPlan | None = None
    for job in lean_jobs(space):
        space.effort.add(MEMORY_S)
        needed_bytes = needed(job)
        if best is None or needed_bytes < best.bytes:
            best = LeanPlan(job, needed_bytes)
            if room_bytes is not None and needed_bytes <= room_bytes:
                break
    return best


def lean_jobs(space: Space, *, checked: bool = True) -> Iterator[Job]:
    """Legal plans that include the one of least memory; with ``checked`` off, plans that may be legal."""
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
    """Search the three limits. ``resized`` builds the cluster of a number of nodes. Raises TimeoutError after the
    deadline."""

    def needed(job: Job) -> float:
        if deadline.passed:
            raise TimeoutError
        space.effort.add(CHECK_S + MEMORY_S)
        return bytes_up_to(room_bytes, job)

    def fits(tried: Space) -> LeanPlan | None:
        lean = leanest(tried, room_bytes, needed)  # without the size of a miss
        return lean if lean is not None and lean.bytes <= room_bytes else None

    return FittingEnds(
        longest(space, room_bytes, needed), largest_batch(space, room_bytes, needed), fewest(space, fits, resized)
    )


def longest(
    space: Space, room_bytes: float, needed: Callable[[Job], float] = memory_bytes
) -> tuple[int, LeanPlan] | None:
    """The longest sequence, plan by plan, those with most token shards first. Memory grows with the sequence under
    every plan, so one check tells whether a plan beats the best so far; then doubling and bisection find its limit.

    Lengths are multiples of the largest power of two that divides the stated sequence, and at least as long. Where
    nothing fits, halves, quarters, … of that are tried.
    """
    stated = space.work.sequence
    step, least = stated & -stated, stated
    anywhere = replace(space, work=replace(space.work, sequence=LONGEST_SEQUENCE), _pipelines={})
    every = sorted(enumerate(lean_jobs(anywhere, checked=False)), key=lambda entry: -entry[1].plan.token_shards)
    best: tuple[int, LeanPlan] | None = None
    number = 0
    while best is None and step:
        for index, job in every:
            # Of two plans with the same limit, the first.
            beyond = least if best is None else best[0] + (step if index > number else 0)
            furthest = _furthest(job, step, beyond, room_bytes, needed)
            if furthest is not None:
                best, number = furthest, index
        step, least = step // 2, step // 2
    return best


def _furthest(
    job: Job, step: int, least: int, room_bytes: float, needed: Callable[[Job], float]
) -> tuple[int, LeanPlan] | None:
    """The longest sequence of at least ``least`` tokens, a multiple of ``step``, with which a plan fits; None where
    none does."""
    shards = job.plan.token_shards
    grid = math.lcm(step, 2 * shards if shards > 1 else 1)

    def fits(length: int) -> LeanPlan | None:
        tried = replace(job, work=replace(job.work, sequence=length))
        if length > LONGEST_SEQUENCE or not legal(tried):
            return None
        lean = LeanPlan(tried, needed(tried))
        return lean if lean.bytes <= room_bytes else None

    first = max(least, shards * LEAST_TOKENS if shards > 1 else 1)
    reached = -(-first // grid) * grid
    best = fits(reached)
    if best is None:
        return None
    stride = grid
    while (lean := fits(reached + stride)) is not None:
        reached, best, stride = reached + stride, lean, 2 * stride
    while stride > grid:
        stride //= 2
        lean = fits(reached + stride)
        if lean is not None:
            reached, best = reached + stride, lean
    return reached, best


def largest_batch(
    space: Space, room_bytes: float, needed: Callable[[Job], float] = memory_bytes
) -> tuple[int, LeanPlan] | None:
    """The most sequences at once: replicas times the largest micro-batch that fits, over all degrees."""
    best: tuple[int, LeanPlan] | None = None
    for job in lean_jobs(replace(space, batch=space.cluster.gpus)):
        dp = job.plan.dp

        def alone(size: int, job: Job = job) -> LeanPlan:
            plan, work = replace(job.plan, micro_batch=size), replace(job.work, sequences=size)
            grown = replace(job, plan=plan, work=work)
            return LeanPlan(grown, needed(grown))

        # Only a batch larger than the best so far matters.
        size = (best[0] // dp + 1) if best is not None else 1
        lean = alone(size)
        if lean.bytes > room_bytes:
            continue
        stride = 1
        while True:
            further = alone(size + stride)
            if further.bytes > room_bytes:
                break
            size, lean, stride = size + stride, further, stride * 2
        while stride > 1:
            stride //= 2
            further = alone(size + stride)
            if further.bytes <= room_bytes:
                size, lean = size + stride, further
        best = (size * dp, lean)
    return best


def fewest(
    space: Space, fits: Callable[[Space], LeanPlan | None], resized: Callable[[int], Cluster]
) -> tuple[int, LeanPlan] | None:
    """The smallest number of nodes that fits, counting up: which degrees divide it changes with the number."""
    most = space.cluster.nodes
    for nodes in range(1, most + 1):
        try:
            cluster = space.cluster if nodes == most else resized(nodes)
        except InputError:
            continue
        lean = fits(space.on(cluster))
        if lean is not None:
            return nodes, lean
    return None
