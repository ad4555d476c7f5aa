"""Keys and values of all heads expanded from cached latents, for the prompts of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ..model.attention import prefilled
from ..model.layer import LayerShard, ServingLayer
from .job import Job
from .ledger import Buffer, Lifetime

#: The part of memory in answers.
UNPACKED = "unpacked_context"


def unpacked_bytes(job: Job, layer: LayerShard, share: float = 1.0) -> float:
    """Bytes of expanded keys and values of a shard's heads, for a share of the prompts' cached tokens.

    An engine that expands at most ``context_workspace`` tokens at once attends piece by piece and merges the results.
    """
    if not isinstance(layer, ServingLayer):
        return 0.0
    tokens = sum(context * sequences for _, context, sequences in prefilled(job.rows))
    at_once = min(ceil(share * tokens), job.work.stack.engine.context_workspace or tokens)
    return at_once * layer.attention_kind.kv_up_proj_width(layer) * job.activation_bytes


def unpacked(job: Job, layer: LayerShard, share: float = 1.0) -> Iterator[Buffer]:
    """:func:`unpacked_bytes` as a buffer, while one layer runs."""
    size = unpacked_bytes(job, layer, share)
    if size:
        yield Buffer(UNPACKED, size, Lifetime.LAYER)
