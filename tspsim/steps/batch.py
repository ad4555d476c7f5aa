"""What a step has to do, whatever it is for: rows of queries over a context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..model import Architecture


class Row(NamedTuple):
    """``sequences`` alike: ``query_tokens`` that pass through the model, behind ``context_tokens`` whose keys and
    values are there already."""

    query_tokens: int
    context_tokens: int = 0
    sequences: int = 1

    @property
    def tokens(self) -> int:
        """Query tokens of all its sequences."""
        return self.query_tokens * self.sequences

    def pairs_per_token(self, causal: bool) -> float:
        """Tokens that a query attends, mean over the row: all of the context, and of the queries half when causal; none
        where they pad a pass."""
        if self.context_tokens < 0:
            return 0.0
        return self.context_tokens + (self.query_tokens / 2 if causal else self.query_tokens)


def dealt(rows: Iterable[tuple[int, int, int]], parts: int, part: int = 0) -> tuple[Row, ...]:
    """Of rows ``(queries, context, sequences)`` what a part has, where sequences are dealt in turn, longest first: the
    first part has most.

    >>> [tuple(row) for row in dealt(((1, 4096, 3), (1, 8192, 2)), 2)]
    [(1, 8192, 1), (1, 4096, 2)]
    >>> [tuple(row) for row in dealt(((1, 4096, 3), (1, 8192, 2)), 2, 1)]
    [(1, 8192, 1), (1, 4096, 1)]
    """
    mine, before = [], 0
    for queries, context, sequences in sorted(rows, key=lambda row: -row[1]):
        after = before + sequences
        count = -(-(after - part) // parts) - -(-(before - part) // parts)
        before = after
        if count:
            mine.append(Row(queries, context, count))
    return tuple(mine)


@dataclass(frozen=True)
class Batch:
    """The work of a step; rows may be given as plain tuples. ``outputs``: tokens that go through the language-model
    head; None: all.

    Examples
    --------
    Two prompts of 1,024 tokens, and eight sequences that decode one token each behind 4,096:

    >>> batch = Batch(((1024, 0, 2), (1, 4096, 8)))
    >>> batch.tokens, batch.pairs
    (2056, 1081348.0)
    """

    rows: Sequence[tuple[int, int, int]]
    causal: bool = True
    outputs: int | None = None

    @property
    def _rows(self) -> tuple[Row, ...]:
        return tuple(Row(*row) for row in self.rows)

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model."""
        return sum([queries * sequences for queries, _, sequences in self.rows])

    @property
    def sequences(self) -> int:
        """How many sequences."""
        return sum([sequences for _, _, sequences in self.rows])

    @property
    def head_tokens(self) -> int:
        """Tokens that go through the language-model head."""
        return self.tokens if self.outputs is None else self.outputs

    @property
    def halves(self) -> tuple[Batch, Batch]:
        """Half of the sequences each, of a row with an odd number one more in turn."""
        rows: tuple[list[Row], list[Row]] = ([], [])
        more = 0
        for row in self._rows:
            larger = row.sequences - row.sequences // 2
            for half, count in ((more, larger), (1 - more, row.sequences - larger)):
                if count:
                    rows[half].append(row._replace(sequences=count))
            more ^= row.sequences % 2
        first = round(self.head_tokens * sum(row.sequences for row in rows[0]) / self.sequences)
        return (Batch(tuple(rows[0]), self.causal, first), Batch(tuple(rows[1]), self.causal, self.head_tokens - first))

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key, without windows."""
        return sum(row.tokens * row.pairs_per_token(self.causal) for row in self._rows)

    def layer_flops_per_token(self, model: Architecture, kept: float = 1.0) -> float:
        """FLOPs of a token's forward through one block, mean over blocks and tokens; ``kept`` of its visits to
        experts."""
        return self._mean(
            lambda row: model.layer_forward_flops_per_token(row.pairs_per_token(self.causal), causal=False, kept=kept)
        )

    def forward_flops_per_token(self, model: Architecture, outputs: int, kept: float = 1.0) -> float:
        """FLOPs of a token's forward, where ``outputs`` of the tokens go through the language-model head."""
        head = 2.0 * model.hidden * model.vocab * (outputs / self.tokens)
        return model.layers * self.layer_flops_per_token(model, kept) + head

    def _mean(self, of: Callable[[Row], float]) -> float:
        """Over tokens; rows that are all alike to the last digit."""
        first, *others = self._rows
        if not others:
            return of(first)
        return sum(row.tokens * of(row) for row in self._rows) / self.tokens
