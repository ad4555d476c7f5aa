"""The widths of a dense model, from the shapes of its products and attention, for a trace of none of the catalog's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from .product_sizes import stated_sizes
from .table import Trace


@dataclass(frozen=True)
class Widths:
    """Widths of a model; a vocabulary of 0 is not stated."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    gated: bool
    vocabulary: int = 0


def widths_of(trace: Trace, layers: int, hidden: int, heads: int, head_dim: int, ranks: int = 1) -> Widths | None:
    """The widths that a trace's shapes state; None where they leave one open.

    Parameters
    ----------
    layers, hidden
        Layers of the trace, and the width between them.
    heads, head_dim
        Heads of one rank, and the width of each.
    ranks
        Ranks that a layer's heads and columns are spread over.
    """
    inside = _products(trace, hidden, inside=True)
    queries = heads * head_dim
    if not layers or not hidden or not queries or not inside:
        return None
    keys = _keys(inside, queries, head_dim, hidden)
    if keys is None:
        return None
    attention = {queries, keys, queries + 2 * keys}
    columns = {width: count for width, count in inside.items() if width not in attention}
    mlp = min(columns, default=0)
    joined = 2 * mlp in columns
    if not mlp or set(columns) - {mlp, 2 * mlp}:
        return None
    gated = joined or 2 * columns[mlp] > 5 * layers  # three products a layer, or two
    outside = [width for width in _products(trace, hidden, inside=False) if width > 4 * hidden]
    return Widths(
        layers, hidden, heads * ranks, keys // head_dim * ranks, head_dim, mlp * ranks, gated,
        max(outside, default=0) * ranks,
    )  # fmt: skip


def _products(trace: Trace, hidden: int, *, inside: bool) -> Counter[int]:
    """The other width of every forward product from or to the width between layers, in layers or outside of them."""
    rows = (trace.word("kind") == "gemm") & np.isin(trace.word("phase"), ["forward", ""]) & (trace.columns["step"] >= 0)
    widths: Counter[int] = Counter()
    for text in trace.word("shapes")[rows & ((trace.columns["layer"] >= 0) == inside)].tolist():
        sizes = stated_sizes(text)
        if sizes is not None and hidden in sizes[1:]:
            widths[sizes[1] if sizes[2] == hidden else sizes[2]] += 1
    return widths


def _keys(inside: Counter[int], queries: int, head_dim: int, hidden: int) -> int | None:
    """The width of all keys: of a product of its own, of one that joins queries, keys and values, or as wide as the
    queries."""
    narrow = [width for width in inside if width < queries and not width % head_dim and not queries % width]
    joined = [
        (width - queries) // 2
        for width in inside
        if queries < width <= 3 * queries and not (width - queries) % (2 * head_dim)
    ]
    joined = [width for width in joined if not queries % width]
    if len(narrow) > 1 or (not narrow and len(joined) > 1):
        return None
    return narrow[0] if narrow else joined[0] if joined else queries
