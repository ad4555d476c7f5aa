"""What prompts have in common: one registered class a file."""

from __future__ import annotations

from . import agents, hash_ids, listed_calls, share, trees, turns
from .base import Needs, Prefixes, Shared, shorthand

PREFIXES = Prefixes.registry
#: No prompt shares its beginning with another.
NOTHING = share.Share(part=0.0)

__all__ = [
    "NOTHING",
    "PREFIXES",
    "Needs",
    "Prefixes",
    "Shared",
    "agents",
    "hash_ids",
    "listed_calls",
    "share",
    "shorthand",
    "trees",
    "turns",
]
