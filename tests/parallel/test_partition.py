"""Which score pairs a shard computes: all of them once, in equal shares where the order promises it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tspsim.model import load_model
from tspsim.model.layer import LayerShard
from tspsim.model.parts import Block
from tspsim.model.shard import TILE
from tspsim.operators import Attention
from tspsim.parallel.partition import Segments, block_segments, local_segments
from tspsim.parallel.windows import block_in_window

DENSE = load_model("tsp-8b")
SHARDS = st.sampled_from([1, 2, 3, 4, 8])
ORDERS = st.sampled_from(["zigzag", "contiguous"])


def pairs(segments: Segments, causal: bool) -> float:
    return Attention(segments, 1, 1, 1, causal).pairs


def tokens_of(partition: str, sequence: int, shards: int, position: int) -> list[int]:
    """Positions in the sequence that a shard holds, in order."""
    if partition == "contiguous":
        length = sequence // shards
        return list(range(position * length, (position + 1) * length))
    chunk = sequence // (2 * shards)
    late = 2 * shards - 1 - position
    return [*range(position * chunk, (position + 1) * chunk), *range(late * chunk, (late + 1) * chunk)]


@given(ORDERS, SHARDS, st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_shards_together_compute_every_pair_once(
    order: str, shards: int, chunk: int, sequences: int, causal: bool
) -> None:
    sequence = 2 * shards * chunk
    done = sum(
        pairs(local_segments(order, sequence, shards, position, sequences, causal), causal)
        for position in range(shards)
    )
    assert done == sequences * sequence**2 * (0.5 if causal else 1.0)


@given(ORDERS, SHARDS, st.integers(1, 20))
def test_a_shard_computes_the_pairs_of_the_tokens_it_holds(order: str, shards: int, chunk: int) -> None:
    """Token t meets the t before it and half of itself (the diagonal as the area of its triangle)."""
    sequence = 2 * shards * chunk
    for position in range(shards):
        held = tokens_of(order, sequence, shards, position)
        segments = local_segments(order, sequence, shards, position, 1, True)
        assert pairs(segments, True) == sum(token + 0.5 for token in held)


@given(ORDERS, SHARDS, st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_block_by_block_is_the_same_work_as_all_at_once(
    order: str, shards: int, chunk: int, sequences: int, causal: bool
) -> None:
    sequence = 2 * shards * chunk
    for position in range(shards):
        whole = pairs(local_segments(order, sequence, shards, position, sequences, causal), causal)
        blocks = [
            pairs(*block_segments(order, sequence, shards, position, owner, sequences, causal))
            for owner in range(shards)
        ]
        assert sum(blocks) == whole


@given(SHARDS, st.integers(1, 20))
def test_zigzag_shards_have_equal_work_in_every_step_of_the_ring(shards: int, chunk: int) -> None:
    sequence = 2 * shards * chunk
    for hop in range(shards):
        work = {
            pairs(*block_segments("zigzag", sequence, shards, position, (position - hop) % shards, 1, True))
            for position in range(shards)
        }
        assert len(work) == 1


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_the_last_contiguous_shard_has_almost_twice_the_mean_work(shards: int) -> None:
    sequence = 1024 * shards
    last = pairs(local_segments("contiguous", sequence, shards, shards - 1, 1, True), True)
    mean = sequence**2 / 2 / shards
    assert last / mean == 2 - 1 / shards


BORDERS = st.lists(st.sampled_from([8, 12, 40, 96]), max_size=2)


def seen_by(token: int, window: int, borders: list[int]) -> float:
    """What a token of a sequence sees: those before it and half of itself, of its run of tokens, of the run in that,
    and of its window. An oracle token by token."""
    for size in borders:
        token %= size
    return min(token + 0.5, window) if window else token + 0.5


@given(ORDERS, SHARDS, st.integers(1, 12), st.integers(0, 60), BORDERS, st.sampled_from([1, 2]), st.integers(0, 3))
def test_block_by_block_is_what_tokens_see_in_a_window_and_in_documents_and_chunks(
    order: str, shards: int, chunk: int, window: int, borders: list[int], parts: int, cached: int
) -> None:
    """Whoever holds them; so they see a cache. And a call that has the whole context does the same."""
    sequence, window, cached = 8 * shards * chunk, 2 * window, 8 * shards * cached
    document, inner = [*borders, 0, 0][:2]
    layer = LayerShard(DENSE, 1, block=Block(window=window, chunk=inner), document=document)
    for position in range(shards):
        held = [(owner, part, parts) for owner in range(shards) for part in range(parts)]
        seen = block_in_window(order, sequence, shards, position, held, 3, window, cached, layer.borders)
        tokens = tokens_of(order, sequence, shards, position)
        expected = 3 * sum(seen_by(cached + token, window, borders) for token in tokens)
        # Shares of a cache are whole tokens, rounded up.
        assert expected <= pairs(seen, False) <= expected + (3 * len(held) * len(tokens) * 2 if cached else 0)
        whole = layer.attention(local_segments(order, sequence, shards, position, 3, True, cached))
        # It computes whole tiles. Its window is counted as full in its corner, or as not there where that is less.
        expected = 3 * sum(seen_by(cached + token, window, [max(TILE, size) for size in borders]) for token in tokens)
        assert whole.pairs == expected if not window else whole.pairs >= expected


def test_of_a_window_shards_see_a_corner_of_their_neighbour_and_nothing_further_away() -> None:
    seen = [block_in_window("contiguous", 4096, 4, 3, [(owner, 0, 1)], 1, 128) for owner in range(4)]
    assert seen == [(), (), ((128, 64),), ((128, 64), (896, 128))]
