"""Kinds of attention, one file and one object each, registered under the names in a model's YAML; see :mod:`.base`.

gqa   multi-head, grouped-query and multi-query attention, windows, output gates
mla   latent attention
dsa   latent attention to the tokens an indexer chooses
gdn   gated delta rule in most layers, gqa in the others
kda   the same with a gate a channel, mla in the others
csa   one latent for several tokens, and a window
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
