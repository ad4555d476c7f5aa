"""Narrow types that weights and gradients travel in (ZeRO++, Wang et al. 2023, arXiv 2306.10209, §3).

A block of elements and its scale; scales (one fp32 for 2,048 elements) are left out: a five-hundredth of a byte each.
What is narrow is made by one kernel before it leaves and unmade by one where it arrives.
"""

from __future__ import annotations

from ...operators import MemoryBound, Role
from ...operators.dtypes import wires


def wire_bytes(wire: str | None, usual: float) -> float:
    """Bytes of an element on its way in a type (:func:`~tspsim.operators.dtypes.wires`); None: ``usual`` bytes."""
    return usual if wire is None else wires()[wire]


def recast(name: str, elements: float, read_bytes: float, written_bytes: float) -> MemoryBound:
    """Elements of one type become those of another: read and written once."""
    return MemoryBound("copy", elements * (read_bytes + written_bytes), name=name, role=Role.OTHER)
