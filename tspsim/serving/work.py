"""The work of one engine step, as its scheduler gives it, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..operators import RowSums
from ..steps.load import Batch, PromptChunk

Floats = NDArray[np.float64]
#: Query tokens of every chunk of a prompt, and tokens in the cache before it.
Columns = tuple[tuple[int, ...], tuple[int, ...]]


class StepWork:
    """Chunks of prompts and decoding sequences of one step.

    An engine knows the number of decoding sequences, the sum and the maximum of their contexts without a loop;
    ``contexts`` are listed only on demand, while the step is priced (:meth:`kept` is for later).

    Attributes
    ----------
    contexts
        Tokens in the cache of every decoding sequence, before the step.
    query_len
        Query length of each of them: one, and its drafts.
    sequences
        Number of decoding sequences.
    context_tokens
        Sum of their contexts.
    """

    __slots__ = (
        "_chunks", "_columns", "_contexts", "_listed", "_longest", "_ordered", "_prompts", "_shortest",
        "context_tokens", "query_len", "sequences",
    )  # fmt: skip

    def __init__(self, chunks: Iterable[PromptChunk] = (), contexts: Iterable[int] = (), query_len: int = 1) -> None:
        self._contexts: tuple[int, ...] | None = tuple(contexts)
        self._listed: Callable[[], tuple[int, ...]] | None = None
        self._chunks: tuple[PromptChunk, ...] | None = tuple(chunks)
        self._columns: Columns | None = None
        self._prompts: tuple[int, int] | None = None
        self.query_len = query_len
        self.sequences = len(self._contexts)
        self.context_tokens = sum(self._contexts)
        self._longest: int | None = None
        self._shortest: int | None = None
        self._ordered: list[int] | None = None

    @classmethod
    def listed(
        cls,
        prompts: Columns,
        prompts_hold: tuple[int, int],
        contexts: tuple[int, ...],
        query_len: int,
        context_tokens: int,
        ordered: list[int],
    ) -> StepWork:
        """The same from columns: chunks that end their prompts, with their sums, and contexts with their sum, and
        ``ordered`` by length. No chunk is made before somebody asks for one."""
        work = cls.__new__(cls)
        work._contexts, work._listed, work.query_len = contexts, None, query_len
        work._chunks, work._columns = (None, prompts) if prompts[0] else ((), None)
        work._prompts = prompts_hold
        work.sequences, work.context_tokens, work._ordered = len(ordered), context_tokens, ordered
        work._shortest, work._longest = (ordered[0], ordered[-1]) if ordered else (0, 0)
        return work

    @classmethod
    def counted(
        cls,
        chunks: tuple[PromptChunk, ...],
        query_len: int,
        sequences: int,
        context_tokens: int,
        longest: int,
        contexts: Callable[[], tuple[int, ...]],
        shortest: int | None = None,
    ) -> StepWork:
        """The same from sums; ``contexts`` lists them. ``shortest``: the shortest of them, None: unknown."""
        work = cls.__new__(cls)
        work._contexts, work._listed = None, contexts
        work._chunks, work._columns, work._prompts, work.query_len = chunks, None, None, query_len
        work.sequences, work.context_tokens = sequences, context_tokens
        work._longest, work._shortest, work._ordered = longest, shortest, None
        return work

    @property
    def chunks(self) -> tuple[PromptChunk, ...]:
        """Chunks of prompts, in the order of scheduling."""
        chunks = self._chunks
        if chunks is None:
            assert self._columns is not None
            chunks = self._chunks = tuple(map(PromptChunk, *self._columns))
        return chunks

    @property
    def columns(self) -> Columns:
        """Query tokens of all chunks, and tokens in the cache before them."""
        columns = self._columns
        if columns is None:
            chunks = self.chunks
            columns = self._columns = tuple([chunk[0] for chunk in chunks]), tuple([chunk[1] for chunk in chunks])
        return columns

    @property
    def contexts(self) -> tuple[int, ...]:
        """Tokens in the cache of each decoding sequence."""
        if self._contexts is None:
            assert self._listed is not None
            self._contexts, self._listed = self._listed(), None
        return self._contexts

    @property
    def longest(self) -> int:
        """Their longest context; 0 where none decodes."""
        if self._longest is None:
            self._longest = max(self.contexts, default=0)
        return self._longest

    @property
    def shortest(self) -> int:
        """Their shortest context; 0 where none decodes."""
        if self._shortest is None:
            self._shortest = min(self.contexts, default=0)
        return self._shortest

    def sums(self, own: int, later: int = 0, padding: tuple[int, ...] = ()) -> RowSums:
        """Sums of the decoding sequences with ``own`` query tokens each after ``later`` tokens more, and those that pad
        them. Contexts are listed for who asks."""
        if self._ordered and not (later or padding):
            return RowSums.by_length(own, self.contexts, self._ordered, self.context_tokens)

        def contexts() -> tuple[int, ...]:
            return tuple([context + later for context in self.contexts]) if later else self.contexts

        decoded, shortest = self.context_tokens + later * self.sequences, self.shortest + later
        sums = RowSums.counted(own, self.sequences, decoded, shortest, contexts, padding)
        if self._longest is not None:
            sums.tallest = self._longest + later
        return sums

    @property
    def all_sums(self) -> RowSums:
        """Sums of the whole step."""
        sums = self.sums(self.query_len)
        sums.queries, sums.before = self.columns
        return sums

    def kept(self) -> StepWork:
        """The same with contexts listed now, valid for ever."""
        _ = self.contexts
        return self

    def later(self, tokens: int) -> StepWork:
        """The work of a step after every decoding sequence has ``tokens`` more in the cache."""
        return StepWork.counted(
            (),
            self.query_len,
            self.sequences,
            self.context_tokens + tokens * self.sequences,
            self.longest + tokens if self.sequences else 0,
            lambda: tuple([context + tokens for context in self.contexts]),
            None if self._shortest is None else self._shortest + tokens,
        )

    @property
    def prompts_hold(self) -> tuple[int, int]:
        """Tokens of prompts in the step, and those in the cache before them."""
        prompts = self._prompts
        if prompts is None:
            queries, before = self.columns
            prompts = self._prompts = sum(queries), sum(before)
        return prompts

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prompts in the step."""
        return self.prompts_hold[0]

    @property
    def tokens(self) -> int:
        """Tokens in the step."""
        return self.prompt_tokens + self.query_len * self.sequences

    @property
    def outputs(self) -> int:
        """Tokens that go through the language-model head."""
        return self.ends + self.query_len * self.sequences

    @property
    def ends(self) -> int:
        """Chunks that end their prompts."""
        if self._chunks is None:
            return len(self.columns[0])
        return sum([chunk[2] for chunk in self._chunks])

    @property
    def batch(self) -> Batch:
        """The work as rows: chunks, then equal contexts as one row, longest first."""
        rows = [(chunk.query_tokens, chunk.context_tokens, 1) for chunk in self.chunks]
        return Batch((*rows, *next(decode_rows(self, (0,)))), outputs=self.outputs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepWork):
            return NotImplemented
        return (self.chunks, self.contexts, self.query_len) == (other.chunks, other.contexts, other.query_len)

    def __hash__(self) -> int:
        return hash((self.chunks, self.contexts, self.query_len))

    def __repr__(self) -> str:
        return f"Work(chunks={self.chunks!r}, contexts={self.contexts!r}, query_len={self.query_len})"


