"""Attention on some GPUs, experts on others (Janus, arXiv 2512.13525, second-hand notes; MegaScale-Infer).

``expert_pool`` GPUs, in whole nodes, hold the routed experts alone; the others attend.

Of G single-GPU replicas the last n are the pool; the first m = G − n attend the sequences of all, G/m replicas' each. A
layer with experts, of B tokens in all:

    attention GPU   attention, norm │ rows to every node of the pool │ shared experts │ ◂ sums │ add
    expert GPU      ▸ rows │ gathered inside the node │ router, top-k, products of B tokens │ summed inside │ ▸ sums

Messages are one-sided and use NICs (:mod:`tspsim.network.collectives.pools`); attention GPUs compute layers without
experts, tables and the head. With T_a and T_e of the two kinds and T_c per direction, a layer takes T_a + T_e + 2·T_c
less what shared experts hide (``expert_overlap``). ``two_batches`` alternates two halves: at best max(2·T_a, 2·T_e) of
a half, or its T_a + T_e + 2·T_c if longer (:mod:`tspsim.studies.expert_pools` has the closed form for any number of
parts).

Memory is that of the fuller kind of GPU: all weights but experts with G/m of the caches, or 1/n of the experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...base.memo import knowing
from ...base.units import PositiveCount, several
from ...model.layer import LayerShard, ServingLayer
from ...model.parts import WeightClass
from ..builder import ProgramBuilder
from ..expert_rows import load_of, routed_shard, touched_experts
from ..experts.expert import Shared
from ..feature import FEATURES, Feature
from ..interleave import EXCHANGE
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..placement import Chunk
from ..plan import EXPERT_POOL, POOL_NODE, Plan
from ..registries import ContextShare, Option
from ..scheme import WholeTokens
from ..search_rule import SearchRule, decodes, with_experts
from ..state import served

OPTION = Option(
    EXPERT_POOL,
    PositiveCount,
    None,
    "decode: number of GPUs, the last ones in whole nodes, that hold experts alone; the others attend for all",
    SearchRule(
        why_not="GPUs for one part of a layer are a machine of their own",
        of=lambda model, work: decodes(model, work) and with_experts(model, work),
    ),
)
#: Streams of rows and of sums in transit, which no kernel of the rank waits for.
ROWS, SUMS, BACK = "rows to pool", "sums in pool", "sums from pool"


def size(plan: Plan) -> int:
    """GPUs of the pool; 0: there is none."""
    return int(plan.options.get(EXPERT_POOL, 0))


def attending(plan: Plan) -> int:
    """GPUs that attend."""
    return plan.dp - size(plan)


def in_pool(builder: ProgramBuilder, job: Job) -> bool:
    """Whether the program being written is that of a pool's GPU."""
    return size(job.plan) > 0 and builder.coordinates.get("dp", 0) >= attending(job.plan)


