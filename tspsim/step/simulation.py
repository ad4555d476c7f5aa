"""Answers questions: the one call that joins the rooms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.display import Progress
from ..base.errors import InputError, UnreachableError
from ..base.quick import no_collection
from ..base.units import duration, percent
from ..engine.core import Interference, Submission
from ..engine.instances import Assignment
from ..engine.steady import execute
from ..hardware import Costs
from ..parallel import Job, Plan, axes_of, build_mesh, peak_memory, scheme_axes, scheme_of, write_program
from ..parallel.pipeline import check_tasks
from ..parallel.remedy import fitting
from ..parallel.state import capacity
from ..program import Program
from ..program.instructions import Mesh
from ..scenario import Scenario, load
from . import apart, metrics
from .checkpointing import checkpoint_notes, checkpoint_of, held_s, spread_over, without_checkpoint
from .description import (
    cost_of,
    dead_links,
    describe_cluster,
    describe_model,
    link_use,
    provenance,
    range_of,
    settings_of,
    too_large,
)
from .draws import median_draw
from .giving_way import ORDERS, SAVED, TOGETHER, may_give_way, together_s
from .paths import LowerBound
from .question import FRESH, Lookups, Question, look_up
from .result import Memory, PlanResult, RankClass, Result
from .run import StepRun
from .statements import bottleneck, defaults_in_words, keys_without_effect, notes_of, of_experts_types, unexplained
from .tuning import kernels_s, short, tuned
from .variation import DRAWS, drawn, pace

__all__ = ["Lookups", "Question", "look_up", "run", "run_plan", "simulate"]


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    every_rank: bool = False,
    progress: Progress | None = None,
    lookups: Lookups = FRESH,
) -> Result:
    """Answer a scenario: every plan, in order.

    Parameters
    ----------
    scenario
        A scenario, or anything that :func:`tspsim.load` accepts.
    every_rank
        Simulate every rank instead of one per class of equal ranks; same answer, longer timeline.
    progress
        Called with a plan's name and the share of plans done before it.
    lookups
        Functions that resolve names.

    Raises
    ------
    InputError
        The scenario is wrong, such as a degree that divides nothing or an unknown name.
    """
    question = look_up(scenario if isinstance(scenario, Scenario) else load(scenario), lookups)
    results = []
    for index, plan in enumerate(question.plans):
        if progress is not None:
            progress(plan.name, index / len(question.plans))
        result = run_plan(question, plan, every_rank=every_rank)
        results.append(replace(result, notes=(*result.notes, *note_on_exchange_order(question, plan, result))))
    return Result(
        scenario=question.scenario.to_dict() | {"model": describe_model(question.model)},
        cluster=describe_cluster(question.cluster, question.device),
        plans=tuple(results),
        provenance=tuple(provenance(question)),
        defaults=(*question.scenario.in_words(), *defaults_in_words(question, question.plans)),
        unexplained=unexplained(question.work, question.plans),
        source_scenario=question.scenario,
    )


@dataclass(frozen=True)
class Admission:
    """Whether a job may run: its memory, the room that an engine leaves for caches, and the reason of a refusal."""

    memory: Memory
    room: capacity.Capacity | None
    error: str | None


def admitted(question: Question, job: Job) -> Admission:
    """Compare a job's memory with its device's."""
    visible = question.device.visible_memory_bytes
    memory = Memory(peak_memory(job, scheme_of(job.plan).residency), visible)
    room = capacity.capacity_of(job, visible) if job.step.serves else None

    def fits(other: Job) -> bool:
        held = capacity.capacity_of(other, visible).holds(capacity.kept_by(other))
        return held and sum(peak_memory(other, scheme_of(other.plan).residency).values()) <= visible

    error = room.refusal(capacity.kept_by(job), lambda: fitting(job, fits)) if room is not None else None
    if error is None and not memory.fits:
        keys = fitting(job, fits) if job.step.serves else ""
        error = too_large(memory) + (f"; it fits with {keys}" if keys else "")
    return Admission(memory, room, error)


@no_collection()
def step_of(question: Question, job: Job, costs: Costs, *, every_rank: bool = False) -> StepRun:
    """Simulate a job's step with ``costs``, which records the kernels; raises UnreachableError over dead links."""
    question = question.on(job.plan)
    mesh = build_mesh(job.plan, question.cluster.gpus, question.cluster.gpus_per_node)
    submission, expected_s = run(question, mesh, job, costs, every_rank=every_rank), 0.0
    if question.scenario.variation is not None and every_rank:
        draws = (submission, *(run(question, mesh, job, costs, every_rank=True, draw=n) for n in range(1, DRAWS)))
        expected_s = sum(drawn_run.makespan_s for drawn_run in draws) / DRAWS
        # The timeline shown is that of the draw closest to the mean.
        submission = min(draws, key=lambda drawn_run: abs(drawn_run.makespan_s - expected_s))
    costs.transfers = metrics.transfer_range(submission) or costs.transfers
    serves = job.step.serves
    period_s = metrics.period_s(job, submission) if serves else submission.makespan_s
    between_s = metrics.host_s(job, period_s, submission.makespan_s)
    makespan_s = (expected_s or submission.makespan_s) + between_s
    parts = metrics.breakdown(submission)
    return StepRun(submission, makespan_s, between_s, parts)


