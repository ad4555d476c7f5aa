"""Where a pipeline's chunks of layers are: which stage holds which, and which way micro-batches go through them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """Consecutive layers; the first chunk of a model has its embedding, the last its head."""

    first_layer: int
    layers: int
    has_embedding: bool
    has_head: bool
    #: Direction of its micro-batches along the stages: 1 from the first to the last, −1 back.
    way: int = 1
    #: Whether the chunk before it, and the one after it, is on the same stage, so that no message passes between them.
    entered_here: bool = False
    left_here: bool = False


def chunk_of(sizes: tuple[int, ...], index: int, way: int = 1) -> Chunk:
    """The ``index``-th chunk of a model whose chunks have ``sizes`` layers."""
    return Chunk(sum(sizes[:index]), sizes[index], index == 0, index == len(sizes) - 1, way)


class ChunkPlacement:
    """Chunks in rounds: stage s of p holds chunks s, s + p, s + 2·p, … (Narayanan et al. 2021, §2.2).

    A *place* is the index of a chunk among all that a micro-batch may meet.
    """

    #: Whether every micro-batch enters at the first stage and ends on the last.
    one_way = True
    #: Whether half of the micro-batches enter at the last stage.
    both_ways = False

    def chunks(self, sizes: tuple[int, ...], stages: int, stage: int) -> tuple[Chunk, ...]:
        """The chunks of one stage, in order."""
        return tuple(chunk_of(sizes, index) for index in range(stage, len(sizes), stages))

    def place_of(self, chunk: int, stage: int, stages: int) -> int:
        """The place of a stage's ``chunk``-th chunk."""
        return chunk * stages + stage

    def stage_of(self, place: int, stages: int) -> int:
        """The stage of a place."""
        return place % stages

    def met(self, place: int, stages: int, chunks: int) -> range:
        """The places that a micro-batch at ``place`` passes through."""
        return range(stages * chunks)


class BothEnds(ChunkPlacement):
    """A stage holds the layers of its own and of the opposite stage; micro-batches enter at both ends."""

    one_way, both_ways = False, True

    def chunks(self, sizes: tuple[int, ...], stages: int, stage: int) -> tuple[Chunk, ...]:
        return chunk_of(sizes, stage), chunk_of(sizes, len(sizes) - 1 - stage, -1)

    def place_of(self, chunk: int, stage: int, stages: int) -> int:
        return 2 * stages - 1 - stage if chunk else stage

    def stage_of(self, place: int, stages: int) -> int:
        return min(place, 2 * stages - 1 - place)

    def met(self, place: int, stages: int, chunks: int) -> range:
        return range(stages) if place < stages else range(stages, 2 * stages)


class Folded(BothEnds):
    """A V of 2·p chunks: stage s holds chunks s and 2·p − 1 − s, so that the first stage has embedding and head, and a
    micro-batch turns round on the last (Qi et al. 2023, §6)."""

    both_ways = False

    def chunks(self, sizes: tuple[int, ...], stages: int, stage: int) -> tuple[Chunk, ...]:
        down, up = chunk_of(sizes, stage), chunk_of(sizes, len(sizes) - 1 - stage, -1)
        turns = stage == stages - 1
        return (
            Chunk(down.first_layer, down.layers, down.has_embedding, down.has_head, 1, left_here=turns),
            Chunk(up.first_layer, up.layers, up.has_embedding, up.has_head, -1, entered_here=turns),
        )

    def met(self, place: int, stages: int, chunks: int) -> range:
        return range(2 * stages)


IN_ROUNDS, BOTH_ENDS, FOLDED = ChunkPlacement(), BothEnds(), Folded()
