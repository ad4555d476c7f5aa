"""Slots of small jobs on a shared node's GPUs, so that their rectangles do not overlap in a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..fleet.result import FleetFacts


def slots(facts: FleetFacts) -> dict[int, tuple[int, ...]]:
    """Spell of a job on part of a node → its GPUs there, from 0: neighbours where possible, else the first free ones.

    The numbers are for drawing alone: a fleet counts a node's GPUs and does not assign them.
    """
    times, of_a_node = facts.times, facts.gpus // max(1, facts.nodes)
    small = [
        spell
        for spell, job in enumerate(times.spell_job.tolist())
        if facts.jobs[job].gpus < of_a_node and len(times.spell_nodes[spell]) == 1
    ]
    small.sort(key=lambda spell: (times.spell_start_s[spell], spell))
    free_s: dict[int, list[float]] = {}
    by_spell: dict[int, tuple[int, ...]] = {}
    for spell in small:
        node, wide = times.spell_nodes[spell][0], facts.jobs[int(times.spell_job[spell])].gpus
        until_s = free_s.setdefault(node, [0.0] * of_a_node)
        start_s = float(times.spell_start_s[spell])
        free = [slot for slot, end_s in enumerate(until_s) if end_s <= start_s]
        blocks = (free[at : at + wide] for at in range(len(free) - wide + 1))
        block = next((block for block in blocks if block[-1] - block[0] == wide - 1), free[:wide])
        for slot in block:
            until_s[slot] = float(times.spell_end_s[spell])
        by_spell[spell] = tuple(block)
    return by_spell
