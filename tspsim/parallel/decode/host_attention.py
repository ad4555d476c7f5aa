"""Attention of a share of the decoding sequences on the hosts' processors, whose memory keeps their caches.

The sequences fall into two parts. Of one the device attends, as ever; of the other, in every layer, queries and what is
new of the cache go to the host, whose processors read the caches at the rate of their memory, and outputs come back.
Meanwhile the device takes the first part through the whole layer, and then the second through what follows attention
and through the next layer's projections (APEX, Fan et al. 2025, arXiv:2506.03296; NEO's asymmetric pipelining, Jiang et
al. 2024, arXiv:2411.01142). With D and H for the kernels of a layer that the two parts take without attention, A the
attention of the first, K the bytes of the second's caches, m those of its queries, outputs and new entries, b the link
and r the rate at which a GPU's part of the host's memory is read,

    layer = H + max(D + A, m/b + K/r),

where weights are read twice: D + H are more than the kernels of all sequences at once, G, while few rows meet them.
What the paper's test of profit compares is the ideal max(G + A, m/b + K/r), which no order of two parts reaches, and
whose best share has both sides equal:

    share* = (G + A' - m/b) / (A' + K'/r),     A', K' of all sequences.

A GPU's memory is read ten to a hundred times as fast as its part of the host's: the share that costs no time is a few
per cent, and what is bought is room for caches. Neither latencies of copies nor wake-ups of the host's threads are
counted, nor the way of a prompt's cache to the host. Prompts are attended by the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...model.attention.base import Rows, tokens_of
from ...model.layer import LayerShard
from ...model.serving import ServingLayer
from ..context_share import ContextShare
from ..pipeline import Refusal
from ..residual import STANDARD, residual_of
from .elsewhere import cache_bytes, parted
from .layer import mlp, project, serve_layer, share_of, sum_rows

if TYPE_CHECKING:
    from ..builder import ProgramBuilder
    from ..job import Job
    from ..plan import Plan

#: The key of a plan.
KEY = "host_attention"
#: Streams of the host's processors, and of what comes from it.
STREAM, RETURN = "host attention", "outputs from host"


def share(plan: Plan) -> float:
    """Of decoding sequences, those whose caches hosts keep."""
    return float(plan.options.get(KEY, 0.0))


def crossing_bytes(layer: ServingLayer, rows: Rows) -> tuple[float, float]:
    """Bytes that go to the host for some rows in one layer, and that come back: queries and new entries, outputs."""
    tokens, element = tokens_of(rows), layer.activation_bytes
    return tokens * (layer.query_width + 2 * layer.kv_width) * element, tokens * layer.query_width * element


def serve_parts(builder: ProgramBuilder, job: Job, layer: LayerShard, axis: str) -> list[int]:
    """One layer of both parts; ``layer`` is the part of a rank of ``axis``, whose ranks divide heads and columns."""
    assert isinstance(layer, ServingLayer)
    here, away = parted(job.rows, share(job.plan))
    if not away:
        return serve_layer(builder, job, layer, axis)
    other, heads = job.of_rows(away), share_of(job, layer)
    builder.part = "attention"
    entered, projected = project(builder, other, layer, heads, axis, [])
    leaving, coming = crossing_bytes(layer, away)
    there = builder.copy("out", leaving, "queries to host", after=[projected])
    read_s = cache_bytes(layer, heads.attended, away) / job.work.host_reads_bytes_per_s
    attended = builder.host("attention on the host", read_s, after=[there], stream=STREAM)
    back = builder.copy("in", coming, "outputs from host", after=[attended], stream=RETURN)
    done = serve_layer(builder, job.of_rows(here), layer, axis) if here else []
    builder.part = "attention"
    output = builder.compute("output projection", *layer.attention_kind.leave(layer, away), after=[back])
    summed = sum_rows(builder, other, axis, output, "sum attention")
    _, ready = mlp(builder, other, layer, axis, [summed])
    for index, producer in enumerate(ready):
        builder.after_previous_layer(entered, producer, f"hosts' tokens {index}")
    return [*done, *ready]


def refused(job: Job) -> Refusal:
    """What it is not built for."""
    plan, model = job.plan, job.model
    if not share(plan):
        return None
    if not job.work.host_reads_bytes_per_s:
        return KEY, "needs a node whose host's memory bandwidth is known (`host_reads` in its file)"
    if model.latent or model.indexing or model.linear or model.compressed:
        return KEY, f"is built for grouped-query attention; {model.name} has another kind"
    if job.work.load.speculation is not None:
        return KEY, "is not built for drafts; leave one out"
    if residual_of(plan) is not STANDARD:
        return KEY, f"beside residual: {residual_of(plan).name} is not built; leave one out"
    for key, said in (("pp", "stages"), ("sp", "shards of contexts")):
        if plan.degree(key) > 1:
            return key, f"{plan.degree(key)} {said} beside {KEY} are not built; leave one out"
    shared = next((key for key in ("dcp", "kvp") if plan.options.get(key, 1) > 1), None)
    if shared is not None:
        return shared, f"{plan.options[shared]} beside {KEY} is not built; leave one out"
    if plan.ep > 1:
        return "ep", f"{plan.ep} beside {KEY} is not built; leave one out"
    if plan.offload_weights:
        return "offload_weights", f"and {KEY} both read the host's memory; leave one out"
    return None


def notes(job: Job) -> Iterator[str]:
    """How much of the caches is there, and how long a layer of it takes."""
    _, away = parted(job.rows, share(job.plan)) if job.step.serves else ((), ())
    if not away:
        return
    count = sum(sequences for _, _, sequences in away)
    ranks = job.plan.tp
    layers = [job.layer(ranks, block) for block in job.model.blocks]
    size = sum(cache_bytes(layer, ranks, away) for layer in layers if isinstance(layer, ServingLayer))
    slowest = size / job.work.host_reads_bytes_per_s
    yield (
        f"caches of {count} sequences, {size / 1e9:,.3g} GB per GPU, are in the hosts' memory, whose processors attend "
        f"them in {slowest * 1e3:,.3g} ms a step beside the device (`{KEY}`); latencies of copies and threads are left "
        "out"
    )


def with_hosts(context: ContextShare, plan: Plan) -> ContextShare:
    """A share of contexts of which hosts keep some sequences."""
    gone = share(plan)
    return replace(context, hosts=gone) if gone else context
