"""The ledger of memory: every piece declares named buffers with lifetimes, and a rank's peak is the sum of those that
are alive when most are.

A step is at its worst while a layer works, its backward while training, with everything in flight that is kept for
backwards to come; or while an embedding or head works alone, where that needs more.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple


class Lifetime(Enum):
    """When a buffer is alive, and so how often it counts at the peak."""

    #: The whole step.
    STEP = "step"
    #: While one layer works: once; where it is of one kind of layer, that of the kind that needs most.
    LAYER = "layer"
    #: From a layer's forward on a micro-batch to its backward: once for each of them under way.
    IN_FLIGHT = "in flight"
    #: While an embedding or head works and no layer: in the place of its part's layer buffers and of the workspace.
    TABLE = "table"
    #: From the head's forward to its backward; the last layer works meanwhile.
    HEAD = "head"


class Buffer(NamedTuple):
    """Bytes on a rank, the part of memory they are told under, and the kind of layer they are of (None: all alike)."""

    part: str
    size_bytes: float
    lifetime: Lifetime
    block: Hashable = None


#: The part that a layer at work needs, and an embedding or head does not.
WORKSPACE = "workspace"
