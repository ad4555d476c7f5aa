"""Peak memory of a rank by part, from what each schedule keeps alive (docs/memory.md derives the terms).

Symbols: β bytes of an activation, n local tokens, h hidden, a and c the widths of queries and of keys (= values), f FFN
width (of shared experts in a layer with experts), t the ranks that divide the heads and FFN columns of a rank's own
tokens (T for tensor parallelism; 1 for TSP, whose ranks compute all heads and columns of their tokens).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...model import Block
from ...operators import Role
from ..expert_rows import routed_shard, sent_rows
from ..feature import features_of
from ..job import Job
from ..ledger import WORKSPACE, Buffer, Lifetime
from ..pipeline import Chunk, spread_over
from ..recompute import NORMS, PRODUCTS, keeps_gathered_inputs, recomputed_groups
from ..recomputed import ATTENTION, CHEAP, FULL, INSIDE, KEPT
from ..residency import Residency
from ..scheme import scheme_of
from ..separate_kernels import E5M6
from . import data, served, weight_offload
from .owned import OwnedParameters


class KeptActivations(NamedTuple):
    """A kind of layer by what it keeps for its backward: its ``recomputation``, whether the activations are
    offloaded to the host (``away``), and whether its weights come from there (``fetched``)."""

    block: Block
    recomputation: str
    away: bool = False
    fetched: bool = False

    @property
    def alone(self) -> bool:
        """Whether it waits for copies that other layers of its kind have not."""
        return self.away or self.fetched


def peak_memory(job: Job, residency: Residency) -> Mapping[str, float]:
    """Bytes of the fullest rank, by part."""
    last = job.plan.pp - 1
    stages = range(job.plan.pp) if job.plan.stage_layers else sorted({0, min(1, last), job.plan.pp // 2, last})
    if job.unequal:  # all micro-batches in flight count as large as the largest
        sizes = [stage_memory(one, residency, stage) for one in job.every_pack() for stage in stages]
        return max(sizes, key=lambda parts: sum(parts.values()))
    return max((stage_memory(job, residency, stage) for stage in stages), key=lambda parts: sum(parts.values()))


def peak_bytes(job: Job) -> float:
    """Bytes of the fullest rank."""
    return sum(peak_memory(job, scheme_of(job.plan).residency).values())


def stage_memory(job: Job, residency: Residency, stage: int) -> Mapping[str, float]:
    """Bytes by part of a rank of one pipeline stage."""
    in_flight = layers_in_flight(job, residency.compute_shards(job), stage) if job.training else None
    return peak(declared(job, residency, job.chunks(stage)), in_flight)


def peak(buffers: Iterable[Buffer], in_flight: Mapping[Hashable, int] | None = None) -> dict[str, float]:
    """Bytes of a ledger by part at the peak, in the order of declaration; ``in_flight``: layers of each kind times
    micro-batches whose backward is still to come.

    >>> kept = Buffer("kept", 2.0, Lifetime.IN_FLIGHT, "dense")
    >>> peak([Buffer("weights", 8.0, Lifetime.STEP), kept], {"dense": 3})
    {'weights': 8.0, 'kept': 6.0}
    """
    under_way = in_flight or {}
    parts: dict[str, float] = {}
    by_kind: dict[str, float] = {}
    alone: dict[str, float] = {}
    for part, size_bytes, lifetime, block in buffers:
        parts.setdefault(part, 0.0)
        if lifetime is Lifetime.TABLE:
            alone[part] = max(alone.get(part, 0.0), size_bytes)
        elif lifetime is Lifetime.IN_FLIGHT:
            parts[part] += size_bytes * (sum(under_way.values()) if block is None else under_way.get(block, 0))
        elif lifetime is Lifetime.LAYER and block is not None:
            by_kind[part] = max(by_kind.get(part, 0.0), size_bytes)
        else:
            parts[part] += size_bytes
    for part, size_bytes in by_kind.items():
        parts[part] += size_bytes
    for part, size_bytes in alone.items():
        parts[part] = max(parts[part], size_bytes - parts.get(WORKSPACE, 0.0))
    return {part: size for part, size in parts.items() if size > 0.0}


def declared(job: Job, residency: Residency, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """The buffers of a rank with the given chunks, as every part of the code declares them."""
    job = at_largest_pass(job)
    share, compute_shards = OwnedParameters(job, residency.weight_shards(job)), residency.compute_shards(job)
    kinds = job.blocks(chunks)
    yield from (
        served.state(job, residency.weight_shards(job), chunks) if job.step.serves else data.state(job, share, chunks)
    )
    if job.training:
        yield from waiting(job, compute_shards, chunks)
        yield from data.undivided(job, share, chunks)
    for block in kinds:
        yield Buffer(WORKSPACE, workspace(job, compute_shards, block), Lifetime.LAYER, block)
    yield from largest_exchange_buffers(residency, job)
    for feature in features_of(job):
        yield from feature.buffers(job, chunks)
    if any(chunk.has_head for chunk in chunks):
        yield Buffer("logits", logits(job, residency.logit_shards(job)), Lifetime.HEAD)
    yield Buffer("runtime_reserve", job.work.runtime_reserve_bytes, Lifetime.STEP)


def arriving_bytes(job: Job) -> float:
    """Bytes of weights per forward that arrive from the host's memory, at a rank of the stage with most."""
    shards = scheme_of(job.plan).residency.weight_shards(job)
    share = OwnedParameters(job, shards)

    def size(block: Block) -> float:
        return served.layer_weight_bytes(job, shards, block) if job.step.serves else share.layer_bytes(block)

    stages = (weight_offload.away(job, job.chunks(stage)) for stage in range(job.plan.pp))
    return max(sum(count * size(block) for block, count in gone.items()) for gone in stages)


