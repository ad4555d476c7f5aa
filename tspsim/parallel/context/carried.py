"""Sequence shards of linear attention: only a state passes between shards.

A run of tokens maps a head's state as S → A·S + B, with A of k_dim × k_dim and B of k_dim × v_dim. Every rank computes
the map of its own run, the maps are gathered, and every rank applies those of the earlier runs to get its initial
state, then scans its run again (SGLang #34059 and FLA's KCP for KDA, rtp-llm #876 for Gated DeltaNet; attention-gym
#453 has the map). The gathered bytes do not grow with the sequence. The convolution needs the last inputs before a run,
which are gathered first.
"""

from __future__ import annotations

from ...base.quick import replace
from ...model.attention.linear import Linear, linear_of
from ...model.layer import LayerShard, ServingLayer
from ...operators import DeltaScan, MemoryBound, Operator, Role
from ..builder import ProgramBuilder
from ..job import Job

#: The maps are in fp32.
FP32_BYTES = 4.0


def carries(layer: LayerShard) -> bool:
    """Whether a layer of a serving step keeps a state (linear attention)."""
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
    """Bytes of the last convolution inputs of every run, of a shard's heads."""
    shard, kind = _linear(layer)
    linear = linear_of(shard.model)
    heads = kind.share(shard, linear.k_heads), kind.share(shard, linear.v_heads)
    channels = 2 * heads[0] * linear.k_dim + heads[1] * linear.v_dim
    return runs(job) * channels * (linear.convolution - 1) * job.activation_bytes


def summary_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of A and B of every run, of a shard's heads; with cached tokens also the initial states."""
    shard, kind = _linear(layer)
    linear = linear_of(shard.model)
    heads = kind.share(shard, linear.v_heads)
    maps = runs(job) * heads * linear.k_dim * (linear.k_dim + linear.v_dim) * FP32_BYTES
    states = job.sequences * heads * linear.k_dim * linear.v_dim * FP32_BYTES if job.cached else 0.0
    return maps + states


def handed_bytes(job: Job, layer: LayerShard) -> float:
    """All bytes gathered in a layer."""
    return tail_bytes(job, layer) + summary_bytes(job, layer)


def hand_on(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """Gather convolution inputs, convolve, gather the runs' maps; returns the dependencies of the scan."""
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
    """Operators that apply the earlier runs' maps and scan a shard's own runs."""
    shard, kind = _linear(layer)
    fold = MemoryBound("add", summary_bytes(job, layer), name="fold summaries", role=Role.MERGE)
    return fold, *kind.attend(shard, own_rows(job))
