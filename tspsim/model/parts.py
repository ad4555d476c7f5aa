"""Parts that not every decoder has: latent attention, experts, and what one layer is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, §2.1).

    K and V of a token are one latent of ``kv_rank`` and a rotary key of ``rope_dim`` that all heads share; every head
    has its own matrices to make keys of ``nope_dim`` and values of ``value_dim`` from it.

    Parameters
    ----------
    q_rank
        Width of the queries' latent; 0 where queries are projected from the residual stream directly.
    kv_rank
        Width of the latent that keys and values are made from.
    nope_dim, rope_dim
        Widths of a head's query (and key) without and with rotary position.
    value_dim
        Width of a head's value.
    """

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def query_dim(self) -> int:
        """Width of one head's query, and of its key."""
        return self.nope_dim + self.rope_dim

    @property
    def cache_width(self) -> int:
        """Elements a token that a layer's cache keeps, whatever the number of heads."""
        return self.kv_rank + self.rope_dim

    @property
    def down_width(self) -> int:
        """Columns of the projections from the residual stream to latents, which all heads share."""
        return self.q_rank + self.cache_width


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLP of a mixture-of-experts layer.

    Parameters
    ----------
    count, topk
        Routed experts, and how many of them a token visits.
    width
        Columns of one expert.
    shared_width
        Columns of all shared experts together; every token visits them.
    first_dense
        Layers at the start that have a dense MLP instead.
    every
        Of the others, every how many-th has experts: 2 means that layers 1, 3, 5, … (from 0) have.
    router_bias
        The router has a bias, or a correction an expert.
    groups, kept_groups
        Groups of neighbouring experts, and how many of them a token's experts are chosen from (DeepSeek-V3, §2.1.2).
    """

    count: int
    topk: int
    width: int
    shared_width: int = 0
    first_dense: int = 0
    every: int = 1
    router_bias: bool = False
    groups: int = 1
    kept_groups: int = 1


class Block(NamedTuple):
    """What one layer is made of: its attention window in tokens (0: the whole context), experts or a dense MLP."""

    window: int = 0
    experts: bool = False
