"""A slice of a kernel that others wait for, or that waits for others, while the kernel goes on."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quick import quick
from .base import Computes, Operator, Role


@quick
@dataclass(frozen=True, slots=True)
class Part(Operator):
    """One of ``of`` equal slices of one call of ``whole``: the call keeps its own tiles, launch and efficiency, and a
    slice takes 1/``of`` of its time. A product that was cut into calls of its own would lose some of all three.
    """

    whole: Operator
    of: int

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.whole.kind

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.whole.name

    @property
    def role(self) -> Role:  # type: ignore[override]
        return self.whole.role

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.whole.dtype

    @property
    def computes(self) -> Computes:
        return self.whole.computes

    @property
    def flops(self) -> float:
        return self.whole.flops / self.of

    @property
    def hbm_bytes(self) -> float:
        return self.whole.hbm_bytes / self.of

    @property
    def cold_bytes(self) -> float:
        return self.whole.cold_bytes / self.of

    @property
    def shape(self) -> str:
        return f"1/{self.of} of {self.whole.shape}"

    @property
    def local_experts(self) -> int:
        return self.whole.local_experts
