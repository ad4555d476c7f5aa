"""Legal plans that fit, drawn at random: what a search is held against."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ...base.errors import UnreachableError
from .candidate import Candidate
from .shapes import Shapes

#: Draws in a row that give no plan, after which there is none.
MOST_DRAWS = 2000


def drawn(shapes: Shapes, room_bytes: float, seed: int = 0) -> Iterator[Candidate]:
    """Plans of a search's space, each once: degrees and micro-batch first, then each further choice among those that
    are legal with it, evenly.

    Parameters
    ----------
    room_bytes
        What they may need of memory.
    seed
        Of the generator: the same plans in the same order.
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
        made = sets.plan(layout, chance.choice(sets.space.divisions(layout)))
        if made is not None and made[0] <= room_bytes and made[1].name not in seen:
            missed = 0
            seen.add(made[1].name)
            yield made[1]
