"""Laws of a step: of a scenario's first plan, by the engine and by all bounds and closed forms."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...answer.kinds import bounds, simulate
from ...base.errors import InputError, shorten
from ...engine.timeline import Timeline
from ...hardware import Costs
from ...parallel import Job, Plan, build_mesh, peak_memory, scheme_of
from ...parallel.context.attention import context_bytes, shard_of
from ...parallel.expert_shards import copies, gathering, tokens_travel, weights
from ...parallel.rank_groups import expert_ranks
from ...parallel.routing import BALANCED
from ...parallel.search_keys import search_keys
from ...scenario import load
from ...step.metrics import FORWARD_PARTS
from ...step.paths import Division, LowerBound
from ...step.question import Question, look_up
from ...step.result import PlanResult
from ...step.simulation import run_plan, scheduled
from .findings import Finding, judged

#: Relative difference of two sums by rounding.
ROUNDING = 1e-9
#: Share of the model's work that a forward may lack, by the rounding of attention tiles.
UNDONE = 0.02


def hold(document: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Every law for this question's first plan; a plan that its own check refuses is left out, not broken."""
    try:
        question = look_up(load(document))
        job = scheduled(question, question.plans[0])
        answer = run_plan(question, job.plan)
    except InputError as error:
        yield Finding("it runs", where, "left out", shorten(error, 200))
        return
    if not answer.ran:
        yield Finding("it runs", where, "left out", shorten(answer.error or "", 200))
        return
    yield judged("it runs", where, answer.step_time_s > 0.0, "a step takes no time")
    forward = not (job.step.trains or job.step.serves)
    if forward:
        yield closed_form(job, answer, where)
        yield necessary(question, job, answer, where)
        yield work_done(question, job, answer, where)
    yield below_bounds(document, answer, where)
    if not job.step.serves:
        yield below_paths(question, job, answer, where, document["plans"][0])
    yield remembered(job, answer, where)
    yield from folded(document, answer, where)


def closed_form(job: Job, answer: PlanResult, where: str) -> Finding:
    """Bytes received in closed form equal those of the program that ran."""
    law = "bytes received are those of the closed form"
    if job.model.experts is not None and job.work.routing != BALANCED:
        return Finding(law, where, "left out", "what uneven loads move has none")
    stated = sum(part.bytes for part in scheme_of(job.plan).received(job, False)) + experts_bytes(job)
    moved = float(answer.communication_bytes_per_layer["total"])
    kept = abs(stated - moved) <= 1e-9 * max(stated, moved)
    why = f"its closed form says {stated:,.0f} bytes a layer and rank, its program moves {moved:,.0f}"
    return judged(law, where, kept, why)


def experts_bytes(job: Job) -> float:
    """Bytes that a rank receives in one layer's forward for its experts, of weights and of tokens in both directions,
    where all experts are equally likely."""
    experts, plan = job.model.experts, job.plan
    if experts is None:
        return 0.0
    size = weights(job) * job.weight_bytes * (1.0 - 1.0 / gathering(job)[1]) if weights(job) else 0.0
    if tokens_travel(job):
        rows = job.tokens // (plan.tp if plan.sequence_regions else 1) * copies(job, experts)
        size += 2.0 * rows * job.model.hidden * job.activation_bytes * (1.0 - 1.0 / plan.ep)
    return size


def necessary(question: Question, job: Job, answer: PlanResult, where: str) -> Finding:
    """Every rank receives at least the bytes that attention needs.

    A token's attention depends on the keys and values of all tokens before it. A rank with a part of the sequence
    receives either those keys and values of the others (in the mean over ranks at least half of them), or the partial
    outputs of its queries: as wide as the queries, for every token but its own. The smaller of both is the least.
    """
    law = "ranks receive what attention needs"
    shards = job.plan.token_shards
    if shards == 1 or job.model.experts is not None or job.model.latent is not None or job.model.window:
        ranks = question.cluster.gpus // max(1, job.plan.dp)
        moved = answer.communication_bytes_per_layer["total"]
        if ranks > 1 and job.plan.pp == 1 and expert_ranks(job) == 1:
            return judged("ranks of a replica tell each other something", where, moved > 0.0, "no byte is moved")
        return Finding(law, where, "left out", "tokens are not divided")
    layer = shard_of(job)
    others = context_bytes(job, layer) * (shards - 1) / shards
    outputs = job.tokens * layer.query_width * job.activation_bytes * (shards - 1) / shards
    least = min(0.5 * others, outputs)
    received = float(answer.communication_bytes_per_layer["attention"])
    why = (
        f"a rank receives {received:,.0f} bytes a layer for attention, and cannot do with less than {least:,.0f}: keys "
        "and values of other shards, or their answers to its queries"
    )
    return judged(law, where, received >= least * (1.0 - ROUNDING), why)


