"""Ranges of single steps from tables: no program is written or run for a step that is asked for.

The 90 % range of a step of t seconds (:func:`tspsim.step.description.range_of`, with the engine's host) is

    1 − √Σ(less²) / t   to   1 + √Σ(more²) / t

over families of kernels, transfers, the stack's spread and the host: by how many seconds each may be shorter or longer.
Seconds of a step are known, and most of its kernels depend on tokens alone: their seconds, and what these may be less
and more, are a table over tiles of tokens. What is left of the step's seconds are kernels that read prompts and caches.
Those of sequences that decode are nearly proportional to tokens in their caches: a table over octaves of sequences and
of their mean context. The rest read prompts, with errors of a table over octaves of a mean chunk.

Where the device waits for the host, such kernels do not show in the step: they take what these tables say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf, log2, sqrt
from typing import TYPE_CHECKING, NamedTuple

from ..model.attention.base import MOST_DECODED
from ..parallel import Job
from ..parallel.serving_engine import Captured
from ..program.layout import InstructionLayout
from ..steps import PromptChunk
from .decode_chains import Standing
from .shape import Shape
from .shape_ranges import FINER, ShapeRanges, alike, middle, per_second, piece_of
from .sized import UnlikeError
from .uncertain import Beside, Ends, Estimates, PricedPart, uncertain
from .work import StepWork

if TYPE_CHECKING:
    from .programs import StepPrograms

#: Low and high end of a range, as factors.
Factors = tuple[float, float]


class Decoded(NamedTuple):
    """A program of sequences that decode at one context.

    Attributes
    ----------
    beside, stands_s
        Kernels that do not read contexts, and their seconds.
    reads_s, ends
        Seconds of those that do; by how much each of their families may be shorter and longer, per second of all, or
        None where errors of kernels change inside the octave.
    tokens
        Tokens in all caches.
    layout
        Of the program.
    """

    beside: Beside
    stands_s: float
    reads_s: float
    ends: tuple[Ends, ...] | None
    tokens: int
    layout: InstructionLayout


class StepHost(NamedTuple):
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
    programs
        Programs of the steps.
    standing
        Decode steps of some sequences, but for kernels that read contexts; None where these have no tables.
    shape_of
        What steps with prompts are assembled from; None where they are not.
    captured
        Tokens of the largest step with prompts that runs in captured pieces.
    """

    def __init__(
        self,
        programs: StepPrograms,
        standing: Callable[[int], Standing | None],
        shape_of: Callable[[StepWork], Shape | None],
        captured: int,
    ) -> None:
        self.programs, self._standing_of, self._shape_of, self._most = programs, standing, shape_of, captured
        self._stack, device = programs.question.work.stack, programs.question.device
        low, high = self._stack.spread
        #: Squared shares of a step by which the stack's spread makes it shorter and longer.
        self._spread = (1.0 - low) ** 2, (high - 1.0) ** 2
        #: Whether the spread includes everything but the host.
        self._whole = device.name in self._stack.spread_on
        self._hosts: dict[int, StepHost] = {}
        #: Whether steps decode, sample, have cached tokens and fit in a captured one → their tables.
        self._shapes: dict[tuple[bool, bool, bool, bool], ShapeRanges | None] = {}
        self._estimates: dict[Captured, Estimates] = {}
        self._standing: dict[int, Standing | None] = {}
        self._decoded: dict[tuple[int, int], Decoded] = {}
        #: The same, and a piece of the octave → the ends there.
        self._pieces: dict[tuple[int, int, int], tuple[Ends, ...]] = {}
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

    def _range(self, squares: Ends, seconds: float, host: StepHost) -> Factors:
        """The range from squared seconds by which kernels and transfers may be shorter, and longer."""
        share = 1.0 / (seconds * seconds)
        low = 1.0 - sqrt((squares[0] + host.less) * share + self._spread[0])
        return low if low > 0.0 else 0.0, 1.0 + sqrt((squares[1] + host.more) * share + self._spread[1])

    def _host(self, sequences: int) -> StepHost:
        engine = self._stack.engine
        own_s, (least_s, most_s) = engine.host_s(sequences), engine.host_range_s(sequences)
        after_s = self.programs.host_s(sequences, inf)
        host = StepHost((own_s - least_s) ** 2, (most_s - own_s) ** 2, after_s, engine.hidden_s(sequences))
        self._hosts[sequences] = host
        return host

    def _with_prompts(self, work: StepWork, makespan_s: float, host: StepHost) -> Ends | None:
        """Of a step with prompts; None where it is not assembled from parts."""
        if min(work.columns[0]) <= MOST_DECODED:
            return None
        own, (read, cached) = work.query_len * work.sequences, work.prompts_hold
        sampled = own + work.ends
        facts = own > 0, sampled > 0, cached > 0, read + own <= self._most
        if facts not in self._shapes:
            shape = self._shape_of(work)
            self._shapes[facts] = None if shape is None else ShapeRanges(shape)
        ranges = self._shapes[facts]
        if ranges is None:
            return None
        try:
            return ranges.squares(work, (read, cached, sampled), makespan_s if makespan_s > host.beside_s else 0.0)
        except UnlikeError:
            return None

    def _decoding(self, work: StepWork, seconds: float) -> Ends | None:
        """Of a decode step; None where its program is no chain of one stage."""
        batch = work.sequences
        if batch not in self._standing:
            self._standing[batch] = self._standing_of(batch)
        standing = self._standing[batch]
        if standing is None:
            return None
        octave = (work.context_tokens // batch).bit_length()
        key = standing.most, octave
        decoded = self._decoded.get(key) or self._decoded_of(*key, standing.reading)
        ends = decoded.ends
        if ends is None:
            piece = work.context_tokens * FINER // (batch << octave >> 1) - FINER
            ends = self._finer(*key, piece, standing.reading)
        reads_s = decoded.reads_s * (work.context_tokens / decoded.tokens)
        makespan_s = seconds - standing.host_s
        if makespan_s > standing.hidden_s:
            reads_s = max(0.0, min(makespan_s - standing.first_s, max(reads_s, makespan_s - standing.least_s)))
        share = standing.first_s / decoded.stands_s
        (less, more), shared = decoded.beside
        less, more = less * share * share, more * share * share
        for (stands, stood), (reads, readed) in zip(shared, ends, strict=True):
            less += (share * stands + reads_s * reads) ** 2
            more += (share * stood + reads_s * readed) ** 2
        return less, more

    def _decoded_of(self, batch: int, octave: int, reading: Sequence[int]) -> Decoded:
        length = middle(octave)
        job = self.programs.decoding((length,) * batch)
        chain = self.programs.chain(job)
        assert chain is not None
        runs, (_, estimates) = chain.layout.follows[0].tolist(), self._estimates_of(job.capture).of(chain.calls)

        def part(places: Sequence[int]) -> PricedPart:
            spans_s = [runs[i] * chain.taken_s[i] for i in places]
            return PricedPart.of([chain.calls[i] for i in places], [estimates[i] for i in places], spans_s, 1)

        stands, reads = part([i for i in range(len(runs)) if i not in reading]), part(reading)
        families = uncertain((reads,))
        order = list(families)
        ends = per_second(families, order, reads.seconds)
        beside, tokens = Beside.of((stands,), order), length * batch
        decoded = Decoded(beside, stands.seconds, reads.seconds, ends, tokens, chain.layout)
        around = [self._reading(batch, context, reading, chain.layout) for context in (1 << octave >> 1, 1 << octave)]
        if not alike((ends, *around)):
            decoded = decoded._replace(ends=None)
        self._decoded[batch, octave] = decoded
        return decoded

    def _finer(self, batch: int, octave: int, piece: int, reading: Sequence[int]) -> tuple[Ends, ...]:
        """The ends of a piece of an octave."""
        key = batch, octave, piece
        if key not in self._pieces:
            layout = self._decoded[batch, octave].layout
            self._pieces[key] = self._reading(batch, piece_of(octave, piece), reading, layout)
        return self._pieces[key]

    def _reading(self, batch: int, context: int, reading: Sequence[int], layout: InstructionLayout) -> tuple[Ends, ...]:
        """Seconds by which kernels that read contexts may be shorter and longer, per second of all."""
        job = self.programs.decoding((context,) * batch)
        calls = self.programs.calls_of_rows(job, layout, reading)
        if calls is None:
            written = self.programs.laid_out(job).calls
            calls = [written[i] for i in reading]
        own_s, estimates = self._estimates_of(job.capture).of(calls)
        spans_s = [float(layout.follows[0, i]) * call_s for i, call_s in zip(reading, own_s, strict=True)]
        reads = PricedPart.of(calls, estimates, spans_s, 1)
        families = uncertain((reads,))
        return per_second(families, list(families), reads.seconds)

    def _estimates_of(self, captured: Captured) -> Estimates:
        if captured not in self._estimates:
            self._estimates[captured] = Estimates(self.programs, captured)
        return self._estimates[captured]

    def _of_typical(self, work: StepWork) -> Factors:
        """The range of a step near this one, by its program."""
        queries, before = work.columns
        count, batch = len(queries), work.sequences
        means = sum(queries) / max(1, count), sum(before) / max(1, count), work.context_tokens / max(1, batch)
        key = near(count), near(batch), *map(near, means)
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
        part = PricedPart.of(chain.calls, estimates, spans_s, len(starts))
        squares = (0.0, 0.0) if self._whole else Beside.of((part,), ()).squares
        return self._range(squares, chain.seconds, self._host(sum([batch.sequences for batch in job.forwards])))


def near(n: float) -> int:
    """The nearest of two numbers an octave, by its logarithm.

    >>> near(0), near(1), near(100), near(110)
    (0, 1, 91, 128)
    """
    return round(2.0 ** (round(2.0 * log2(n)) / 2.0)) if n >= 1.0 else ceil(n)
