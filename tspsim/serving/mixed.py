"""Costs of steps with prompts, from parts of their programs with different arguments.

In a chain of kernels and transfers beside a host that issues them,

    seconds = max over i of ( H_i + Σ_{j ≥ i} d_j ) + host time after the step

where d_j is the time of instruction j and H_i the time at which the host has issued instruction i: the device waits for
the host at the last decisive i, and for nothing after it. All sums over j are linear in d, so for every i the sum over
the whole program is a sum of *parts*: instructions that depend only on tokens (products, experts, norms, all-reduces),
on sampled tokens, on decoding sequences, or on prompts. Each part is tabulated by itself (:mod:`.grid`). Kernels that
read all prompts, or all rows, at once are priced for every step.

Whoever writes an instruction states the quantity that its size depends on (:class:`~tspsim.operators.BatchQuantity`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product

from ..model.attention.base import MOST_DECODED, attended, decoded
from ..operators import BatchQuantity
from ..parallel import Job
from ..parallel.serving_engine import Captured
from ..parallel.step import passes_of
from ..program.layout import StageCall
from .compositions import BATCH, SECOND, StepComposition
from .programs import StepPrograms, by_experts
from .row_consumers import RowConsumer, bent_consumer_of, consumer_of
from .row_variants import RowMaker
from .shape import TYPICAL, Shape
from .short_pieces import ShortPieces
from .sized import UnlikeError
from .work import StepWork


class Mixed:
    """Steps of one plan with prompts, with or without decoding sequences.

    Parameters
    ----------
    programs
        Programs of the plan's engine.
    plain
        Programs of an engine without graphs: uncaptured steps do not depend on graphs.
    shapes
        Shapes of uncaptured steps, shared by all engines that differ only in their graphs.
    breakpoints
        Breakpoints of contexts, where tables of decoding sequences have a knot.
    serial
        Whether to add all instructions up, also where streams overlap.
    """

    def __init__(
        self,
        programs: StepPrograms,
        plain: StepPrograms,
        shapes: dict[StepComposition, Shape | None],
        breakpoints: tuple[int, ...],
        *,
        serial: bool = False,
    ) -> None:
        self.programs, self.plain, self.breakpoints, self.serial = programs, plain, breakpoints, serial
        self._plain_shapes = shapes
        self._shapes: dict[StepComposition, Shape | None] = {}
        #: The same by whether steps decode, sample, have cached tokens and run in captured pieces: keys are quick.
        self._shape_of: dict[tuple[bool, bool, bool, bool], Shape | None] = {}
        engine = programs.question.work.stack.engine
        self.sizes = engine.graphs.tokens(1, engine.slots) if engine.graphs.pieces and engine.graphs.pads else ()
        self._short = ShortPieces(programs, plain, self.sizes)
        #: Tokens of the largest step that runs in captured pieces.
        self._most = self.sizes[-1] if self.sizes else 0

    def seconds(self, work: StepWork, expert_tokens: int | None = None) -> float | None:
        """Seconds of one step; None where it cannot be assembled from parts. ``expert_tokens``: mean tokens of the
        replicas that share experts; None: the replica's own number."""
        if min(work.columns[0]) <= MOST_DECODED:
            return self._with_short_pieces(work, expert_tokens)
        own, (read, cached) = work.query_len * work.sequences, work.prompts_hold
        tokens, outputs = read + own, work.ends + own
        try:
            facts = own > 0, outputs > 0, cached > 0, tokens <= self._most
            shape = self._shape_of[facts] if facts in self._shape_of else self._found(*facts)
            return None if shape is None else shape.seconds(work, tokens, outputs, cached, expert_tokens)
        except UnlikeError:
            return None

    def _with_short_pieces(self, work: StepWork, expert_tokens: int | None) -> float | None:
        """Seconds of a step with pieces that decode kernels read, or prefill kernels where that takes less."""
        if self.serial:
            return None
        try:
            own_s = self._short.seconds(work, expert_tokens)
        except UnlikeError:
            return None
        if own_s is None:
            return None
        pieces = [chunk._replace(query_tokens=max(chunk.query_tokens, MOST_DECODED + 1)) for chunk in work.chunks]
        padded_s = self.seconds(StepWork(pieces, work.contexts, work.query_len), expert_tokens)
        return None if padded_s is None else min(own_s, padded_s)

    def shape_of(self, work: StepWork) -> Shape | None:
        """The shape of a step; None where it cannot be assembled from parts."""
        if min(work.columns[0]) <= MOST_DECODED:
            return None
        own, (read, cached) = work.query_len * work.sequences, work.prompts_hold
        facts = own > 0, work.ends + own > 0, cached > 0, read + own <= self._most
        return self._shape_of[facts] if facts in self._shape_of else self._found(*facts)

    def prepare(self) -> None:
        """Finds the shapes of all kinds of steps whose prompts end, before the first is asked for."""
        for decodes, cached, pieces in product((False, True), (False, True), {False, self._most > 0}):
            with suppress(UnlikeError):
                shape = self._found(decodes, True, cached, pieces)
                if shape is not None:
                    shape.prepare()

    def _found(self, decodes: bool, outputs: bool, cached: bool, pieces: bool) -> Shape | None:
        facts = decodes, outputs, cached, pieces
        self._shape_of[facts] = None
        kind = StepComposition(decodes, outputs, cached, Captured.PIECES if pieces else Captured.NOTHING)
        shapes = self._shapes if pieces else self._plain_shapes
        if kind not in shapes:
            shapes[kind] = None
            shapes[kind] = shape_of(self, kind)
        self._shape_of[facts] = shapes[kind]
        return shapes[kind]


