"""The work of one step of an engine, as its scheduler hands it out, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..steps.batch import Batch, Row

Floats = NDArray[np.float64]


class Chunk(NamedTuple):
    """A piece of a prompt: ``query_tokens`` behind ``context_tokens`` in the cache; whether it ``ends`` the prompt, so
    that its last token is sampled from."""

    query_tokens: int
    context_tokens: int
    ends: bool = True


@dataclass(frozen=True)
class Work:
    """Chunks of prompts and sequences that decode, in one step.

    Attributes
    ----------
    chunks
        In the order in which they were scheduled.
    contexts
        Tokens in the cache of every sequence that decodes, before the step.
    queries
        Positions that each of them computes: one, and its drafts.
    """

    chunks: tuple[Chunk, ...] = ()
    contexts: tuple[int, ...] = ()
    queries: int = 1

    @property
    def sequences(self) -> int:
        """That decode."""
        return len(self.contexts)

    @cached_property
    def context_tokens(self) -> int:
        """In the caches of those that decode."""
        return sum(self.contexts)

    @property
    def tokens(self) -> int:
        """That pass through the model."""
        return sum(chunk.query_tokens for chunk in self.chunks) + self.queries * self.sequences

    @property
    def outputs(self) -> int:
        """Tokens that go through the language-model head."""
        return sum(chunk.ends for chunk in self.chunks) + self.queries * self.sequences

    @cached_property
    def batch(self) -> Batch:
        """As rows: equal contexts are one row, longest first, behind the chunks."""
        counts: dict[int, int] = {}
        for context in sorted(self.contexts, reverse=True):
            counts[context] = counts.get(context, 0) + 1
        rows = [Row(chunk.query_tokens, chunk.context_tokens) for chunk in self.chunks]
        rows += [Row(self.queries, context, count) for context, count in counts.items()]
        return Batch(tuple(rows), outputs=self.outputs)


#: Seconds of a step over a batch; what a caller of :func:`tspsim.serving.replay` gives.
StepFunction = Callable[[Batch], float]


@runtime_checkable
class StepCost(Protocol):
    """What steps of an engine cost. All of an engine's attention replicas step together: one Work each, mostly one."""

    def seconds(self, works: Sequence[Work]) -> float:
        """Of one step, from its beginning to when the next may begin."""
        ...

    def decode_ends_s(self, works: Sequence[Work], steps: int) -> Floats:
        """Seconds from now to the end of each of the next ``steps`` steps, where every sequence of ``works`` (no chunks
        in them) puts out one token a step and none joins or leaves: entry i is the sum of the first i + 1 steps.

        ``seconds`` of the works with contexts longer by j, summed over j, to rounding.
        """
        ...


class CalledCost:
    """A plain function of a batch as a cost: called for every step."""

    def __init__(self, step_s: StepFunction) -> None:
        self._step_s = step_s

    def seconds(self, works: Sequence[Work]) -> float:
        return max(float(self._step_s(work.batch)) for work in works if work.tokens)

    def decode_ends_s(self, works: Sequence[Work], steps: int) -> Floats:
        each = np.empty(steps)
        for step in range(steps):
            later = [Work((), tuple(context + step for context in work.contexts), work.queries) for work in works]
            each[step] = self.seconds(later)
        return np.cumsum(each)
