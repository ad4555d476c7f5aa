"""Partition of tokens into sequence shards, and the score pairs that follow.

Shard i of n holds S/n tokens of every sequence: in ``contiguous`` order tokens i·S/n …; in ``zigzag`` order chunks i
and 2n−1−i of 2n, so that every shard has the same number of causal pairs. A segment is (queries, context), aligned at
its lower right corner if causal (:class:`tspsim.operators.Attention`).
"""

from __future__ import annotations

from collections.abc import Sequence

Segments = tuple[tuple[int, int], ...]
#: First token and number of tokens; cached tokens are before 0.
Chunk = tuple[int, int]


def chunks(partition: str, sequence: int, shards: int, position: int) -> tuple[Chunk, ...]:
    """The tokens of a shard.

    >>> chunks("zigzag", 1024, 4, 1), chunks("contiguous", 1024, 4, 1)
    (((128, 128), (768, 128)), ((256, 256),))
    """
    length = sequence // shards
    if partition == "contiguous" or shards == 1:
        return ((position * length, length),)
    half = length // 2
    return (position * half, half), ((2 * shards - 1 - position) * half, half)


def local_segments(
    partition: str, sequence: int, shards: int, position: int, sequences: int, causal: bool, cached: int = 0
) -> Segments:
    """Segments of a shard over the whole context, with ``cached`` tokens before every sequence.

    Examples
    --------
    >>> local_segments("zigzag", 1024, 2, 0, 1, True)
    ((256, 256), (256, 1024))
    >>> local_segments("contiguous", 1024, 2, 1, 1, True)
    ((512, 1024),)
    """
    length = sequence // shards
    if not causal:
        return ((length, cached + sequence),) * sequences
    held = chunks(partition, sequence, shards, position)
    return tuple((tokens, cached + first + tokens) for first, tokens in held) * sequences


def slice_length(tokens: int, part: int, parts: int) -> int:
    """Tokens of one of ``parts`` parts that are as equal as possible.

    >>> [slice_length(16, part, 7) for part in range(7)]
    [2, 2, 2, 3, 2, 2, 3]
    """
    return tokens * (part + 1) // parts - tokens * part // parts


def sliced_segments(
    partition: str,
    sequence: int,
    shards: int,
    position: int,
    held: Sequence[tuple[int, int, int]],
    sequences: int,
    causal: bool,
    cached: int = 0,
) -> Segments:
    """Segments of a shard over slices ``(owner, part, parts)`` of other shards' blocks, in one call.

    Each owner also holds its shard of ``cached`` tokens, which every query attends. A slice has its share of each of
    its owner's chunks. In zigzag order early queries attend the early slices of earlier owners, late queries those and
    both slices of later owners: equally many pairs for all owners.

    Examples
    --------
    >>> sliced_segments("zigzag", 1024, 4, 1, [(0, 0, 2), (2, 1, 2)], 1, True)
    ((128, 64), (128, 192))
    """
    length = sequence // shards
    before = sum(slice_length(-(-cached // shards), part, parts) for _, part, parts in held)
    if not causal:
        return ((length, before + sum(slice_length(length, part, parts) for _, part, parts in held)),) * sequences
    if partition == "contiguous":
        seen = before + sum(slice_length(length, part, parts) for owner, part, parts in held if owner < position)
        return ((length, seen),) * sequences if seen else ()
    chunk = length // 2
    early = before + sum(slice_length(chunk, part, parts) for owner, part, parts in held if owner < position)
    late = early + sum(2 * slice_length(chunk, part, parts) for owner, part, parts in held if owner > position)
    return (*(((chunk, early),) if early else ()), *(((chunk, late),) if late else ())) * sequences


def block_segments(
    partition: str, sequence: int, shards: int, position: int, owner: int, sequences: int, causal: bool, cached: int = 0
) -> tuple[Segments, bool]:
    """Segments of a shard over the block of ``owner``, with its shard of ``cached`` tokens, and whether they are
    causal.

    In zigzag order every block off the diagonal costs half a square, whoever owns it: both chunks attend an earlier
    owner's early chunk, or the late chunk attends both chunks of a later owner.
    """
    length, before = sequence // shards, -(-cached // shards)
    if not causal:
        return ((length, before + length),) * sequences, False
    if owner == position:
        return ((length, before + length),) * sequences, True
    if partition == "contiguous":
        seen = before + (length if owner < position else 0)
        return (((length, seen),) * sequences if seen else ()), False
    chunk = length // 2
    if owner < position:
        return ((length, before + chunk),) * sequences, False
    early = ((chunk, before),) if before else ()
    return (*early, (chunk, before + length)) * sequences, False
