"""Memory of a rank while it serves: weights, each class in its type, and the cache of resident sequences.

A cache is divided by what divides its tokens (sequence shards, folded or not, and groups of tensor-parallel ranks that
share contexts), by stages, and over tensor-parallel ranks by heads as far as there are any: latents and index keys have
one head and are whole on every rank.

What tensor parallelism does not divide of the weights is said here for training too: projections to latents, indexers
and routers, and one head of K and V where ranks are more than heads. Norms are counted as divided: they are a few
hundredths of a per mille. A folded scheme divides every matrix and gathers it where it is needed, so its ranks keep
none of them whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...model import Block
from ...model.attention import CacheUse
from ...model.layer import ServingLayer
from ...model.parts import WeightClass
from ...operators import AbsorbProduct, Gemm, Operator
from ...steps.load import round_robin
from ..drafting import drafter_of
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..placement import Chunk
from ..plan import DRAFT_REPLICAS, EXPERT_POOL
from ..rank_groups import expert_ranks
from ..registries import ContextShare
from . import weight_offload, weight_peers


def state(job: Job, weight_shards: int, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Weights and cache of a rank with the given chunks."""
    yield Buffer("weights", weight_bytes(job, weight_shards, chunks), Lifetime.STEP)
    if job.plan.offload_weights:
        sizes = {
            block: (layer_weight_bytes(job, weight_shards, block), count)
            for block, count in weight_offload.away(job, chunks).items()
        }
        yield from weight_offload.buffers(size for size, _ in sizes.values())
        yield from weight_peers.buffers(job.plan, (count * size for size, count in sizes.values()))
    yield Buffer("kv_cache", cache_bytes(job, chunks), Lifetime.STEP)


def weight_bytes(job: Job, weight_shards: int, chunks: Sequence[Chunk]) -> float:
    """Bytes of the weights of some chunks on one rank, with the drafter's, without layers whose weights are in host
    memory."""
    model, formats = job.model, job.work.formats
    kinds = job.blocks(chunks)
    if job.plan.offload_weights:
        kinds -= weight_offload.away(job, chunks)
    total = 0.0
    for block, layers in kinds.items():
        total += layers * layer_weight_bytes(job, weight_shards, block)
    tables = sum(chunk.has_embedding + (chunk.has_head and not model.tied_embeddings) for chunk in chunks)
    tables = max(tables, int(model.tied_embeddings and any(chunk.has_head for chunk in chunks)))
    total += tables * model.vocab * model.hidden / weight_shards * formats.weight_bytes(WeightClass.EMBEDDING)
    if any(chunk.has_head for chunk in chunks) and job.draft_layers:
        total += model.join_parameters * formats.weight_bytes(WeightClass.ATTENTION)
    drafter = drafter_beside(job, chunks)
    if drafter is not None:
        total += weight_bytes(drafter, weight_shards, whole_model(drafter))
    return total


def drafter_beside(job: Job, chunks: Sequence[Chunk]) -> Job | None:
    """The draft model on the GPUs of some chunks, if there is one."""
    beside = job.drafts is not None and DRAFT_REPLICAS not in job.plan.options
    here = beside and any(chunk.has_head for chunk in chunks)
    return drafter_of(job) if here else None


def whole_model(job: Job) -> tuple[Chunk, ...]:
    """One chunk of all layers, with tables and head."""
    return (Chunk(0, job.model.layers, True, True),)


def layer_weight_bytes(job: Job, weight_shards: int, block: Block) -> float:
    """Bytes of one layer on a rank: an even share, and what tensor parallelism does not divide. Routed experts are
    spread over their own group."""
    formats, parameters = job.work.formats, dict(job.model.class_parameters(block))
    projected, shared = projected_by_all(job, block), job.scheme.context(job.plan)
    routed = parameters.pop(WeightClass.EXPERTS, 0)
    if EXPERT_POOL in job.plan.options:
        routed = 0  # on other GPUs
    copies = job.expert_loads.further_experts * job.model.expert_parameters if routed and job.plan.ep > 1 else 0.0
    own = routed / expert_ranks(job) if routed else 0.0
    total = (own + copies) * formats.weight_bytes(WeightClass.EXPERTS)
    beyond = beyond_even_share(job, weight_shards, block)
    for part, count in parameters.items():
        total += (count / weight_shards + beyond.get(part, 0.0)) * formats.weight_bytes(part)
    more = projected * (1 / shared.projected - 1 / shared.own) if projected else 0.0
    return total + more * formats.weight_bytes(WeightClass.ATTENTION)


