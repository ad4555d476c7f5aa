"""What ranks are told to do, as data: instructions on named streams, and the mesh that their groups are lines of.

:mod:`tspsim.program.instructions` has the instructions, when one may start, and ranks by coordinates,
:mod:`tspsim.program.excerpts` programs made of others, and :mod:`tspsim.program.layout` where different things stand in
a program and what follows each of them.
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
