"""Memory of a scheme, as a rank's ledger reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .job import Job
from .ledger import Buffer


@dataclass(frozen=True)
class Residency:
    """Memory of a scheme, as a rank's ledger reads it.

    Attributes
    ----------
    weight_shards
        Ranks that one copy of the weights is spread over.
    compute_shards
        t: ranks that divide the heads and FFN columns of a rank's tokens.
    buffers
        Job → buffers of the scheme's exchanges: other ranks' K and V, their weights.
    logit_shards
        Parts of the vocabulary, of which one has its logits on the rank at a time.
    """

    weight_shards: Callable[[Job], int]
    compute_shards: Callable[[Job], int]
    buffers: Callable[[Job], Iterable[Buffer]]
    logit_shards: Callable[[Job], int] = lambda job: 1
