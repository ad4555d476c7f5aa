"""A choice of experts as frameworks without a kernel for it run it: by a library's small kernels, one after another."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quick import quick
from .base import Computes, Operator, Role


@quick
@dataclass(frozen=True, slots=True)
class ChoiceKernels(Operator):
    """The kernels that choose the experts of ``tokens`` tokens among ``experts``, or the gradient of that.

    ``scores`` of them read and write a number in fp32 for every token and expert, ``few`` at most one for every choice,
    and ``searches`` look for the best scores of a token (``torch.topk``). ``token_s``: of a kernel that takes as long
    for a token whatever it moves, such as one that counts the tokens for every rank.
    """

    tokens: int
    experts: int
    scores: int
    few: int = 0
    searches: int = 0
    token_s: float = 0.0
    name: str = "choose experts"
    role: Role = Role.EXPERT_CHOICE
    computes: Computes = Computes.OUTPUT

    kind = "memory_bound"

    @property
    def kernels(self) -> int:
        return self.scores + self.few + self.searches + (self.token_s > 0.0)

    @property
    def flops(self) -> float:
        """None of a matrix unit."""
        return 0.0

    @property
    def hbm_bytes(self) -> float:
        """Scores that are read and written, and those that are searched."""
        return 4.0 * self.tokens * self.experts * (2 * self.scores + self.searches)

    @property
    def shape(self) -> str:
        return f"{self.tokens} × {self.experts}, {self.kernels} kernels"