def run_plan(question: Question, plan: Plan, *, every_rank: bool = False, costs: Costs | None = None) -> PlanResult:
    """Answer one plan: refused with its memory if it does not fit, otherwise simulated with ``costs``.

    If switches draw paths (:mod:`tspsim.network.routing`), every draw is simulated with the schedule chosen for the
    first; the answer is the draw of the median step, with the range of the others.

    Raises
    ------
    InputError
        The scenario asks for iterations of a loop.
    """
    if question.scenario.loop is not None:
        raise InputError("is of whole iterations; leave it out of a single step", key="loop")
    here = question.on(plan)
    routings = here.cluster.routing.draws() if here.cluster.layout.draws else (here.cluster.routing,)
    if len(routings) == 1:
        return _run_job(here, scheduled(here, plan), every_rank=every_rank, costs=costs)
    draws = [replace(here, cluster=here.cluster.with_routing(policy)) for policy in routings]
    chosen = scheduled(draws[0], replace(plan, routing=None)).plan
    results = []
    for draw in draws:
        result = _run_job(draw, draw.job(chosen), every_rank=every_rank, costs=costs)
        if not result.ran:
            return result
        results.append(result)
    return median_draw(results, here.cluster.routing)


@no_collection()
def _run_job(question: Question, job: Job, *, every_rank: bool, costs: Costs | None) -> PlanResult:
    """Answer a scheduled job on the question's own cluster."""
    cluster, device, plan = question.cluster, question.device, job.plan
    admission = admitted(question, job)
    memory, room = admission.memory, admission.room
    degrees = {axis: plan.degree(axis) for axis in (*scheme_axes(), "pp", "ep", "dp")}
    settings = settings_of(plan)
    if admission.error is not None:
        return PlanResult(plan.name, degrees, memory, settings, error=admission.error, notes=notes_of(job))
    costs = costs or Costs(device)
    writes = job.training and plan.checkpoint is not None
    try:
        plain = step_of(question, without_checkpoint(job), costs, every_rank=every_rank) if writes else None
        if plain is not None:
            job = replace(job, held_s=held_s(question, job, plain))
        step = step_of(question, job, costs, every_rank=every_rank)
    except UnreachableError as error:
        return PlanResult(plan.name, degrees, memory, settings, error=str(error), notes=notes_of(job))
    written: dict[str, float] = {}
    if plain is not None:
        written = checkpoint_of(question, job, plain, step)
        # One of several steps writes: the answer shows the others, with the stall spread over all.
        step = step if plan.checkpoint_every == 1 else spread_over(plain, written["stall_s"], plan.checkpoint_every)
    submission, makespan_s, between_s, parts = step.submission, step.makespan_s, step.between_s, step.parts
    tokens = job.work.counted_over(plan.dp)
    model_flops = job.work.tokens_of(plan.dp) * question.work.flops_per_token(question.model)
    peak = question.peak_of(question.work.precision)
    block = submission if steady_blocks(job) else run_block(question, job, costs)
    alone = metrics.one_forward(job)
    block_tokens = tokens if job.unequal else alone.group_tokens * plan.dp * plan.pp
    # Micro-batches that differ have no steady layer: the forward of all counts.
    block_s = block.makespan_s / alone.model.layers if job.unequal else metrics.layer_period_s(block)
    links, link_shares = link_use(cluster, submission, makespan_s)
    return PlanResult(
        name=plan.name,
        degrees=degrees,
        memory=memory,
        settings=settings,
        step_time_s=makespan_s,
        tokens_per_step=tokens,
        gpus=cluster.gpus,
        block_forward_tokens_per_s=block_tokens / block_s,
        mfu=model_flops / (makespan_s * peak),
        dropped_share=question.work.dropped_share(question.model),
        breakdown_s={
            "compute": parts.total_compute_s,
            "exposed_communication": dict(sorted(parts.exposed_s.items())),
            "bubble": parts.idle_s if plan.pp > 1 else 0.0,
            "idle": between_s + parts.host_s + (0.0 if plan.pp > 1 else parts.idle_s),
            # Part of ``idle``.
            **({"host": between_s + parts.host_s} if between_s + parts.host_s > 0.0 else {}),
        },
        compute_by_kind_s=dict(sorted(parts.compute_s.items())),
        communication_bytes_per_layer=metrics.received_bytes_per_layer(submission, question.model.layers),
        communication_bytes_per_step=metrics.moved_bytes_per_step(submission),
        links=links,
        link_shares=link_shares,
        dead_links=dead_links(cluster),
        classes=tuple(RankClass(s.rank.number, s.size, s.role.program.role) for s in submission.ranks),
        cost=cost_of(question, makespan_s, tokens),
        range=range_of(costs, tokens, makespan_s, parts, question.work.stack),
        bottleneck=bottleneck(parts, makespan_s),
        notes=(
            *notes_of(job),
            *of_experts_types(question, job),
            *keys_without_effect(question, job),
            *(checkpoint_notes(written) if written else ()),
            *([AT_WORST] if submission.system.at_worst else []),
            *([submission.system.note] if submission.system.note else []),
            *varied(question, job, every_rank=every_rank),
            *note_on_slices(question, job),
        ),
        checkpoint=written,
        inference=metrics.answer(job, makespan_s, room) if room is not None else {},
        timeline=submission.timeline,
    )


