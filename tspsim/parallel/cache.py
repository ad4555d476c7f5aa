"""K and V that a served model keeps: bytes of a token on a rank, and how many sessions stay resident.

A cache is divided by what divides its tokens (sequence shards, folded or not) and by heads. Latent attention has one
latent for all heads, so tensor parallelism alone keeps a copy of it on every rank; with grouped queries ranks beyond
the key/value heads do.
"""

from __future__ import annotations

from ..model import Architecture
from .ledger import Buffer, Lifetime
from .plan import Plan
from .scheme import scheme_of


def cache_shards(model: Architecture, plan: Plan) -> int:
    """Ranks of a replica that one copy of the cache is spread over, by the layers that divide it least."""
    heads = {use.heads for use in model.cache_uses() if use.token_bytes}
    share = scheme_of(plan).context(plan)
    return share.ranks * min(share.attended, *heads) * share.sequences * plan.pp


def cache_bytes_per_token(model: Architecture, plan: Plan, element_bytes: float, context: int = 0) -> float:
    """Bytes that a token of a session costs a rank, mean over a ``context`` (windowed layers keep less)."""
    return model.cache_elements_per_token(context) * element_bytes / cache_shards(model, plan)


def cache_buffer(model: Architecture, plan: Plan, element_bytes: float, context: int) -> Buffer:
    """What a session of ``context`` tokens keeps on a rank."""
    per_token = cache_bytes_per_token(model, plan, element_bytes, context)
    return Buffer("kv_cache", per_token * context, Lifetime.STEP)


def sequence_bytes(model: Architecture, plan: Plan, context: int, cache_type: str | None = None) -> float:
    """Bytes that a sequence of ``context`` tokens keeps on a rank, mean over pipeline stages: every layer as its kind
    says, keys of indexers and states included.

    Raises
    ------
    InputError
        A layer's kind keeps no cache in this type.
    """
    uses = model.cache_uses(cache_type)
    share = scheme_of(plan).context(plan)
    return sum(share.rank_bytes(use, context) for use in uses) / plan.pp


def resident_sessions(
    model: Architecture,
    plan: Plan,
    *,
    memory_bytes: float,
    weight_bytes: float,
    context: int,
    element_bytes: float,
    reserve_bytes: float = 0.0,
) -> float:
    """Sessions of ``context`` tokens whose K and V fit beside the weights of one replica; a fraction is not rounded.

    Parameters
    ----------
    memory_bytes
        Of one GPU.
    weight_bytes
        Of one copy of the model, as it is kept; it is spread over all ranks of the replica that divide weights.
    element_bytes
        Of one element of K or V as the cache keeps it.
    reserve_bytes
        Of one GPU, for activations, buffers and the runtime.

    Notes
    -----
    With tokens divided over all G GPUs this is (G·memory − weights) / (bytes a token · tokens); replicated, it is the
    same of one GPU.
    """
    weights = weight_bytes / (plan.tp * plan.tsp * plan.pp)
    free = memory_bytes - weights - reserve_bytes
    return max(0.0, free) / cache_buffer(model, plan, element_bytes, context).size_bytes
