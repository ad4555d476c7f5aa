"""Programs of ranks as data: instructions on named streams, and the mesh whose lines are the process groups.

:mod:`tspsim.program.instructions` defines the instructions, the order in which a rank's may start, and the coordinates
of ranks. :mod:`tspsim.program.excerpts` shortens programs and adds dependencies, :mod:`tspsim.program.layout` prices a
program at once.
"""

from __future__ import annotations

from .instructions import (
    COLLECTIVE_KINDS,
    MULTIPROCESSORS,
    RING_SHIFT,
    Collective,
    Compute,
    Copy,
    ExpertExchange,
    Instruction,
    Issued,
    Launch,
    Mesh,
    Program,
    Repeat,
    SendReceive,
)

__all__ = [
    "COLLECTIVE_KINDS",
    "MULTIPROCESSORS",
    "RING_SHIFT",
    "Collective",
    "Compute",
    "Copy",
    "ExpertExchange",
    "Instruction",
    "Issued",
    "Launch",
    "Mesh",
    "Program",
    "Repeat",
    "SendReceive",
]
