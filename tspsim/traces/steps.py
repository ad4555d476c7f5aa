"""Steps, phases and layers of kernels, from annotations, threads and repetitions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.units import several
from .table import Mark

#: Annotations of steps, the finest first. Those of vLLM and SGLang state the batch.
_STEPS = (
    re.compile(r"^execute_"),
    re.compile(r"^step\["),
    re.compile(r"^\[Executor\] _forward_step \d+"),
    re.compile(r"^:?(train(ing)?_?step|iter(ation)?|(global_?)?step)([ #:_=-]*\d+\b|\b)", re.IGNORECASE),
    re.compile(r"^ProfilerStep#\d+"),
)
#: PyTorch's annotation of an optimizer's call; a run without other annotations has it too.
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_PHASES = (
    ("weight gradient", re.compile(r"\(W\)$|^wgrad|weight[_ ]grad")),
    ("backward", re.compile(r"\(B\)$|backward", re.IGNORECASE)),
    ("forward", re.compile(r"\(F\)$|forward", re.IGNORECASE)),
    ("optimizer", re.compile(r"^Optimizer\.step|optimizer_step")),
)
#: Phases that run from the last layer to the first.
BACKWARD = ("backward", "weight gradient")
_COUNTED = re.compile(
    r"^execute_(?P<total>\d+)?_?context_(?P<prompts>\d+)\((?:sq(?P<pq>\d+)sk(?P<pk>\d+)\w*|(?P<pt>\d+))\)"
    r"_generation_(?P<rows>\d+)\((?:sq(?P<dq>\d+)sk(?P<dk>\d+)\w*|(?P<dt>\d+))\)"
)
_TENSORRT = re.compile(r"^\[Executor\] _forward_step \d+: (?P<prompts>\d+) ctx reqs, (?P<rows>\d+) gen reqs")
_SGLANG = re.compile(r"^step\[(?P<mode>\w+) bs=(?P<rows>\d+)(?: toks=(?P<tokens>\d+))?\]")


@dataclass(frozen=True)
class TracedBatch:
    """The batch of a serving step, from its annotation: prompts with their query tokens and their context, and decoding
    sequences with theirs. −1: not stated."""

    prompts: int = 0
    prompt_tokens: int = 0
    prompt_context: int = -1
    rows: int = 0
    row_tokens: int = 0
    row_context: int = -1

    @property
    def tokens(self) -> int:
        """Tokens in the layers."""
        return self.prompt_tokens + self.row_tokens

    @property
    def kind(self) -> str:
        """``prefill``, ``decode`` or ``mixed``."""
        return "mixed" if self.prompts and self.rows else "prefill" if self.prompts else "decode"

    @property
    def in_words(self) -> str:
        parts = []
        if self.prompts:
            parts.append(f"{several(self.prompts, 'prompt')} of {self.prompt_tokens:,} tokens")
        if self.rows:
            behind = f" over {self.row_context:,} tokens of context" if self.row_context >= 0 else ""
            parts.append(f"{several(self.rows, 'sequence')} {'decode' if self.rows > 1 else 'decodes'}{behind}")
        return " and ".join(parts) or "nothing"


def batch_of(name: str) -> TracedBatch | None:
    """The batch that an annotation of vLLM, SGLang or TensorRT-LLM states; None for other annotations.

    >>> batch_of("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)").in_words
    '32 sequences decode over 32,785 tokens of context'
    >>> batch_of("step[EXTEND bs=15 toks=15360]").prompt_tokens
    15360
    """
    match = _COUNTED.match(name)
    if match is not None:
        part = {key: int(value) for key, value in match.groupdict().items() if value is not None}
        rows = part["rows"]
        return TracedBatch(
            part["prompts"], part.get("pq", part.get("pt", 0)), part.get("pk", -1),
            rows, part.get("dq", part.get("dt", rows)), part.get("dk", -1),
        )  # fmt: skip
    match = _TENSORRT.match(name)
    if match is not None:
        # The annotation does not state the tokens of prompts.
        rows = int(match["rows"])
        return TracedBatch(rows=rows, row_tokens=rows) if rows and not int(match["prompts"]) else None
    match = _SGLANG.match(name)
    if match is None:
        return None
    rows, tokens = int(match["rows"]), int(match["tokens"] or match["rows"])
    if match["mode"].upper() in ("DECODE", "TARGET_VERIFY", "IDLE"):
        return TracedBatch(rows=rows, row_tokens=tokens)
    return TracedBatch(prompts=rows, prompt_tokens=tokens)


def phase_of(name: str) -> str:
    """The phase in an annotation's name; empty without one."""
    return next((phase for phase, pattern in _PHASES if pattern.search(name)), "")


