"""What a window, chunks and packed documents leave of blocks of tokens that attend each other.

A layer in a window of W sees the W tokens up to a query, and none before the chunk or document that it is in. Where all
tokens are there in one call, the kernel's mask says so (:meth:`tspsim.model.layer.LayerShard.attention`). Where shards
attend block by block, what is seen of a block follows from where both stand: of a window's neighbour a corner, of
blocks that are further away nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

from .partition import Chunk, Segments, chunks, slice_length


def sliced(chunk: Chunk, part: int, parts: int) -> Chunk:
    """One of the parts that a chunk is cut into."""
    first, tokens = chunk
    return first + tokens * part // parts, slice_length(tokens, part, parts)


def corner(queries: Chunk, keys: Chunk, window: int, share: int = 1) -> Segments:
    """Pieces, none of them causal, of queries that see one ``share``-th of some keys, each no more than its window (0:
    all before it).

    A query at x sees min(last, x) − max(first, x − window) of them: it grows, stays and shrinks between the borders.

    Examples
    --------
    >>> corner((256, 256), (256, 256), 128), corner((256, 256), (0, 256), 128), corner((512, 256), (0, 256), 128)
    (((128, 64), (128, 128)), ((128, 64),), ())
    """
    (start, tokens), (first, count) = queries, keys
    end, last = start + tokens, first + count
    window = window or end - min(first, start)
    borders = (start, end, first, last, first + window, last + window)
    knots = sorted({min(max(border, start), end) for border in borders})
    segments = []
    for left, right in pairwise(knots):
        seen = [max(0, min(last, x) - max(first, x - window)) for x in (left, right)]
        context = ceil(sum(seen) / 2 / share)
        segments += [(right - left, context)] if context else []
    return tuple(segments)


def within(queries: Chunk, keys: Chunk, sizes: Sequence[int]) -> Iterator[tuple[Chunk, Chunk]]:
    """Queries cut where runs of the first of ``sizes`` tokens end, and those where runs of the next do, counted from
    the start of theirs; with each piece the keys that its run leaves.

    >>> list(within((4, 4), (0, 8), [6]))
    [((4, 2), (0, 6)), ((6, 2), (6, 2))]
    """
    if not sizes:
        yield queries, keys
        return
    (at, tokens), size = queries, sizes[0]
    last = at + tokens
    while at < last:
        run = at // size * size
        end, low = min(last, run + size), max(keys[0], run)
        count = min(sum(keys), run + size) - low
        if count > 0:
            for (start, some), (first, seen) in within((at - run, end - at), (low - run, count), sizes[1:]):
                yield (run + start, some), (run + first, seen)
        at = end


def block_in_window(
    partition: str,
    sequence: int,
    shards: int,
    position: int,
    held: Sequence[tuple[int, int, int]],
    sequences: int,
    window: int,
    cached: int = 0,
    borders: Sequence[int] = (),
) -> Segments:
    """Pieces, none of them causal, that a shard attends of slices of shards' blocks, (owner, part, parts) each, and of
    their shares of ``cached`` tokens before. ``borders``: tokens of documents, and of chunks in them."""
    segments: Segments = ()
    for start, tokens in chunks(partition, sequence, shards, position):
        queries = cached + start, tokens
        for owner, part, parts in held:
            blocks = [sliced(keys, part, parts) for keys in chunks(partition, sequence, shards, owner)]
            for first, count in blocks:
                for some, seen in within(queries, (cached + first, count), borders):
                    segments += corner(some, seen, window)
            if cached:
                for some, seen in within(queries, (0, cached), borders):
                    segments += corner(some, seen, window, shards * parts)
    return segments * sequences
