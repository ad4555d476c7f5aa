"""Speculative decoding as an engine sees it: tokens that a step verifies, and how many of them it keeps.

A drafter guesses k tokens of a sequence, one behind the other or as a tree of which one path is kept, one pass of the
model checks k + 1 positions, and the tokens up to the first wrong guess are kept. With acceptance a_i of the i-th
draft, or at depth i, given that those before it were right, a step puts out

    1 + Σ_{i ≤ k} Π_{j ≤ i} a_j

tokens in the mean (Leviathan et al. 2023, arXiv:2211.17192, for equal a_i).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..base.errors import InputError
from ..base.memo import once
from .requests import Request

#: Draws are made so many at a time.
_AT_ONCE = 64


@dataclass(frozen=True)
class AcceptanceModel:
    """Drafts of every step, and what becomes of them.

    Examples
    --------
    >>> AcceptanceModel((0.8, 0.5)).tokens_a_step
    2.2
    """

    #: Of each draft, where those before it were accepted: one probability a drafted token.
    acceptance: tuple[float, ...]
    #: Drafts are accepted or not by chance, sequence by sequence; otherwise every step puts out the mean: whole
    #: tokens, and the fraction is carried to the next step.
    sampled: bool = False
    #: Of chance. What a sequence draws depends on its number and on how many of its steps came before, not on when it
    #: runs or with whom.
    seed: int = 0
    #: Drafts that a step verifies, where they are a tree, more than it is deep; None: one at each depth.
    verified: int | None = None

    def __post_init__(self) -> None:
        if not self.acceptance:
            raise InputError("an acceptance is needed for every drafted token, at least one", key="acceptance")
        for value in self.acceptance:
            if not 0.0 <= value <= 1.0:
                raise InputError(f"'{value:g}' is not a probability; it must be in 0 to 1", key="acceptance")

    @property
    def drafts(self) -> int:
        """Tokens guessed a step."""
        return len(self.acceptance) if self.verified is None else self.verified

    @property
    def queries(self) -> int:
        """Positions of a sequence that a step computes."""
        return self.drafts + 1

    @once
    def tokens_a_step(self) -> float:
        """That a step puts out for a sequence, in the mean."""
        return 1.0 + float(np.cumprod(self.acceptance).sum())

    def tokens(self, steps: int) -> int:
        """That ``steps`` steps put out for every sequence, where each puts out the mean."""
        return int(steps * self.tokens_a_step + 1e-9)

    def steps_for(self, tokens: int) -> int:
        """The fewest steps with so many tokens."""
        steps = int(tokens / self.tokens_a_step)
        while self.tokens(steps) < tokens:
            steps += 1
        while steps and self.tokens(steps - 1) >= tokens:
            steps -= 1
        return steps

    def steps_within(self, tokens: int) -> int:
        """The most steps with no more tokens."""
        return self.steps_for(tokens + 1) - 1

    def draws(self, request: Request) -> Iterator[int]:
        """Tokens that each step of a request puts out, by chance."""
        generator = np.random.default_rng((self.seed, request.number))
        while True:
            accepted = generator.random((_AT_ONCE, len(self.acceptance))) < self.acceptance
            yield from (1 + np.cumprod(accepted, axis=1).sum(axis=1)).tolist()
