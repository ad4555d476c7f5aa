"""Kernels that mostly move bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.quick import quick
from .base import Computes, Operator, Role

#: Memory-bound kernels of a layer that a compiler fuses and an eager framework runs as several.
FUSED = frozenset({"add_rmsnorm", "rope", "qk_norm_rope", "swiglu", "add", "softmax"})
#: All that operators here name.
MEMORY_BOUND_OPS = FUSED | {"rmsnorm", "copy", "cache_write", "adamw"}


@quick
@dataclass(frozen=True, slots=True)
class MemoryBound(Operator):
    """A kernel whose time is the bytes it reads and writes: norm, rope, residual add, activation, lookup, copy.

    ``op`` names the kernel family (``copy``, ``add``, ``rmsnorm``, ``add_rmsnorm``, ``swiglu``, ``rope``,
    ``qk_norm_rope`` …);
    ``rows`` is its number of tokens where that matters to the kernel.
    """

    op: str
    size_bytes: float
    rows: int = 0
    flops_count: float = 0.0
    name: str = "memory"
    role: Role = Role.OTHER
    computes: Computes = Computes.OUTPUT

    kind = "memory_bound"

    @property
    def flops(self) -> float:
        return self.flops_count

    @property
    def hbm_bytes(self) -> float:
        return self.size_bytes

    @property
    def shape(self) -> str:
        return f"{self.op}, {self.size_bytes / 1e6:.1f} MB"

    def unfused(self, traffic: float) -> MemoryBound:
        return replace(self, size_bytes=self.size_bytes * traffic) if self.op in FUSED else self
