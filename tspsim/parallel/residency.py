"""What a scheme keeps in memory, as far as a rank's ledger cares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .job import Job
from .ledger import Buffer


@dataclass(frozen=True)
class Residency:
    """What a scheme keeps, as far as memory cares.

    Attributes
    ----------
    weight_shards
        Ranks one copy of the weights is spread over.
    compute_shards
        t: ranks that heads and FFN columns of a rank's tokens are spread over.
    buffers
        Job → what the scheme's exchanges keep: other ranks' K and V, their weights.
    logit_shards
        Parts of the vocabulary, one of which has its logits here at a time.
    """

    weight_shards: Callable[[Job], int]
    compute_shards: Callable[[Job], int]
    buffers: Callable[[Job], Iterable[Buffer]]
    logit_shards: Callable[[Job], int] = lambda job: 1
