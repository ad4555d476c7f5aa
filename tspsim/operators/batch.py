"""The quantities of a serving step's batch that sizes of kernels and transfers are functions of."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

#: (query tokens a sequence, cached tokens before them, sequences).
Rows = tuple[tuple[int, int, int], ...]


class BatchQuantity(Enum):
    """What the size of a kernel, or of a transfer, of a serving step depends on."""

    TOKENS = "tokens that pass"
    EXPERTS = "tokens that pass, of all replicas that share experts"
    OUTPUTS = "tokens that are sampled"
    DECODING = "sequences that decode, and their contexts"
    READ = "tokens of prompts that pass"
    CACHED = "tokens of prompts that were there before"
    LENGTHS = "tokens that prompts have, together"
    PROMPTS = "prompts, each with its tokens and those before them"
    BENT_PROMPTS = "the same, of which attention reads a window, or chunks"
    ROWS = "all rows of the pass"


class RowField(NamedTuple):
    """The field of a class of kernels that holds rows of a pass, one by one.

    Attributes
    ----------
    name
        The field.
    of
        Its value for some rows.
    reads
        Which rows of a pass these are: those of prompts, or all (:attr:`BatchQuantity.PROMPTS`,
        :attr:`BatchQuantity.ROWS`).
    """

    name: str
    of: Callable[[Rows], tuple[Any, ...]]
    reads: BatchQuantity = BatchQuantity.PROMPTS


def _segments(rows: Rows) -> tuple[tuple[int, int], ...]:
    """(Query tokens, context tokens with these) of every sequence."""
    return tuple([(queries, queries + context) for queries, context, count in rows for _ in range(count)])


def _query_rows(rows: Rows) -> tuple[tuple[int, int], ...]:
    """(Query tokens a sequence, sequences), where a context has no part in it."""
    return tuple([(queries, count) for queries, _, count in rows])


def _rows(rows: Rows) -> Rows:
    return rows


#: Of kernels that read prompts with their contexts, and without; of kernels that read all rows.
SEGMENTS = RowField("segments", _segments)
QUERY_ROWS = RowField("rows", _query_rows)
ALL_ROWS = RowField("rows", _rows, BatchQuantity.ROWS)
