"""A single shard, which has the whole context: no exchange."""

from __future__ import annotations

from ...model.layer import LayerShard
from ..builder import ProgramBuilder
from ..job import Job
from .attention import attention_backward, visible_segments
from .method import ContextMethod


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    work = job.work
    segments = visible_segments(job, 1, 0)
    return builder.compute("attention", layer.attention(segments, causal=work.causal), after=[after])


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    work = job.work
    segments = visible_segments(job, 1, 0)
    return attention_backward(builder, job, layer, segments, work.causal, "attention backward", [after])


#: The method of plans with one shard, whatever their ``exchange``; it has no name that a plan could state.
LOCAL = ContextMethod(
    name="",
    summary="one shard",
    forward=forward,
    backward=backward,
    received_bytes=lambda job: 0.0,
    buffers=lambda job: (),
)
