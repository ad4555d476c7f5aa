"""The sentences of an answer: what limits it, what was assumed, what it does not explain."""

from __future__ import annotations

from collections.abc import Sequence

from .metrics import Breakdown
from .parallel import SCHEMES, Job, Plan, Work, choices_of, scheme_of, usual_method
from .units import GIB, percent

COMPUTE_WORDS = {"gemm": "matrix products", "attention": "attention", "memory_bound": "memory-bound kernels"}


def bottleneck(parts: Breakdown, step_s: float) -> str:
    """What a step waits for most, in a sentence."""
    shares = {COMPUTE_WORDS.get(family, family): seconds for family, seconds in parts.compute_s.items()}
    shares |= {f"exposed {kind.replace('_', '-')}": seconds for kind, seconds in parts.exposed_s.items()}
    shares["waiting for other ranks"] = parts.idle_s
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    first, seconds = ranked[0]
    most, compute, exposed = (
        percent(part / step_s, decimals=0, significant=1)
        for part in (seconds, parts.total_compute_s, sum(parts.exposed_s.values()))
    )
    return f"{first} takes {most} of the step; {compute} is compute, {exposed} exposed communication"


def defaults_in_words(work: Work, plans: Sequence[Plan]) -> tuple[str, ...]:
    """The assumptions that decide answers; each can be switched a plan."""
    sentences = [
        "Tokens lie in zigzag order, so every sequence shard has the same causal work (`partition`).",
        usual_method().assumption,
        *filter(None, (scheme.assumption for scheme in sorted(SCHEMES.values(), key=lambda each: not each.usual))),
        "Attention skips blocks above the causal diagonal, and counts half the scores.",
        f"Each GPU keeps {work.runtime_reserve_bytes / GIB:.3g} GiB for its context, collective buffers and "
        "fragmentation (`workload.runtime_reserve`).",
    ]
    if work.step.trains:
        sentences.append(
            f"The optimizer is {work.optimizer.name}: {work.optimizer.bytes_per_parameter:g} bytes a parameter "
            "(`workload.optimizer`)."
        )
    return tuple(sentences)


def notes_of(job: Job) -> tuple[str, ...]:
    """What a reader of this plan should know."""
    notes = []
    shards = job.scheme.context(job.plan).attended if job.step.serves and job.token_shards == 1 else job.head_shards
    if shards > job.model.kv_heads:
        times = shards // job.model.kv_heads
        heads = f"{shards} head shards, {job.model.kv_heads} key/value heads"
        notes.append(f"K and V are replicated {times} times: {heads}")
    experts = job.model.experts
    if experts is not None:
        busiest = job.expert_loads.busiest_rank_load
        if job.plan.ep > 1 and busiest > 1.005:
            found = f"the busiest of {job.plan.ep} expert ranks gets {busiest:.2f} times the mean"
            notes.append(f"{found}; all wait for it")
        dropped = job.work.dropped_share(job.model)
        if dropped > 0.0:
            found = f"{100.0 * dropped:.3g} % of the assignments of tokens to experts are over capacity and dropped"
            notes.append(f"{found} (`capacity_factor`): FLOPs, MFU and bounds count what is kept, tokens/s all tokens")
        if job.expert_shards == 1:
            notes.append(f"every rank holds all {experts.count} experts of its layers (`ep`)")
    for choice in choices_of(job.plan):
        names = [f"`{name}`" for name in choice.switches if name in job.plan.chosen]
        if names:
            notes.append(f"chosen for this machine and length: {choice.sentence(job.plan)} ({', '.join(names)})")
    if job.model.note:
        notes.append(f"{job.model.name}: {job.model.note}")
    return tuple(notes)


def unexplained(work: Work, plans: Sequence[Plan]) -> tuple[str, ...]:
    """What the model knowingly leaves out."""
    sentences = [
        "Attention kernels without block skipping, which would widen the gap between zigzag and contiguous tokens.",
        "Stragglers and clock drift between GPUs; with the ideal stack also a host that launches too slowly.",
        "How a particular library places collectives on compute units: its share of the device is one stated factor.",
    ]
    return *sentences, *dict.fromkeys(filter(None, (scheme_of(plan).unexplained for plan in plans)))
