"""Sequence shards of sparse attention: every rank scores its own queries against the index keys of the whole context.

As in SGLang's prefill context parallelism for DeepSeek Sparse Attention: a rank has its own tokens' queries; the
indexer's keys of all shards are gathered, then the latents. The top-k of the whole context is thus computed where the
query is, and no candidates are exchanged. New entries move in bf16, cached ones in the cache's type. With overlap,
latents move while keys are scored. A layer without an indexer uses the selection of an earlier layer.

Caches with one latent for several tokens (DeepSeek-V4) are compressed where the tokens are: compressed entries are
gathered, and the latest tokens before every border. (SGLang gathers hidden states and compresses on every rank.)
"""

from __future__ import annotations

from collections import Counter

from ...model.layer import LayerShard, ServingLayer
from ...operators import Operator
from ..builder import ProgramBuilder
from ..job import Job
from ..partition import Segments


def selects(layer: LayerShard) -> bool:
    """Whether queries of a layer attend a selection of their context (sparse attention), in serving steps."""
    return isinstance(layer, ServingLayer) and layer.attention_kind.selects


def scored_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of a layer's index keys over the whole context."""
    assert isinstance(layer, ServingLayer)
    kind, model, block = layer.attention_kind, layer.model, layer.composition
    use = kind.cache(model, block, layer.formats.cache)
    size = job.group_tokens * kind.index_key_elements(model, block) * job.activation_bytes
    return size + job.cached * job.sequences * use.shared_token_bytes


def attended_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of latents of the whole context, shared by all heads; of compressed caches the entries, and the latest
    tokens before every border between shards."""
    assert isinstance(layer, ServingLayer)
    kind, model, block, plan = layer.attention_kind, layer.model, layer.composition, job.plan
    use = kind.cache(model, block, layer.formats.cache)
    borders = plan.token_shards * (2 if plan.partition == "zigzag" else 1) * job.sequences
    size = job.group_tokens * kind.cache_elements(model, block) + borders * kind.boundary_elements(model, block)
    kept = (min(job.cached, use.window) if use.window else job.cached) * use.token_bytes
    kept += min(job.cached, use.latest) * use.latest_token_bytes
    return size * job.activation_bytes + kept * job.sequences


def rows_of(segments: Segments) -> tuple[tuple[int, int, int], ...]:
    """Segments of queries over a context as rows: (queries, tokens before them, number of equal ones).

    >>> rows_of(((64, 64), (64, 512), (64, 64)))
    ((64, 0, 2), (64, 448, 1))
    """
    counts = Counter((queries, max(0, context - queries)) for queries, context in segments)
    return tuple((queries, context, count) for (queries, context), count in counts.items())


def select(
    builder: ProgramBuilder, job: Job, layer: LayerShard, segments: Segments, after: list[int], *, overlap: bool
) -> list[int]:
    """Gather index keys and latents, and score; returns the dependencies of attention."""
    assert isinstance(layer, ServingLayer)
    axis, scored = job.plan.token_axis, list(after)
    kernels = layer.attention_kind.select(layer, rows_of(segments))
    if kernels:
        keys = builder.collective(
            "all_gather", axis, scored_bytes(job, layer), "gather index keys", after=after, stream="context"
        )
        scored = [keys]
    if kernels and not overlap:
        scored = [builder.compute("indexer", *kernels, after=scored)]
    latents = builder.collective(
        "all_gather", axis, attended_bytes(job, layer), "gather latents", after=after if overlap else scored,
        stream="context",
    )  # fmt: skip
    if kernels and overlap:
        scored = [builder.compute("indexer", *kernels, after=scored)]
    return [latents, *scored]


def attending(layer: LayerShard, segments: Segments) -> tuple[Operator, ...]:
    """Attention kernels of a shard's heads over the selected tokens."""
    assert isinstance(layer, ServingLayer)
    return layer.attention_kind.attend_selected(layer, rows_of(segments))
