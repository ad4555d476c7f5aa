"""Sequence shards of linear attention: a state passes from shard to shard, and only the state.

A run of tokens changes the state of a head as S → A·S + B, with A of k_dim × k_dim and B of k_dim × v_dim: every rank
summarises its own run from nothing, the summaries are gathered, every rank folds those of the runs before its own into
the state that it begins with, and scans again (SGLang #34059 and FLA's KCP for KDA, rtp-llm #876 for Gated DeltaNet;
attention-gym #453 has the map). What is gathered does not grow with the sequence. The convolution reaches over the
border by its last inputs, which are gathered before.
"""

from __future__ import annotations

from ...base.quick import replace
from ...model.attention.linear import Linear, linear_of
from ...model.layer import LayerShard, ServingLayer
from ...operators import DeltaScan, MemoryBound, Operator, Role
from ..builder import ProgramBuilder
from ..job import Job

#: Summaries are in fp32.
FP32_BYTES = 4.0


def carries(layer: LayerShard) -> bool:
    """Whether a layer keeps a state, in steps that serve."""
    return isinstance(layer, ServingLayer) and isinstance(layer.attention_kind, Linear)


def _linear(layer: LayerShard) -> tuple[ServingLayer, Linear]:
    assert isinstance(layer, ServingLayer) and isinstance(layer.attention_kind, Linear)
    return layer, layer.attention_kind


def runs(job: Job) -> int:
    """Runs of tokens of all shards and sequences of a pass."""
    return job.plan.token_shards * (2 if job.plan.partition == "zigzag" else 1) * job.sequences


def own_rows(job: Job) -> tuple[tuple[int, int, int], ...]:
    """Runs of one shard, as rows."""
    parts = 2 if job.plan.partition == "zigzag" else 1
    return tuple((tokens // job.plan.token_shards // parts, 0, parts * count) for tokens, count in job.lengths)


def tail_bytes(job: Job, layer: LayerShard) -> float:
    """The last inputs of the convolution of every run, of a shard's heads."""
    shard, kind = _linear(layer)
    linear = linear_of(shard.model)
    heads = kind.share(shard, linear.k_heads), kind.share(shard, linear.v_heads)
    channels = 2 * heads[0] * linear.k_dim + heads[1] * linear.v_dim
    return runs(job) * channels * (linear.convolution - 1) * job.activation_bytes


def summary_bytes(job: Job, layer: LayerShard) -> float:
    """A and B of every run, of a shard's heads; and behind cached tokens the states that ranks have by heads."""
    shard, kind = _linear(layer)
    linear = linear_of(shard.model)
    heads = kind.share(shard, linear.v_heads)
    maps = runs(job) * heads * linear.k_dim * (linear.k_dim + linear.v_dim) * FP32_BYTES
    states = job.sequences * heads * linear.k_dim * linear.v_dim * FP32_BYTES if job.cached else 0.0
    return maps + states


def handed_bytes(job: Job, layer: LayerShard) -> float:
    """All that is gathered in a layer."""
    return tail_bytes(job, layer) + summary_bytes(job, layer)


def hand_on(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """Tails, the convolution, summaries: returns what the scan waits for."""
    shard, kind = _linear(layer)
    axis, rows = job.plan.token_axis, own_rows(job)
    size = tail_bytes(job, layer)
    tails = builder.collective("all_gather", axis, size, "gather tails", after=after, stream="context")
    scans = [scan for scan in kind.attend(shard, rows) if isinstance(scan, DeltaScan)]
    wide = [replace(scan, v_dim=scan.k_dim + scan.v_dim, name="summaries of runs") for scan in scans]
    summed = builder.compute("summaries", *kind.convolve(shard, rows), *wide, after=[tails])
    size = summary_bytes(job, layer)
    return [builder.collective("all_gather", axis, size, "gather summaries", after=[summed], stream="context")]


def scanning(job: Job, layer: LayerShard) -> tuple[Operator, ...]:
    """The states of the runs before, and the scan of a shard's own."""
    shard, kind = _linear(layer)
    fold = MemoryBound("add", summary_bytes(job, layer), name="fold summaries", role=Role.MERGE)
    return fold, *kind.attend(shard, own_rows(job))
