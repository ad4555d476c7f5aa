"""Sparse attention (DSA): an indexer scores the context, and a query attends its ``topk`` best tokens.

DeepSeek-AI 2025, DeepSeek-V3.2, §2: a score is Σ_heads ReLU(q·k)·w in fp8, over one index key a token. Attention is
that over latents (:class:`~tspsim.operators.LatentDecode`), with ``topk`` tokens a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..base.quick import quick
from .base import Operator, Role, first_three
from .batch import ALL_ROWS, RowField, Rows
from .dtypes import element_bytes


def seen(queries: int, context: int) -> float:
    """Tokens that a query sees, itself included: the mean over ``queries`` tokens after ``context`` others."""
    return context + (queries + 1) / 2.0


def seen_at_most(queries: int, context: int, most: float) -> float:
    """Tokens that a query attends, at most ``most``: the mean over ``queries`` tokens after ``context`` others."""
    if context >= most:
        return float(most)
    if context + queries <= most:
        return seen(queries, context)
    growing = max(0.0, most - context)
    below = growing * context + growing * (growing + 1.0) / 2.0
    return (below + (queries - growing) * most) / queries


class ContextRows:
    """Sums over ``rows`` of (query tokens a sequence, context tokens before them, sequences)."""

    __slots__ = ()
    rows_field: ClassVar[RowField | None] = ALL_ROWS
    rows: Rows

    @property
    def queries(self) -> int:
        """Query tokens of all sequences."""
        return sum(q * n for q, _, n in self.rows)

    @property
    def rows_in_words(self) -> str:
        return first_three([f"{n}×{q}×{c + q}" for q, c, n in self.rows])


@quick
@dataclass(frozen=True, slots=True)
class Indexer(ContextRows, Operator):
    """Scores of all queries with the entries of their context, and the selection of the ``topk`` best.

    An entry is a token, or ``compression`` tokens.
    """

    #: ``(query tokens a sequence, context tokens before them, sequences)``.
    rows: Rows
    #: Heads of the indexer and their width; tensor parallelism does not divide them.
    heads: int
    head_dim: int
    #: Entries selected for a query.
    topk: int
    #: Tokens an entry.
    compression: int = 1
    #: Bytes of an entry's key with its scale (132: 128 elements in fp8 and a scale of 4).
    key_bytes: float = 132.0
    dtype: str = "fp8"
    name: str = "indexer"
    role: Role = Role.ATTENTION
    #: Ranks over which a context's entries are interleaved; this call scores and selects among one rank's.
    shards: int = 1

    kind = "attention"

    @property
    def stride(self) -> int:
        """Context tokens for each entry of this rank."""
        return self.compression * self.shards

    @property
    def pairs(self) -> float:
        """(query, entry) pairs that are scored."""
        return sum(q * seen(q, c) * n for q, c, n in self.rows) / self.stride

    @property
    def entries(self) -> float:
        """Entries of all contexts."""
        return sum((c + q) * n for q, c, n in self.rows) / self.stride

    @property
    def longest(self) -> float:
        """Entries of the longest context with more than ``topk`` of them; 0 if there is none."""
        lengths = ((c + q) / self.stride for q, c, _ in self.rows)
        return max((length for length in lengths if length > self.topk), default=0.0)

    @property
    def choice(self) -> float:
        """Pairs of queries with more than ``topk`` entries, for which there is something to select."""
        total = 0.0
        for q, c, n in self.rows:
            without = min(q, max(0, self.topk * self.stride - c))
            total += n * ((q - without) * c + (q * (q + 1) - without * (without + 1)) / 2.0)
        return total / self.stride

    def sizes_over(self, sums: Any) -> tuple[Any, ...]:
        """Queries, pairs, entries, choice and longest over other rows (:class:`RowSums`), or those of several steps
        (:class:`GrowingSums`)."""
        stride, longest = self.stride, sums.longest / self.stride
        *_, below = sums.attended(self.topk * stride)
        choice = sums.seen - below
        lengths = sums.total + sums.tokens
        longest = longest * (longest > self.topk)
        return float(sums.tokens), sums.seen / stride, lengths / stride, choice / stride, longest

    @property
    def flops(self) -> float:
        """2·heads·head_dim a pair."""
        return 2.0 * self.pairs * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Keys of all contexts read once; scores written in fp32, and read by the selection."""
        return self.entries * self.key_bytes + 8.0 * self.pairs

    @property
    def shape(self) -> str:
        rows = f"{self.rows_in_words}{part_in_words(self.shards)}"
        return f"{rows}, {self.heads} heads of {self.head_dim}, best {self.topk}"


