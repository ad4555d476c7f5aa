"""Attention kinds: one module and one registered object each, by the names in a model's YAML (:mod:`.base`).

gqa   multi-head, grouped-query and multi-query attention, windows, output gates
mla   multi-head latent attention
dsa   sparse latent attention: an indexer selects the tokens
gdn   Gated DeltaNet in most layers, gqa in the others
kda   Kimi Delta Attention (a gate per channel) in most layers, mla in the others
csa   compressed attention: one latent for several tokens, and a window
"""

from __future__ import annotations

from .base import (
    ATTENTION_KINDS,
    MOST_DECODED,
    NO_CONTEXT,
    AttentionKind,
    CacheUse,
    cache_names,
    decoded,
    prefilled,
)
from .compressed import COMPRESSED
from .grouped import GROUPED
from .latent import LATENT
from .linear import GATED_DELTA, KIMI_DELTA
from .sparse_latent import SPARSE_LATENT

__all__ = [
    "ATTENTION_KINDS",
    "COMPRESSED",
    "GATED_DELTA",
    "GROUPED",
    "KIMI_DELTA",
    "LATENT",
    "MOST_DECODED",
    "NO_CONTEXT",
    "SPARSE_LATENT",
    "AttentionKind",
    "CacheUse",
    "cache_names",
    "decoded",
    "prefilled",
]