def scheduled(question: Question, plan: Plan) -> Job:
    """A plan's job with its open switches chosen for the machine (:mod:`tspsim.step.tuning`), and with short prompts
    padded if that is faster."""
    job = question.job(plan)
    if job.plan.open:
        job = replace(job, plan=tuned(job, question.on(plan).cluster, question.device))
    if not (job.step.serves and job.token_shards == 1 and job.work.load.short_prompts):
        return job
    try:
        return min(
            (job, job.padding_prompts()), key=lambda way: step_of(question, way, Costs(question.device)).makespan_s
        )
    except UnreachableError:  # the run itself reports ranks cut off by dead links
        return job


def run(
    question: Question,
    mesh: Mesh,
    job: Job,
    costs: Costs,
    *,
    every_rank: bool,
    every_iteration: bool = False,
    draw: int = 0,
    ordered: Callable[[Program], Program] | None = None,
) -> Submission:
    """Write the plan's programs, assign them to ranks, and let the engine run them.

    ``draw``: index of the draw of every rank's pace, if GPUs vary; ``ordered`` changes the order of each program.
    """
    scheme = scheme_of(job.plan)
    if job.training and not job.unequal:
        check_tasks(job.order, job.plan.pp, job.micro_batches, job.plan.vpp)
    roles, role_of = mesh.coordinates(axes_of(job))
    device, stack = question.device, job.work.stack
    variation, slowed, gpus = question.scenario.variation, 1.0, question.cluster.gpus
    interference = Interference.of(job, device)
    whole = every_rank or every_iteration or variation or question.others or question.scenario.faults.slow_gpus
    if not whole and job.unequal and apart.too_long_to_run_whole(job):
        return apart.run_apart(question.cluster, stack.cost(costs, device, job.capture), mesh, job, interference)
    with no_collection():
        programs = tuple([write_program(scheme, job, role) for role in roles])
        if ordered is not None:
            programs = tuple(map(ordered, programs))
        slowness = slowness_of(question, job, programs, role_of)
        if variation is not None and every_rank:
            slowness = {gpu: factor * slowness.get(gpu, 1.0) for gpu, factor in drawn(variation, gpus, draw).items()}
        elif variation is not None:
            slowed = pace(variation, job, gpus)
        cost = stack.cost(costs, device, job.capture)
        return execute(
            question.cluster,
            cost if slowed == 1.0 else lambda operator: slowed * cost(operator),
            Assignment(mesh, programs, role_of, slowness),
            interference=interference,
            every_rank=every_rank,
            every_iteration=every_iteration,
        )


def slowness_of(
    question: Question, job: Job, programs: Sequence[Program], role_of: NDArray[np.int64]
) -> dict[int, float]:
    """Rank → factor on its kernels' time, for slow GPUs and for other devices than the cluster's.

    On another device, every kernel of a program is scaled by the ratio of the program's kernel time there and here.
    """
    slowness: dict[int, float] = {}
    stack, device = job.work.stack, question.device
    for other in question.others:
        here, there = (stack.cost(Costs(of_device), of_device, job.capture) for of_device in (device, other.device))
        longer = [kernels_s(program, there) / max(kernels_s(program, here), 1e-30) for program in programs]
        slowness |= {rank: longer[int(role_of[rank])] for rank in range(other.first, other.first + other.gpus)}
    for slow in question.scenario.faults.slow_gpus:
        slowness[slow.gpu] = slowness.get(slow.gpu, 1.0) * slow.factor
    return slowness


