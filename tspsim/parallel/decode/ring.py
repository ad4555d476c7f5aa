"""The cache itself moves: parts of the contexts hop from rank to rank, as in Ring Attention (Liu et al. 2023).

The baseline of Tree Attention. A step moves (p − 1) times the cache of a rank, for one query per sequence.
"""

from __future__ import annotations

from dataclasses import replace

from ...model.layer import ServingLayer
from ...operators import Operator
from ..builder import ProgramBuilder
from .exchange import DECODE_EXCHANGES, DecodeExchange, Partial


def block_bytes(partial: Partial) -> float:
    """Bytes of the rows' cache that a rank holds in one layer."""
    layer, share = partial.layer, partial.share
    use = layer.attention_kind.cache(layer.model, layer.composition, layer.formats.cache)
    token = use.token_bytes / min(share.attended, use.heads)
    seen = [(min(c + q, use.window) if use.window else c + q, n) for q, c, n in partial.rows]
    return sum(partial.attending.held(tokens) * n for tokens, n in seen) * token


def own_layer(partial: Partial) -> ServingLayer:
    """The layer with the rank's own heads, over one part of the contexts."""
    return replace(partial.attending, shards=partial.share.own)


def attend(builder: ProgramBuilder, partial: Partial, after: list[int]) -> list[int]:
    """p − 1 hops: a rank's own heads attend the present part while the next arrives."""
    share, layer, size = partial.share, own_layer(partial), block_bytes(partial)
    here = after = partial.select(builder, list(after))
    if partial.entries:
        entries = partial.entries * partial.ranks
        here = [builder.collective("all_gather", share.axis, entries, "new entries", after=after)]
    merge = partial.combine_kernel(3 * partial.rows_of(partial.own_heads, partial.element), "merge blocks")
    arrived, last = here, here
    for step in range(partial.ranks):
        leaving: list[int] = []
        if step + 1 < partial.ranks:
            # Two buffers: a part may arrive when the one two steps before it has been attended.
            waits = [*arrived, *last]
            leaving = [builder.ring_hop(share.axis, size, f"cache hop {step + 1}", after=waits, stream="context")]
        operators: tuple[Operator, ...] = partial.layer.attention_kind.attend_selected(layer, partial.rows)
        if step:
            operators = (*operators, merge)
        last = [builder.compute(f"attention block {step + 1}/{partial.ranks}", *operators, after=[*arrived, *last])]
        arrived = leaving
    return last


def received_bytes(partial: Partial) -> float:
    """Bytes of p − 1 parts of the cache, and of entries that ranks with other heads produce for this one."""
    return (partial.ranks - 1) * (round(block_bytes(partial)) + partial.entries)


EXCHANGE = DECODE_EXCHANGES.register(
    DecodeExchange(
        name="ring",
        summary="parts of the cache hop from rank to rank, queries stay",
        attend=attend,
        received_bytes=received_bytes,
        buffer_bytes=lambda partial: 2 * block_bytes(partial) + partial.entries * partial.ranks,
        source="Liu et al. 2023, arXiv:2310.01889",
        why_not="moves caches for a token: for comparison",
    )
)
