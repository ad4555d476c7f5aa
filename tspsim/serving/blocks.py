"""Blocks of a cache of keys and values: who holds how many, and what those that nobody holds still remember."""

from __future__ import annotations

from math import inf


class BlockPool:
    """Blocks of ``block_tokens`` tokens each.

    Attributes
    ----------
    capacity
        Blocks in all; inf: as many as are asked for.
    used
        Blocks that sequences hold.
    """

    def __init__(self, capacity: float = inf, block_tokens: int = 1) -> None:
        self.capacity, self.block_tokens = capacity, block_tokens
        self.used = 0

    @property
    def free(self) -> float:
        """Blocks that nobody holds."""
        return self.capacity - self.used

    def take(self, blocks: int) -> None:
        """Hold so many more; there must be as many free."""
        self.used += blocks

    def give_back(self, blocks: int) -> None:
        """Hold so many less."""
        self.used -= blocks