def step_marks(marks: Sequence[Mark], rank: int) -> list[Mark]:
    """Marks of a rank's steps, in order of time, of the finest kind in the trace. Without any, a training step ends
    with its optimizer."""
    for pattern in _STEPS:
        candidates = [mark for mark in marks if mark.rank == rank and pattern.match(mark.name)]
        if candidates:
            outer: list[Mark] = []
            for mark in sorted(candidates, key=lambda mark: (mark.start_s, -mark.end_s)):
                if not outer or mark.start_s >= outer[-1].end_s:
                    outer.append(mark)
            return outer
    return _up_to_optimizers([mark for mark in marks if mark.rank == rank and _OPTIMIZER.match(mark.name)])


def _up_to_optimizers(marks: Sequence[Mark]) -> list[Mark]:
    """Steps that end with a call of the optimizer, and the rest after the last one. A call belongs to the step of the
    previous one if the time between them is shorter than that call (one optimizer for each kind of weights)."""
    if not marks:
        return []
    ends: list[float] = []
    before: Mark | None = None
    for mark in sorted(marks, key=lambda mark: mark.start_s):
        if before is not None and mark.start_s - before.end_s < before.end_s - before.start_s:
            ends[-1] = mark.end_s
        else:
            ends.append(mark.end_s)
        before = mark
    rank, thread = marks[0].rank, marks[0].thread
    steps = [Mark(rank, "step", start, end, thread) for start, end in pairwise([-math.inf, *ends])]
    return [*steps, Mark(rank, "behind the last step", ends[-1], math.inf, thread)]


@dataclass(frozen=True)
class Repetition:
    """A stretch of length ``period`` that occurs ``count`` times in a row, from place ``start`` on."""

    start: int
    period: int
    count: int

    @property
    def length(self) -> int:
        return self.period * self.count


