"""Ranges of steps with prompts that have the same instructions, from tables (:mod:`.step_ranges`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..base.memo import once
from ..model.attention.base import MOST_DECODED
from ..operators import BatchQuantity
from ..program.layout import StageCall
from ..step.description import TRANSFERS
from ..steps import PromptChunk
from .grid import TILE
from .measured_steps import STANDING
from .shape import Shape
from .tables import Floats
from .uncertain import Beside, Ends, Estimates, PricedPart, uncertain
from .work import StepWork

#: Parts of steps with prompts whose sizes depend on tokens.
OF_TOKENS = BatchQuantity.TOKENS, BatchQuantity.EXPERTS
#: Tokens of a prompt whose kernels take longer than those of few.
LONGER = 2048
#: Up to the first, tiles of the second have kernels of their own.
FINE, NARROW = 256, 16
#: Pieces of an octave in which errors of kernels change, and by how much they do.
FINER, UNLIKE = 8, 0.1


class TokenKernels(NamedTuple):
    """What steps have beside kernels that read prompts and caches.

    Attributes
    ----------
    part
        Its kernels and transfers.
    idle_s
        Seconds in which the device waits for the host where nothing is read.
    """

    part: PricedPart
    idle_s: float


class TokenLine(NamedTuple):
    """Its seconds at numbers of tokens.

    Attributes
    ----------
    low, width, start_s, grown_s
        The first number, how many more there are, the seconds at the first and their growth to the last.
    last
        The number of tokens whose kernels stand for these.
    """

    low: int
    width: int
    start_s: float
    grown_s: float
    last: int


class CacheKernels(NamedTuple):
    """Kernels that read caches, of an octave of sequences and one of their mean context.

    Attributes
    ----------
    start_s, longer_s, more_s, both_s
        Seconds at the first of both; their growth up to the last context, up to the last number of sequences, and what
        both add.
    ends
        Of each family, seconds by which they may be shorter and longer, per second of all; None where errors of kernels
        change inside.
    """

    start_s: float
    longer_s: float
    more_s: float
    both_s: float
    ends: tuple[Ends, ...] | None


class ShapeRanges:
    """Tables of steps with prompts that have the same instructions.

    Parameters
    ----------
    shape
        Their seconds.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape, self.programs, self.layout = shape, shape.programs, shape.layout
        where = shape.measured.where
        self._fixed = [i for part in OF_TOKENS for i in where[part]]
        self._outputs_at = where[BatchQuantity.OUTPUTS]
        apart = *OF_TOKENS, BatchQuantity.OUTPUTS
        #: Parts that read prompts and caches.
        self._reading = [part for part, places in where.items() if places and part not in apart]
        self._read_at = [i for part in self._reading for i in where[part]]
        self._starts = list(self.layout.starts)
        self._runs = self.layout.follows[self._starts].sum(axis=0)
        self._estimates = Estimates(self.programs, shape.kind.captured)
        self._sizes, self._few = shape.sizes, shape.few
        #: Tile of tokens, or below zero tokens with a program of their own → seconds of what stands.
        self._lines: dict[int, TokenLine] = {}
        #: Tokens → what stands.
        self._standing: dict[int, TokenKernels] = {}
        #: Sampled tokens → their kernels.
        self._outputs: dict[int, PricedPart] = {}
        #: The same of both → their families.
        self._beside: dict[tuple[int, int], Beside] = {}
        #: Octaves of chunks, of a mean chunk and of mean tokens before it → seconds of kernels that read them, and of
        #: each family those by which they may be shorter and longer, per second.
        self._prompts: dict[tuple[int, int, int], tuple[float, tuple[Ends, ...]]] = {}
        #: Octaves of sequences and of their mean context.
        self._decoding: dict[tuple[int, int], CacheKernels] = {}
        self._corners: dict[tuple[int, int], PricedPart] = {}
        #: The same octaves, and a piece of each → seconds by which families may be shorter and longer, per second.
        self._pieces: dict[tuple[tuple[int, int], tuple[int, ...]], tuple[Ends, ...]] = {}

    def squares(self, work: StepWork, tokens_of: tuple[int, int, int], makespan_s: float) -> Ends:
        """Squared seconds by which kernels and transfers of a step may be shorter, and longer, added up over families.

        Parameters
        ----------
        work
            The step.
        tokens_of
            Tokens of its prompts, those before them, and sampled ones.
        makespan_s
            Seconds of all; 0.0: unknown.
        """
        batch, count = work.sequences, len(work.columns[0])
        read, cached, sampled = tokens_of
        tokens = read + work.query_len * batch
        if self._sizes:
            tokens = self._sizes[bisect_left(self._sizes, tokens)]
        tile = -tokens if tokens <= self._few else (tokens - 1) // TILE
        sampled -= sampled % (1 << sampled.bit_length() >> 3 or 1)
        lengths = count.bit_length(), (read // count).bit_length(), (cached // count).bit_length()
        if lengths not in self._prompts:
            self._prompts[lengths] = self._prompts_of(*lengths)
        if tile not in self._lines:
            self._lines[tile] = self._line_of(tile, tokens)
        low, width, start_s, grown_s, last = self._lines[tile]
        if 0 <= tile < FINE // TILE:
            last = -(-tokens // NARROW) * NARROW
        if (last, sampled) not in self._beside:
            self._beside[last, sampled] = self._beside_of(last, sampled)
        prompts_s, of_prompts = self._prompts[lengths]
        standing, idle_s = self._standing[last]
        squares, shared = self._beside[last, sampled]
        own_s = start_s + grown_s * ((tokens - low) / width) if width else start_s
        # All kernels of fewer tokens are in proportion.
        share = own_s / standing.seconds
        decoding_s, of_decoding = 0.0, of_prompts
        if batch:
            mean = work.context_tokens / batch
            octaves = batch.bit_length(), int(mean).bit_length()
            if octaves not in self._decoding:
                self._decoding[octaves] = self._decoding_of(*octaves)
            first_s, longer_s, more_s, both_s, inside = self._decoding[octaves]
            along, beside = mean * 2.0 / (1 << octaves[1]) - 1.0, batch * 2.0 / (1 << octaves[0]) - 1.0
            decoding_s = first_s + longer_s * along + (more_s + both_s * along) * beside
            of_decoding = inside or self._finer(octaves, int(beside * FINER), int(along * FINER))
        if makespan_s:
            rest_s = makespan_s - own_s - self._outputs[sampled].seconds
            reads_s = min(rest_s, max(prompts_s + decoding_s, rest_s - idle_s))
            if reads_s < decoding_s:
                decoding_s = reads_s if reads_s > 0.0 else 0.0
            prompts_s = reads_s - decoding_s if reads_s > decoding_s else 0.0
        less, more = squares[0] * share * share, squares[1] * share * share
        for (stands, stood), (reads, readed), (decodes, decoded) in zip(shared, of_prompts, of_decoding, strict=True):
            shorter_s = share * stands + prompts_s * reads + decoding_s * decodes
            longer_s = share * stood + prompts_s * readed + decoding_s * decoded
            less, more = less + shorter_s * shorter_s, more + longer_s * longer_s
        return less, more

    def _line_of(self, tile: int, tokens: int) -> TokenLine:
        first = last = tokens
        if tile >= 0:
            first = max(tile * TILE, self.shape.measured.beside + MOST_DECODED) + 1
            last = (tile + 1) * TILE
        start_s, last_s = (float(self.shape.of_tokens(n)[self._starts].sum()) for n in (first, last))
        alike_to = last_alike(last)
        if tile < 0:
            wide = NARROW if tokens <= FINE else 2 * NARROW
            near = bisect_left(self._sizes, -(-tokens // wide) * wide)
            alike_to = self._sizes[near] if near < len(self._sizes) else tokens
        return TokenLine(first, last - first, start_s, last_s - start_s, alike_to)

    def _beside_of(self, tokens: int, sampled: int) -> Beside:
        if tokens not in self._standing:
            self._standing[tokens] = self._standing_of(tokens)
        if sampled not in self._outputs:
            calls = self.shape.calls_of_outputs(sampled) if self._outputs_at else []
            self._outputs[sampled] = self._part(calls, self._outputs_at)[0]
        return Beside.of((self._standing[tokens].part, self._outputs[sampled]), self._families)

    def _standing_of(self, tokens: int) -> TokenKernels:
        part, taken_s = self._part(self.shape.calls_of_tokens(tokens), self._fixed)
        from_places = self.layout.issued_s + self.layout.follows[:, self._fixed] @ taken_s
        return TokenKernels(part, self.layout.ends_s(from_places) - float(from_places[self._starts].sum()))

    def _prompts_of(self, count: int, tokens: int, cached: int) -> tuple[float, tuple[Ends, ...]]:
        """Equal chunks of prompts in the middle of octaves."""
        measured, least = self.shape.measured, MOST_DECODED + 1
        chunks, length = middle(count), max(least, middle(tokens))
        if self._sizes:
            most = self._sizes[-1] - measured.beside
            chunks = min(chunks, most // least)
            length = min(length, most // chunks)
        calls = self._read(measured.step((PromptChunk(length, middle(cached)),) * chunks))
        caches = self._caches[0]
        some = [i for i in range(len(calls)) if i not in caches]
        part, _ = self._part([calls[i] for i in some], [self._read_at[i] for i in some])
        return part.seconds, per_second(uncertain((part,)), self._families, part.seconds)

    @once
    def _families(self) -> list[str]:
        """Families of what reads prompts and caches."""
        calls = self._read(self._few_tokens(MOST_DECODED + 1))
        return list(dict.fromkeys([getattr(call.what, "kind", TRANSFERS) for call in calls]))

    @once
    def _caches(self) -> tuple[set[int], Floats]:
        """Which of these calls read caches alone; and of others the seconds beside one sequence that decodes."""
        least = self._read_s(MOST_DECODED + 1)
        caches = set[int]()
        if self.shape.kind.decodes:
            longer = self._read_s(self._sizes[-1] - self.shape.measured.beside if self._sizes else LONGER)
            caches = set(np.flatnonzero(longer == least).tolist())
        least[list(caches)] = 0.0
        return caches, least

    def _read_s(self, tokens: int) -> Floats:
        return np.array(self._estimates.of(self._read(self._few_tokens(tokens)))[0])

    def _few_tokens(self, tokens: int, contexts: tuple[int, ...] = (STANDING,)) -> StepWork:
        """A chunk of a prompt and, where any decodes, sequences that do."""
        kind = self.shape.kind
        chunk = PromptChunk(tokens, int(kind.cached), kind.outputs and not kind.decodes)
        return StepWork((chunk,), contexts if kind.decodes else (), self.programs.query_len)

    def _decoding_of(self, batch: int, context: int) -> CacheKernels:
        """What sequences that decode add, between the corners of two octaves."""
        numbers, contexts = (1 << (batch - 1), 1 << batch), (1 << max(0, context - 1), 1 << context)
        parts = [self._corner(number, length) for number in numbers for length in contexts]
        start_s, long_s, more_s, most_s = (part.seconds for part in parts)
        corners = [per_second(uncertain((part,)), self._families, part.seconds) for part in parts]
        ends = corners[-1] if alike(corners) else None
        return CacheKernels(start_s, long_s - start_s, more_s - start_s, most_s - more_s - long_s + start_s, ends)

    def _finer(self, octaves: tuple[int, int], *pieces: int) -> tuple[Ends, ...]:
        """Seconds by which families that read caches may be shorter and longer, per second of all, in the middle of
        pieces of two octaves."""
        key = octaves, pieces
        if key not in self._pieces:
            part = self._corner(*map(piece_of, octaves, pieces))
            self._pieces[key] = per_second(uncertain((part,)), self._families, part.seconds)
        return self._pieces[key]

    def _corner(self, batch: int, context: int) -> PricedPart:
        if (batch, context) not in self._corners:
            tokens, query_len = MOST_DECODED + 1, self.programs.query_len
            most = (self._sizes[-1] - tokens) // query_len if self._sizes else batch
            calls = self._read(self._few_tokens(tokens, (context,) * min(batch, most)))
            self._corners[batch, context] = self._part(calls, self._read_at, self._caches[1])[0]
        return self._corners[batch, context]

    def _read(self, work: StepWork) -> list[StageCall]:
        """The calls of a step that read prompts and caches."""
        return [call for part in self._reading for call in self.shape.measured.calls_of(part, work)]

    def _part(
        self, calls: Sequence[StageCall], positions: list[int], beyond: Floats | None = None
    ) -> tuple[PricedPart, Floats]:
        """The part of calls at some positions, and the seconds of each: all of them, or those ``beyond`` others."""
        own_s, estimates = self._estimates.of(calls)
        taken_s = np.array(own_s)
        if beyond is not None:
            # Kernels that take no longer are others'.
            more_s = taken_s - beyond
            some = np.flatnonzero(more_s > 0.0).tolist()
            taken_s, calls, estimates = more_s[some], [calls[i] for i in some], [estimates[i] for i in some]
            positions = [positions[i] for i in some]
        whole_s = (self._runs[positions] * taken_s).tolist()
        return PricedPart.of(calls, estimates, whole_s, len(self._starts)), taken_s


def last_alike(tokens: int) -> int:
    """The largest number of tokens whose kernels stand for a tile that ends at ``tokens``: its own, or the last of a
    sixteenth of the octave.

    >>> last_alike(64), last_alike(1024), last_alike(1088), last_alike(9024)
    (64, 1024, 1152, 9216)
    """
    width = max(TILE, 1 << max(0, (tokens - 1).bit_length() - 4))
    return -(-tokens // width) * width


def alike(corners: Sequence[tuple[Ends, ...]]) -> bool:
    """Whether families may be as much shorter and longer everywhere."""
    for families in zip(*corners, strict=True):
        for ends in zip(*families, strict=True):
            if max(ends) - min(ends) > UNLIKE:
                return False
    return True


def piece_of(bits: int, piece: int) -> int:
    """The middle of a piece of the octave of numbers with so many bits.

    >>> piece_of(7, 0), piece_of(7, 7), piece_of(1, 0)
    (68, 124, 1)
    """
    return round((1 << bits >> 1) * (1.0 + (piece + 0.5) / FINER))


def middle(bits: int) -> int:
    """The middle of the octave of numbers with so many bits, by their logarithm.

    >>> middle(0), middle(1), middle(7)
    (0, 1, 91)
    """
    return round(2.0 ** (bits - 0.5)) if bits > 1 else bits


def per_second(families: dict[str, Ends], order: Sequence[str], seconds: float) -> tuple[Ends, ...]:
    """Seconds by which each family may be shorter and longer, per second of all."""
    if not seconds > 0.0:
        return ((0.0, 0.0),) * len(order)
    every = [families.get(family, (0.0, 0.0)) for family in order]
    return tuple([(less / seconds, more / seconds) for less, more in every])
