"""The ledger of memory: every piece declares named buffers with lifetimes, and a rank's peak is the sum of those that
are alive when most are.

A step is at its worst while a layer works, its backward while training, with everything in flight that is kept for
backwards to come; or while an embedding or head works alone, where that needs more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
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


def peak(buffers: Iterable[Buffer], in_flight: Mapping[Hashable, int] | None = None) -> dict[str, float]:
    """Bytes by part at the worst moment, parts in order of declaration; ``in_flight``: layers of each kind, once a
    micro-batch, whose backward is still to come.

    >>> kept = Buffer("kept", 2.0, Lifetime.IN_FLIGHT, "dense")
    >>> peak([Buffer("weights", 8.0, Lifetime.STEP), kept], {"dense": 3})
    {'weights': 8.0, 'kept': 6.0}
    """
    under_way = in_flight or {}
    parts: dict[str, float] = {}
    by_kind: dict[str, float] = {}
    alone: dict[str, float] = {}
    for part, size_bytes, lifetime, block in buffers:
        parts.setdefault(part, 0.0)
        if lifetime is Lifetime.TABLE:
            alone[part] = max(alone.get(part, 0.0), size_bytes)
        elif lifetime is Lifetime.IN_FLIGHT:
            parts[part] += size_bytes * (sum(under_way.values()) if block is None else under_way.get(block, 0))
        elif lifetime is Lifetime.LAYER and block is not None:
            by_kind[part] = max(by_kind.get(part, 0.0), size_bytes)
        else:
            parts[part] += size_bytes
    for part, size_bytes in by_kind.items():
        parts[part] += size_bytes
    for part, size_bytes in alone.items():
        parts[part] = max(parts[part], size_bytes - parts.get(WORKSPACE, 0.0))
    return {part: size for part, size in parts.items() if size > 0.0}