def waiting(job: Job, compute_shards: int, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Activations that layers keep for their backward.

    A group recomputed as a whole has those of all but one layer beside the layer at work; of offloaded layers, two are
    in transit if there are two.
    """
    for kind in kept_kinds(job, chunks):
        kept = kept_activations(job.with_recomputation(kind.recomputation), compute_shards, kind.block)
        if kind.away:
            moving = min(OFFLOADING, job.plan.offload_layers)
            yield Buffer("offload_buffers", moving * kept, Lifetime.LAYER, kind)
        else:
            yield Buffer("kept_activations", kept, Lifetime.IN_FLIGHT, kind)
        if kind.recomputation == INSIDE and job.plan.recomputed is not None:
            whole = kept_activations(job.with_recomputation(KEPT), compute_shards, kind.block)
            yield Buffer("repeated_group", (job.plan.recomputed.group - 1) * whole, Lifetime.LAYER, kind)


#: Layers whose activations are in transit between GPU and host: one that moves, and one whose buffer is filled.
OFFLOADING = 2


def kept_kinds(job: Job, chunks: Sequence[Chunk]) -> Counter[KeptActivations]:
    """Kinds of layer in some chunks by what they keep, with the number of each."""
    kinds: Counter[KeptActivations] = Counter()
    for chunk in chunks:
        if job.plan.recomputed is None and not job.plan.offload_layers:
            for block, count in job.model.kinds(chunk.first_layer, chunk.layers):
                kinds[KeptActivations(block, job.plan.recomputation)] += count
        else:
            blocks = job.model.blocks[chunk.first_layer : chunk.first_layer + chunk.layers]
            away = spread_over(chunk.layers, job.plan.offload_layers)
            kinds.update(
                itertools.starmap(KeptActivations, zip(blocks, job.recomputation_of(chunk), away, strict=True))
            )
        if chunk.has_head and job.further_layers:
            kinds[KeptActivations(job.further_block, job.plan.recomputation)] += job.further_layers
    return kinds


def largest_exchange_buffers(residency: Residency, job: Job) -> Sequence[Buffer]:
    """Buffers of a scheme's exchanges, of the layers with most if only some are recomputed."""
    if job.plan.recomputed is None:
        return list(residency.buffers(job))
    both = (list(residency.buffers(job.with_recomputation(again))) for again in (KEPT, job.plan.recomputation))
    return max(both, key=lambda buffers: sum(buffer.size_bytes for buffer in buffers))


def at_largest_pass(job: Job) -> Job:
    """The job at the largest pass of a serving step: of equal chunks the one behind most of the prompt."""
    if not job.work.load.chunk or job.pass_index is not None:
        return job
    passes = job.passes
    return job.at(max(range(len(passes)), key=lambda index: (passes[index].tokens, passes[index].pairs)))


def layers_in_flight(job: Job, compute_shards: int, stage: int) -> Counter[Hashable]:
    """Layers of each kind, times micro-batches, whose activations a stage keeps at its peak.

    A forward interleaved with a backward adds one layer, which arrives before the backward's layer is freed.
    """
    chunks = [kept_kinds(job, [chunk]) for chunk in job.chunks(stage)]
    parts = {
        kind: kept_activations(job.with_recomputation(kind.recomputation), compute_shards, kind.block) * (not kind.away)
        for kinds in chunks
        for kind in kinds
    }
    sizes = [sum(parts[kind] * count for kind, count in kinds.items()) for kinds in chunks]
    layers: Counter[Hashable] = Counter()
    most = job.order.in_flight(job.plan.pp, stage, job.micro_batches, sizes)
    for kinds, micro_batches in zip(chunks, most, strict=True):
        for kind, count in kinds.items():
            layers[kind] += count * micro_batches
    if job.plan.hiding.micro_batches and layers and not job.order.both_ways:
        layers[max(parts, key=parts.__getitem__)] += 1
    return layers


def residual_tokens(job: Job) -> float:
    """Tokens of the residual stream that a rank holds between blocks: n, or n/T with sequence regions."""
    return job.tokens / (job.plan.tp if job.plan.sequence_regions else 1)


def kept_activations(job: Job, compute_shards: int, block: Block) -> float:
    """Bytes that the forward of one layer and micro-batch keeps for the backward.

    ``full`` recomputation keeps a layer's input, β·h per token. Otherwise a layer keeps its input, both norms' outputs
    and the middle of the residual stream (4h), Q, K, V and the attention output (2a + 2c), and the MLP's columns (3f
    gated, 2f not); ``cheap`` drops the activation's product (f), the norms' outputs (2h), and with latents Q, K and V.
    Latent attention also keeps its latents; experts keep the arrived rows and their columns. A stack may keep more; one
    that writes scores out keeps 5 bytes of each (probabilities before and after dropout, and the mask), which
    ``selective`` recomputes (Korthikanti et al. 2022, §4.1 and §5).

    A product's input is kept for its weight gradient alone, unless a kernel before it needs it: a frozen product
    without adapters keeps no norm output, activation product or expert row. A store with fewer bits applies to columns
    that enter an activation, or also to inputs of products; latents and what attention needs keep their type. Only
    where a stack casts apart is attention's output kept in 12 bits, for its own backward too (DeepSeek-V3, §3.3.3).
    """
    model, plan, stack, adapters = job.model, job.plan, job.work.stack, job.work.adapters

    def kept(product: Role) -> bool:
        return adapters is None or adapters.beside(product)

    if plan.recomputation == INSIDE:
        return 0.0
    residual = residual_tokens(job) * model.hidden
    scores, wide = 0.0, job.activation_bytes
    # Of a wide stream, the layer's input and the middle; weights are elsewhere.
    stream = (job.mixed_precision.stream_bytes or wide) / wide
    if plan.recomputation == FULL:
        return wide * residual * stream
    if not stack.flash_attention and plan.recomputation != ATTENTION and plan.recomputation != CHEAP:
        scores = 5.0 * job.tokens * job.work.sequence * model.heads / compute_shards
    # Type of the store over the activation's, for inputs of activations and of products.
    entering, multiplied = (job.store.columns_bytes or wide) / wide, (job.store.products_bytes or wide) / wide
    cheap, again = plan.recomputation == CHEAP, recomputed_groups(job)
    before = (2 if model.gated else 1) * entering
    columns = before + (PRODUCTS not in again and kept(Role.DOWN)) * multiplied
    norms = kept_norms(job, block, kept) * multiplied
    output = model.heads * model.latent.value_dim if model.latent else model.attention_width
    heads: float = output if cheap and model.latent else 2 * model.attention_width + 2 * model.kv_width
    if stack.casts_apart and multiplied < 1.0:
        heads -= output * (1.0 - E5M6 / wide)
    split = heads + columns * ffn_width(job, block)
    shares = job.plan.tp if job.regions and not keeps_gathered_inputs(job) else 1
    per_layer = 2 * stream * residual + norms + job.tokens * split / compute_shards + latents(job) / shares
    if block.experts:
        routed = routed_shard(job)
        columns = before + (PRODUCTS not in again and kept(Role.EXPERTS_DOWN)) * multiplied
        rows = model.hidden * kept(Role.EXPERTS_GATE_UP) * multiplied
        per_layer += routed.all_rows * (rows + columns * routed.width)
    return wide * per_layer * stack.activation_factor + scores


def kept_norms(job: Job, block: Block, kept: Callable[[Role], bool]) -> float:
    """Elements of a layer's kept norms' outputs: of own tokens, or of all that are gathered and kept so
    (:mod:`tspsim.parallel.column_inputs`). Latents are gathered instead of what they are made of; shared experts beside
    an exchange keep what they gathered (Megatron-LM, ``shared_experts.py``, ``pre_forward_comm``)."""
    if NORMS in recomputed_groups(job):
        return 0.0
    own, model = residual_tokens(job), job.model
    whole = job.tokens if keeps_gathered_inputs(job) else own
    entering = whole if model.latent is None or not model.latent.q_rank else own
    if block.experts:
        gathers = job.regions and job.plan.hiding.shared_beside
        whole = max(whole, job.tokens * gathers) if ffn_width(job, block) else own
    return model.hidden * (entering * kept(Role.QKV) + whole * kept(Role.GATE_UP))


def ffn_width(job: Job, block: Block) -> int:
    """FFN columns of all tokens: of the dense MLP, or of shared experts."""
    experts = job.model.experts
    return experts.shared_width if block.experts and experts else job.model.ffn


def latents(job: Job) -> float:
    """Elements of a layer's latents; 0 without latent attention."""
    return job.tokens * job.model.latent.down_width if job.model.latent else 0.0


def workspace(job: Job, compute_shards: int, block: Block) -> float:
    """Bytes while one layer runs.

    Training: seven tensors of the residual's size (middle of the stream, both norms' outputs, the block's output, three
    gradients), Q, K, V, the attention output and their gradients (2·(2a + 2c)), and the MLP's columns with theirs (5f
    gated: gate, up, their product, two gradients; 3f not). Forward alone: the residual, the norm's and the block's
    output, and the wider of attention's and the MLP's columns. Experts: rows sent and received, their gradients and
    columns.
    """
    model = job.model
    attention = 2 * model.attention_width + 2 * model.kv_width
    residual = residual_tokens(job) * model.hidden
    # With sequence regions a block's gathered input is whole beside the shards.
    whole = job.tokens * model.hidden if job.plan.sequence_regions and job.plan.tp > 1 else 0.0
    if job.training:
        columns = 5 if model.gated else 3
        split = 2 * attention + columns * ffn_width(job, block)
        elements = 7 * residual + 2 * whole + job.tokens * split / compute_shards + 2 * latents(job)
    else:
        columns = 3 if model.gated else 2
        split = max(attention, columns * ffn_width(job, block))
        elements = 3 * residual + whole + job.tokens * split / compute_shards + latents(job)
    if block.experts:
        routed = routed_shard(job)
        moved = (2 if job.training else 1) * (routed.all_rows + sent_rows(job)) * model.hidden
        elements += moved + routed.all_rows * columns * routed.width
    return job.activation_bytes * elements


def logits(job: Job, shards: int) -> float:
    """Bytes of a rank's logits in bf16 and, while training, of their gradient and softmax (β + 2 + 4 per logit in
    stacks whose loss is in fp32)."""
    columns = -(-job.model.vocab // shards)
    per_logit = job.activation_bytes + (2.0 + job.work.stack.softmax_bytes if job.training else 0.0)
    return job.head_tokens * columns * per_logit
