"""The ledger of memory: buffers with lifetimes, declared by each part of the code, and a rank's peak as the largest sum
of buffers that are alive together.

The peak of a step is while a layer runs (in training its backward, with all activations kept for other backwards), or
while an embedding or head runs alone, if that needs more.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple


class Lifetime(Enum):
    """When a buffer is alive, and so how often it counts at the peak."""

    #: The whole step.
    STEP = "step"
    #: While one layer runs: once; of buffers of kinds of layers, the largest.
    LAYER = "layer"
    #: From a layer's forward on a micro-batch to its backward: once for each pair in flight.
    IN_FLIGHT = "in flight"
    #: While an embedding or head runs and no layer: in place of its part's layer buffers and of the workspace.
    TABLE = "table"
    #: From the head's forward to its backward, during which the last layer runs.
    HEAD = "head"


class Buffer(NamedTuple):
    """Bytes on a rank, the part of memory in answers, and the kind of layer (None: any)."""

    part: str
    size_bytes: float
    lifetime: Lifetime
    block: Hashable = None


#: The part that a running layer needs, and an embedding or head does not.
WORKSPACE = "workspace"
