"""A shard of a layer in a serving step's types, as kinds of attention are handed it."""

from __future__ import annotations

from dataclasses import dataclass

from ..operators import Gemm
from .formats import BF16, Formats, WeightClass
from .shard import Shard


@dataclass(frozen=True)
class ServingShard(Shard):
    """A shard of a layer whose weights and cache are in ``formats``; ``dtype`` is what attention multiplies in.

    ``context_shards`` ranks hold a part of every context's tokens each, and ``index_shards`` of the keys that an
    indexer scores; ``chooses_apart``: each attends the best of its own part. ``verified``: queries of every sequence
    that are drafts and one, 1 where nothing is drafted.
    """

    formats: Formats = BF16
    context_shards: int = 1
    verified: int = 1
    index_shards: int = 1
    chooses_apart: bool = False

    def held(self, tokens: int) -> int:
        """Of so many tokens of a context, those on the rank that has most."""
        return -(-tokens // self.context_shards)

    def qkv(self, tokens: int) -> Gemm:
        return self._as(WeightClass.ATTENTION, super().qkv(tokens))

    def down_projections(self, tokens: int) -> tuple[Gemm, ...]:
        return tuple(self._as(WeightClass.ATTENTION, product) for product in super().down_projections(tokens))

    def projections(self, tokens: int) -> tuple[Gemm, ...]:
        return tuple(self._as(WeightClass.ATTENTION, product) for product in super().projections(tokens))

    def output(self, tokens: int) -> Gemm:
        return self._as(WeightClass.ATTENTION, super().output(tokens))

    def gate_up(self, tokens: int) -> Gemm:
        return self._as(self.mlp_class, super().gate_up(tokens))

    def down(self, tokens: int) -> Gemm:
        return self._as(self.mlp_class, super().down(tokens))

    def head(self, tokens: int) -> Gemm:
        return self._as(WeightClass.EMBEDDING, super().head(tokens))

    @property
    def mlp_class(self) -> WeightClass:
        """Of the MLP that all tokens go through."""
        return WeightClass.SHARED if self.kind.experts else WeightClass.DENSE

    def _as(self, part: WeightClass, product: Gemm) -> Gemm:
        return product.read_as(self.formats.multiplied(part), self.formats.read(part))