#: For fewer steps rows are made one by one.
_FEW_STEPS = 8


def decode_rows(work: StepWork, advances: Iterable[int]) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """The decoding sequences of a work as rows of a batch, longest first, once for each of ``advances``: tokens by
    which their contexts have grown."""
    grown = advances if isinstance(advances, range) else list(advances)
    query_len, counts = work.query_len, _counts(work.contexts)
    if len(grown) < _FEW_STEPS or not counts:
        return (tuple([(query_len, context + n, count) for context, count in counts]) for n in grown)
    # One iterator per row, over the steps: rows of a step need no loop in Python.
    return zip(*[zip(repeat(query_len), _grown(c, grown), repeat(n), strict=False) for c, n in counts], strict=True)


def _counts(contexts: tuple[int, ...]) -> list[tuple[int, int]]:
    """Contexts, longest first, with their counts."""
    ordered = sorted(contexts, reverse=True)
    if len(set(ordered)) == len(ordered):
        return [(context, 1) for context in ordered]
    counts: dict[int, int] = {}
    for context in ordered:
        counts[context] = counts.get(context, 0) + 1
    return list(counts.items())


def _grown(context: int, tokens: range | list[int]) -> Iterable[int]:
    if isinstance(tokens, range):
        return range(context + tokens.start, context + tokens.stop)
    return map(context.__add__, tokens)