def repetitions(codes: NDArray[Any], most: int = 64) -> list[Repetition]:
    """Runs of equal stretches in a sequence, the longest first; of equal length, the shorter period first.

    >>> import numpy as np
    >>> repetitions(np.array([9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8]))[0]
    Repetition(start=1, period=3, count=3)
    """
    size = len(codes)
    if size < 4:
        return []
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    steps = (order[1:] - order[:-1])[same]
    periods, times = np.unique(steps, return_counts=True)
    # Distances over several occurrences too: a kernel with several runs in a layer has no constant distance to the next
    # one.
    for many in (2, 3, 4, 6, 8):
        if size > many:
            alike = codes[order[many:]] == codes[order[:-many]]
            more, count = np.unique((order[many:] - order[:-many])[alike], return_counts=True)
            periods, times = np.concatenate([periods, more]), np.concatenate([times, count])
    by_period: dict[int, Repetition] = {}
    for period in dict.fromkeys(periods[np.argsort(-times * periods, kind="stable")].tolist()):
        if len(by_period) >= most:
            break
        equal = np.concatenate([[0], _without_holes(codes[:-period] == codes[period:], period // 8), [0]])
        change = np.flatnonzero(np.diff(equal))
        starts, ends = change[::2], change[1::2]
        if not len(starts):
            continue
        longest = int(np.argmax(ends - starts))
        length = int(ends[longest] - starts[longest])
        begin = int(starts[longest])
        if length >= period and _alike(codes, begin, length, period) >= _ALIKE:
            by_period[period] = Repetition(int(starts[longest]), period, length // period + 1)
    return sorted(by_period.values(), key=lambda run: (-run.length, run.period))


#: Least share of equal places in two turns of a repetition. With few distinct names, such as products of one library,
#: many shifts are equal in most places.
_ALIKE = 0.9
_ALIKE_LAYERS = 0.97
#: Largest difference of products between the micro-batches of a step, as a share.
_UNEQUAL = 0.1


def _alike(codes: NDArray[Any], begin: int, length: int, period: int) -> float:
    """Share of a stretch that is equal one period later."""
    later = codes[begin + period : begin + period + length]
    return float((codes[begin : begin + len(later)] == later).mean()) if len(later) else 0.0


def _without_holes(equal: NDArray[np.bool_], longest: int) -> NDArray[np.int8]:
    """Equality with forgiven holes: short differences between two turns count as equal."""
    flags = equal.view(np.int8)
    change = np.flatnonzero(np.diff(flags)) + 1
    first, last = change[:-1], change[1:]
    holes = (flags[first] == 0) & (last - first <= longest)
    borders = np.zeros(len(flags) + 1, np.int8)
    borders[first[holes]] = 1
    borders[last[holes]] = -1
    return flags | np.cumsum(borders[:-1], dtype=np.int8)


def _whole_steps(codes: NDArray[Any], alike: Sequence[Repetition]) -> Repetition | None:
    """The steps among repetitions: a step repeats, most of it is layers that repeat within it, and it has more than
    layers (an embedding, a head)."""
    # A repetition of one single kernel is no layer.
    layers = [run for run in alike if len(np.unique(codes[run.start : run.start + run.period])) > 1]
    for whole in alike:
        for inner in sorted(layers, key=lambda run: run.period):
            within = whole.start <= inner.start and inner.start + inner.length <= whole.start + whole.length
            several = inner.count > 2 and whole.period >= 3 * inner.period
            if within and several and 2 * inner.length >= whole.period and whole.length > 1.2 * inner.length:
                if whole.period % inner.period:
                    return whole
                break
    return None


def layers_of(codes: NDArray[Any], attends: NDArray[np.bool_] | None = None) -> Repetition | None:
    """The layers of one step: of the repetitions nearly as long as the longest, the one with the shortest period.
    Where attention is told (``attends``), products that repeat without any are no layer."""
    runs = repetitions(codes)
    if attends is not None and attends.any():
        seen = np.concatenate([[0], np.cumsum(attends)])
        once = {run: int(seen[run.start + run.period] - seen[run.start]) for run in runs}
        runs = [
            run
            for run in runs
            if once[run] and seen[run.start + run.length] - seen[run.start] >= _ALIKE * run.count * once[run]
        ]
    if not runs:
        return None
    best = min((run for run in runs if 10 * run.length >= 8 * runs[0].length), key=lambda run: run.period)
    # A part that stands once between two layers (a head) makes pairs of layers equal more often than single ones.
    for period in range(2, best.period // 2 + 1):
        if best.period % period == 0 and _alike(codes, best.start, best.length - period, period) >= _ALIKE_LAYERS:
            return Repetition(best.start, period, best.length // period)
    return best


def _layers(
    names: NDArray[Any], kinds: NDArray[Any], heavy: NDArray[Any], mixes: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Layers of a step's rows, counted by products and attention; the rows before one belong to its layer."""
    layer = np.full(len(names), -1, np.int32)
    products = np.flatnonzero(heavy)
    named, inner = (layers_of(codes[products], mixes[products]) for codes in (names, kinds))
    # A library may take another kernel in every layer; but kinds repeat by chance where names do not.
    if named is not None and (inner is None or 3 * named.length >= 2 * inner.length):
        inner = named
    if inner is None or inner.period < 2:
        return layer
    place = np.arange(len(products)) - inner.start
    begins = _begins(kinds[products], mixes[products], inner)
    number = place // inner.period * len(begins) + np.searchsorted(begins, place % inner.period, side="right") - 1
    number = np.where((place >= 0) & (place < inner.length), number, -1)
    following = np.minimum(np.searchsorted(products, np.arange(len(names))), len(products) - 1)
    layer[:] = np.where(np.arange(len(names)) <= products[-1], number[following], -1)
    return layer


def _passes(
    rows: NDArray[np.int64], start_s: NDArray[np.float64], heavy: NDArray[np.bool_], embeds: NDArray[np.bool_]
) -> list[NDArray[np.int64]]:
    """A step's rows by micro-batch, each of which looks its tokens up; whole where these parts have not as many
    products each."""
    lookups = start_s[rows[embeds[rows]]]
    if not len(rows) or not len(lookups):
        return [rows]
    place = np.searchsorted(lookups, start_s[rows], side="right")
    products = np.bincount(place[heavy[rows]])
    products = products[products > 0]
    if len(products) < 2 or products.max() - products.min() > _UNEQUAL * products.max():
        return [rows]
    return [rows[place == part] for part in np.unique(place).tolist()]


def _begins(kinds: NDArray[Any], mixes: NDArray[np.bool_], run: Repetition) -> NDArray[np.int64]:
    """Places in a period where a layer begins: several where layers with different attention alternate (windows and
    whole contexts, linear and softmax). Between one attention and the next such layers have the same kinds of products;
    a layer with two attentions has not."""
    period, whole = slice(run.start, run.start + run.period), np.zeros(1, np.int64)
    attends = mixes[period].astype(np.int8)
    first = np.flatnonzero(np.diff(attends, prepend=0) == 1)
    last = np.flatnonzero(np.diff(attends, append=0) == -1)
    if len(first) < 2 or (attends[0] and attends[-1]):
        return whole
    turned = np.concatenate([kinds[period], kinds[period]])
    between = [
        turned[end + 1 : begin].tolist()
        for end, begin in zip(last.tolist(), [*first[1:].tolist(), int(first[0]) + run.period], strict=True)
    ]
    # A layer with linear attention has a product more before it.
    counts = [len(pieces) for pieces in between]
    alike = [list(dict.fromkeys(pieces)) for pieces in between]
    if 2 * max(counts) > 3 * min(counts) or any(pieces != alike[0] for pieces in alike):
        return whole
    begins: NDArray[np.int64] = np.maximum(first - first[0], np.concatenate([[0], last[:-1] + 1]))
    return begins


def numbered(
    start_s: NDArray[np.float64],
    launch_s: NDArray[np.float64],
    names: NDArray[Any],
    kinds: NDArray[Any],
    heavy: NDArray[Any],
    mixes: NDArray[np.bool_],
    embeds: NDArray[np.bool_],
    backward: NDArray[np.bool_],
    marks: Sequence[Mark],
) -> tuple[NDArray[np.int32], NDArray[np.int32], str]:
    """Step and layer of every row of one rank (in order of start), and the source of the steps: ``annotation``,
    ``repetition`` or empty.

    Layers of ``backward`` rows are counted separately, from the last one down. ``mixes``: rows of attention;
    ``embeds``: lookups of tokens. What a pass before a step still runs in it has no step.
    """
    step = np.full(len(start_s), -1, np.int32)
    layer = np.full(len(start_s), -1, np.int32)
    how = ""
    if marks:
        how = "annotation"
        begins = np.array([mark.start_s for mark in marks])
        at = np.where(np.isfinite(launch_s), launch_s, start_s)
        step[:] = np.searchsorted(begins, at, side="right") - 1
        if not backward.any():
            for number in np.unique(step[embeds & (step >= 0)]).tolist():
                rows = np.flatnonzero(step == number)
                lookup = int(np.argmax(embeds[rows]))
                if 0 < mixes[rows[:lookup]].sum() <= mixes[rows[lookup:]].sum():
                    step[rows[:lookup]] = -1
    else:
        # Only products keep their order; rows on other streams may come in any order.
        products = np.flatnonzero(heavy)
        alike = repetitions(names[products])
        first = _whole_steps(names[products], alike)
        if first is not None:
            how = "repetition"
            number = np.arange(len(products)) - first.start
            number = np.where((number >= 0) & (number < first.length), number // first.period, -1)
            following = np.minimum(np.searchsorted(products, np.arange(len(names))), len(products) - 1)
            step[:] = number[following]
        else:
            step[:] = 0
    # Steps of one kind have the same kernels, and so the same layers.
    layers: dict[tuple[bytes, bytes], NDArray[np.int32]] = {}
    for back in (False, True):
        own = np.flatnonzero((step >= 0) & (backward == back))
        own = own[np.argsort(step[own], kind="stable")]
        steps = np.split(own, np.flatnonzero(np.diff(step[own])) + 1)
        for rows in (part for whole in steps for part in _passes(whole, start_s, heavy, embeds)):
            if not heavy[rows].any():
                continue
            key = names[rows].tobytes(), kinds[rows].tobytes()
            if key not in layers:
                layers[key] = _layers(names[rows], kinds[rows], heavy[rows], mixes[rows])
            numbers = layers[key]
            layer[rows] = np.where(numbers < 0, -1, numbers.max() - numbers) if back else numbers
    return step, layer, how
