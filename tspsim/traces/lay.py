"""The comparison of a measured step with the simulated one: operators side by side, and causes of the difference."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.units import duration, several
from ..operators import Computes
from ..step.question import Question
from .alignment import (
    anchors_of,
    attention_again,
    attention_rows,
    exchanges_of,
    lane_shown,
    matched,
    measured_of,
    states_phases,
    tells_narrow,
)
from .causes import causes_of
from .comparison import Laid, gaps_of, kinds_of, layers_of, left_over_of, operators_of
from .halves import receives
from .kinds import COLLECTIVES, HEAVY, MEASURE, STEP
from .named_facts import products_back
from .names import narrow, waits
from .product_sizes import stated_sizes, within_padding
from .simulated import RankTimeline, Simulated, plan_named
from .steps import TracedBatch, batch_of, step_marks
from .table import Mark, Trace, at_work_from, busy_s

#: Least share of kernel time with an operator: below it the trace belongs to another scenario.
LEAST_MATCHED = 0.5
#: Share by which the measured count of attention may differ from the plan's: of a stretch of a step, and of a rank that
#: has every layer.
_ALIKE, _ALL_LAYERS = 0.2, 0.05
#: Share by which the tokens of a step may differ from the scenario's.
_SAME_TOKENS = 0.05


def lay(
    trace: Trace, question: Question, plan: str | None = None, rank: int | None = None, step: int | None = None
) -> Laid:
    """Compare one step of a rank with the simulated step of a plan.

    Parameters
    ----------
    rank
        Rank of the trace; the first when left out.
    step
        Counted from 0 in the trace; the one of median length when left out.

    Raises
    ------
    InputError
        The trace has no kernels, no such rank or step, or is of another plan, batch or model than stated.
    """
    trace = _of_rank(trace, rank)
    chosen_plan = plan_named(question, plan)
    simulated = Simulated(question, chosen_plan)
    marks = step_marks(trace.marks, trace.ranks[0])
    number, rows = _chosen(trace, step, _of_batch(simulated, marks))
    batch = batch_of(marks[number].name) if 0 <= number < len(marks) else None
    if step is None and _is_one_step(simulated, trace, rows):
        number, rows = -1, np.arange(len(trace))
    measured, before = _at_work(trace.of(rows))
    _same_batch(simulated, batch, trace)
    lane, notes = lane_shown(simulated, measured, trace.ranks[0])
    if trace.device and trace.device != lane.question.device.spec.name:
        notes.append(f"the trace is of {trace.device}, the scenario of {lane.question.device.spec.name}")
    notes = [*before, *notes]
    if simulated.unfit:
        notes.append(f"plan {chosen_plan.name} {simulated.unfit}; it is laid all the same, since it ran")
    same_plan(lane, measured, trace)
    measured = _of_pieces(lane, measured)
    _same_rows(lane, measured, trace)
    operation = matched(lane.operations, measured)
    start, end = float(measured.columns["start_s"].min()), float(measured.end_s.max())
    notes += _told_apart(lane, measured, operation)
    following = _begin(trace, number + 1) if number >= 0 else None
    if following is not None and following < end:
        # A host that prepares the next step beside this one: the streams that work most begin one step after another.
        most = _busiest(measured)
        follows = _begin(trace, number + 1, most)
        if follows is not None:
            start, following = _begin(trace, number, most) or start, follows
    # A step with a following one in the trace lasts until that one begins; else it is what this rank does from its
    # first kernel to its last, which a stage of a pipeline begins and ends apart from others.
    measured_s = following - start if following is not None else end - start
    whole_s = lane.makespan_s if following is not None or lane.makespan_s < lane.step_s else lane.span_s
    simulated_s = whole_s + lane.between_s
    waiting = np.array([waits(word) for word in measured.words["name"]] or [False])[measured.columns["name"]]
    kernels, transfers = measured_of(lane, measured, operation, waiting)
    busy = busy_s(measured.columns["start_s"], measured.end_s)
    causes = causes_of(lane, kernels, transfers, simulated_s=simulated_s, measured_s=measured_s, measured_busy_s=busy)
    seconds = measured.columns["duration_s"]
    total = float(seconds.sum())
    share = float(seconds[operation >= 0].sum()) / total if total else 0.0
    if share < LEAST_MATCHED:
        raise InputError(
            f"only {share:.0%} of its kernels' time is of operators that {chosen_plan.name} has: it is of another "
            "model or plan than stated",
            file=str(trace.files[0]),
        )
    return Laid(
        measured, lane, operation, chosen_plan.name, trace.ranks[0], number, measured_s, simulated_s,
        layers_of(lane, measured, operation), share,
        kinds_of(lane, measured, operation, waiting),
        operators_of(lane, measured, np.where(waiting, -1, operation)), causes,
        left_over_of(measured, operation), gaps_of(measured, start, measured_s), tuple(notes), batch,
        followed=following is not None,
    )  # fmt: skip


#: Least share of the simulated step's work that an operator without kernels has, to be told.
_WORTH_A_NOTE = 0.005
#: Further products of the backward pass, for each forward one, that the plan does not have and that are told.
_RUNS_AGAIN = 0.3


def _told_apart(lane: RankTimeline, measured: Trace, operation: NDArray[np.int64]) -> list[str]:
    """Notes on operators that the two sides do not have in the same way: those that no kernel computes, and exchanges
    whose kernels only send and receive."""
    notes = []
    taken = set(operation.tolist())
    total = sum(item.seconds for item in lane.operations)
    lacking: dict[str, float] = {}
    for index, item in enumerate(lane.operations):
        if index not in taken and item.kind in HEAVY:
            lacking[item.name] = lacking.get(item.name, 0.0) + item.seconds
    largest = [f"{name} ({duration(seconds)})" for name, seconds in lacking.items() if seconds > _WORTH_A_NOTE * total]
    if largest:
        notes.append(f"no kernel computes {', '.join(largest[:4])}; the simulated step has that time")
    kinds, names = measured.word("kind"), measured.word("name")
    there, here = products_back(measured), _products_back(lane)
    if there and here and there > here + _RUNS_AGAIN:
        notes.append(
            f"the backward pass has {there:.1f} products for each forward one, the plan's {here:.1f}: some run again"
        )
    products = np.isin(kinds, ["gemm", "grouped_gemm"])
    eight = products & np.array([narrow(name) for name in names.tolist()], bool)
    seconds = measured.columns["duration_s"]
    if not tells_narrow(lane.operations) and 2 * seconds[eight].sum() > seconds[products].sum() > 0.0:
        notes.append("most products' names state eight bits or fewer, the scenario's are in 16; set workload.precision")
    apart = receives(kinds, names, exchanges_of(lane.operations)) >= 0
    if apart.any():
        words = " and ".join(sorted(set(kinds[apart].tolist())))
        notes.append(f"{words}: kernels that send and receive apart; what travels between them runs no kernel")
    return notes


def _products_back(lane: RankTimeline) -> float:
    """Products of the backward pass for each one of the forward pass, simulated."""
    phases = Counter(item.phase for item in lane.operations if item.kind == "gemm")
    back = phases["backward"] + phases["weight gradient"]
    return back / phases["forward"] if phases["forward"] else 0.0


def _of_rank(trace: Trace, rank: int | None) -> Trace:
    kinds = set(trace.time_by("kind"))
    if kinds <= {STEP, MEASURE}:
        raise InputError("has no kernels to lay beside simulated ones; record a profile", file=str(trace.files[0]))
    if rank is None:
        rank = trace.ranks[0]
    if rank not in trace.ranks:
        ranks = ", ".join(map(str, trace.ranks[:12]))
        raise InputError(f"has no rank {rank} (ranks: {ranks})", file=str(trace.files[0]), key="--rank")
    return trace.of(trace.columns["rank"] == rank)


def _of_batch(simulated: Simulated, marks: Sequence[Mark]) -> set[int]:
    """Numbers of the steps whose annotations state the scenario's pass and batch."""
    step = simulated.job.step
    if not step.serves:
        return set()
    tokens = simulated.job.work.batch.tokens
    batches = [batch_of(mark.name) for mark in marks]
    return {
        number
        for number, batch in enumerate(batches)
        if batch is not None and batch.kind == step.name and _as_many(batch.tokens, tokens)
    }


