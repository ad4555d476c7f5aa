"""Constraints of a plan on a model and its tokens, each with a remedy."""

from __future__ import annotations

from ..base.errors import InputError
from ..operators import element_bytes
from .draft import DRAFTS
from .drafting import drafter_of
from .feature import features_of
from .job import Job
from .pipeline import Pipeline
from .plan import Plan
from .recomputed import FULL, RECOMPUTE_METHODS
from .scheme import SCHEMES, scheme_of
from .state.checkpoint import CHECKPOINTS


def check(job: Job) -> None:
    """Refuse a plan whose degrees cannot divide the model or the tokens; raises InputError with the remedy."""
    model, plan, scheme = job.model, job.plan, scheme_of(job.plan)
    axis, columns = scheme.axes[0], scheme.shards(job)
    others = [name for other in SCHEMES.values() if other is not scheme for name in other.axes]
    if any(plan.degree(name) > 1 for name in others):
        beside = " and ".join(name for name in others if name not in scheme.axes)
        raise plan.refusal(axis, f"{plan.degree(axis)} {scheme.alone}: leave {beside} at 1 beside it")
    _size(job)
    if job.step.serves:
        _serving(job)
    _features(job, first=True)
    _scheme(job, axis)
    _features(job, first=False)
    if model.ffn % columns:
        raise plan.refusal(axis, f"{columns} does not divide the {model.ffn} FFN columns of {model.name}")
    pieces = plan.token_shards * (2 if plan.partition == "zigzag" and plan.token_shards > 1 else 1)
    lengths = [row[0] for batch in job.passes for row in batch.rows] or [job.work.sequence]
    for length in lengths if job.step.shards_tokens and not job.unequal else ():
        if length % pieces:
            what = "a sequence that is" if length == job.work.sequence else "chunks that are"
            raise plan.refusal(
                plan.token_axis,
                f"{plan.token_shards} shards in {plan.partition} order need {what} a multiple of {pieces}, "
                f"not {length}",
            )
    if job.work.multi_token and not job.multi_token:
        has = "they are trained; a forward pass runs none" if model.multi_token else f"{model.name} has none"
        raise InputError(f"modules for further tokens: {has}; leave it out", key="workload.multi_token")
    _pipeline(job)
    _activations(job)
    _documents(job)
    _adapters(job)
    _shard_group(job)
    _checkpoint(job)


def _features(job: Job, *, first: bool) -> None:
    """Refuse what the features of the job refuse."""
    for feature in features_of(job):
        refused = feature.refusal(job) if feature.first is first else None
        if refused is not None:
            raise job.plan.refusal(*refused)


#: Most layers of a stage times micro-batches of a step, which are simulated one by one. The largest published step has
#: some 100,000.
MOST_VISITS = 4_000_000


