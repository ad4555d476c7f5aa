"""Attention over chosen tokens: an indexer scores the context, the best of it is attended.

DeepSeek-AI 2025, DeepSeek-V3.2, §2: the indexer's scores are Σ_heads ReLU(q·k)·w in fp8 over keys of its own, one a
token; attention is that of latents (:class:`~tspsim.operators.LatentDecode`) over ``topk`` tokens a query.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quick import quick
from .base import Operator, Role, first_three
from .dtypes import element_bytes

#: (query tokens a sequence, tokens in its cache before them, sequences).
Rows = tuple[tuple[int, int, int], ...]


def seen(queries: int, context: int) -> float:
    """Tokens that a query meets, mean over a sequence's ``queries`` behind ``context`` others, itself included."""
    return context + (queries + 1) / 2.0


def seen_at_most(queries: int, context: int, most: float) -> float:
    """The same where no query meets more than ``most``: the first do not have as many yet."""
    if context >= most:
        return float(most)
    if context + queries <= most:
        return seen(queries, context)
    growing = max(0.0, most - context)
    below = growing * context + growing * (growing + 1.0) / 2.0
    return (below + (queries - growing) * most) / queries


@quick
@dataclass(frozen=True, slots=True)
class Indexer(Operator):
    """Scores of all queries with all (compressed) tokens of their context, and the choice of the best ``topk``."""

    #: ``(query tokens, context tokens before them, sequences)``.
    rows: Rows
    #: Of the indexer, the same on every tensor-parallel rank.
    heads: int
    head_dim: int
    #: Entries chosen a query.
    topk: int
    #: Tokens an entry stands for.
    compression: int = 1
    #: Bytes of one entry's key with its scale (132: 128 in fp8 and a scale of four).
    key_bytes: float = 132.0
    dtype: str = "fp8"
    name: str = "indexer"
    role: Role = Role.ATTENTION
    #: Ranks that keep every so many-th entry of a context each: this call scores and chooses among those of one.
    shards: int = 1

    kind = "attention"

    @property
    def stride(self) -> int:
        """Tokens of a context an entry of this rank."""
        return self.compression * self.shards

    @property
    def queries(self) -> int:
        return sum(q * n for q, _, n in self.rows)

    @property
    def pairs(self) -> float:
        """Queries times the entries that each is scored with."""
        return sum(q * seen(q, c) * n for q, c, n in self.rows) / self.stride

    @property
    def entries(self) -> float:
        """Of all contexts."""
        return sum((c + q) * n for q, c, n in self.rows) / self.stride

    @property
    def longest(self) -> float:
        """Entries of the longest context that has more of them than are chosen; 0 where all are."""
        lengths = ((c + q) / self.stride for q, c, _ in self.rows)
        return max((length for length in lengths if length > self.topk), default=0.0)

    @property
    def choice(self) -> float:
        """Of the pairs, those of queries that have more entries than are chosen."""
        total = 0.0
        for q, c, n in self.rows:
            without = min(q, max(0, self.topk * self.stride - c))
            total += n * ((q - without) * c + (q * (q + 1) - without * (without + 1)) / 2.0)
        return total / self.stride

    @property
    def flops(self) -> float:
        """2·head_dim a head and pair."""
        return 2.0 * self.pairs * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Keys of all contexts read once; scores written and read in fp32 by the choice."""
        return self.entries * self.key_bytes + 8.0 * self.pairs

    @property
    def shape(self) -> str:
        rows = f"{rows_in_words(self.rows)}{part_in_words(self.shards)}"
        return f"{rows}, {self.heads} heads of {self.head_dim}, best {self.topk}"


@quick
@dataclass(frozen=True, slots=True)
class SparseAttention(Operator):
    """Every query attends at most ``topk`` (compressed) tokens of its context, and a window of the latest ones.

    Parameters
    ----------
    rows
        ``(query tokens, context tokens before them, sequences)``.
    heads
        Query heads on this rank; all share the keys and values.
    key_dim, value_dim
        Width of a cached entry's key and of its value (a latent's: 576 and 512).
    topk
        Entries a query attends at most; 0: all of them.
    compression
        Tokens an entry stands for.
    window
        Latest tokens, uncompressed, that are attended besides.
    entry_bytes
        Bytes of a cached entry.
    dtype, kv_dtype
        Types that are multiplied, and that the cache keeps.
    shards
        Ranks that keep every so many-th entry of a context each: attended are those of one.
    apart
        Each of them attends the best ``topk`` of its own entries; otherwise its share of the best of all.
    """

    rows: Rows
    heads: int
    key_dim: int
    value_dim: int
    topk: int
    compression: int = 1
    window: int = 0
    entry_bytes: float = 1152.0
    dtype: str = "bf16"
    name: str = "sparse attention"
    role: Role = Role.ATTENTION
    kv_dtype: str = "bf16"
    shards: int = 1
    apart: bool = False

    kind = "attention"

    def attended(self, queries: int, context: int) -> float:
        """Entries that a query attends on this rank, mean over a sequence's."""
        stride, most = self.compression * self.shards, self.topk * self.compression * (self.shards if self.apart else 1)
        entries = (seen_at_most(queries, context, most) if self.topk else seen(queries, context)) / stride
        return entries + seen_at_most(queries, context, self.window) / self.shards if self.window else entries

    @property
    def queries(self) -> int:
        return sum(q * n for q, _, n in self.rows)

    @property
    def prompts(self) -> int:
        """Sequences of several queries."""
        return sum(n for q, _, n in self.rows if q > 1)

    @property
    def pairs(self) -> float:
        return sum(q * self.attended(q, c) * n for q, c, n in self.rows)

    @property
    def entries(self) -> float:
        """What the queries of a sequence chose, at least once and at most the whole context."""
        total = 0.0
        for q, c, n in self.rows:
            whole = (c + q) / (self.compression * self.shards)
            if self.window:
                whole += min(self.window + q - 1, c + q) / self.shards
            total += n * min(whole, q * self.attended(q, c))
        return total

    @property
    def flops(self) -> float:
        """2·(key_dim + value_dim) a head and pair."""
        return 2.0 * self.pairs * self.heads * (self.key_dim + self.value_dim)

    @property
    def hbm_bytes(self) -> float:
        """Entries read once; queries read and outputs written."""
        queries = self.queries * self.heads * (self.key_dim * element_bytes(self.dtype) + 2.0 * self.value_dim)
        return self.entries * self.entry_bytes + queries

    @property
    def shape(self) -> str:
        best = f"best {self.topk}" if self.topk else "all"
        rows = f"{rows_in_words(self.rows)}{part_in_words(self.shards)}"
        return f"{rows}, {best}, {self.heads} heads of {self.key_dim}/{self.value_dim}"


@quick
@dataclass(frozen=True, slots=True)
class TopK(Operator):
    """The best ``topk`` of ``candidates`` a query: what ranks chose among their parts of a context, chosen among."""

    queries: int
    candidates: int
    topk: int
    #: Bytes of a candidate that are read: its score, and where it is.
    candidate_bytes: float = 8.0
    dtype: str = "fp8"
    name: str = "best of all candidates"
    role: Role = Role.ATTENTION

    kind = "attention"

    @property
    def flops(self) -> float:
        """None of a matrix unit."""
        return 0.0

    @property
    def hbm_bytes(self) -> float:
        """Candidates read, places of the best written."""
        return self.queries * (self.candidates * self.candidate_bytes + 4.0 * self.topk)

    @property
    def shape(self) -> str:
        return f"{self.queries} × best {self.topk} of {self.candidates}"


def rows_in_words(rows: Rows) -> str:
    return first_three([f"{n}×{q}×{c + q}" for q, c, n in rows])


def part_in_words(shards: int) -> str:
    return f" (1/{shards} of it)" if shards > 1 else ""
