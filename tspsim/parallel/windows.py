"""What a window leaves of blocks of tokens that attend each other.

A layer in a window of W sees the W tokens up to a query. Where all tokens are there in one call, the kernel's mask says
so (:meth:`tspsim.model.layer.LayerShard.windowed`). Where shards attend block by block, what is seen of a block follows
from where both stand: of its neighbour a corner, of blocks that are further away nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from .partition import Chunk, Segments, chunks, slice_length


def sliced(chunk: Chunk, part: int, parts: int) -> Chunk:
    """One of the parts that a chunk is cut into."""
    first, tokens = chunk
    return first + tokens * part // parts, slice_length(tokens, part, parts)


def corner(queries: Chunk, keys: Chunk, window: int, share: int = 1) -> Segments:
    """Pieces, none of them causal, of queries that see one ``share``-th of some keys, each no more than its window.

    A query at x sees min(last, x) − max(first, x − window) of them: it grows, stays and shrinks between the borders.

    Examples
    --------
    >>> corner((256, 256), (256, 256), 128), corner((256, 256), (0, 256), 128), corner((512, 256), (0, 256), 128)
    (((128, 64), (128, 128)), ((128, 64),), ())
    """
    (start, tokens), (first, count) = queries, keys
    end, last = start + tokens, first + count
    borders = (start, end, first, last, first + window, last + window)
    knots = sorted({min(max(border, start), end) for border in borders})
    found = []
    for left, right in pairwise(knots):
        seen = [max(0, min(last, x) - max(first, x - window)) for x in (left, right)]
        context = ceil(sum(seen) / 2 / share)
        found += [(right - left, context)] if context else []
    return tuple(found)


def block_in_window(
    partition: str,
    sequence: int,
    shards: int,
    position: int,
    held: Sequence[tuple[int, int, int]],
    sequences: int,
    window: int,
    cached: int = 0,
) -> Segments:
    """Pieces, none of them causal, that a shard attends of slices of shards' blocks, (owner, part, parts) each, and of
    their shares of ``cached`` tokens before."""
    found: Segments = ()
    for queries in chunks(partition, sequence, shards, position):
        for owner, part, parts in held:
            for keys in chunks(partition, sequence, shards, owner):
                found += corner(queries, sliced(keys, part, parts), window)
            if cached:
                found += corner(queries, (-cached, cached), window, shards * parts)
    return found * sequences