def work_done(question: Question, job: Job, answer: PlanResult, where: str) -> Finding:
    """All ranks together do the model's arithmetic: as much per token as a plan of one GPU per replica."""
    law = "all of the model's work is done"
    if job.model.experts is not None or answer.timeline is None:
        return Finding(law, where, "left out", "experts count what reaches them")
    alone = {"name": "alone", "dp": question.cluster.gpus}
    scenario = question.scenario.model_copy(update={"plans": (type(question.scenario.plans[0]).model_validate(alone),)})
    (whole,) = simulate(scenario).plans
    if whole.timeline is None:
        return Finding(law, where, "left out", "one GPU does not hold the model")
    done, needed = (flops(result) / result.tokens_per_step for result in (answer, whole))
    why = f"its kernels do {done / needed:.1%} of the arithmetic that the model's layers take"
    return judged(law, where, done >= (1.0 - UNDONE) * needed, why)


def flops(answer: PlanResult) -> float:
    """FLOPs of the layers' forward, over all ranks."""
    timeline = answer.timeline
    assert isinstance(timeline, Timeline)
    size = {kind.representative: kind.size for kind in answer.classes}
    done = timeline.labelled(lambda label: label.flops if label.part in FORWARD_PARTS else 0.0, float)
    return float(sum(size[rank] * taken for rank, taken in zip(timeline.columns()["rank"].tolist(), done, strict=True)))


def below_bounds(document: Mapping[str, Any], answer: PlanResult, where: str) -> Finding:
    """``tspsim bound`` lies above the answer."""
    try:
        bound = bounds(load(document)).plans[0]
    except InputError as error:
        return Finding("no answer is above its physical bound", where, "left out", shorten(error, 120))
    why = f"{answer.tokens_per_s:,.4g} tokens/s are above the bound of {bound.tokens_per_s:,.4g}"
    kept = answer.tokens_per_s <= bound.tokens_per_s * (1.0 + ROUNDING)
    return judged("no answer is above its physical bound", where, kept, why)


def below_paths(question: Question, job: Job, answer: PlanResult, where: str, stated: Mapping[str, Any]) -> Finding:
    """Every lower bound that the planner rules plans out by lies below the engine's step, for plans that a search
    tries. The first two bounds are of families, whose order of tasks is still open."""
    law = "the planner's lower bounds lie below the step"
    keys = search_keys()
    alone = [key for key in stated if key in keys and keys[key].why_not]
    if alone:
        return Finding(law, where, "left out", f"no search tries {alone[0]}")
    family = replace(job, plan=replace(job.plan, schedule=Plan.schedule))
    device, cluster = question.device, question.cluster
    bound = LowerBound(cluster, Costs(device), max(device.peak_flops_per_s.values()), device.compute_slowdown)
    mesh = build_mesh(job.plan, cluster.gpus, cluster.gpus_per_node)
    own = [Division(job.plan.zero, job.plan.shard_group, mesh)]
    ways: dict[str, Callable[[], float]] = {
        "floor": lambda: bound.floor_s(family),
        "compute": lambda: bound.compute_s(family),
        "rough": lambda: bound.rough_s(job, mesh),
        "step": lambda: bound.step_s(job, mesh),
        "even": lambda: bound.even_s(job, mesh, own),
        "rough of divisions": lambda: bound.rough_s(job, mesh, own),
        "outline": lambda: bound.outline_s(job, mesh, own),
    }
    bounds_s = {name: way() for name, way in ways.items()}
    name = max(bounds_s, key=lambda key: bounds_s[key])
    why = f"the bound '{name}' says {bounds_s[name]:.6g} s at least, the engine {answer.step_time_s:.6g} s"
    kept = bounds_s[name] <= answer.step_time_s * (1.0 + ROUNDING)
    return judged(law, where, kept, why)


def remembered(job: Job, answer: PlanResult, where: str) -> Finding:
    """Memory has a name for every part, and a part for the context that other shards send."""
    law = "memory names what is kept"
    parts = peak_memory(job, scheme_of(job.plan).residency)
    odd = [name for name, size in parts.items() if not name.isidentifier() or size <= 0.0]
    if odd:
        return judged(law, where, False, f"'{shorten(odd[0])}' of {parts[odd[0]]:,.0f} bytes is no part of memory")
    if job.step.serves or job.model.experts is not None:
        return judged(law, where, bool(parts))
    needs = job.plan.token_shards > 1
    why = "received keys and values are in no buffer (gathered_context)" if needs else "one shard gathers nothing"
    return judged(law, where, ("gathered_context" in parts) == needs, why)


def folded(document: Mapping[str, Any], answer: PlanResult, where: str) -> Iterator[Finding]:
    """A folded run equals one of every rank, and the same question gives the same bits."""
    plan = answer.name
    again, every = (simulate(load(document), every_rank=whole).plan(plan) for whole in (False, True))
    bits = [json.dumps(result.to_json(), sort_keys=True, default=str) for result in (answer, again)]
    yield judged("the same question has the same answer", where, bits[0] == bits[1], "two runs differ")
    near = abs(every.step_time_s - answer.step_time_s) <= 1e-6 * answer.step_time_s
    bytes_ = [result.communication_bytes_per_layer["total"] for result in (answer, every)]
    why = (
        f"of every rank the step takes {every.step_time_s:.9g} s and {bytes_[1]:,.0f} bytes a layer, of one of each "
        f"kind {answer.step_time_s:.9g} s and {bytes_[0]:,.0f}"
    )
    same = near and abs(bytes_[0] - bytes_[1]) <= 1e-9 * max(*bytes_, 1.0)
    yield judged("folded ranks are what every rank is", where, same, why)
