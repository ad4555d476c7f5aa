"""Which tokens a sequence shard holds, and which score pairs follow.

Shard i of n holds S/n tokens of every sequence: in ``contiguous`` order tokens i·S/n …; in ``zigzag`` order chunks i
and 2n−1−i of 2n, so that every shard has the same number of causal pairs.
A segment is (queries, context), aligned at its lower right corner when causal (:class:`tspsim.operators.Attention`).
"""

from __future__ import annotations

from collections.abc import Sequence

Segments = tuple[tuple[int, int], ...]
#: First token and number of tokens; what a cache holds stands before 0.
Chunk = tuple[int, int]


def chunks(partition: str, sequence: int, shards: int, position: int) -> tuple[Chunk, ...]:
    """The tokens that a shard holds.

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
    """Pieces a shard attends once the whole context is there, ``cached`` tokens of every sequence before it.

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
    """Tokens of one of the parts that some are cut into, as even as can be.

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
    """Pieces a shard attends of slices of other shards' blocks: (owner, part, parts) each, in one call.

    Each owner holds its shard of ``cached`` tokens besides, and every query sees those.

    Every slice has its share of each of its owner's chunks. In zigzag order early queries see early slices of earlier
    owners, late queries those and both slices of later owners: as many pairs whoever the owners are.

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
    """Pieces a shard attends of the block that ``owner`` sent, its shard of ``cached`` tokens before it, and whether
    they are causal.

    In zigzag order every block off the diagonal costs half a square, whoever owns it: late chunks of this shard see
    both chunks of an earlier owner's half, or both chunks see the owner's early one.
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
