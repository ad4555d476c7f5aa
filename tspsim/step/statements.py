"""Sentences of an answer: its bottleneck, its assumptions, what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..base.units import GIB, duration, gib, percent
from ..model.attention import MOST_DECODED
from ..model.parts import WeightClass
from ..operators import FusedMoE
from ..parallel import Job, Plan, Work, axes_of, choices_of, method_of, scheme_of, write_program
from ..parallel.decode.index_exchange import index_exchange_of
from ..parallel.expert_rows import choices_are_drawn, step_load
from ..parallel.experts.expert_serving import routed_tokens
from ..parallel.feature import features_of
from ..parallel.rank_groups import expert_ranks
from ..parallel.routing import BALANCED
from ..parallel.search_keys import search_keys
from ..parallel.state import weight_peers
from ..parallel.state.memory import arriving_bytes
from ..program import Compute
from ..scenario.workload import SpeculationSpec
from ..steps import ServingStep
from .metrics import Breakdown
from .question import Question

COMPUTE_WORDS = {"gemm": "matrix products", "attention": "attention", "memory_bound": "memory-bound kernels"}
#: The plural ones among them.
SEVERAL = frozenset({"matrix products", "memory-bound kernels"})


def bottleneck(parts: Breakdown, step_s: float) -> str:
    """A sentence on what takes most of a step."""
    shares = {COMPUTE_WORDS.get(family, family): seconds for family, seconds in parts.compute_s.items()}
    shares |= {f"exposed {kind.replace('_', '-')}": seconds for kind, seconds in parts.exposed_s.items()}
    shares["waiting for other ranks"] = parts.idle_s
    shares["the host"] = parts.host_s
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    first, seconds = ranked[0]
    most, compute, exposed = (
        percent(part / step_s, decimals=0, significant=1)
        for part in (seconds, parts.total_compute_s, sum(parts.exposed_s.values()))
    )
    takes = "take" if first in SEVERAL else "takes"
    return f"{first} {takes} {most} of the step; {compute} is compute, {exposed} exposed communication"


#: Names of the classes of weights for readers.
CLASS_WORDS = {
    WeightClass.ATTENTION: "attention",
    WeightClass.DENSE: "dense layers",
    WeightClass.SHARED: "shared experts",
    WeightClass.EXPERTS: "routed experts",
    WeightClass.EMBEDDING: "tables",
}


def defaults_in_words(question: Question, plans: Sequence[Plan]) -> tuple[str, ...]:
    """The assumptions that decide these plans' answers; each can be changed in the plan or the workload."""
    work, announced = question.work, announced_in_words(question)
    if work.step.serves:
        return (*announced, *served_in_words(question, plans))
    sentences = [
        *announced,
        *dict.fromkeys(sentence for plan in plans for sentence in sharding_in_words(plan)),
        *([f"Tokens fall on experts {routing_in_words(work)} (`routing`)."] if question.model.experts else ()),
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


def sharding_in_words(plan: Plan) -> Iterator[str]:
    """Assumptions on a plan's shards: where their tokens lie, how they exchange keys and values, how they sum."""
    scheme, method = scheme_of(plan), method_of(plan)
    if plan.token_shards > 1 and plan.partition == Plan.partition:
        yield "Tokens lie in zigzag order, so every sequence shard has the same causal work (`partition`)."
    yield from filter(None, (method.assumption, scheme.assumption, *scheme.assumptions(plan)))


#: Start of sentences on hardware that nobody has measured, after its name.
ANNOUNCED = " is announced: "
#: And on hardware that is sold but of which no measurement is fitted.
ON_PAPER = " is known by its data sheet: "


def is_announced(sentence: str) -> bool:
    """Whether a sentence is one of :func:`announced_in_words`."""
    return ANNOUNCED in sentence or ON_PAPER in sentence


def announced_in_words(question: Question) -> Iterator[str]:
    """Sentences on hardware without measurements, and what is assumed instead."""
    spec, node = question.device.spec, question.cluster.node
    if spec.announced:
        begins = f"{ON_PAPER}no measurement of its kernels is fitted here"
        begins = begins if spec.sold else f"{ANNOUNCED}nobody has published a measurement of it"
        yield (
            f"{spec.name}{begins}. Peaks, HBM bandwidth and memory are "
            f"its vendor's; its kernels reach the shares of them that {spec.like}'s were measured to reach, a launch "
            f"takes as long, and ranges are those of another generation. Assumed as {spec.like} has them: "
            f"{', '.join(spec.assumed)}."
        )
    if node.announced:
        yield (
            f"{node.name}{ON_PAPER if node.sold else ANNOUNCED}its links are its vendor's figure; latencies, and the "
            f"share of the links that {node.collectives.library} reaches, are assumed as on {node.like}, with wider "
            "ranges."
        )


def served_in_words(question: Question, plans: Sequence[Plan]) -> Iterator[str]:
    """The assumptions of a serving step: types, routing, engine, acceptance, size of a step."""
    work, model, stated = question.work, question.model, question.scenario.workload.precision
    there = {part for block in set(model.blocks) for part, count in model.class_parameters(block).items() if count}
    there |= {WeightClass.EMBEDDING} if model.vocab else set()
    yield types_in_words(question, [part for part in WeightClass if part in there])
    kept = "stated" if not isinstance(stated, str) and stated.kv is not None else "as its checkpoint says, else bf16"
    yield f"Caches are kept in {work.formats.cache} ({kept}; `precision.kv`)."
    if model.experts is not None:
        yield (
            f"Tokens fall on experts {routing_in_words(work)} (`routing`), and each token chooses for itself: of "
            f"{model.experts.count} experts a step reads those that any of its tokens meets."
        )
    yield engine_in_words(work)
    drafts = question.scenario.workload.speculation
    if drafts is not None:
        yield acceptance_in_words(drafts)
    step = work.step
    assert isinstance(step, ServingStep)
    if any(step.in_flight(work.load, plan.pp) > 1 for plan in plans):
        yield (
            "A pipeline's stages work on as many parts of the batch at once; a sequence's next token begins when its "
            "part comes back."
        )
    if work.load.batch:
        yield "Every replica decodes a batch of its own; its caches are full to the stated contexts as the step begins."
    if work.load.prompts:
        yield "Only the last token of a prompt goes through the language-model head."
    if not work.stack.engine.context_bytes.value:
        reserve = f"{work.runtime_reserve_bytes / GIB:.3g} GiB"
        yield f"Each GPU keeps {reserve} for its context, collective buffers and graphs (`workload.runtime_reserve`)."


def routing_in_words(work: Work) -> str:
    """How tokens are distributed over experts."""
    return "evenly, each as likely as the others" if work.routing.load == "balanced" else f"as {work.routing.load}"


def types_in_words(question: Question, parts: Sequence[WeightClass]) -> str:
    """The types in which weights are stored and multiplied, and whether the checkpoint or the scenario states them."""
    formats, checkpoint = question.work.formats, question.model.checkpoint
    said: dict[str, list[str]] = {}
    for part in parts:
        kept, multiplied = formats.kept(part), formats.multiplied(part)
        source = "as in its checkpoint" if kept == checkpoint.kept(part) else "stated"
        products = "" if multiplied == kept else f", multiplied in {multiplied}"
        said.setdefault(f"{kept} ({source}{products})", []).append(CLASS_WORDS[part])
    groups = [f"in {how}: {', '.join(names)}" for how, names in said.items()]
    return f"Weights are kept (`precision`) {'; '.join(groups)}."


def engine_in_words(work: Work) -> str:
    """What the engine's software adds to a step."""
    engine = work.stack.engine
    captured = engine.graphs.tokens(1, engine.slots)
    if not captured and not engine.step.value:
        return (
            f"The stack `{work.stack.name}` launches kernels without a gap, pads nothing, takes no host time, keeps no "
            "memory beside the reserve and sums by the collective library, not an engine's kernels (`workload.stack`)."
        )
    parts = [f"The stack `{work.stack.name}` takes {1e6 * engine.step.value:.3g} µs of host a step"]
    parts.append(f"{1e6 * engine.sequence.value:.3g} µs a sequence")
    if captured:
        pads = "padded to the next captured size" if engine.graphs.pads else "where it has a captured size"
        parts.append(f"decode passes of up to {captured[-1]:,} tokens run as one graph, {pads}")
    return f"{', '.join(parts)} (`tspsim docs stacks.md`)."


def acceptance_in_words(drafts: SpeculationSpec) -> str:
    """The tokens by which a verify step advances a sequence, and whether they were stated."""
    advanced = drafts.speculation().accepted
    stated = {"accepted", "rate"} & drafts.model_fields_set
    source = "stated" if stated else "assumed"
    how = "`accepted`" if drafts.accepted is not None else f"`rate` {drafts.rate:g} at every position"
    return f"Of {drafts.tokens} drafts a step, a sequence advances {advanced:.3g} tokens, mean ({source}: {how})."


def notes_of(job: Job) -> tuple[str, ...]:
    """Notes on a plan for its reader."""
    features = (note for feature in features_of(job) for note in feature.notes(job))
    notes = [*scheme_of(job.plan).notes(job), *features, *(cache_notes(job) if job.step.serves else ())]
    if job.head_shards > job.model.kv_heads and not job.step.serves:
        times = job.head_shards // job.model.kv_heads
        notes.append(
            f"K and V are replicated {times} times: {job.head_shards} head shards, {job.model.kv_heads} key/value heads"
        )
    experts = job.model.experts
    if experts is not None:
        busiest, gets = job.expert_loads.busiest_rank_load, "gets"
        if choices_are_drawn(job):
            group = job.tokens if job.replicates_tokens else job.plan.ep * routed_tokens(job)
            busiest, gets = step_load(job, group, None), "draws"
        if job.plan.ep > 1 and busiest > 1.005:
            sentence = f"the busiest of {job.plan.ep} expert ranks {gets} {busiest:.2f} times the mean"
            notes.append(f"{sentence}; all wait for it")
        if job.plan.ep > 1 and job.step.serves and not job.replicates_tokens:
            notes += filter(None, [job.plan.dispatch.note(job.work.routing, experts, job.plan.ep)])
        dropped = job.work.dropped_share(job.model)
        if dropped > 0.0:
            sentence = f"{100.0 * dropped:.3g} % of the assignments of tokens to experts are over capacity and dropped"
            notes.append(
                f"{sentence} (`capacity_factor`): FLOPs, MFU and bounds count what is kept, tokens/s all tokens"
            )
        if expert_ranks(job) == 1:
            notes.append(f"every rank holds all {experts.count} experts of its layers (`ep`)")
    if job.plan.offload_weights:
        notes.append(arriving_note(job))
    for choice in choices_of(job.plan):
        names = [f"`{name}`" for name in choice.switches if name in job.plan.chosen]
        if names:
            notes.append(f"chosen for this machine and length: {choice.sentence(job.plan)} ({', '.join(names)})")
    if job.model.note:
        notes.append(f"{job.model.name}: {job.model.note}")
    return tuple(notes)


def keys_without_effect(question: Question, job: Job) -> Iterator[str]:
    """A note on stated keys that have no effect in this step."""
    entry = next((spec for spec in question.scenario.plans if spec.name == job.plan.name), None)
    usual = {name: field.default for name, field in type(entry).model_fields.items()} if entry is not None else {}
    usual["recomputation"] = job.step.recomputation
    names = {*usual, *(entry.model_extra or ())} if entry is not None else set[str]()
    stated = {name for name in names if getattr(entry, name, None) != usual.get(name)}
    # A step has use for its plan's degrees.
    searched = search_keys() if stated - {"name", *job.plan.degrees} else {}
    idle = [f"`{name}`" for name, key in searched.items() if name in stated and not key.used(job)]
    if job.model.experts is None and job.work.routing != BALANCED:
        idle.append("`workload.routing`")
    elif job.work.routing.drawn and not choices_are_drawn(job):
        idle.append("`workload.routing.drawn`")
    if idle:
        does = "does nothing" if len(idle) == 1 else "do nothing"
        yield f"{', '.join(idle)} {does} here: no part of the step asks for it"


#: Reported if experts in a narrower type take more than this multiple of their time in bf16.
SLOWER = 1.05


def of_experts_types(question: Question, job: Job) -> Iterator[str]:
    """Notes on a serving step's routed experts: whether kernels of another library are used because the engine's were
    measured untuned, and whether their type is slower than bf16."""
    device = question.device
    fused = next(_fused_experts(job), None) if job.step.serves and job.model.experts is not None else None
    if fused is None:
        return
    kept = fused.weight_dtype or fused.dtype
    types = kept if kept == fused.dtype else f"{kept}, multiplied in {fused.dtype}"
    aside = device.untuned_fit("fused_moe", fused.dtype, kept)
    if aside is not None and aside.untuned is not None:
        runs = device.kernel("fused_moe", fused.dtype, None, kept).library
        yield f"routed experts in {types} take the time of {runs}, not of {aside.library}: {aside.untuned}"
    narrow_s = device.time(fused).seconds
    wide_s = device.time(replace(fused, dtype="bf16", weight_dtype=None)).seconds
    if narrow_s > SLOWER * wide_s:
        yield (
            f"routed experts in {types} are slower than in bf16 here: {duration(narrow_s)} a layer against "
            f"{duration(wide_s)} in the engine's measured kernels; the type saves memory, not time"
        )


def _fused_experts(job: Job) -> Iterator[FusedMoE]:
    """The fused expert kernels in the programs of a job's last ranks, where a pool of experts has them; the busiest
    rank of an expert group represents all."""
    last = {axis: job.plan.degree(axis) - 1 for axis in axes_of(job) if axis != "ep"}
    for stage in range(job.plan.pp):
        for instruction, _ in write_program(scheme_of(job.plan), job, last | {"pp": stage}).counted():
            if isinstance(instruction, Compute):
                yield from (what for what in instruction.operators if isinstance(what, FusedMoE))


def arriving_note(job: Job) -> str:
    """The least cost of weights that arrive from the host's memory, or from neighbours."""
    size, times = arriving_bytes(job), f" {job.micro_batches} times" if job.micro_batches > 1 else ""
    ranks = weight_peers.peers(job.plan)
    if ranks:
        theirs = gib(size * (1.0 - 1.0 / ranks))
        return (
            f"{theirs} of weights per GPU come from {ranks - 1} of its neighbours each forward{times}; enough tokens "
            "per layer hide these copies (`weight_peers`)"
        )
    seconds = size / job.work.host_bytes_per_s
    return (
        f"{gib(size)} of weights per GPU come from the host's memory each forward, in {seconds * 1e3:,.3g} ms at best"
        f"{times}; enough tokens per layer hide these copies (`offload_weights`)"
    )


def cache_notes(job: Job) -> Iterator[str]:
    """Notes on how ranks of a serving step share caches, and on padding."""
    share, uses = job.scheme.context(job.plan), set(job.model.cache_uses(job.work.formats.cache))
    if share.ranks > 1:
        yield f"every rank keeps 1/{share.ranks} of the tokens of a context (`{share.axis}`)"
    if job.work.load.pads_prompts:
        most = MOST_DECODED
        yield f"prompts of up to {most} tokens run padded to {most + 1}: prefill kernels take less for them"
    if share.sequences > 1:
        yield f"whole sequences are dealt to {share.sequences} ranks"
    heads = {use.heads for use in uses if use.token_bytes and 1 < use.heads < share.attended}
    for count in sorted(heads):
        times = share.attended // count
        yield f"K and V are replicated {times} times: {share.attended} head shards, {count} key/value heads"
    if share.attended > 1 and any(use.heads == 1 and use.token_bytes for use in uses):
        yield f"latents have no heads to divide: {share.attended} ranks keep a copy each of what they attend"
    if share.ranks > 1 and index_exchange_of(job.plan).apart and any(use.shared_token_bytes for use in uses):
        yield (
            f"every rank attends the best of its own 1/{share.ranks} of a context, up to {share.ranks} times as many "
            "tokens in all as the model was trained with: another result (`index_exchange: union`)"
        )
    if share.attended > 1 and any(use.shared_token_bytes for use in uses):
        yield f"keys of the indexer stand whole on {share.attended} ranks"
    elif share.whole_keys and share.ranks > 1 and any(use.shared_token_bytes for use in uses):
        yield f"keys of the indexer stand whole on {share.ranks} ranks (`index_exchange`)"
    padding = sum(queries * count for batch in job.passes for queries, _, count in batch.rows)
    tokens = sum(batch.tokens for batch in job.forwards)
    if padding > tokens:
        yield f"{tokens:,} tokens run as {padding:,}, the next captured size"


def unexplained(work: Work, plans: Sequence[Plan]) -> tuple[str, ...]:
    """What the model knowingly leaves out."""
    if work.step.serves:
        return (
            "Requests that arrive, wait and leave: this is one step of a batch that stays as it is.",
            "Shared prefixes beside `cached`, paging of caches to the host, and what a cache's blocks lose by scatter.",
            "Experts that move or are doubled for balance; adapters; grammars and penalties of a sampler.",
            "Stragglers and clock drift between GPUs; with the ideal stack also a host that launches too slowly.",
        )
    sentences = [
        "Attention kernels without block skipping, which would widen the gap between zigzag and contiguous tokens.",
        "Stragglers and clock drift between GPUs; with the ideal stack also a host that launches too slowly.",
        "How a particular library places collectives on compute units: its share of the device is one stated factor.",
    ]
    return *sentences, *dict.fromkeys(filter(None, (scheme_of(plan).unexplained for plan in plans)))
