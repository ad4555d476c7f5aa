"""Kinds of attention, one file and one object each, registered under the names in a model's YAML; see :mod:`.base`.

    gqa   multi-head, grouped-query and multi-query attention, windows, output gates
    mla   latent attention
"""

from __future__ import annotations

from .base import ATTENTION_KINDS, AttentionKind, CacheUse, decoded, prefilled
from .grouped import GROUPED
from .latent import LATENT

__all__ = ["ATTENTION_KINDS", "GROUPED", "LATENT", "AttentionKind", "CacheUse", "decoded", "prefilled"]
