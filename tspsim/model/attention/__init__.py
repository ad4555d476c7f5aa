"""Kinds of attention in a serving step, one file and one object each; see :mod:`.base`."""

from __future__ import annotations

from .base import AttentionKind, CacheUse, decoded, prefilled
from .grouped import GROUPED
from .latent import LATENT

__all__ = ["GROUPED", "LATENT", "AttentionKind", "CacheUse", "decoded", "prefilled"]
