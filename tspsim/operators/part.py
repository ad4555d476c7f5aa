"""A slice of a kernel: other instructions wait for it, or it waits for them, while the kernel runs on."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quick import quick
from .base import Computes, Operator, Role


@quick
@dataclass(frozen=True, slots=True)
class Part(Operator):
    """One of ``of`` equal slices of one call of ``whole``, which takes 1/``of`` of its time.

    The call keeps its tiles, launch and efficiency, which separate smaller products would not.
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