def shape_of(mixed: Mixed, kind: StepComposition) -> Shape | None:
    """The shape of a kind of steps; None where their programs are not a chain of one stage, or an instruction depends
    on more than one quantity."""
    pieces = kind.captured is Captured.PIECES
    programs, sizes = (mixed.programs, mixed.sizes) if pieces else (mixed.plain, ())
    tokens = sizes[-2] if sizes else TYPICAL
    if tokens - SECOND - BATCH * programs.query_len <= MOST_DECODED:
        return None
    jobs = programs.together(kind.typical(programs.query_len, tokens))
    if len(jobs) != 1 or jobs[0].capture is not kind.captured or jobs[0].micro_batches > 1:
        return None
    (job,) = jobs
    if drafts_apart(job):
        return None
    (calls, layout), passes = programs.written_out(job)
    quantities = programs.quantities(job)
    if BatchQuantity.ROWS in quantities and drafts_read_other_rows(programs, job):
        return None
    parts: list[BatchQuantity] = []
    consumers: list[RowConsumer] = []
    for call, quantity in zip(calls, quantities, strict=True):
        part = by_experts(call, kind.quantity(quantity))
        if part is BatchQuantity.BENT_PROMPTS:
            consumer = bent_consumer_of(call, passes)
            part = BatchQuantity.PROMPTS if consumer is None else BatchQuantity.ROWS
            if consumer is not None:
                consumers.append(consumer)
        elif part in (BatchQuantity.PROMPTS, BatchQuantity.ROWS):
            consumer = consumer_of(call, part, kind.decodes)
            if consumer is not None:
                part = BatchQuantity.ROWS
                consumers.append(consumer)
            elif part is BatchQuantity.ROWS:
                return None
        elif part is BatchQuantity.DECODING:
            consumer = cache_consumer_of(programs, call, passes, kind.captured)
            if consumer is not None:
                part = BatchQuantity.ROWS
                consumers.append(consumer)
        parts.append(part)
    if programs.taken_s(calls, kind.captured) is None or not (layout.chained or mixed.serial):
        return None
    return Shape(programs, sizes, mixed.breakpoints, layout, tuple(parts), consumers, kind)


def cache_consumer_of(
    programs: StepPrograms, call: StageCall, passes: Sequence[Job], captured: Captured
) -> RowConsumer | None:
    """A kernel over the caches of sequences that decode, with its time by the sums of all rows; None where these are
    not the rows of the model's own pass, or only the kernel itself is priced."""
    rows = decoded(passes[0].rows)
    for number, part in enumerate(passes):
        for maker in part.attention_operators.values():
            place = next((place for place, own in enumerate(maker.operators) if own is call.what), None)
            if place is not None and decoded(part.rows) == rows:
                of = RowMaker(number, maker, place).of
                over = programs.rows.over_rows_of(call.what, maker.layer, of, programs.query_len, captured)
                return None if over is None else RowConsumer(call, None, maker, over)
    return None


def drafts_apart(job: Job) -> bool:
    """Whether quantities of a drafter's passes are not those of the model's. The first has fewer tokens a sequence that
    decodes, which padding to a captured size mostly makes up for; later ones have a token a sequence."""
    _, *passes = passes_of(job)
    captured = job.capture is Captured.PIECES
    return any(part.tokens not in (0, job.tokens) and (number or not captured) for number, part in enumerate(passes))


def drafts_read_other_rows(programs: StepPrograms, job: Job) -> bool:
    """Whether kernels of a drafter read all rows of a pass that are not those of the model's."""
    rows = attended(job.rows)
    passes = [part for part in programs.passes(job)[1:] if attended(part.rows) != rows]
    operators = (own for part in passes for entry in part.attention_operators.values() for own in entry.operators)
    return any(own.rows_field is not None and own.rows_field.reads is BatchQuantity.ROWS for own in operators)
