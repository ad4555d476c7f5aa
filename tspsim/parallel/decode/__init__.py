"""Decode steps: how ranks share the contexts of a batch and merge their partial attention, one file per exchange."""

from __future__ import annotations

from ..registries import ContextShare, in_heads
from . import all_to_all, gather_scatter, hop_b, ring, tree
from .exchange import DecodeExchange, Partial, exchange_of, partials
from .index_exchange import IndexExchange, index_exchange_of

__all__ = [
    "ContextShare",
    "DecodeExchange",
    "IndexExchange",
    "Partial",
    "all_to_all",
    "exchange_of",
    "gather_scatter",
    "hop_b",
    "in_heads",
    "index_exchange_of",
    "partials",
    "ring",
    "tree",
]