@quick
@dataclass(frozen=True, slots=True)
class SparseAttention(ContextRows, Operator):
    """Attention of every query to at most ``topk`` entries of its context, and to a window of the latest tokens.

    Parameters
    ----------
    rows
        ``(query tokens a sequence, context tokens before them, sequences)``.
    heads
        Query heads on this rank; they share keys and values.
    key_dim, value_dim
        Width of an entry's key and of its value (a latent: 576 and 512).
    topk
        Most entries a query attends; 0: all.
    compression
        Tokens an entry.
    window
        Latest tokens that are attended uncompressed, besides the entries.
    entry_bytes
        Bytes of a cached entry.
    dtype, kv_dtype
        Types of the products' operands, and of the cache.
    shards
        Ranks over which a context's entries are interleaved; this call attends one rank's.
    apart
        Every rank attends the ``topk`` best of its own entries, not its share of the best of all ranks.
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
        """Entries that a query attends on this rank: the mean over ``queries`` tokens after ``context`` others."""
        stride, most = self.compression * self.shards, self.topk * self.compression * (self.shards if self.apart else 1)
        entries = (seen_at_most(queries, context, most) if self.topk else seen(queries, context)) / stride
        return entries + seen_at_most(queries, context, self.window) / self.shards if self.window else entries

    @property
    def prompts(self) -> int:
        """Number of sequences with several queries."""
        return sum(n for q, _, n in self.rows if q > 1)

    @property
    def pairs(self) -> float:
        return sum(q * self.attended(q, c) * n for q, c, n in self.rows)

    @property
    def entries(self) -> float:
        """Distinct entries read: for each sequence what its queries attend, at most its whole context."""
        total = 0.0
        for q, c, n in self.rows:
            total += n * min(self._context(q, c), q * self.attended(q, c))
        return total

    def _context(self, queries: int, context: int) -> float:
        """Entries of all that a sequence has on this rank, and of the window of all its queries."""
        whole = (context + queries) / (self.compression * self.shards)
        return whole + min(self.window + queries - 1, context + queries) / self.shards if self.window else whole

    def _unreached(self, queries: int, context: int) -> float:
        """Entries of its context that a sequence of few queries does not reach."""
        return max(0.0, self._context(queries, context) - queries * self.attended(queries, context))

    def sizes_over(self, sums: Any) -> tuple[Any, ...]:
        """Queries, prompts, pairs and entries over other rows, as :meth:`Indexer.sizes_over`."""
        stride, window, shards = self.compression * self.shards, self.window, self.shards
        own, batch = sums.own, sums.batch
        unreached = 0.0
        if self.topk:
            most = self.topk * self.compression * (shards if self.apart else 1)
            # Queries of a sequence together reach at least this many times what is before each.
            if sums.queries and max(sums.before) > min(sums.queries) * (most - 1):
                rows = zip(sums.queries, sums.before, strict=True)
                unreached += sum([self._unreached(q, c) for q, c in rows if c > q * (most - 1)])
            if own > 1 and batch and sums.ordered[-1] > own * (most - 1):
                unreached += sum([self._unreached(own, c) for c in sums.ordered if c > own * (most - 1)])
            read, decoded, _ = sums.attended(most)
        else:
            decoded = own * sums.decoded + batch * own * (own + 1) / 2.0
            read = sums.seen - decoded
        read_pairs, decoded_pairs = read / stride, decoded / stride
        entries, reached = (sums.cached + sums.read) / stride, (sums.decoded + own * batch) / stride
        if window:
            read, decoded, _ = sums.attended(window)
            read_pairs, decoded_pairs = read_pairs + read / shards, decoded_pairs + decoded / shards
            latest, decoded_latest = sums.reached(window - 1)
            entries, reached = entries + latest / shards, reached + decoded_latest / shards
        # A single query reads what it attends; several together read their whole context.
        entries += reached if own > 1 else decoded_pairs
        prompts = len(sums.queries) + (batch if own > 1 else 0)
        return float(sums.tokens), float(prompts), read_pairs + decoded_pairs, entries - unreached

    @property
    def flops(self) -> float:
        """2·heads·(key_dim + value_dim) a pair."""
        return 2.0 * self.pairs * self.heads * (self.key_dim + self.value_dim)

    @property
    def hbm_bytes(self) -> float:
        """Entries read once; queries read and outputs written in bf16."""
        queries = self.queries * self.heads * (self.key_dim * element_bytes(self.dtype) + 2.0 * self.value_dim)
        return self.entries * self.entry_bytes + queries

    @property
    def shape(self) -> str:
        best = f"best {self.topk}" if self.topk else "all"
        rows = f"{self.rows_in_words}{part_in_words(self.shards)}"
        return f"{rows}, {best}, {self.heads} heads of {self.key_dim}/{self.value_dim}"


@quick
@dataclass(frozen=True, slots=True)
class TopK(Operator):
    """Selection of the ``topk`` best of ``candidates`` a query, which ranks selected from their parts of a context."""

    queries: int
    candidates: int
    topk: int
    #: Bytes read of a candidate: its score and its position.
    candidate_bytes: float = 8.0
    dtype: str = "fp8"
    name: str = "best of all candidates"
    role: Role = Role.ATTENTION

    kind = "attention"

    @property
    def flops(self) -> float:
        """0: matrix units are not used."""
        return 0.0

    @property
    def hbm_bytes(self) -> float:
        """Candidates read; positions of the best written."""
        return self.queries * (self.candidates * self.candidate_bytes + 4.0 * self.topk)

    @property
    def shape(self) -> str:
        return f"{self.queries} × best {self.topk} of {self.candidates}"


def part_in_words(shards: int) -> str:
    return f" (1/{shards} of it)" if shards > 1 else ""
