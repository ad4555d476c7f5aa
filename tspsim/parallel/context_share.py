"""Which part of the contexts of a serving step a rank holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..model.attention import CacheUse


@dataclass(frozen=True)
class ContextShare:
    """How the ranks of a replica share contexts."""

    #: Ranks along it hold a part of the tokens of the same heads each; empty where one holds them all.
    axis: str = ""
    #: How many those are.
    ranks: int = 1
    #: Parts that heads are cut into while queries, keys and values are made, while they are attended, and while
    #: outputs go through the output projection. Where ``projected`` is more than ``attended`` queries are gathered
    #: first; where ``own`` is, a rank takes only its own heads of what was merged.
    projected: int = 1
    attended: int = 1
    own: int = 1
    #: Ranks that whole sequences are dealt to.
    sequences: int = 1
    #: The exchange of plans that name none.
    usual: str = "tree"
    #: Replicas whose sequences a rank keeps all of, or as many as it attends of where others attend none.
    copies: float = 1
    #: Part of the sequences whose caches hosts keep.
    hosts: float = 0.0
    #: Keys of an indexer stand whole on every rank, though they share contexts.
    whole_keys: bool = False

    @property
    def gathers(self) -> bool:
        """Whether queries of other ranks' heads come first."""
        return self.projected > self.attended

    @property
    def keeps_all(self) -> bool:
        """Whether a rank's output projection takes all heads that it attended."""
        return self.own == self.attended

    def rank_bytes(self, use: CacheUse, context: int) -> float:
        """What a rank keeps of a sequence with so many tokens, in a layer: heads that are attended together over its
        part of the tokens, and states of its own heads."""
        keys = context * use.shared_token_bytes if self.whole_keys else 0.0
        divided = replace(use, sequence_bytes=0.0, shared_token_bytes=0.0) if keys else replace(use, sequence_bytes=0.0)
        growing = divided.rank_bytes(context, self.attended, self.ranks) + keys
        kept = self.copies * (growing + use.sequence_bytes / min(self.own, use.state_heads))
        return kept * (1.0 - self.hosts) if self.hosts else kept


def in_heads(parts: int) -> ContextShare:
    """Heads are divided, and nothing else."""
    return ContextShare(projected=parts, attended=parts, own=parts)
