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
from collections.abc import Iterable, Sequence
from math import ceil, inf, log2, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..hardware import Estimate
from ..model.attention.base import MOST_DECODED
from ..operators import BatchQuantity, Operator
from ..parallel import Job
from ..parallel.serving_engine import Captured
from ..program import SendReceive
from ..program.layout import StageCall
from ..step.description import TRANSFERS
from ..steps import PromptChunk
from .grid import TILE
from .measured_steps import STANDING
from .shape import Shape
from .sized import UnlikeError
from .tables import Floats
from .work import StepWork

if TYPE_CHECKING:
    from .costs import ProgramCosts
    from .programs import StepPrograms

#: Low and high end of a range, as factors.
Factors = tuple[float, float]
#: Parts of steps with prompts whose sizes depend on tokens.
OF_TOKENS = BatchQuantity.TOKENS, BatchQuantity.EXPERTS
#: No kernels of a family.
NOTHING = 0.0, 0.0, 0.0, 0.0
NONE = Estimate(0.0, 0.0, 0.0)


class Estimates:
    """Seconds of calls under a capture with the estimates behind them.

    Parameters
    ----------
    programs, captured
        What prices the calls.
    """

    def __init__(self, programs: StepPrograms, captured: Captured) -> None:
        self._programs = programs
        device = programs.question.device
        self._last = Estimate(0.0, 0.0, 0.0)

        def best(operator: Operator) -> float:
            self._last = device.time(operator)
            return self._last.seconds

        self._price = programs.question.work.stack.cost(best, device, captured)

    def of(self, calls: Sequence[StageCall]) -> tuple[list[float], list[Estimate]]:
        """Seconds of each call, and its estimate: of a kernel that of the best library."""
        priced = [self._priced(call) for call in calls]
        return [seconds for seconds, _ in priced], [estimate for _, estimate in priced]

    def _priced(self, call: StageCall) -> tuple[float, Estimate]:
        what, stage = call
        if isinstance(what, Operator):
            return self._price(what), self._last
        programs = self._programs
        seconds = programs.transfer_s(what, stage)
        if not seconds:
            return 0.0, NONE
        low, high = programs.transfer_range(what, stage)
        return seconds, Estimate(seconds, low * seconds, high * seconds)


class Part(NamedTuple):
    """Kernels and transfers of a step.

    Attributes
    ----------
    seconds
        Of all, on all stages one after the other.
    families
        Of each family, and of transfers: seconds, mean over stages; and the low end, the middle and the high end of the
        estimates of its different kernels, whose ratios are its errors (:meth:`tspsim.hardware.Costs.errors`).
    """

    seconds: float
    families: dict[str, tuple[float, float, float, float]]

    @classmethod
    def of(
        cls, calls: Sequence[StageCall], estimates: Sequence[Estimate], taken_s: Sequence[float], stages: int
    ) -> Part:
        """The part of these calls, which take so many seconds in all of their runs."""
        families: dict[str, tuple[float, float, float, float]] = {}
        known = set[Operator]()
        for (what, _), estimate, own_s in zip(calls, estimates, taken_s, strict=True):
            if isinstance(what, Operator):
                family, whole_s = what.kind, own_s / stages
                times = float(what not in known)
                known.add(what)
            else:
                # A message takes as long on the receiving stage as on the sending one.
                family, whole_s = TRANSFERS, own_s / stages * (2 if isinstance(what, SendReceive) else 1)
                times = whole_s / estimate.seconds if whole_s else 0.0
            before = families.get(family, NOTHING)
            families[family] = (
                before[0] + whole_s,
                before[1] + times * estimate.low,
                before[2] + times * estimate.seconds,
                before[3] + times * estimate.high,
            )
        return cls(float(sum(taken_s)), families)


def added(parts: Sequence[tuple[Part, float]]) -> tuple[float, float]:
    """Squared seconds by which several parts, each times a factor, may be shorter and longer."""
    (first, share), *others = parts
    families = {
        family: (share * own_s, share * low, share * middle, share * high)
        for family, (own_s, low, middle, high) in first.families.items()
    }
    for part, share in others:
        for family, (own_s, low, middle, high) in part.families.items():
            before = families.get(family, NOTHING)
            families[family] = (
                before[0] + share * own_s, before[1] + share * low, before[2] + share * middle, before[3] + share * high,
            )  # fmt: skip
    less = more = 0.0
    for own_s, low, middle, high in families.values():
        if middle > 0.0:
            per_second = own_s / middle
            less += (per_second * (middle - low)) ** 2
            more += (per_second * (high - middle)) ** 2
    return less, more