def whole_on_every_rank(job: Job, block: Block) -> Mapping[WeightClass, int]:
    """Elements of a layer that each tensor-parallel rank has whole, by class; routed experts have none."""
    if job.scheme.folds:
        return {}
    whole = {WeightClass.ATTENTION: job.layer(1, block).down_weights}
    return {**whole, WeightClass.SHARED: job.model.router_parameters} if block.experts else whole


def beyond_even_share(job: Job, weight_shards: int, block: Block) -> Mapping[WeightClass, float]:
    """Elements of a layer on a rank beyond ``1/weight_shards`` of them, by class."""
    if weight_shards == 1:
        return {}
    more = {part: count - count / weight_shards for part, count in whole_on_every_rank(job, block).items()}
    more[WeightClass.ATTENTION] = more.get(WeightClass.ATTENTION, 0.0) + repeated_heads(job, weight_shards, block)
    return more


def repeated_heads(job: Job, weight_shards: int, block: Block) -> float:
    """Elements of a rank's projections to K and V beyond an even share, which more ranks than heads repeat."""
    share = job.scheme.context(job.plan)
    if job.scheme.folds or share.projected != share.own:
        return 0.0
    layer = job.layer(weight_shards, block)
    divided = job.model.attention_of(block).matrix_parameters(job.model, block) - layer.down_weights
    return max(0.0, layer.attention_weights - divided / weight_shards)


def projected_by_all(job: Job, block: Block) -> int:
    """Elements of the projections to queries, keys and values that ranks sharing a context all hold; 0: none."""
    share = job.scheme.context(job.plan)
    layer = job.layer(1, block)
    assert isinstance(layer, ServingLayer)
    if share.projected == share.own or not layer.attention_kind.divides_context:
        return 0
    leaving = layer.attention_kind.leave(layer, ((1, 1, 1),))
    output = sum(matrix_elements(operator) for operator in leaving)
    matrices = layer.attention_kind.matrix_parameters(job.model, block)
    whole = whole_on_every_rank(job, block).get(WeightClass.ATTENTION, 0)
    return matrices - whole - output


def matrix_elements(operator: Operator) -> int:
    """Weights that a product reads."""
    if isinstance(operator, AbsorbProduct):
        return operator.heads * operator.n * operator.k
    return operator.batch * operator.n * operator.k if isinstance(operator, Gemm) else 0


def cache_bytes(job: Job, chunks: Sequence[Chunk]) -> float:
    """Bytes of the cache of all sequences of a step on a rank, at the step's end."""
    share = job.scheme.context(job.plan)
    rows = [
        (context + queries, sequences)
        for queries, context, sequences in round_robin(sequences_of(job), share.sequences)
    ]
    return sum(
        layers * sum(sequences * rank_bytes(share, use, tokens) for tokens, sequences in rows)
        for use, layers in cache_uses(job, chunks).items()
    )


def rank_bytes(share: ContextShare, use: CacheUse, context: int) -> float:
    """Bytes that a rank keeps of a sequence with ``context`` tokens in a layer: attended heads over its part of the
    tokens, and states of its own heads."""
    keys = context * use.shared_token_bytes if share.whole_keys else 0.0
    divided = replace(use, sequence_bytes=0.0, shared_token_bytes=0.0) if keys else replace(use, sequence_bytes=0.0)
    growing = divided.rank_bytes(context, share.attended, share.ranks) + keys
    kept = share.copies * (growing + use.sequence_bytes / min(share.own, use.state_heads))
    return kept * (1.0 - share.hosts) if share.hosts else kept


def cache_uses(job: Job, chunks: Sequence[Chunk]) -> Counter[CacheUse]:
    """Layers of some chunks by what they cache per sequence, with the drafter's.

    States are kept once per token that a step verifies, since any of these may be the last accepted one.
    """
    model, formats, uses = job.model, job.work.formats, Counter[CacheUse]()
    states = 1 + (job.drafts.tokens if job.drafts else 0)
    for block, layers in job.blocks(chunks).items():
        use = model.attention_of(block).cache(model, block, formats.cache, formats.state)
        uses[replace(use, sequence_bytes=states * use.sequence_bytes) if use.sequence_bytes else use] += layers
    drafter = drafter_beside(job, chunks)
    if drafter is not None:
        uses += cache_uses(drafter, whole_model(drafter))
    return uses


def sequences_of(job: Job) -> tuple[tuple[int, int, int], ...]:
    """All sequences of a replica at the end of a step, as rows."""
    load = job.work.load
    return *load.kept, *load.caches()
