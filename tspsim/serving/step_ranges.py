"""Ranges of single steps from tables: no program is written or run for a step that is asked for.

The 90 % range of a step of t seconds (:func:`tspsim.step.description.range_of`, with the engine's host) is

    1 − √Σ(less²) / t   to   1 + √Σ(more²) / t

over families of kernels, transfers, the stack's spread and the host: by how many seconds each may be shorter or longer.
Seconds of a step are known, and most of its kernels depend on tokens alone: their seconds, and what these may be less
and more, are a table over tiles of tokens. What is left of the step's seconds are kernels that read prompts and caches.
Those of sequences that decode are nearly proportional to tokens in their caches: a table over octaves of sequences and
of their mean context. The rest read prompts, with errors of a table over octaves of a mean chunk.

Where the host is behind the device, such kernels hide beside it: they take what the tables say then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, inf, log2, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..model.attention.base import MOST_DECODED
from ..operators import BatchQuantity
from ..parallel import Job
from ..parallel.serving_engine import Captured
from ..program.layout import StageCall
from ..steps import PromptChunk
from .decode_chains import Standing as DecodesStanding
from .grid import TILE
from .measured_steps import STANDING
from .shape import Shape
from .sized import UnlikeError
from .tables import Floats
from .uncertain import Beside, Ends, Estimates, Part, uncertain
from .work import StepWork

if TYPE_CHECKING:
    from .costs import ProgramCosts

#: Low and high end of a range, as factors.
Factors = tuple[float, float]
#: Parts of steps with prompts whose sizes depend on tokens.
OF_TOKENS = BatchQuantity.TOKENS, BatchQuantity.EXPERTS


class Standing(NamedTuple):
    """What steps have beside kernels that read prompts and caches.

    Attributes
    ----------
    part
        Its kernels and transfers.
    idle_s
        Seconds in which the device waits for the host where nothing is read.
    """

    part: Part
    idle_s: float


class Line(NamedTuple):
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


class Decoding(NamedTuple):
    """Kernels that read caches, of an octave of sequences and one of their mean context.

    Attributes
    ----------
    start_s, longer_s, more_s, both_s
        Seconds at the first of both; their growth up to the last context, up to the last number of sequences, and what
        both add.
    ends
        Of each family, seconds by which they may be shorter and longer, per second of all.
    """

    start_s: float
    longer_s: float
    more_s: float
    both_s: float
    ends: tuple[Ends, ...]


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
        #: Families of kernels that read prompts and caches.
        self._families: list[str] = []
        #: Tile of tokens, or below zero tokens with a program of their own → seconds of what stands.
        self._lines: dict[int, Line] = {}
        #: Tokens → what stands.
        self._standing: dict[int, Standing] = {}
        #: Octave of sampled tokens → their kernels.
        self._outputs: dict[int, Part] = {}
        #: The same of both → their families.
        self._beside: dict[tuple[int, int], Beside] = {}
        #: Octaves of chunks, of a mean chunk and of mean tokens before it → seconds of kernels that read them, and of
        #: each family those by which they may be shorter and longer, per second.
        self._prompts: dict[tuple[int, int, int], tuple[float, tuple[Ends, ...]]] = {}
        #: Octaves of sequences and of their mean context.
        self._decoding: dict[tuple[int, int], Decoding] = {}
        self._corners: dict[tuple[int, int], Part] = {}
        self._least: Floats | None = None

    def squares(self, work: StepWork, read: int, cached: int, makespan_s: float) -> Ends:
        """Squared seconds by which kernels and transfers of a step may be shorter, and longer, added up over families.

        Parameters
        ----------
        work, read, cached
            The step, the tokens of its prompts, and those before them.
        makespan_s
            Seconds of all; 0.0: unknown.
        """
        batch, count = work.sequences, len(work.columns[0])
        own = work.query_len * batch
        tokens = read + own
        if self._sizes:
            tokens = self._sizes[bisect_left(self._sizes, tokens)]
        tile, sampled = -tokens if tokens <= self._few else (tokens - 1) // TILE, (work.ends + own).bit_length()
        lengths = count.bit_length(), (read // count).bit_length(), (cached // count).bit_length()
        if lengths not in self._prompts:
            self._prompts[lengths] = self._prompts_of(*lengths)
        if tile not in self._lines:
            self._lines[tile] = self._line_of(tile, tokens)
        low, width, start_s, grown_s, last = self._lines[tile]
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
            first_s, longer_s, more_s, both_s, of_decoding = self._decoding[octaves]
            along, beside = mean * 2.0 / (1 << octaves[1]) - 1.0, batch * 2.0 / (1 << octaves[0]) - 1.0
            decoding_s = first_s + longer_s * along + (more_s + both_s * along) * beside
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

    def _line_of(self, tile: int, tokens: int) -> Line:
        first = last = tokens
        if tile >= 0:
            first = max(tile * TILE, self.shape.measured.beside + MOST_DECODED) + 1
            last = (tile + 1) * TILE
        start_s, last_s = (float(self.shape.of_tokens(n)[self._starts].sum()) for n in (first, last))
        return Line(first, last - first, start_s, last_s - start_s, last if tile < 0 else last_alike(last))

    def _beside_of(self, tokens: int, sampled: int) -> Beside:
        if tokens not in self._standing:
            self._standing[tokens] = self._standing_of(tokens)
        if sampled not in self._outputs:
            calls = self.shape.calls_of_outputs(1 << (sampled - 1)) if self._outputs_at else []
            self._outputs[sampled] = self._part(calls, self._outputs_at)[0]
        return Beside.of((self._standing[tokens].part, self._outputs[sampled]), self._families)

    def _standing_of(self, tokens: int) -> Standing:
        part, taken_s = self._part(self.shape.calls_of_tokens(tokens), self._fixed)
        from_places = self.layout.issued_s + self.layout.follows[:, self._fixed] @ taken_s
        return Standing(part, self.layout.ends_s(from_places) - float(from_places[self._starts].sum()))

    def _prompts_of(self, count: int, tokens: int, cached: int) -> tuple[float, tuple[Ends, ...]]:
        """Equal chunks of prompts in the middle of octaves."""
        measured, least = self.shape.measured, MOST_DECODED + 1
        chunks, each = middle(count), max(least, middle(tokens))
        if self._sizes:
            most = self._sizes[-1] - measured.beside
            chunks = min(chunks, most // least)
            each = min(each, most // chunks)
        calls = self._read(measured.step((PromptChunk(each, middle(cached)),) * chunks))
        part, _ = self._part(calls, self._read_at)
        families = uncertain((part,))
        self._families = self._families or list(families)
        return part.seconds, per_second(families, self._families, part.seconds)

    def _decoding_of(self, batch: int, context: int) -> Decoding:
        """What sequences that decode add, between the corners of two octaves."""
        numbers, contexts = (1 << (batch - 1), 1 << batch), (1 << max(0, context - 1), 1 << context)
        parts = [self._corner(number, length) for number in numbers for length in contexts]
        start_s, long_s, more_s, most_s = (part.seconds for part in parts)
        ends = per_second(uncertain(parts), self._families, sum([part.seconds for part in parts]))
        return Decoding(start_s, long_s - start_s, more_s - start_s, most_s - more_s - long_s + start_s, ends)

    def _corner(self, batch: int, context: int) -> Part:
        if (batch, context) not in self._corners:
            measured, query_len = self.shape.measured, self.programs.query_len
            chunk = PromptChunk(MOST_DECODED + 1, int(measured.kind.cached), False)
            most = (self._sizes[-1] - chunk.query_tokens) // query_len if self._sizes else batch
            if self._least is None:
                calls = self._read(StepWork((chunk,), (STANDING,), query_len))
                self._least = np.array(self._estimates.of(calls)[0])
            calls = self._read(StepWork((chunk,), (context,) * min(batch, most), query_len))
            self._corners[batch, context] = self._part(calls, self._read_at, self._least)[0]
        return self._corners[batch, context]

    def _read(self, work: StepWork) -> list[StageCall]:
        """The calls of a step that read prompts and caches."""
        return [call for part in self._reading for call in self.shape.measured.calls_of(part, work)]

    def _part(
        self, calls: Sequence[StageCall], positions: list[int], beyond: Floats | None = None
    ) -> tuple[Part, Floats]:
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
        return Part.of(calls, estimates, whole_s, len(self._starts)), taken_s


def last_alike(tokens: int) -> int:
    """The largest number of tokens whose kernels stand for a tile that ends at ``tokens``: its own, or the last of a
    sixteenth of the octave.

    >>> last_alike(64), last_alike(1024), last_alike(1088), last_alike(9024)
    (64, 1024, 1152, 9216)
    """
    width = max(TILE, 1 << max(0, (tokens - 1).bit_length() - 4))
    return -(-tokens // width) * width


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


class Decoded(NamedTuple):
    """A program of sequences that decode at one context.

    Attributes
    ----------
    beside, stands_s
        Kernels that do not read contexts, and their seconds.
    reads_s, ends
        Seconds of those that do; by how much each of their families may be shorter and longer, per second of all.
    tokens
        Tokens in all caches.
    """

    beside: Beside
    stands_s: float
    reads_s: float
    ends: tuple[Ends, ...]
    tokens: int


class Host(NamedTuple):
    """The host of a step.

    Attributes
    ----------
    less, more
        Squared seconds by which it may be faster, and slower.
    after_s, beside_s
        Its seconds after the programs, and beside them.
    """

    less: float
    more: float
    after_s: float
    beside_s: float


class StepRanges:
    """The 90 % ranges of steps of one attention replica's engine, as factors of their seconds.

    Parameters
    ----------
    costs
        Seconds of steps.
    """

    def __init__(self, costs: ProgramCosts) -> None:
        self._costs, self.programs = costs, costs.programs
        self._stack, device = costs.question.work.stack, costs.question.device
        low, high = self._stack.spread
        #: Squared shares of a step by which the stack's spread makes it shorter and longer.
        self._spread = (1.0 - low) ** 2, (high - 1.0) ** 2
        #: Whether the spread includes everything but the host.
        self._whole = device.name in self._stack.spread_on
        self._hosts: dict[int, Host] = {}
        #: Whether steps decode, sample, have cached tokens and fit in a captured one → their tables.
        self._shapes: dict[tuple[bool, bool, bool, bool], ShapeRanges | None] = {}
        self._most = costs.captured_tokens
        self._estimates: dict[Captured, Estimates] = {}
        self._standing: dict[int, DecodesStanding | None] = {}
        self._decoded: dict[tuple[int, int], Decoded] = {}
        self._typical: dict[tuple[int, ...], Factors] = {}

    def of(self, work: StepWork, seconds: float) -> Factors:
        """The range of a step that takes ``seconds``."""
        queries = work.columns[0]
        sequences = work.sequences + len(queries)
        host = self._hosts.get(sequences) or self._host(sequences)
        if self._whole:
            squares: Ends | None = (0.0, 0.0)
        elif queries:
            squares = self._with_prompts(work, seconds - host.after_s, host)
        else:
            squares = self._decoding(work, seconds)
        return self._of_typical(work) if squares is None else self._range(squares, seconds, host)

    def _range(self, squares: Ends, seconds: float, host: Host) -> Factors:
        """The range from squared seconds by which kernels and transfers may be shorter, and longer."""
        share = 1.0 / (seconds * seconds)
        low = 1.0 - sqrt((squares[0] + host.less) * share + self._spread[0])
        return low if low > 0.0 else 0.0, 1.0 + sqrt((squares[1] + host.more) * share + self._spread[1])

    def _host(self, sequences: int) -> Host:
        engine = self._stack.engine
        own_s, (least_s, most_s) = engine.host_s(sequences), engine.host_range_s(sequences)
        after_s = self.programs.host_s(sequences, inf)
        host = Host((own_s - least_s) ** 2, (most_s - own_s) ** 2, after_s, engine.hidden_s(sequences))
        self._hosts[sequences] = host
        return host

    def _with_prompts(self, work: StepWork, makespan_s: float, host: Host) -> Ends | None:
        """Of a step with prompts; None where it is not assembled from parts."""
        queries, before = work.columns
        if min(queries) <= MOST_DECODED:
            return None
        own = work.query_len * work.sequences
        read, cached = sum(queries), sum(before)
        facts = own > 0, own + work.ends > 0, cached > 0, read + own <= self._most
        if facts not in self._shapes:
            shape = self._costs.shape_of(work)
            self._shapes[facts] = None if shape is None else ShapeRanges(shape)
        ranges = self._shapes[facts]
        if ranges is None:
            return None
        try:
            return ranges.squares(work, read, cached, makespan_s if makespan_s > host.beside_s else 0.0)
        except UnlikeError:
            return None

    def _decoding(self, work: StepWork, seconds: float) -> Ends | None:
        """Of a decode step; None where its program is no chain of one stage."""
        batch = work.sequences
        if batch not in self._standing:
            self._standing[batch] = self._costs.standing(batch)
        standing = self._standing[batch]
        if standing is None:
            return None
        key = standing.most, (work.context_tokens // batch).bit_length()
        decoded = self._decoded.get(key) or self._decoded_of(*key, standing.reading)
        reads_s = decoded.reads_s * (work.context_tokens / decoded.tokens)
        makespan_s = seconds - standing.host_s
        if makespan_s > standing.hidden_s:
            reads_s = max(0.0, min(makespan_s - standing.first_s, max(reads_s, makespan_s - standing.least_s)))
        share = standing.first_s / decoded.stands_s
        (less, more), shared = decoded.beside
        less, more = less * share * share, more * share * share
        for (stands, stood), (reads, readed) in zip(shared, decoded.ends, strict=True):
            less += (share * stands + reads_s * reads) ** 2
            more += (share * stood + reads_s * readed) ** 2
        return less, more

    def _decoded_of(self, batch: int, context: int, reading: Sequence[int]) -> Decoded:
        length = middle(context)
        job = self.programs.decoding((length,) * batch)
        chain = self.programs.chain(job)
        assert chain is not None
        runs, (_, estimates) = chain.layout.follows[0].tolist(), self._estimates_of(job.capture).of(chain.calls)
        stands, reads = (
            Part.of(
                [chain.calls[i] for i in places],
                [estimates[i] for i in places],
                [runs[i] * chain.taken_s[i] for i in places],
                1,
            )
            for places in ([i for i in range(len(runs)) if i not in reading], reading)
        )
        families = uncertain((reads,))
        order = list(families)
        ends = per_second(families, order, reads.seconds)
        decoded = Decoded(Beside.of((stands,), order), stands.seconds, reads.seconds, ends, length * batch)
        self._decoded[batch, context] = decoded
        return decoded

    def _estimates_of(self, captured: Captured) -> Estimates:
        if captured not in self._estimates:
            self._estimates[captured] = Estimates(self.programs, captured)
        return self._estimates[captured]

    def _of_typical(self, work: StepWork) -> Factors:
        """The range of a step near this one, by its program."""
        queries, before = work.columns
        count, batch = len(queries), work.sequences
        each = sum(queries) / max(1, count), sum(before) / max(1, count), work.context_tokens / max(1, batch)
        key = near(count), near(batch), *map(near, each)
        if key not in self._typical:
            count, batch, tokens, cached, context = key
            typical = StepWork((PromptChunk(tokens, cached),) * count, (context,) * batch, work.query_len)
            self._typical[key] = self.of_job(self.programs.of(typical)[-1])
        return self._typical[key]

    def of_job(self, job: Job) -> Factors:
        """The range of a step by its program: added up, or run by the engine."""
        chain = self.programs.chain(job)
        if chain is None:
            return self.programs.range_of(job)
        starts = list(chain.layout.starts)
        runs = chain.layout.follows[starts].sum(axis=0).tolist()
        spans_s = [often * own_s for often, own_s in zip(runs, chain.taken_s, strict=True)]
        estimates = self._estimates_of(job.capture).of(chain.calls)[1]
        part = Part.of(chain.calls, estimates, spans_s, len(starts))
        squares = (0.0, 0.0) if self._whole else Beside.of((part,), ()).squares
        return self._range(squares, chain.seconds, self._host(sum([batch.sequences for batch in job.forwards])))


def near(n: float) -> int:
    """The nearest of two numbers an octave, by its logarithm.

    >>> near(0), near(1), near(100), near(110)
    (0, 1, 91, 128)
    """
    return round(2.0 ** (round(2.0 * log2(n)) / 2.0)) if n >= 1.0 else ceil(n)