class Standing(NamedTuple):
    """What a step has beside kernels that read prompts and caches.

    Attributes
    ----------
    part
        At the last number of tokens.
    low, width, start_s, grown_s
        The first number, how many more there are, the seconds at the first and their growth to the last.
    idle_s
        Seconds in which the device waits for the host where nothing is read.
    """

    part: Part
    low: int
    width: int
    start_s: float
    grown_s: float
    idle_s: float


def octave(n: float) -> int:
    """The power of two that is nearest by its logarithm.

    >>> octave(1), octave(90), octave(91), octave(0.2)
    (1, 64, 128, 1)
    """
    whole = max(1, int(n))
    power = 1 << (whole.bit_length() - 1)
    return 2 * power if n * n > 2 * power * power else power


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
        self._standing: dict[int, Standing] = {}
        self._outputs: dict[int, Part] = {}
        self._prompts: dict[tuple[int, int, int], Part] = {}
        self._decoding: dict[tuple[int, int], Part] = {}
        #: Octaves of both → seconds at their first, growth to the next contexts, to more sequences, and with both.
        self._corners: dict[tuple[int, int], tuple[float, float, float, float]] = {}
        self._least: Floats | None = None

    def parts(
        self, work: StepWork, makespan_s: float | None
    ) -> list[tuple[Part, float]]:
        """Parts of a step whose programs take so many seconds, each with a factor; None: fewer than the host."""
        queries, before = work.columns
        batch, read, count = work.sequences, sum(queries), len(queries)
        tokens, cached = read + work.query_len * batch, sum(before)
        standing = self._standing_at(tokens)
        outputs = self._outputs_of(1 << ((work.ends + work.query_len * batch).bit_length() - 1))
        along_s = standing.start_s
        if standing.width:
            along_s += standing.grown_s * ((self._padded(tokens) - standing.low) / standing.width)
        # Of fewer tokens all of its kernels are in proportion.
        parts = [(standing.part, along_s / standing.part.seconds), (outputs, 1.0)]
        chunk, behind = read / count, cached / count
        prompt = self._prompts_of(octave(count), octave(chunk), octave(behind) if cached else 0)
        prompts_s = prompt.seconds
        decoding, decoding_s = None, 0.0
        if batch:
            mean = work.context_tokens / batch
            decoding, decoding_s = self._decoding_of(octave(batch), octave(mean)), self._decoding_s(batch, mean)
        reads_s = prompts_s + decoding_s
        if makespan_s is not None:
            rest_s = makespan_s - along_s - outputs.seconds
            reads_s = max(0.0, min(rest_s, max(reads_s, rest_s - standing.idle_s)))
        if decoding is not None and decoding.seconds > 0.0:
            parts.append((decoding, min(decoding_s, reads_s) / decoding.seconds))
        if prompt.seconds > 0.0:
            parts.append((prompt, max(0.0, reads_s - decoding_s) / prompt.seconds))
        return parts

    def _decoding_s(self, batch: int, mean: float) -> float:
        """Seconds that sequences that decode add, between octaves of their number and of their mean context."""
        fewer, shorter = 1 << (batch.bit_length() - 1), 1 << (max(1, int(mean)).bit_length() - 1)
        key = fewer, shorter
        corners = self._corners.get(key)
        if corners is None:
            each = [self._decoding_of(more, longer).seconds for more in (fewer, 2 * fewer) for longer in (shorter, 2 * shorter)]
            corners = self._corners[key] = each[0], each[1] - each[0], each[2] - each[0], each[3] - each[2] - each[1] + each[0]
        start_s, longer_s, more_s, both_s = corners
        along, beside = max(0.0, mean / shorter - 1.0), batch / fewer - 1.0
        return start_s + longer_s * along + (more_s + both_s * along) * beside

    def _padded(self, tokens: int) -> int:
        sizes = self.shape.sizes
        return sizes[bisect_left(sizes, tokens)] if sizes else tokens

    def _standing_at(self, tokens: int) -> Standing:
        tokens = self._padded(tokens)
        alone = tokens <= self.shape.few
        key = -tokens if alone else (tokens - 1) // TILE
        standing = self._standing.get(key)
        if standing is None:
            standing = self._standing[key] = self._standing_of(tokens, alone)
        return standing

    def _standing_of(self, tokens: int, alone: bool) -> Standing:
        first, last = (tokens, tokens) if alone else ((tokens - 1) // TILE * TILE + 1, (tokens - 1) // TILE * TILE + TILE)
        first = max(first, self.shape.measured.beside + MOST_DECODED + 1)
        # Most of what runs at the last number is known.
        part, taken_s = self._part(self.shape.calls_of_tokens(last), self._fixed)
        from_places = self.layout.issued_s + self.layout.follows[:, self._fixed] @ taken_s
        last_s = float(from_places[self._starts].sum())
        grown_s = float((self.shape.of_tokens(last) - self.shape.of_tokens(first))[self._starts].sum()) if last > first else 0.0
        idle_s = self.layout.ends_s(from_places) - last_s
        return Standing(part, first, last - first, last_s - grown_s, grown_s, idle_s)

    def _outputs_of(self, outputs: int) -> Part:
        if outputs not in self._outputs:
            calls = self.shape.calls_of_outputs(outputs) if self._outputs_at else []
            self._outputs[outputs] = self._part(calls, self._outputs_at)[0]
        return self._outputs[outputs]

    def _prompts_of(self, count: int, tokens: int, cached: int) -> Part:
        """Some equal chunks of prompts."""
        key = count, tokens, cached
        if key not in self._prompts:
            measured, least = self.shape.measured, MOST_DECODED + 1
            if self.shape.sizes:
                most = self.shape.sizes[-1] - measured.beside
                count, tokens = min(count, most // least), min(tokens, most // min(count, most // least))
            calls = self._read(measured.step((PromptChunk(max(least, tokens), cached),) * count))
            self._prompts[key] = self._part(calls, self._read_at)[0]
        return self._prompts[key]

    def _decoding_of(self, batch: int, context: int) -> Part:
        """What sequences that decode add."""
        key = batch, context
        if key not in self._decoding:
            measured = self.shape.measured
            query_len = self.programs.query_len
            chunk = PromptChunk(MOST_DECODED + 1, int(measured.kind.cached), False)
            most = (self.shape.sizes[-1] - chunk.query_tokens) // query_len if self.shape.sizes else batch
            if self._least is None:
                calls = self._read(StepWork((chunk,), (STANDING,), query_len))
                self._least = np.array(self._estimates.of(calls)[0])
            calls = self._read(StepWork((chunk,), (context,) * min(batch, most), query_len))
            self._decoding[key] = self._part(calls, self._read_at, self._least)[0]
        return self._decoding[key]

    def _read(self, work: StepWork) -> list[StageCall]:
        """The calls of a step that read prompts and caches."""
        return [call for part in self._reading for call in self.shape.measured.calls_of(part, work)]

    def _part(
        self, calls: Sequence[StageCall], positions: list[int], beyond: Floats | None = None
    ) -> tuple[Part, Floats]:
        """The part of calls at some positions, and the seconds of each; ``beyond`` others."""
        own_s, estimates = self._estimates.of(calls)
        taken_s = np.array(own_s)
        if beyond is not None:
            taken_s = np.maximum(0.0, taken_s - beyond)
        whole_s = (self._runs[positions] * taken_s).tolist()
        return Part.of(calls, estimates, whole_s, len(self._starts)), taken_s


class Decoded(NamedTuple):
    """A program of sequences that decode at one context.

    Attributes
    ----------
    standing, reads
        Kernels that do not read contexts, and those that do.
    tokens
        Tokens in all caches.
    """

    standing: Part
    reads: Part
    tokens: int


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
        #: Squared shares of a step by which the stack's spread makes it shorter and longer.
        self._spread = (1.0 - self._stack.spread[0]) ** 2, (self._stack.spread[1] - 1.0) ** 2
        #: Whether the spread includes everything but the host.
        self._whole = device.name in self._stack.spread_on
        #: Sequences of a step → squared seconds by which its host may be faster and slower.
        self._hosts: dict[int, tuple[float, float]] = {}
        self._shapes: dict[Shape, ShapeRanges] = {}
        self._estimates: dict[Captured, Estimates] = {}
        self._decoded: dict[tuple[int, int], Decoded] = {}
        self._typical: dict[tuple[int, ...], Factors] = {}

    def of(self, work: StepWork, seconds: float) -> Factors:
        """The range of a step that takes ``seconds``."""
        sequences = work.sequences + len(work.columns[0])
        parts: list[tuple[Part, float]] | None = []
        if not self._whole:
            parts = self._with_prompts(work, seconds, sequences) if work.columns[0] else self._decoding(work, seconds)
        return self._of_typical(work) if parts is None else self._range(parts, seconds, sequences)

    def _range(self, parts: Sequence[tuple[Part, float]], seconds: float, sequences: int) -> Factors:
        """The range of a step of these parts, each times a factor."""
        host = self._hosts.get(sequences)
        if host is None:
            engine = self._stack.engine
            own_s, (least_s, most_s) = engine.host_s(sequences), engine.host_range_s(sequences)
            host = self._hosts[sequences] = (own_s - least_s) ** 2, (most_s - own_s) ** 2
        less, more = added(parts) if parts else (0.0, 0.0)
        low = 1.0 - sqrt((less + host[0]) / seconds**2 + self._spread[0])
        return max(0.0, low), 1.0 + sqrt((more + host[1]) / seconds**2 + self._spread[1])

    def _with_prompts(self, work: StepWork, seconds: float, sequences: int) -> list[tuple[Part, float]] | None:
        """Parts of a step with prompts; None where it is not assembled from parts."""
        shape = self._costs.shape_of(work)
        if shape is None:
            return None
        ranges = self._shapes.get(shape)
        if ranges is None:
            ranges = self._shapes[shape] = ShapeRanges(shape)
        makespan_s = seconds - self.programs.host_s(sequences, inf)
        hidden = makespan_s <= self._stack.engine.hidden_s(sequences)
        try:
            return ranges.parts(work, None if hidden else makespan_s)
        except UnlikeError:
            return None

    def _decoding(self, work: StepWork, seconds: float) -> list[tuple[Part, float]] | None:
        """Parts of a decode step; None where its program is no chain of one stage."""
        standing = self._costs.standing(work.sequences)
        if standing is None:
            return None
        key = standing.most, octave(work.context_tokens / work.sequences)
        decoded = self._decoded.get(key)
        if decoded is None:
            decoded = self._decoded[key] = self._decoded_of(*key, standing.reading)
        reads_s = decoded.reads.seconds * (work.context_tokens / decoded.tokens)
        makespan_s = seconds - standing.host_s
        if makespan_s > standing.hidden_s:
            rest_s = makespan_s - standing.first_s
            reads_s = max(0.0, min(rest_s, max(reads_s, makespan_s - standing.least_s)))
        parts = [(decoded.standing, standing.first_s / decoded.standing.seconds)]
        if decoded.reads.seconds > 0.0:
            parts.append((decoded.reads, reads_s / decoded.reads.seconds))
        return parts

    def _decoded_of(self, batch: int, context: int, reading: Sequence[int]) -> Decoded:
        job = self.programs.decoding((context,) * batch)
        chain = self.programs.chain(job)
        assert chain is not None
        runs, (_, estimates) = chain.layout.follows[0].tolist(), self._estimates_of(job.capture).of(chain.calls)
        parts = []
        for places in ([i for i in range(len(runs)) if i not in reading], reading):
            spans_s = [runs[i] * chain.taken_s[i] for i in places]
            parts.append(Part.of([chain.calls[i] for i in places], [estimates[i] for i in places], spans_s, 1))
        return Decoded(*parts, context * batch)

    def _estimates_of(self, captured: Captured) -> Estimates:
        if captured not in self._estimates:
            self._estimates[captured] = Estimates(self.programs, captured)
        return self._estimates[captured]

    def _of_typical(self, work: StepWork) -> Factors:
        """The range of a step near this one, by its program."""
        queries, before = work.columns
        count, batch = len(queries), work.sequences
        key = (
            near(count),
            near(sum(queries) / max(1, count)),
            near(sum(before) / max(1, count)),
            near(batch),
            near(work.context_tokens / max(1, batch)),
        )
        if key not in self._typical:
            count, tokens, cached, batch, context = key
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
        sequences = sum([batch.sequences for batch in job.forwards])
        return self._range([] if self._whole else [(part, 1.0)], chain.seconds, sequences)


def near(n: float) -> int:
    """The nearest of two numbers an octave, by its logarithm.

    >>> near(0), near(1), near(100), near(110)
    (0, 1, 91, 128)
    """
    return round(2.0 ** (round(2.0 * log2(n)) / 2.0)) if n >= 1.0 else ceil(n)
