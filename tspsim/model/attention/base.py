"""What a layer's attention is to a serving step: its operators on a rank's rows, and what it keeps of a token.

A serving step hands a layer rows ``(query tokens, tokens in the cache before them, sequences)``. A row of few queries
runs the decode kernels, which read the cache once for all of them; others run the prefill kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...operators import Operator

if TYPE_CHECKING:
    from ..architecture import Architecture
    from ..parts import Block
    from ..serving import ServingLayer

#: (query tokens a sequence, tokens in its cache before them, sequences).
Rows = tuple[tuple[int, int, int], ...]
#: Most queries a sequence that decode kernels take at once (drafts and one; engines reorder batches by such a number).
MOST_DECODED = 16


def decoded(rows: Rows) -> Rows:
    """Rows that the decode kernels run."""
    return tuple(row for row in rows if row[0] <= MOST_DECODED and row[1] > 0)


def prefilled(rows: Rows) -> Rows:
    """The others."""
    return tuple(row for row in rows if row[0] > MOST_DECODED or row[1] == 0)


def tokens_of(rows: Rows) -> int:
    """Query tokens."""
    return sum(queries * sequences for queries, _, sequences in rows)


@dataclass(frozen=True)
class CacheUse:
    """What one layer keeps for a sequence, before any sharding.

    Attributes
    ----------
    token_bytes
        Of every token in the context, or in the window.
    window
        Tokens that are kept at most; 0: all.
    sequence_bytes
        Whatever the length: a state.
    heads
        Heads that tensor parallelism can divide it by: 1 where all heads share it.
    state_heads
        The same of the state.
    shared_token_bytes
        Of every token besides, and on every tensor-parallel rank: keys of an indexer.
    """

    token_bytes: float
    window: int = 0
    sequence_bytes: float = 0.0
    heads: int = 1
    state_heads: int = 1
    shared_token_bytes: float = 0.0

    def bytes_of(self, context: int) -> float:
        """Of one sequence with so many tokens."""
        kept = min(context, self.window) if self.window else context
        return kept * self.token_bytes + context * self.shared_token_bytes + self.sequence_bytes


class AttentionKind(ABC):
    """One kind of attention, as serving steps run it.

    The four methods give the operators of a layer in order; ``layer`` says which shard of which model. Between
    :meth:`attend` and :meth:`leave` a scheme may merge what ranks with other parts of the context found.
    """

    name: ClassVar[str]

    def enter(self, layer: ServingLayer, rows: Rows) -> tuple[Operator, ...]:
        """What no tensor-parallel rank divides, behind the norm: latents, keys of an indexer."""
        return ()

    @abstractmethod
    def project(self, layer: ServingLayer, rows: Rows) -> tuple[Operator, ...]:
        """What heads divide, up to the write to the cache."""

    @abstractmethod
    def attend(self, layer: ServingLayer, rows: Rows) -> tuple[Operator, ...]:
        """Attention over the cache."""

    @abstractmethod
    def leave(self, layer: ServingLayer, rows: Rows) -> tuple[Operator, ...]:
        """What follows it, up to the output projection."""

    @abstractmethod
    def cache(self, model: Architecture, block: Block, cache_type: str) -> CacheUse:
        """What a layer keeps."""

    def flops(self, model: Architecture, block: Block, rows: Rows) -> float:
        """Model FLOPs of the pairs of queries and keys, all heads, without the layer's matrices: 4·a a pair."""
        width = model.attention_width
        total = 0.0
        for queries, context, sequences in rows:
            met = context + queries / 2.0
            total += 4.0 * width * sequences * queries * (min(met, block.window) if block.window else met)
        return total
