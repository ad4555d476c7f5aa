"""Narrow types of weights and gradients in exchanges (ZeRO++, Wang et al. 2023, arXiv 2306.10209, §3).

Elements are quantised in blocks with a scale; the scales (one fp32 per 2,048 elements, 1/512 byte each) are left out.
One kernel quantises before an exchange, one dequantises after it.
"""

from __future__ import annotations

from ...operators import MemoryBound, Role
from ...operators.dtypes import wires


def wire_bytes(wire: str | None, usual: float) -> float:
    """Bytes of an element in an exchange's type (:func:`~tspsim.operators.dtypes.wires`); None: ``usual`` bytes."""
    return usual if wire is None else wires()[wire]


def recast(name: str, elements: float, read_bytes: float, written_bytes: float) -> MemoryBound:
    """Convert elements between types: read and written once."""
    return MemoryBound("copy", elements * (read_bytes + written_bytes), name=name, role=Role.OTHER)
