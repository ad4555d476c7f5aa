"""Legal plans that fit, drawn at random: a baseline for searches."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ...base.errors import UnreachableError
from .candidate import Candidate
from .shapes import Shapes

#: Consecutive draws without a plan after which the sampling ends.
MOST_DRAWS = 2000


def drawn(shapes: Shapes, room_bytes: float, seed: int = 0) -> Iterator[Candidate]:
    """Plans of a search's space, each once: degrees and micro-batch first, then each further choice uniformly among the
    legal ones.

    Parameters
    ----------
    room_bytes
        Memory that they may need.
    seed
        Seed of the generator: the same plans in the same order.
    """
    chance, sets, seen, missed = random.Random(seed), shapes.sets, set[str](), 0
    while missed < MOST_DRAWS:
        missed += 1
        families = sets.once(sets.families, chance.choice(shapes.spreads))
        if not families:
            continue
        try:
            every = sets.once(sets.staged, chance.choice(families))
        except UnreachableError:
            continue
        if not every:
            continue
        layout = chance.choice(sets.once(sets.pipelined, chance.choice(every)))
        sized = sets.plan(layout, chance.choice(sets.space.divisions(layout)))
        if sized is not None and sized[0] <= room_bytes and sized[1].name not in seen:
            missed = 0
            seen.add(sized[1].name)
            yield sized[1]