def _size(job: Job) -> None:
    """Refuse a step whose micro-batches would be simulated for hours."""
    layers = -(-job.model.layers // job.plan.pp)
    visits = layers * job.micro_batches
    if job.step.serves or visits <= MOST_VISITS:
        return
    most = max(1, MOST_VISITS // layers)
    raise InputError(
        f"plan '{job.plan.name}' has {job.micro_batches:,} micro-batches a replica of {layers} layers a stage; at most "
        f"{most:,} are simulated: state fewer sequences (`global_batch`, `sequences_per_replica`) or a larger "
        "micro_batch",
        key="workload",
    )


def _checkpoint(job: Job) -> None:
    plan = job.plan
    stated = [key for key in ("checkpoint_rate", "checkpoint_every") if getattr(plan, key) != getattr(Plan, key)]
    if plan.checkpoint is None:
        if stated:
            raise plan.refusal(stated[0], "is of plans that write checkpoints; state checkpoint")
        return
    if not job.training:
        raise plan.refusal("checkpoint", f"is of training; a {job.step.title} has no state to write")
    if plan.hiding.micro_batches:
        raise plan.refusal("checkpoint", "beside expert_overlap: micro_batches is not built; leave one out")
    if CHECKPOINTS.get(plan.checkpoint).holds_file and plan.checkpoint_rate is None:
        raise plan.refusal("checkpoint_rate", f"is needed with checkpoint: {plan.checkpoint}")


def _scheme(job: Job, axis: str) -> None:
    """Check the scheme's constraints, and that its ranks divide the heads, for every size of sequence group."""
    model = job.model
    sizes = {one.packed.ranks: one for one in job.every_pack()} if job.unequal and job.plan.groups else {}
    for one in (job, *sizes.values()):
        refused = scheme_of(job.plan).check(one)
        if refused is not None:
            raise job.plan.refusal(*refused)
        shards = one.head_shards
        if model.heads % shards:
            raise job.plan.refusal(axis, f"{shards} does not divide the {model.heads} attention heads of {model.name}")
        if model.kv_heads % shards and shards % model.kv_heads:
            raise job.plan.refusal(
                axis,
                f"{shards} neither divides nor is a multiple of the {model.kv_heads} key/value heads of {model.name}",
            )


def _serving(job: Job) -> None:
    """Refuse keys that a serving step has no use for, and contexts beyond the model's positions."""
    plan, work, model, title = job.plan, job.work, job.model, job.step.title
    for key, usual in (
        ("zero", 0), ("shard_group", None), ("secondary_shard", None), ("weight_wire", None),
        ("gradient_wire", None), ("vpp", 1), ("micro_batch", None), ("recomputation", "none"),
        ("schedule", "1f1b"), ("activation_store", None), ("offload_layers", 0),
    ):  # fmt: skip
        value = getattr(plan, key)
        if value != usual:
            raise plan.refusal(key, f"{value} is of training; a {title} takes none of it: leave {key} out")
    if work.document is not None:
        problem = f"{work.document} packs documents into a sequence, which a {title} does not: leave it out"
        raise InputError(problem, key="workload.document")
    if not work.causal:
        raise InputError(f"false is of whole sequences; a {title} is causal: leave it out", key="workload.causal")
    if work.multi_token:
        problem = f"modules for further tokens are trained; a {title} drafts with them: pass: verify, draft: mtp"
        raise InputError(problem, key="workload.multi_token")
    if scheme_of(plan).whole is None:
        can = " or ".join(other.axes[0] for other in SCHEMES.values() if other.whole is not None)
        raise plan.refusal(job.scheme.axes[0], f"{job.scheme.summary} does not run a {title}; use {can}")
    _tree(job)
    _drafter(job)
    _branches(job)
    load = work.load
    prompts = (row.query_tokens + row.context_tokens for row in load.kept)
    longest = {"context": max(load.contexts, default=0), "sequence": max(prompts, default=0)}
    for key, tokens in longest.items():
        if model.max_context and tokens > model.max_context:
            problem = f"{tokens} tokens are more than the {model.max_context} that {model.name} was made for"
            raise InputError(f"{problem}; a model file with another max_context takes more", key=f"workload.{key}")
    drafts = load.speculation
    if drafts and drafts.tokens and not DRAFTS.get(drafts.draft).available(model):
        can = " or ".join(draft.name for draft in DRAFTS.values() if draft.available(model))
        problem = f"{drafts.draft} drafts with modules for further tokens, and {model.name} has none; use {can}"
        raise InputError(problem, key="workload.speculation.draft")


def _drafter(job: Job) -> None:
    """A separate draft model must fit the same ranks and the model's vocabulary."""
    drafter = drafter_of(job) if job.work.load.speculation is not None else None
    if drafter is None:
        return
    key = "workload.speculation.model"
    if drafter.model.experts is not None:
        raise InputError(f"{drafter.model.name} has experts, and drafters with experts are not built", key=key)
    if drafter.model.vocab != job.model.vocab:
        problem = f"{drafter.model.name} has {drafter.model.vocab} tokens and {job.model.name} {job.model.vocab}"
        if abs(drafter.model.vocab - job.model.vocab) > job.model.vocab // 50:  # tables are padded
            raise InputError(f"{problem}: what one drafts the other cannot verify", key=key)
    try:
        check(drafter)
    except InputError as error:
        raise InputError(f"{drafter.model.name} cannot draft beside it: {error.message}", key=key) from None


def _tree(job: Job) -> None:
    """Trees need drafters that continue from every draft."""
    drafts = job.work.load.speculation
    if drafts is None or not drafts.tree:
        return
    draft = DRAFTS.get(drafts.draft)
    if not draft.layers or draft.at_once:
        can = " or ".join(other.name for other in DRAFTS.values() if other.layers and not other.at_once)
        raise InputError(f"{drafts.draft} drafts no tree; use {can}", key="workload.speculation.tree")


def _branches(job: Job) -> None:
    """Branches of a shared context need ranks that hold all of it, and attention kinds that cache tokens."""
    plan = job.plan
    if not job.work.load.streams.branches:
        return
    if job.scheme.context(plan).ranks > 1 or job.scheme.folds:
        problem = "contexts that branches share are not divided by their tokens: use tp, pp and dp alone"
        raise plan.refusal(job.scheme.axes[0], problem)
    kinds = {job.model.attention_of(block) for block in job.model.blocks}
    kept_whole = sorted(kind.name for kind in kinds if kind.selects or not kind.divides_context)
    if kept_whole:
        problem = f"branches of {kept_whole[0]} attention, which does not merge parts of a context, are not built"
        raise InputError(problem, key="workload.streams.branch")


def _documents(job: Job) -> None:
    """Documents must fill a sequence, wherever shards cut it."""
    document, sequence = job.work.document, job.work.sequence
    if document is None:
        return
    if not job.work.causal or sequence % document:
        problem = f"documents of {document} tokens do not fill a sequence of {sequence}; use a divisor of that"
        problem = (
            problem if job.work.causal else f"documents of {document} tokens are of causal attention; leave them out"
        )
        raise InputError(problem, key="workload.document")


def _wires(job: Job) -> None:
    """Secondary weight copies and narrow wire types need ZeRO 3, whose weights and gradients move every micro-batch."""
    plan = job.plan
    keys = [key for key in ("secondary_shard", "weight_wire", "gradient_wire") if getattr(plan, key) is not None]
    if not keys:
        return
    if plan.zero != 3 or not job.training:
        raise plan.refusal(keys[0], f"{getattr(plan, keys[0])} is of training with zero: 3")
    if job.model.experts is not None or job.work.adapters is not None:
        raise plan.refusal(keys[0], "is not built for models with experts, nor for adapters")
    if plan.shard_group is not None and plan.secondary_shard is not None:
        raise plan.refusal("secondary_shard", "and shard_group both divide weights inside nodes; leave one out")
    if plan.gradient_wire is not None and plan.secondary_shard is None:
        raise plan.refusal("gradient_wire", "needs secondary_shard: the ranks that sum among themselves first")
    if plan.secondary_shard is not None and plan.shard_parts is None:
        sizes = f"sp {plan.sp} x dp {plan.dp}"
        raise plan.refusal("secondary_shard", f"{plan.secondary_shard} ranks cannot be taken from {sizes}")


def _shard_group(job: Job) -> None:
    plan = job.plan
    _wires(job)
    if plan.shard_group is None:
        return
    if not plan.zero:
        raise plan.refusal("shard_group", f"{plan.shard_group} ranks divide nothing with zero: 0; set zero")
    if plan.shard_parts is None:
        raise plan.refusal(
            "shard_group",
            f"{plan.shard_group} ranks cannot be taken from sp {plan.sp} x dp {plan.dp}, "
            "sp whole and dp in equal parts",
        )
    for axis, size in plan.shard_parts.items():
        sharing = (plan.expert_parts or {}).get(axis, 1)
        if size % sharing and sharing % size:
            raise plan.refusal(
                "shard_group",
                f"groups of {size} ranks of {axis} that divide state and groups of {sharing} that share experts "
                "do not fit into each other; make one a multiple of the other",
            )


def _adapters(job: Job) -> None:
    if job.work.adapters is None:
        return
    if not job.training:
        raise InputError("adapters are trained; use pass: training, or leave them out", key="workload.adapters")
    if not any(job.work.adapters.beside_layer(job.model, block) for block in dict.fromkeys(job.model.blocks)):
        raise InputError(
            f"no layer of {job.model.name} has these products; routed experts get adapters with experts: each",
            key="workload.adapters.targets",
        )


def _pipeline(job: Job) -> None:
    plan, chunks = job.plan, job.plan.pp * job.plan.vpp
    if job.training and job.order.waits:
        raise plan.refusal("schedule", f"{plan.schedule} is of passes without a backward; use 1f1b")
    if plan.accumulation > 1 and not job.training:
        raise plan.refusal("accumulation", f"turns accumulate gradients; a {job.step.title} has none")
    if not job.unequal and job.work.sequences % job.sequences:
        raise plan.refusal(
            "micro_batch", f"{job.sequences} does not divide the {job.work.sequences} sequences of a replica"
        )
    if plan.vpp > 1 and plan.pp == 1:
        raise plan.refusal("vpp", f"{plan.vpp} virtual stages need a pipeline; set pp, or leave vpp out")
    if chunks > job.model.layers and not plan.stage_layers:
        problem = f"{chunks} pipeline chunks are more than the {job.model.layers} layers"
        remedy = "; embedding and head may have chunks of their own: stage_layers" if job.model.vocab else ""
        raise plan.refusal("pp", problem + remedy)
    if plan.stage_layers and (len(plan.stage_layers) != chunks or sum(plan.stage_layers) != job.model.layers):
        raise plan.refusal(
            "stage_layers",
            f"needs {chunks} numbers (pp·vpp) that add up to {job.model.layers}, not {list(plan.stage_layers)}",
        )
    empty = [index for index, layers in enumerate(plan.stage_layers) if not layers]
    if any(index not in (0, chunks - 1) or not job.model.vocab for index in empty):
        raise plan.refusal("stage_layers", "only the embedding's chunk and the head's may have no layer")
    splits = scheme_of(plan).layer_weights is not None
    refused = job.order.check(Pipeline(plan.pp, plan.vpp, job.micro_batches, splits))
    if refused is not None:
        raise plan.refusal(*refused)


def _activations(job: Job) -> None:
    """Check recomputed layers, the type of kept activations, and their offload."""
    plan, most = job.plan, max(job.chunk_sizes)
    if not job.training and (plan.recomputed or plan.activation_store or plan.offload_layers):
        stored = "activation_store" if plan.activation_store else "offload_layers"
        key = "recomputation" if plan.recomputed else stored
        raise plan.refusal(key, f"is of training; a {job.step.title} keeps nothing for a backward")
    if plan.recomputed is not None:
        grouped = RECOMPUTE_METHODS.get(plan.recomputed.method).group(2) > 1
        if grouped and plan.recomputation != FULL:
            problem = f"{plan.recomputation} of layers in groups is not built; use {FULL}"
            raise plan.refusal("recomputation.what", problem)
        if plan.recomputed.layers > most:
            problem = f"{plan.recomputed.layers} are more than the {most} layers of a chunk; use at most {most}"
            raise plan.refusal("recomputation.layers", problem)
    if job.store.products_in_eight_bits and element_bytes(job.work.precision) > element_bytes("mxfp8"):
        problem = f"{job.store.name} keeps what products in eight bits read, and these are in {job.work.precision}"
        raise plan.refusal("activation_store", f"{problem}; use fp8")
    if plan.offload_layers > most:
        problem = f"{plan.offload_layers} are more than the {most} layers of a chunk; use at most {most}"
        raise plan.refusal("offload_layers", problem)
    if plan.offload_layers and job.order.splits_backward:
        raise plan.refusal("offload_layers", f"is not built for {plan.schedule}; use 1f1b")
    if plan.offload_layers and not job.work.host_bytes_per_s:
        raise plan.refusal("offload_layers", "needs a node whose link to its host's memory is known")
