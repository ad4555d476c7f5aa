"""Context methods: how the ranks of ``sp`` attend each other's K and V, one file per method."""

from __future__ import annotations

from ..plan import Plan
from . import all_gather, ring, token_ring, ulysses
from .local import LOCAL
from .method import CONTEXT_METHODS, ContextMethod

__all__ = ["LOCAL", "ContextMethod", "all_gather", "method_of", "ring", "token_ring", "ulysses"]


def method_of(plan: Plan) -> ContextMethod:
    """The context method of a plan's sequence shards."""
    return CONTEXT_METHODS.get(plan.exchange) if plan.sp > 1 else LOCAL