#: Seconds of a step by batch; the argument of :func:`tspsim.serving.replay`.
StepFunction = Callable[[Batch], float]


@runtime_checkable
class StepCost(Protocol):
    """The cost of an engine's steps. All attention replicas step together: one StepWork each, mostly one."""

    def seconds(self, works: Sequence[StepWork]) -> float:
        """Seconds of one step, from its begin to the begin of the next."""

    def decode_ends_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        """Seconds from now to the end of each of the next ``steps`` steps, while every sequence of ``works`` (which
        have no chunks) puts out one token per step and none joins or leaves: entry i sums the first i + 1 steps.

        This equals ``seconds`` of the works with contexts longer by j, summed over j, up to rounding.
        """


@runtime_checkable
class StepwiseCost(StepCost, Protocol):
    """A cost with single steps of a run, bit for bit those of :meth:`seconds`: a run then ends exactly when single
    steps would, and simultaneous events elsewhere stay simultaneous."""

    def decode_each_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        """Seconds of each of the next ``steps`` steps of :meth:`decode_ends_s`."""


@runtime_checkable
class LaunchedCost(StepCost, Protocol):
    """A cost that knows the host."""

    @property
    def launching_s(self) -> float:
        """Seconds in which the host launches a step with a prompt."""


@runtime_checkable
class EachStepCost(StepCost, Protocol):
    """A cost that is called for every step, once and in order: nothing is priced ahead of possible changes."""

    def decode_steps_s(self, works: Sequence[StepWork], advances: Sequence[Iterable[int]]) -> Iterable[float]:
        """Seconds of consecutive decode steps; ``advances`` are, for each of ``works``, the tokens by which its
        contexts have grown, step by step."""


class CalledCost:
    """A plain function of a batch as a cost: called once for every simulated step."""

    def __init__(self, step_s: StepFunction) -> None:
        self._step_s = step_s

    def seconds(self, works: Sequence[StepWork]) -> float:
        return max(float(self._step_s(work.batch)) for work in works if work.tokens)

    def decode_steps_s(self, works: Sequence[StepWork], advances: Sequence[Iterable[int]]) -> Iterable[float]:
        step_s = self._step_s
        batches = [
            map(Batch, decode_rows(work, grown), repeat(True), repeat(work.outputs))
            for work, grown in zip(works, advances, strict=True)
            if work.sequences
        ]
        if len(batches) == 1:
            return map(float, map(step_s, batches[0]))
        return (max([float(step_s(batch)) for batch in replicas]) for replicas in zip(*batches, strict=True))

    def decode_ends_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        return np.cumsum(list(self.decode_steps_s(works, [range(steps)] * len(works))))


class AffineCost:
    """Seconds of a step that grow linearly with its tokens and with the tokens in its caches; of several attention
    replicas the slowest counts.

        t = step + token · tokens + cached · (contexts of decodes + contexts of chunks)

    >>> AffineCost(step_s=1e-2, token_s=1e-5).seconds([StepWork(contexts=(100, 200))])
    0.01002
    """

    def __init__(self, step_s: float, token_s: float = 0.0, cached_s: float = 0.0) -> None:
        self.step_s, self.token_s, self.cached_s = step_s, token_s, cached_s

    def seconds(self, works: Sequence[StepWork]) -> float:
        return self.step_s + max(map(self._own_s, works))

    def _own_s(self, work: StepWork) -> float:
        cached = work.context_tokens + sum([chunk.context_tokens for chunk in work.chunks])
        return self.token_s * work.tokens + self.cached_s * cached

    def decode_ends_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        after = np.arange(steps)
        own = [self._own_s(work) + self.cached_s * work.sequences * after for work in works]
        return np.cumsum(self.step_s + np.maximum.reduce(own))