def steady_blocks(job: Job) -> bool:
    """Whether the pass is one forward through all layers, so that its own layers show the steady block."""
    return not (job.step.trains or job.unequal) and job.micro_batches == 1 and job.plan.pp == 1


def run_block(question: Question, job: Job, costs: Costs) -> Submission:
    """The forward of a few layers and one micro-batch, with a pipeline's stages as parallel replicas.

    Kernels cost what they do in ``costs``, whose record of errors stays that of the step.
    """
    job, question = metrics.one_forward(job), question.on(job.plan)
    mesh = build_mesh(job.plan, question.cluster.gpus, question.cluster.gpus_per_node)
    return run(question, mesh, job, Costs(costs.device, costs.scales), every_rank=False)


def varied(question: Question, job: Job, *, every_rank: bool) -> Iterator[str]:
    """A note on the effect of varying GPUs on a plan's kernels."""
    variation = question.scenario.variation
    if variation is None:
        return
    if every_rank:
        yield f"the step is the mean of {DRAWS} draws of every GPU; the timeline shows the draw closest to it"
        return
    slowed = percent(pace(variation, job, question.cluster.gpus) - 1.0)
    yield f"kernels take {slowed} longer: the expected pace of the slowest of {question.cluster.gpus:,} GPUs"


def note_on_exchange_order(question: Question, plan: Plan, result: PlanResult) -> Iterator[str]:
    """A note if the step would be shorter with replicas' gathers and reductions before or after a layer's exchanges,
    with which they share links: a better link may then make the step longer. Both orders are simulated."""
    if not plan.zero:
        return
    here = question.on(plan)
    timeline, step_s = result.timeline, result.step_time_s
    if timeline is None or result.checkpoint or here.cluster.layout.draws or question.scenario.variation is not None:
        return
    job = scheduled(here, plan)
    if not (may_give_way(job) and short(job, here.cluster.gpus)) or together_s(timeline) < TOGETHER * step_s:
        return
    mesh = build_mesh(job.plan, here.cluster.gpus, here.cluster.gpus_per_node)
    columns = timeline.columns()
    before_s = float(columns["end_s"].max() - columns["start_s"].min())
    took_s = {
        order: run(here, mesh, job, Costs(here.device), every_rank=False, ordered=ordered).makespan_s
        for order, ordered in ORDERS.items()
    }
    order = min(took_s, key=took_s.__getitem__)
    if (saved := 1.0 - took_s[order] / before_s) > SAVED:
        yield (
            "gathers and sums between replicas share links with a layer's own exchanges, and delay those that the step "
            f"waits for: in another order of the two, {order}, the step would take {duration(took_s[order])}, "
            f"{percent(saved)} less; a better link can make such a step longer (`tspsim docs network.md`)"
        )


def note_on_slices(question: Question, job: Job) -> Iterator[str]:
    """A note if layers would be faster without slices: the slices' slower products may cost more than they hide.

    Decided by the longest path through one layer, forward and backward.
    """
    plan, device, cluster = job.plan, question.device, question.cluster
    if plan.overlap is not True or job.step.serves or plan.tp * plan.sp == 1:
        return
    stack = job.work.stack
    cost = stack.cost(Costs(device), device, job.capture)
    peak = max(device.peak_flops_per_s.values())
    bound = LowerBound(cluster, cost, peak, stack.slowdown(device))
    mesh = build_mesh(plan, cluster.gpus, cluster.gpus_per_node)
    try:
        cut, whole = (bound.layer_s(replace(job, plan=replace(plan, overlap=how)), mesh) for how in (True, False))
    except UnreachableError:  # the run itself reports it
        return
    if cut > NOTEWORTHY * whole:
        more, slices = percent(cut / whole - 1.0), plan.overlap_chunks
        yield f"overlap: true loses: a layer in {slices} slices takes {more} longer than whole; leave it out"


#: A sliced layer that is slower by less may still be faster within a step: the path through one layer leaves out the
#: overlap with its neighbours.
NOTEWORTHY = 1.05
#: Note on a plan whose groups use a fabric unevenly.
AT_WORST = (
    "groups use the links between switches unevenly: ranks that differ in nothing else get the worst link of them all "
    "(`tspsim docs engine.md`)"
)
