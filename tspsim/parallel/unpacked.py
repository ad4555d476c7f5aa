"""Keys and values of all heads that a pass makes of cached latents, for the kernels of its prompts."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ..model.attention import prefilled
from ..model.layer import LayerShard, ServingLayer
from .job import Job
from .ledger import Buffer, Lifetime

#: The part of memory they are told under.
UNPACKED = "unpacked_context"


def unpacked_bytes(job: Job, layer: LayerShard, share: float = 1.0) -> float:
    """Of a shard's heads and a share of what the prompts of a pass find in the cache.

    An engine that unpacks at most so many tokens at once (``context_workspace``) attends one piece after the other and
    merges what it finds.
    """
    if not isinstance(layer, ServingLayer):
        return 0.0
    tokens = sum(context * sequences for _, context, sequences in prefilled(job.rows))
    at_once = min(ceil(share * tokens), job.work.stack.engine.context_workspace or tokens)
    return at_once * layer.attention_kind.kv_up_proj_width(layer) * job.activation_bytes


def unpacked(job: Job, layer: LayerShard, share: float = 1.0) -> Iterator[Buffer]:
    """The same in the ledger, while one layer works."""
    size = unpacked_bytes(job, layer, share)
    if size:
        yield Buffer(UNPACKED, size, Lifetime.LAYER)
