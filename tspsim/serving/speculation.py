"""Speculative decoding in an engine: tokens that a step verifies, and tokens that it keeps.

A drafter guesses k tokens of a sequence, in a chain or as a tree of which one path is kept. One pass of the model
checks k + 1 positions, and the tokens up to the first wrong guess are kept. With acceptance a_i of the i-th draft (or
at depth i), given that those before it were right, a step puts out

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

#: Size of a batch of draws.
_AT_ONCE = 64


@dataclass(frozen=True)
class AcceptanceModel:
    """Drafts of every step, and their acceptance.

    Examples
    --------
    >>> AcceptanceModel((0.8, 0.5)).tokens_a_step
    2.2
    """

    #: Acceptance of each draft given that those before it were accepted: one probability per drafted token.
    acceptance: tuple[float, ...]
    #: Whether acceptance is drawn per sequence; otherwise every step puts out the mean: whole tokens, with the fraction
    #: carried to the next step.
    sampled: bool = False
    #: Seed of the draws. A sequence's draws depend on its number and step, not on time or batch.
    seed: int = 0
    #: Drafts that a step verifies in a tree, more than its depth; None: one at each depth.
    verified: int | None = None

    def __post_init__(self) -> None:
        if not self.acceptance:
            raise InputError("an acceptance is needed for every drafted token, at least one", key="acceptance")
        for value in self.acceptance:
            if not 0.0 <= value <= 1.0:
                raise InputError(f"'{value:g}' is not a probability; it must be in 0 to 1", key="acceptance")

    @property
    def drafts(self) -> int:
        """Drafted tokens per step."""
        return len(self.acceptance) if self.verified is None else self.verified

    @property
    def query_len(self) -> int:
        """Positions of a sequence that a step computes."""
        return self.drafts + 1

    @once
    def tokens_a_step(self) -> float:
        """Mean output tokens of a step per sequence."""
        return 1.0 + float(np.cumprod(self.acceptance).sum())

    def tokens(self, steps: int) -> int:
        """Output tokens of ``steps`` steps per sequence, where each puts out the mean."""
        return int(steps * self.tokens_a_step + 1e-9)

    def steps_for(self, tokens: int) -> int:
        """The fewest steps with at least ``tokens`` tokens."""
        steps = int(tokens / self.tokens_a_step)
        while self.tokens(steps) < tokens:
            steps += 1
        while steps and self.tokens(steps - 1) >= tokens:
            steps -= 1
        return steps

    def steps_within(self, tokens: int) -> int:
        """The most steps with at most ``tokens`` tokens."""
        return self.steps_for(tokens + 1) - 1

    def draws(self, request: Request) -> Iterator[int]:
        """Drawn output tokens of each step of a request."""
        generator = np.random.default_rng((self.seed, request.number))
        while True:
            accepted = generator.random((_AT_ONCE, len(self.acceptance))) < self.acceptance
            yield from (1 + np.cumprod(accepted, axis=1).sum(axis=1)).tolist()