def _as_many(there: float, here: float) -> bool:
    return abs(here - there) <= _SAME_TOKENS * max(here, there)


def _chosen(trace: Trace, step: int | None, of_batch: set[int]) -> tuple[int, NDArray[Any]]:
    """Number and rows of the stated step, or of the whole step with the median length, of those that have the
    scenario's batch where some do."""
    numbers = trace.columns["step"]
    counted = Counter(numbers[numbers >= 0].tolist())
    if not counted:
        return -1, np.arange(len(trace))
    if step is None and of_batch & set(counted):
        counted = Counter({number: count for number, count in counted.items() if number in of_batch})
    if step is not None:
        if step not in counted:
            raise InputError(f"has steps {min(counted)} to {max(counted)}", file=str(trace.files[0]), key="--step")
        return step, np.flatnonzero(numbers == step)
    usual = float(np.median(list(counted.values())))
    whole = [number for number, count in counted.items() if count >= 0.8 * usual] or list(counted)
    # The next step's begin shows the end of a step, with the host's time; steps with a next one come first.
    every = set(numbers.tolist())
    whole = [number for number in whole if number + 1 in every] or whole
    spans = {}
    for number in whole:
        rows = numbers == number
        spans[number] = float(trace.end_s[rows].max() - trace.columns["start_s"][rows].min())
    chosen = sorted(spans, key=lambda number: (spans[number], number))[(len(spans) - 1) // 2]
    return chosen, np.flatnonzero(numbers == chosen)


def _is_one_step(simulated: Simulated, trace: Trace, rows: NDArray[Any]) -> bool:
    """Whether stretches that repeat are pieces of layers and all of a trace without annotations is the step: its
    attention has the plan's count, and a stretch's has not. Rings of weights or of K and V repeat within a layer."""
    if "repetition" not in trace.facts.get("steps_by", "") or len(rows) == len(trace):
        return False
    lane = simulated.lane(simulated.stands_for(trace.ranks[0]))
    anchors = len(anchors_of(lane, states_phases(trace)))
    shown, there = len(attention_rows(trace)), len(attention_rows(trace.of(rows)))
    return abs(shown - anchors) <= _ALIKE * anchors and abs(there - anchors) > _ALIKE * anchors


def _at_work(measured: Trace) -> tuple[Trace, list[str]]:
    """The step without kernels from long before it."""
    starts, ends = measured.columns["start_s"], measured.end_s
    first = at_work_from(starts, ends)
    if not first:
        return measured, []
    seconds = duration(float(starts[first] - ends[:first].max()))
    note = f"{several(first, 'kernel')} that ran {seconds} before the step: left out"
    return measured.of(np.arange(first, len(starts))), [note]


def _begin(trace: Trace, number: int, stream: int | None = None) -> float | None:
    """The start of a step's first kernel, of a stream or of all."""
    rows = trace.columns["step"] == number
    if stream is not None:
        rows &= trace.columns["stream"] == stream
    return float(trace.columns["start_s"][rows].min()) if rows.any() else None


def _busiest(measured: Trace) -> int:
    """The stream with the most time of kernels."""
    streams, place = np.unique(measured.columns["stream"], return_inverse=True)
    return int(streams[np.argmax(np.bincount(place, measured.columns["duration_s"]))])


def _same_batch(simulated: Simulated, batch: TracedBatch | None, trace: Trace) -> None:
    """Refuse a trace whose annotation states another batch than the scenario."""
    step = simulated.job.step
    if batch is None or not batch.tokens:
        return
    if not step.serves:
        raise InputError(
            f"its step is {batch.kind} ({batch.in_words}), the scenario states {step.name}; set workload.pass",
            file=str(trace.files[0]),
        )
    stated = simulated.job.work.batch.tokens
    if not _as_many(batch.tokens, stated):
        raise InputError(
            f"its step has {batch.tokens:,} tokens ({batch.in_words}), the scenario's {stated:,.0f}; "
            "set workload.batch, context or chunk",
            file=str(trace.files[0]),
        )


#: Axes of ranks that have the same weights.
_REPLICAS = ("dp", "edp")
#: Kinds of transfers whose counts show the plan.
_TELLING = ("all_reduce", "all_gather", "reduce_scatter", "dispatch", "combine", "all_to_all")


def same_plan(lane: RankTimeline, measured: Trace, trace: Trace) -> None:
    """Refuse a trace of another plan or model before any number: its counts of layers or transfers differ.

    Raises
    ------
    InputError
        The message has the expected and the measured count.
    """
    file = str(trace.files[0])
    layers = lane.layers
    anchors, shown = len(anchors_of(lane, states_phases(measured))), len(attention_rows(measured))
    alike = max(_ALL_LAYERS * anchors, 1) if lane.job.plan.pp == 1 else _ALIKE * anchors
    if anchors and abs(shown - anchors) > alike:
        raise InputError(
            f"expected attention of {anchors} layers, found {shown}: it is of another model, plan or step than stated",
            file=file,
        )
    again = attention_again(measured)
    wanted = len(anchors_of(lane, phases=False)) - len(anchors_of(lane))
    if again is not None and abs(again - wanted) > alike:
        raise InputError(
            f"expected attention of {several(wanted, 'layer')} computed again in the backward pass, found {again}: "
            "set the plan's recomputation",
            file=file,
        )
    transfers = [operation for operation in lane.operations if operation.is_transfer]
    # Those between layers (embedding, head, weights of several layers) frameworks count otherwise, and gradients and
    # weights that replicas have whole travel in buckets of several layers.
    least = Counter(operation.kind for operation in transfers if operation.layer >= 0)
    replicas = Counter(item.kind for item in transfers if item.layer >= 0 and item.axis in _REPLICAS)
    in_buckets = lane.job.plan.zero < 3
    most = Counter(operation.kind for operation in transfers)
    kinds = measured.word("kind")
    names = measured.word("name")
    received = receives(kinds, names, exchanges_of(lane.operations)) >= 0
    counts: Counter[str] = Counter()
    copied = ""
    for kind, name in zip(kinds[~received].tolist(), names[~received].tolist(), strict=True):
        if kind in COLLECTIVES and not waits(name):
            # Copies from peers, piece by piece, are one transfer.
            copies = "emcpy" in name
            counts[kind] += not copies or kind != copied
            copied = kind if copies else copied
    if counts["exchange"]:
        # One kernel name for every kind shows only whether the plan has transfers at all.
        if not any(item.is_transfer for item in lane.operations) and counts["exchange"] > max(layers, 4):
            raise InputError(
                f"expected no transfers between ranks, found {counts['exchange']}: it is of another plan than stated",
                file=file,
            )
        return
    for kind in _TELLING:
        there = counts[kind]
        fewest = least[kind] - (replicas[kind] if in_buckets and there else 0)
        wanted = min(max(fewest, there), most[kind])
        if kind == "all_to_all" and (counts["dispatch"] or counts["send_recv"]):
            continue
        if max(wanted, there) < max(layers, 4):
            continue
        # One kernel more or less at the ends, or norms of gradients, do not make another plan.
        if abs(wanted - there) > 2 + 0.1 * max(wanted, there):
            words = kind.replace("_", "-") + ("es" if kind.endswith("h") else "s")
            raise InputError(f"expected {wanted} {words}, found {there}: it is of another plan than stated", file=file)


def _rows_of_products(lane: RankTimeline, measured: Trace) -> tuple[Counter[int], Counter[int], int]:
    """Rows of forward products, as kernels state them and as simulated, and the number of such kernels."""
    forward = np.flatnonzero(
        (measured.word("kind") == "gemm") & np.isin(measured.word("phase"), ["forward", ""])
    )  # gradients have their tokens in other places
    stated = Counter(sizes[0] for text in measured.word("shapes")[forward] if (sizes := stated_sizes(text)) is not None)
    wanted = Counter(
        operation.sizes[0]
        for operation in lane.operations
        if operation.sizes is not None and operation.layer >= 0 and operation.computes is Computes.OUTPUT
    )
    return stated, wanted, len(forward)


def _of_pieces(lane: RankTimeline, measured: Trace) -> Trace:
    """The trace with whole products where tensor-parallel ranks multiply their tokens piece by piece, each while the
    next one travels: a piece states a rank's part of the rows."""
    pieces = lane.job.plan.tp
    stated, wanted, _ = _rows_of_products(lane, measured)
    if pieces < 2 or not stated or not wanted:
        return measured
    part, rows = stated.most_common(1)[0][0], wanted.most_common(1)[0][0]
    if part * pieces != rows:
        return measured
    words = [
        re.sub(rf"^\[\[{part},", f"[[{rows},", text) if stated_sizes(text) else text
        for text in measured.words["shapes"]
    ]
    return replace(measured, words={**measured.words, "shapes": words})


def _same_rows(lane: RankTimeline, measured: Trace, trace: Trace) -> None:
    """Refuse a trace whose products state other rows (tokens of a pass) than the plan's.

    Raises
    ------
    InputError
        The message has both numbers, and the keys that set them.
    """
    stated, wanted, kernels = _rows_of_products(lane, measured)
    if not wanted or 2 * stated.total() <= kernels:
        return
    (there, count), (here, _) = stated.most_common(1)[0], wanted.most_common(1)[0]
    if 2 * count > kernels and not any(within_padding(there, rows) for rows in wanted):
        raise InputError(
            f"its products have {there:,} rows (tokens of one pass), the plan's {here:,}: another sequence, batch or "
            "micro_batch than stated",
            file=str(trace.files[0]),
        )
