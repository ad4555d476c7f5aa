"""KV cache of a served model: bytes of a sequence on a rank, by the kinds of its layers.

A cache is divided by what divides its tokens (sequence shards, folded or not) and by heads. Latent attention has one
latent for all heads, so tensor parallelism alone copies it to every rank; so do ranks beyond the key/value heads with
grouped queries.
"""

from __future__ import annotations

from ..model import Architecture
from .plan import Plan
from .scheme import scheme_of
from .state.served import rank_bytes


def sequence_bytes(model: Architecture, plan: Plan, context: int, cache_type: str | None = None) -> float:
    """Bytes that a sequence of ``context`` tokens keeps on a rank, mean over pipeline stages, with index keys and
    states.

    Raises
    ------
    InputError
        A layer's kind has no cache of this type.
    """
    uses = model.cache_uses(cache_type)
    share = scheme_of(plan).context(plan)
    return sum(rank_bytes(share, use, context) for use in uses) / plan.pp
