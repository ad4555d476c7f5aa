"""Attention of some decoding sequences on the hosts' processors, with their caches in host memory.

The device attends one part of the sequences. For the other part, in every layer, queries and new cache entries move to
the host, whose processors read the caches at the rate of their memory, and outputs return. Meanwhile the device
computes the whole layer for the first part, then for the second what follows attention and the next layer's projections
(APEX, Fan et al. 2025, arXiv:2506.03296; NEO's asymmetric pipelining, Jiang et al. 2024, arXiv:2411.01142). With D and
H the kernels of a layer without attention for the first and the second part, A the attention of the first, K the bytes
of the second's caches, m those of its queries, outputs and new entries, b the link and r the rate at which a GPU's
share of the host's memory is read,

    layer = H + max(D + A, m/b + K/r).

Weights are read twice: D + H exceeds the kernels G of all sequences at once while rows are few. The paper's test of
profit compares with the ideal max(G + A, m/b + K/r), which no order of two parts reaches, and whose best share has both
sides equal:

    share* = (G + A' - m/b) / (A' + K'/r),     A', K' of all sequences.

A GPU's memory is ten to a hundred times as fast as its share of the host's: the share that costs no time is a few per
cent, and the gain is room for caches. Not counted: latencies of copies, wake-ups of host threads, the copy of a
prompt's cache to the host. The device attends prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ...model.attention.base import tokens_of
from ...model.layer import LayerShard, ServingLayer
from ...operators import Rows
from ..builder import ProgramBuilder
from ..feature import FEATURES, Feature
from ..job import Job
from ..pipeline import Refusal
from ..registries import Option
from ..residual import STANDARD, residual_of
from ..scheme import WholeTokens
from ..search_rule import SearchRule
from .elsewhere import cache_bytes, parted, remote_share
from .layer import mlp, project, share_of, sum_rows

#: The key of a plan, and the axis whose ranks divide heads and columns.
KEY, AXIS = "host_attention", "tp"
#: Streams of the host's processors, and of results from the host.
STREAM, RETURN = "host attention", "outputs from host"


def crossing_bytes(layer: ServingLayer, rows: Rows) -> tuple[float, float]:
    """Bytes per layer to the host (queries and new cache entries) and back (outputs)."""
    tokens, element = tokens_of(rows), layer.activation_bytes
    return tokens * (layer.query_width + 2 * layer.kv_width) * element, tokens * layer.output_width * element


def in_parts(whole: WholeTokens) -> WholeTokens:
    """Layers written for both parts of the sequences."""

    def layer(builder: ProgramBuilder, job: Job, shard: LayerShard, position: int) -> list[int]:
        here, away = parted(job.rows, remote_share(job.plan, KEY))
        if not away:
            return whole.layer(builder, job, shard, position)
        ready = begin_host_attention(builder, job, shard, away)
        done = whole.layer(builder, job.of_rows(here), shard, position) if here else []
        return [*done, *ready()]

    return replace(whole, layer=layer)


def begin_host_attention(builder: ProgramBuilder, job: Job, layer: LayerShard, away: Rows) -> Callable[[], list[int]]:
    """Write one layer of the hosts' part up to the outputs' return; returns a function that writes the rest."""
    assert isinstance(layer, ServingLayer)
    other, heads = job.of_rows(away), share_of(job, layer)
    builder.part = "attention"
    entered, projected = project(builder, other, layer, heads, AXIS, [])
    leaving, coming = crossing_bytes(layer, away)
    there = builder.copy("out", leaving, "queries to host", after=[projected])
    read_s = cache_bytes(layer, heads.attended, away) / job.work.host_reads_bytes_per_s
    attended = builder.host("attention on the host", read_s, after=[there], stream=STREAM)
    back = builder.copy("in", coming, "outputs from host", after=[attended], stream=RETURN)

    def rest() -> list[int]:
        builder.part = "attention"
        output = builder.compute("output projection", *layer.attention_kind.leave(layer, away), after=[back])
        summed = sum_rows(builder, other, AXIS, output, "sum attention")
        _, ready = mlp(builder, other, layer, AXIS, [summed])
        for index, producer in enumerate(ready):
            builder.after_previous_layer(entered, producer, f"hosts' tokens {index}")
        return ready

    return rest


def refused(job: Job) -> Refusal:
    """Why the plan or model does not fit."""
    plan, model = job.plan, job.model
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
    """How much of the caches is on hosts, and the time of a step to read it."""
    _, away = parted(job.rows, remote_share(job.plan, KEY)) if job.step.serves else ((), ())
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


FEATURES.register(
    Feature(
        KEY,
        "attention of some sequences on the hosts' processors",
        options=(
            Option(
                KEY,
                Annotated[float, Field(gt=0, lt=1)],
                None,
                "share of the decoding sequences whose caches hosts keep and attend",
                SearchRule(
                    why_not="buys room for caches, not rate: state it to try",
                    of=lambda model, work: (
                        work.step.serves and bool(work.load.batch) and work.host_reads_bytes_per_s > 0.0
                    ),
                ),
            ),
        ),
        scheme="tensor",
        serves=True,
        check=refused,
        notes=notes,
        context=lambda plan, context: replace(context, hosts=remote_share(plan, KEY)),
        pieces=in_parts,
    )
)
