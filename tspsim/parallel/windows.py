"""Windows, chunks and packed documents over blocks of tokens that attend each other.

A layer with window W attends the W tokens up to a query, and none before the query's chunk or document. If all tokens
are in one call, the kernel's mask expresses that (:meth:`tspsim.model.layer.LayerShard.attention`). If shards attend
block by block, the positions of both decide: of a window's neighbouring block a corner is attended, of blocks further
away nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

from .partition import Chunk, Segments, chunks, slice_length


def sliced(chunk: Chunk, part: int, parts: int) -> Chunk:
    """One of ``parts`` parts of a chunk."""
    first, tokens = chunk
    return first + tokens * part // parts, slice_length(tokens, part, parts)


def windowed_segments(queries: Chunk, keys: Chunk, window: int, share: int = 1) -> Segments:
    """Non-causal segments of queries over one ``share``-th of some keys, limited by a window (0: none).

    A query at x attends min(last, x) − max(first, x − window) keys: that grows, stays and shrinks between the borders.

    Examples
    --------
    >>> windowed_segments((256, 256), (256, 256), 128), windowed_segments((256, 256), (0, 256), 128)
    (((128, 64), (128, 128)), ((128, 64),))
    >>> windowed_segments((512, 256), (0, 256), 128)
    ()
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
    """Queries cut at the ends of runs of ``sizes[0]`` tokens, these at the ends of runs of ``sizes[1]`` tokens from
    their own start, and so on; with each piece, the keys in its run.

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
    """Non-causal segments of a shard over slices ``(owner, part, parts)`` of shards' blocks, and over their shares of
    ``cached`` tokens before. ``borders``: tokens of documents, and of chunks in them."""
    segments: Segments = ()
    for start, tokens in chunks(partition, sequence, shards, position):
        queries = cached + start, tokens
        for owner, part, parts in held:
            blocks = [sliced(keys, part, parts) for keys in chunks(partition, sequence, shards, owner)]
            for first, count in blocks:
                for some, seen in within(queries, (cached + first, count), borders):
                    segments += windowed_segments(some, seen, window)
            if cached:
                for some, seen in within(queries, (0, cached), borders):
                    segments += windowed_segments(some, seen, window, shards * parts)
    return segments * sequences
