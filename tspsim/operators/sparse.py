"""Attention over chosen tokens: an indexer scores the context, the best of it is attended.

DeepSeek-AI 2025, DeepSeek-V3.2, §2: the indexer's scores are Σ_heads ReLU(q·k)·w in fp8 over keys of its own, one a
token; attention is that of latents (:class:`~tspsim.operators.LatentDecode`) over ``topk`` tokens a query.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import DTYPE_BYTES, Operator, Role

#: (query tokens a sequence, tokens in its cache before them, sequences).
Rows = tuple[tuple[int, int, int], ...]


def seen(queries: int, context: int) -> float:
    """Tokens that a query meets, mean over a sequence's ``queries`` behind ``context`` others, itself included."""
    return context + (queries + 1) / 2.0


@dataclass(frozen=True, slots=True)
class Indexer(Operator):
    """Scores of all queries with all (compressed) tokens of their context, and the choice of the best ``topk``.

    Parameters
    ----------
    rows
        ``(query tokens, context tokens before them, sequences)``.
    heads, head_dim
        Of the indexer, the same on every tensor-parallel rank.
    topk
        Entries chosen a query.
    compression
        Tokens an entry stands for.
    key_bytes
        Bytes of one entry's key with its scale (132: 128 in fp8 and a scale of four).
    """

    rows: Rows
    heads: int
    head_dim: int
    topk: int
    compression: int = 1
    key_bytes: float = 132.0
    dtype: str = "fp8"
    name: str = "indexer"
    role: Role = Role.ATTENTION

    kind = "attention"

    @property
    def pairs(self) -> float:
        """Queries times the entries that each is scored with."""
        return sum(q * seen(q, c) * n for q, c, n in self.rows) / self.compression

    @property
    def flops(self) -> float:
        """2·head_dim a head and pair."""
        return 2.0 * self.pairs * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Keys of all contexts read once; scores written and read in fp32 by the choice."""
        keys = sum((c + q) * n for q, c, n in self.rows) / self.compression * self.key_bytes
        return keys + 8.0 * self.pairs

    @property
    def shape(self) -> str:
        return f"{rows_in_words(self.rows)}, {self.heads} heads of {self.head_dim}, best {self.topk}"


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

    kind = "attention"

    def attended(self, queries: int, context: int) -> float:
        """Entries that a query attends, mean over a sequence's."""
        entries = seen(queries, context) / self.compression
        if self.topk:
            entries = min(entries, self.topk)
        return entries + min(self.window, seen(queries, context))

    @property
    def pairs(self) -> float:
        return sum(q * self.attended(q, c) * n for q, c, n in self.rows)

    @property
    def flops(self) -> float:
        """2·(key_dim + value_dim) a head and pair."""
        return 2.0 * self.pairs * self.heads * (self.key_dim + self.value_dim)

    @property
    def hbm_bytes(self) -> float:
        """What the queries of a sequence chose, at least once and at most the whole context; queries and outputs."""
        entries = 0.0
        for q, c, n in self.rows:
            whole = (c + q) / self.compression + min(self.window, c + q)
            entries += n * min(whole, q * self.attended(q, c))
        tokens = sum(q * n for q, _, n in self.rows)
        element = DTYPE_BYTES[self.dtype]
        return entries * self.entry_bytes + tokens * self.heads * (self.key_dim * element + 2.0 * self.value_dim)

    @property
    def shape(self) -> str:
        best = f"best {self.topk}" if self.topk else "all"
        return f"{rows_in_words(self.rows)}, {best}, {self.heads} heads of {self.key_dim}/{self.value_dim}"


def rows_in_words(rows: Rows) -> str:
    """The first three, and how many more."""
    pieces = " + ".join(f"{n}×{q}×{c + q}" for q, c, n in rows[:3])
    return pieces + (f" + {len(rows) - 3} more" if len(rows) > 3 else "")