def of_all(job: Job, ranks: int) -> Job:
    """The job of one of ``ranks`` GPUs that share all replicas' sequences evenly."""
    rows = tuple((queries, context, -(-count * job.plan.dp // ranks)) for queries, context, count in job.rows)
    own = job.of_rows(rows)
    return knowing(own, batch=replace(own.batch, outputs=-(-job.batch.head_tokens * job.plan.dp // ranks)))


def of_both(whole: WholeTokens) -> WholeTokens:
    """The parts of a model, written differently for GPUs of the pool and for attending ones."""

    def embed(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
        if in_pool(builder, job):
            elsewhere(builder)
        else:
            whole.embed(builder, of_all(job, attending(job.plan)), layer)

    def layer(builder: ProgramBuilder, job: Job, shard: LayerShard, position: int) -> list[int]:
        if in_pool(builder, job):
            return serve(builder, job, shard)
        return whole.layer(builder, of_all(job, attending(job.plan)), shard, position)

    def head(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
        if in_pool(builder, job):
            elsewhere(builder)
        else:
            whole.head(builder, of_all(job, attending(job.plan)), layer)

    return WholeTokens(embed, layer, head)


def context(plan: Plan, share: ContextShare) -> ContextShare:
    """Attending GPUs hold the caches of all replicas."""
    return replace(share, copies=plan.dp / max(1, attending(plan)))


def groups(plan: Plan) -> Mapping[str, Mapping[str, int]]:
    """Groups of the pool's GPUs in a node."""
    near = plan.node_ranks("dp")
    return {POOL_NODE: {"dp": near}} if near > 1 else {}


def elsewhere(builder: ProgramBuilder) -> list[int]:
    """An empty kernel, for parts that the other GPUs compute."""
    return [builder.compute("of the other pool")]


def rows_bytes(job: Job, tokens: int) -> float:
    """Bytes of ``tokens`` rows."""
    return tokens * job.model.hidden * job.activation_bytes


def mean_bytes(job: Job, tokens: int) -> float:
    """Mean bytes that a GPU receives when ``tokens`` rows go to, or come from, every node of the pool."""
    nodes = size(job.plan) // job.plan.node_ranks("dp")
    return rows_bytes(job, tokens) * nodes / job.plan.dp


def serve(builder: ProgramBuilder, job: Job, layer: LayerShard) -> list[int]:
    """One layer with experts on the pool's GPUs."""
    builder.part = "mlp"
    if not layer.composition.experts:
        return elsewhere(builder)
    first, tokens = attending(job.plan), job.tokens * job.plan.dp
    rows, moved = rows_bytes(job, tokens), mean_bytes(job, tokens)
    came = builder.collective("to_pool", "dp", moved, "rows to experts", root=first, stream=ROWS)
    inside = job.plan.node_ranks("dp") > 1
    here = came
    if inside:
        here = builder.collective("all_gather", POOL_NODE, rows, "rows in node", after=[came], stream=EXCHANGE)
    pool, experts = pooled(job), job.model.experts
    routed = routed_shard(pool, tokens)
    assert experts is not None
    pairs = tokens * experts.topk / pool.plan.ep * load_of(pool, None)
    fused = routed.fused(tokens, pairs, touched_experts(pool, tokens, None))
    done = builder.compute("experts", routed.router(tokens), routed.choose(tokens), fused, after=[here])
    if inside:
        done = builder.collective("reduce_scatter", POOL_NODE, rows, "sum in node", after=[done], stream=SUMS)
    return [builder.collective("from_pool", "dp", moved, "sums of experts", root=first, after=[done], stream=BACK)]


def send(builder: ProgramBuilder, job: Job, layer: ServingLayer, after: list[int], shared: Shared | None) -> list[int]:
    """The experts' part of a layer on an attention GPU, for the rows of ``job``; returns what completes it."""
    first, beside = attending(job.plan), job.plan.hiding.shared_beside
    moved = mean_bytes(job, job.tokens * first)
    normed = builder.compute("norm", layer.norm(job.tokens), after=after)
    done = shared([normed]) if shared and not beside else []
    sent = builder.collective("to_pool", "dp", moved, "rows to experts", root=first, after=[normed, *done], stream=ROWS)
    if shared and beside:
        done = shared([normed])
    back = builder.collective("from_pool", "dp", moved, "sums of experts", root=first, after=[sent], stream=EXCHANGE)
    return [builder.compute("add", layer.add(job.tokens), after=[back, *done])]


def pooled(job: Job) -> Job:
    """The job of one expert group over the pool's GPUs."""
    ranks = size(job.plan)
    plan = replace(job.plan, degrees={"dp": ranks, "ep": ranks}, options={}, together={})
    return replace(of_all(job, ranks), plan=plan)


def expert_bytes(job: Job) -> float:
    """Bytes of experts on a GPU of the pool."""
    model, pool = job.model, pooled(job)
    assert model.experts is not None
    layers = sum(bool(block.experts) for block in model.blocks)
    own = model.experts.count / pool.plan.ep + pool.expert_loads.further_experts
    return layers * own * model.expert_parameters * job.work.formats.weight_bytes(WeightClass.EXPERTS)


def buffers(job: Job, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Memory by which the pool's GPUs exceed the others, and rows in transit."""
    kept = served.weight_bytes(job, 1, job.chunks(0)) + served.cache_bytes(job, job.chunks(0))
    yield Buffer("expert_pool", max(0.0, expert_bytes(job) - kept), Lifetime.STEP)
    yield Buffer("workspace", 2.0 * rows_bytes(job, job.tokens * job.plan.dp), Lifetime.LAYER)


def check(job: Job) -> Refusal:
    """Why the plan does not fit."""
    plan, experts, ranks = job.plan, job.model.experts, size(job.plan)
    if not job.step.serves or job.work.load.prompts or job.drafts:
        return EXPERT_POOL, "is of steps that decode, without prompts and drafts"
    if experts is None:
        return EXPERT_POOL, f"{ranks} keep experts, but {job.model.name} has none; leave it out"
    beside = next((axis for axis in ("tp", "sp", "pp", "ep") if plan.degree(axis) > 1), None)
    if beside is not None:
        problem = f"beside {EXPERT_POOL} is not built: every GPU is a replica, or of the pool"
        return beside, f"{plan.degree(beside)} {problem}"
    if plan.node_order or plan.node_axes or plan.rail_axes:
        return "placement", f"beside {EXPERT_POOL} is not built: the last GPUs are the pool"
    near = plan.together.get("dp", 0)
    if ranks >= plan.dp or not near or ranks % near or plan.dp % near:
        return EXPERT_POOL, f"{ranks} of {plan.dp} GPUs: both pools take whole nodes" + (f" of {near}" if near else "")
    if experts.count % ranks:
        return EXPERT_POOL, f"{ranks} does not divide the {experts.count} experts of {job.model.name}"
    if any(count * plan.dp % attending(plan) for batch in job.passes for _, _, count in batch.rows):
        counts = f"{several(sum(batch.sequences for batch in job.passes), 'sequence')} a replica"
        return EXPERT_POOL, f"{attending(plan)} attending GPUs do not divide {counts} of {plan.dp} replicas"
    for key in ("host_attention", "dcp", "kvp", "overlap"):
        if plan.options.get(key) or (key == "overlap" and plan.overlap):
            return key, f"beside {EXPERT_POOL} is not built; leave one out"
    if plan.offload_weights:
        return "offload_weights", f"beside {EXPERT_POOL} is not built; leave one out"
    return None


def notes(job: Job) -> Iterator[str]:
    """Which GPUs attend."""
    first = attending(job.plan)
    yield f"GPUs 0 to {first - 1} attend, {first} to {job.plan.dp - 1} keep experts (`{EXPERT_POOL}`)"


FEATURES.register(
    Feature(
        EXPERT_POOL,
        "attention on some GPUs, experts on others",
        options=(OPTION,),
        scheme="tensor",
        serves=True,
        check=check,
        notes=notes,
        buffers=buffers,
        axes=lambda job: ("dp",),
        groups=groups,
        context=context,
        pieces=of_both,
    )
)
