"""A measured step laid over the simulated one: operators side by side, and what their difference is made of."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.units import duration
from ..operators import Computes
from ..step.question import Question
from .causes import Causes, causes_of
from .kinds import COLLECTIVES, HEAVY, MEASURE, STEP
from .match import align, stated_sizes, within_padding
from .names import narrow, waits
from .simulated import Operation, RankTimeline, Simulated, ordered, plan_named
from .steps import TracedBatch, batch_of, step_marks
from .table import Trace, busy_s

#: Version of the JSON.
SCHEMA_VERSION = 1
#: Share of the kernels' time that finds operators where a trace is of its scenario.
LEAST_MATCHED = 0.5
#: Rows of what was left over, and gaps, that JSON lists.
MOST = 20
_ATTENTION = ("attention", "linear_attention")
_BACKWARD_KERNEL = re.compile(r"bwd|backward", re.IGNORECASE)
#: Kind of the time in which kernels wait for other ranks.
WAIT = "wait"


@dataclass(frozen=True)
class LayerRow:
    """An operator of the model (all layers together) or a kind of kernel, measured and simulated."""

    name: str
    kind: str
    count: int
    measured_s: float
    simulated_s: float
    phase: str = ""

    @property
    def lost_s(self) -> float:
        return self.measured_s - self.simulated_s


@dataclass(frozen=True)
class LeftOver:
    """Kernels of one name that no operator took."""

    name: str
    kind: str
    count: int
    seconds: float

    @property
    def heavy(self) -> bool:
        return self.kind in HEAVY


@dataclass(frozen=True)
class Gap:
    """A stretch in which the device did nothing."""

    start_s: float
    seconds: float
    after: str
    before: str


@dataclass(frozen=True)
class Laid:
    """The comparison of one step of one rank."""

    trace: Trace
    #: Rows of the trace that are the step, in order of start; ``operation`` of each in ``lane``, −1 left over.
    lane: RankTimeline
    operation: NDArray[np.int64]
    plan: str
    rank: int
    step: int
    measured_s: float
    simulated_s: float
    layer_s: tuple[float, float] | None
    matched_share: float
    kinds: tuple[LayerRow, ...]
    operators: tuple[LayerRow, ...]
    causes: Causes
    left_over: tuple[LeftOver, ...]
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...] = ()
    batch: TracedBatch | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: The next step is in the trace, and with it what the host does between them.
    followed: bool = False

    @property
    def worst(self) -> tuple[LayerRow, ...]:
        """The three operators that lose most time against the simulation."""
        return tuple(row for row in self.operators[:3] if row.lost_s > 0.0)

    @property
    def in_a_sentence(self) -> str:
        """The three worst."""
        if not self.worst:
            return "No operator takes longer than simulated."
        said = [f"{row.name} ({row.kind}) {duration(row.lost_s)}" for row in self.worst]
        return f"Most time is lost in {'; '.join(said)}."

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON."""
        left = [{"name": x.name, "kind": x.kind, "count": x.count, "seconds": x.seconds} for x in self.left_over[:MOST]]
        return {
            "schema": SCHEMA_VERSION,
            "scenario": self.lane.question.scenario.name,
            "plan": self.plan,
            "rank": self.rank,
            "step_index": self.step,
            "matched_share": self.matched_share,
            "step": {"measured_s": self.measured_s, "simulated_s": self.simulated_s},
            "layer": {"measured_s": self.layer_s[0], "simulated_s": self.layer_s[1]} if self.layer_s else None,
            "kinds": [
                {"kind": row.kind, "measured_s": row.measured_s, "simulated_s": row.simulated_s} for row in self.kinds
            ],
            "operators": [
                {"name": row.name, "kind": row.kind, "phase": row.phase, "count": row.count,
                 "measured_s": row.measured_s, "simulated_s": row.simulated_s}
                for row in self.operators
            ],
            "causes": self.causes.to_json(),
            "left_over": left,
            "host_gaps": [vars(gap) for gap in self.gaps],
            "notes": list(self.notes),
        }  # fmt: skip


def lay(
    trace: Trace, question: Question, plan: str | None = None, rank: int | None = None, step: int | None = None
) -> Laid:
    """Lay one step of a rank over the simulated step of a plan.

    Parameters
    ----------
    rank
        Of the trace; the first when left out.
    step
        Counted from 0 in the trace; the one of median length when left out.

    Raises
    ------
    InputError
        The trace has no kernels, no such rank or step, or is of another plan, batch or model than stated.
    """
    trace = _of_rank(trace, rank)
    number, rows, marks = _chosen(trace, step)
    batch = batch_of(marks[number].name) if 0 <= number < len(marks) else None
    asked = plan_named(question, plan)
    measured, before = _at_work(trace.of(rows))
    simulated = Simulated(question, asked)
    _same_batch(simulated, batch, trace)
    lane, notes = _lane(simulated, measured, trace.ranks[0])
    if trace.device and trace.device != lane.question.device.spec.name:
        notes.append(f"the trace is of {trace.device}, the scenario of {lane.question.device.spec.name}")
    notes = [*before, *notes]
    same_plan(lane, measured, trace)
    _same_rows(lane, measured, trace)
    operation = matched(lane.operations, measured)
    start, end = float(measured.columns["start_s"].min()), float(measured.end_s.max())
    following = _following(trace, number)
    # With the next step in the trace a step lasts until that begins.
    measured_s = following - start if following is not None else end - start
    simulated_s = lane.makespan_s + lane.between_s
    waiting = np.array([waits(word) for word in measured.words["name"]] or [False])[measured.columns["name"]]
    kernels, transfers = _measured_of(lane, measured, operation, waiting)
    busy = busy_s(measured.columns["start_s"], measured.end_s)
    causes = causes_of(lane, kernels, transfers, simulated_s=simulated_s, measured_s=measured_s, measured_busy_s=busy)
    seconds = measured.columns["duration_s"]
    total = float(seconds.sum())
    share = float(seconds[operation >= 0].sum()) / total if total else 0.0
    if share < LEAST_MATCHED:
        raise InputError(
            f"only {share:.0%} of its kernels' time is of operators that {asked.name} has: it is of another model or "
            "plan than stated",
            file=str(trace.files[0]),
        )
    return Laid(
        measured, lane, operation, asked.name, trace.ranks[0], number, measured_s, simulated_s,
        _layers(lane, measured, operation), share,
        _kinds(lane, measured, operation, waiting),
        _operators(lane, measured, np.where(waiting, -1, operation)), causes,
        _left_over(measured, operation), _gaps(measured, start, measured_s), tuple(notes), batch,
        followed=following is not None,
    )  # fmt: skip


def _of_rank(trace: Trace, rank: int | None) -> Trace:
    kinds = set(trace.time_by("kind"))
    if kinds <= {STEP, MEASURE}:
        raise InputError("has no kernels to lay beside simulated ones; record a profile", file=str(trace.files[0]))
    if rank is None:
        rank = trace.ranks[0]
    if rank not in trace.ranks:
        known = ", ".join(map(str, trace.ranks[:12]))
        raise InputError(f"has no rank {rank} (ranks: {known})", file=str(trace.files[0]), key="--rank")
    return trace.of(trace.columns["rank"] == rank)


def _chosen(trace: Trace, step: int | None) -> tuple[int, NDArray[Any], list[Any]]:
    """Number and rows of the step that was asked for, or of the one of median length among the whole ones."""
    numbers = trace.columns["step"]
    counted = Counter(numbers[numbers >= 0].tolist())
    marks = step_marks(trace.marks, trace.ranks[0])
    if not counted:
        return -1, np.arange(len(trace)), marks
    if step is not None:
        if step not in counted:
            raise InputError(f"has steps {min(counted)} to {max(counted)}", file=str(trace.files[0]), key="--step")
        return step, np.flatnonzero(numbers == step), marks
    usual = float(np.median(list(counted.values())))
    whole = [number for number, count in counted.items() if count >= 0.8 * usual] or list(counted)
    # Of a step that another follows it is known when it ends, its host's time included.
    whole = [number for number in whole if number + 1 in counted] or whole
    spans = {}
    for number in whole:
        rows = numbers == number
        spans[number] = float(trace.end_s[rows].max() - trace.columns["start_s"][rows].min())
    chosen = sorted(spans, key=lambda number: (spans[number], number))[(len(spans) - 1) // 2]
    return chosen, np.flatnonzero(numbers == chosen), marks


def _at_work(measured: Trace) -> tuple[Trace, list[str]]:
    """The step without what ran long before it: kernels that a host launches ahead, where the device then waits longer
    than the whole step works."""
    starts, ends = measured.columns["start_s"], np.maximum.accumulate(measured.end_s)
    gaps = starts[1:] - ends[:-1]
    long = np.flatnonzero(gaps > busy_s(starts, measured.end_s))
    first = int(long[-1]) + 1 if len(long) else 0
    if not first or 2 * first > len(starts):
        return measured, []
    seconds = duration(float(gaps[first - 1]))
    said = f"kernels that ran {seconds} before the step and are left out: {first}"
    return measured.of(np.arange(first, len(starts))), [said]


def _following(trace: Trace, number: int) -> float | None:
    """When the next step's first kernel begins."""
    rows = trace.columns["step"] == number + 1
    return float(trace.columns["start_s"][rows].min()) if rows.any() else None


def _same_batch(simulated: Simulated, batch: TracedBatch | None, trace: Trace) -> None:
    """Whether an engine's annotation states the batch that the scenario has."""
    step = simulated.job.step
    if batch is None or not batch.tokens:
        return
    if not step.serves:
        raise InputError(
            f"its step is {batch.kind} ({batch.in_words}), the scenario states {step.name}; set workload.pass",
            file=str(trace.files[0]),
        )
    stated = simulated.job.work.batch.tokens
    if abs(stated - batch.tokens) > 0.05 * max(stated, batch.tokens):
        raise InputError(
            f"its step has {batch.tokens:,} tokens ({batch.in_words}), the scenario's {stated:,.0f}; "
            "set workload.batch, context or chunk",
            file=str(trace.files[0]),
        )


def _attention(measured: Trace, phase: str = "forward") -> NDArray[Any]:
    """Rows of the attention kernel that takes most of their time, of a phase where phases are stated."""
    kinds, phases = measured.word("kind"), measured.word("phase")
    rows = np.flatnonzero(np.isin(kinds, _ATTENTION))
    if phase != "forward":
        rows = rows[phases[rows] == phase]
    elif np.isin(phases[rows], ["forward"]).any():
        rows = rows[np.isin(phases[rows], ["forward", ""])]
    else:
        # Without phases the names of backward kernels are all that tells them from forward ones.
        names = measured.word("name")[rows]
        rows = rows[[_BACKWARD_KERNEL.search(name) is None for name in names.tolist()]]
    by_name: dict[int, float] = defaultdict(float)
    for row in rows.tolist():
        by_name[int(measured.columns["name"][row])] += float(measured.columns["duration_s"][row])
    if not by_name:
        return rows
    longest: NDArray[Any] = rows[measured.columns["name"][rows] == max(by_name, key=lambda name: by_name[name])]
    return longest


def _anchors(lane: RankTimeline) -> list[Operation]:
    """Forward attention, the first operator of each instruction that has some."""
    found: dict[int, Operation] = {}
    for operation in lane.operations:
        if operation.kind in _ATTENTION and operation.phase == "forward" and operation.layer >= 0:
            found.setdefault(operation.instruction, operation)
    return ordered(list(found.values()))


def _lane(simulated: Simulated, measured: Trace, rank: int) -> tuple[RankTimeline, list[str]]:
    """The simulated rank, and of many micro-batches the stretch that the trace shows: as many layers forward and back,
    from the middle of the step."""
    own = simulated.stands_for(rank)
    lane = simulated.lane(own)
    anchors, forward = _anchors(lane), measured.columns["start_s"][_attention(measured)]
    shown = len(forward)
    if not anchors or not shown or shown >= 0.8 * len(anchors):
        return lane, []
    if simulated.job.plan.pp == 1 and shown < 0.8 * lane.layers:
        return lane, []  # fewer layers than every step of this plan has: another model's
    backward = measured.columns["start_s"][_attention(measured, "backward")]
    pattern = np.searchsorted(backward, forward)[1:] - np.searchsorted(backward, forward)[:-1]
    best: tuple[int, int, float, float] | None = None
    kinds, names = measured.word("kind").tolist(), measured.word("name").tolist()
    transfers = Counter(
        kind for kind, name in zip(kinds, names, strict=True) if kind in COLLECTIVES and not waits(name)
    )
    # Stages in the middle of a pipeline show what all of them do most of the time.
    stages = simulated.stages()
    for candidate in sorted(stages, key=lambda rank: abs(stages.index(rank) - len(stages) // 2)):
        found = _window(simulated.lane(candidate), shown, pattern, len(backward), transfers)
        if found is not None and (best is None or found[0] < best[0]):
            best = (found[0], candidate, found[1], found[2])
        if best is not None and best[0] <= 1:
            break
    if best is None:
        return lane, []
    _, candidate, start, end = best
    said = f"the trace shows {shown} layers; they are laid over as many of rank {candidate}, in the middle of its step"
    return replace(simulated.lane(candidate).window(start, end), makespan_s=end - start), [said]


def _window(
    lane: RankTimeline, layers: int, pattern: NDArray[Any], backward: int, transfers: Mapping[str, int]
) -> tuple[int, float, float] | None:
    """The stretch of so many layers forward whose backward ones lie between them most as ``pattern`` has it, nearest to
    the middle: how many are elsewhere, begin, end."""
    anchors = _anchors(lane)
    if len(anchors) <= layers:
        return None
    back = np.array(sorted(o.start_s for o in lane.operations if o.kind == "attention" and o.phase == "backward"))
    begins = [_begin(lane, anchor) for anchor in anchors]
    middle = lane.makespan_s / 2
    times = np.array([anchor.start_s for anchor in anchors])
    moved = [kind for kind in ("dispatch", "combine", "all_reduce") if transfers.get(kind)]
    at = {kind: np.array(sorted(o.start_s for o in lane.operations if o.kind == kind)) for kind in moved}
    best: tuple[int, float, float, float] | None = None
    for first in range(len(anchors) - layers):
        # The layers of one visit to the stage: a stretch that does not jump from the last layer to the first.
        if anchors[first + layers - 1].layer - anchors[first].layer != layers - 1:
            continue
        start, end = begins[first], begins[first + layers]
        there = np.diff(np.searchsorted(back, times[first : first + layers]))
        off = abs(int(((back >= start) & (back < end)).sum()) - backward) + int(np.abs(there - pattern).sum())
        off += sum(abs(int(((at[kind] >= start) & (at[kind] < end)).sum()) - transfers[kind]) for kind in moved)
        entry = (off, abs((start + end) / 2 - middle), start, end)
        if best is None or entry[:2] < best[:2]:
            best = entry
    return (best[0], best[2], best[3]) if best is not None else None


def _begin(lane: RankTimeline, anchor: Operation) -> float:
    """When the layer's forward pass begins: its instructions up to attention follow each other on one stream."""
    place = anchor.instruction
    while place > 0:
        step = lane.steps[place - 1]
        if step.stream != lane.steps[anchor.instruction].stream or lane.steps[place].after != (place - 1,):
            break
        place -= 1
        if anchor.instruction - place >= 2:
            break
    return lane.steps[place].start_s


#: Kinds of transfers by which a plan is told.
_TELLING = ("all_reduce", "all_gather", "reduce_scatter", "dispatch", "combine", "all_to_all")


def same_plan(lane: RankTimeline, measured: Trace, trace: Trace) -> None:
    """Refuse a trace of another plan or model before any number: other counts of layers or of transfers.

    Raises
    ------
    InputError
        Says what was expected and what is there.
    """
    file = str(trace.files[0])
    layers = lane.layers
    anchors, shown = len(_anchors(lane)), len(_attention(measured))
    if anchors and abs(shown - anchors) > 0.2 * anchors:
        raise InputError(
            f"expected attention of {anchors} layers, found {shown}: it is of another model, plan or step than stated",
            file=file,
        )
    transfers = [operation for operation in lane.operations if operation.is_transfer and operation.layer >= 0]
    expected = Counter(operation.kind for operation in transfers)
    kinds = measured.word("kind")
    names = measured.word("name")
    found: Counter[str] = Counter()
    for kind, name in zip(kinds.tolist(), names.tolist(), strict=True):
        if kind in COLLECTIVES and not waits(name):
            found[kind] += 1
    if found["exchange"]:
        # A kernel that serves every kind tells a plan that has none of them from one that has.
        if not any(item.is_transfer for item in lane.operations) and found["exchange"] > max(layers, 4):
            raise InputError(
                f"expected no transfers between ranks, found {found['exchange']}: it is of another plan than stated",
                file=file,
            )
        return
    for kind in _TELLING:
        wanted, there = expected[kind], found[kind]
        if kind == "all_to_all" and (found["dispatch"] or found["send_recv"]):
            continue
        if max(wanted, there) < max(layers, 4):
            continue
        # A kernel more or less at the ends, or norms of gradients, is no other plan.
        if abs(wanted - there) > 2 + 0.1 * max(wanted, there):
            words = kind.replace("_", "-") + ("es" if kind.endswith("h") else "s")
            raise InputError(f"expected {wanted} {words}, found {there}: it is of another plan than stated", file=file)


def _same_rows(lane: RankTimeline, measured: Trace, trace: Trace) -> None:
    """Refuse a trace whose products have other rows (tokens of a pass) than the plan's, where it states them.

    Raises
    ------
    InputError
        Says both, and the keys that set them.
    """
    forward = np.flatnonzero(
        (measured.word("kind") == "gemm") & np.isin(measured.word("phase"), ["forward", ""])
    )  # gradients have tokens in other places
    stated = Counter(sizes[0] for text in measured.word("shapes")[forward] if (sizes := stated_sizes(text)) is not None)
    wanted = Counter(
        operation.sizes[0]
        for operation in lane.operations
        if operation.sizes is not None and operation.layer >= 0 and operation.computes is Computes.OUTPUT
    )
    if not wanted or 2 * stated.total() <= len(forward):
        return
    (there, count), (here, _) = stated.most_common(1)[0], wanted.most_common(1)[0]
    if 2 * count > len(forward) and not any(within_padding(there, rows) for rows in wanted):
        raise InputError(
            f"its products have {there:,} rows (tokens of one pass), the plan's {here:,}: another sequence, batch or "
            "micro_batch than stated",
            file=str(trace.files[0]),
        )


def matched(operations: Sequence[Operation], measured: Trace) -> NDArray[np.int64]:
    """The operation of every kernel, by lane: transfers apart from kernels, and phases apart where the trace names
    them."""
    kinds, phases, shapes, names = (measured.word(column) for column in ("kind", "phase", "shapes", "name"))
    transfer = np.isin(kinds, COLLECTIVES)
    waiting = np.array([waits(name) for name in names.tolist()], bool)
    eight = np.array([narrow(name) for name in names.tolist()], bool)
    found = np.full(len(measured), -1, np.int64)
    named = set(phases.tolist()) - {""}
    for of_transfers in (False, True):
        rows = np.flatnonzero(transfer == of_transfers)
        pool = [index for index, operation in enumerate(operations) if operation.is_transfer == of_transfers]
        splits: dict[str, int] | None = None
        for own in _lanes(named, of_transfers):
            mine = rows[np.isin(phases[rows], own)] if own else rows
            theirs = [index for index in pool if not own or operations[index].phase in own]
            theirs.sort(key=lambda index: (operations[index].start_s, index))
            if len(mine) and theirs:
                if "grouped_gemm" not in kinds[mine]:  # a kernel an expert
                    theirs = [index for index in theirs for _ in range(operations[index].calls)]
                if splits:
                    theirs = [i for i in theirs for _ in range(splits.get(operations[i].joins, 1))]
                given = align(
                    kinds[mine].tolist(), shapes[mine].tolist(), [operations[index] for index in theirs],
                    waiting[mine].tolist(), eight[mine].tolist(), may_split=splits is None,
                )  # fmt: skip
                found[mine] = np.where(given >= 0, np.array([*theirs, -1])[given], -1)
                if splits is None and not any(shapes[mine].tolist()):
                    splits = _splits(operations, theirs, Counter(found[mine[kinds[mine] == "gemm"]].tolist()))
    return found


def _splits(operations: Sequence[Operation], own: Sequence[int], kernels: Mapping[int, int]) -> dict[str, int]:
    """How many kernels a product of several weights is: who runs one a weight does so backward as well."""
    counts: dict[str, list[int]] = defaultdict(list)
    for index in own:
        if operations[index].joins:
            counts[operations[index].joins].append(kernels.get(index, 0))
    return {role: max(1, int(np.median(count))) for role, count in counts.items()}


def _lanes(named: set[str], of_transfers: bool) -> list[tuple[str, ...]]:
    """Phases that are kept in order among themselves; an empty one is all of them."""
    if not {"forward", "backward"} <= named:
        return [()]
    if of_transfers:
        return [("forward", ""), ("backward", "weight gradient"), ("optimizer",)]
    if "weight gradient" in named:
        return [("forward", ""), ("backward",), ("weight gradient",), ("optimizer",)]
    return [("forward", ""), ("backward", "weight gradient"), ("optimizer",)]


def _measured_of(
    lane: RankTimeline, measured: Trace, operation: NDArray[np.int64], waiting: NDArray[np.bool_]
) -> tuple[dict[int, float], dict[int, float]]:
    """Measured seconds of the instructions: kernels that were left over count to the operator before them on their
    stream, and an operator without a kernel takes none."""
    owner = operation.copy()
    streams = measured.columns["stream"]
    for stream in np.unique(streams).tolist():
        last = -1
        for row in np.flatnonzero(streams == stream).tolist():
            if owner[row] >= 0:
                last = int(owner[row])
            elif last >= 0:
                owner[row] = last
    spans: dict[int, list[int]] = defaultdict(list)
    for row, index in enumerate(owner.tolist()):
        if index >= 0 and not waiting[row]:
            spans[lane.operations[index].instruction].append(row)
    starts, ends = measured.columns["start_s"], measured.end_s
    kernels: dict[int, float] = {}
    transfers: dict[int, float] = {}
    for item in lane.operations:
        into = transfers if item.is_transfer else kernels
        if item.instruction not in into:
            rows = spans.get(item.instruction, [])
            into[item.instruction] = busy_s(starts[rows], ends[rows]) if rows else 0.0
    return kernels, transfers


def _layers(lane: RankTimeline, measured: Trace, operation: NDArray[np.int64]) -> tuple[float, float] | None:
    """Period of a layer, measured and simulated: from the attention of one layer to that of the next."""
    first: dict[int, float] = {}
    for row, index in enumerate(operation.tolist()):
        if index >= 0:
            instruction = lane.operations[index].instruction
            first.setdefault(instruction, float(measured.columns["start_s"][row]))
    anchors = [anchor for anchor in _anchors(lane) if anchor.instruction in first]
    if len(anchors) < 2:
        return None
    # The median: layers at the ends of a visit to a stage have less beside them.
    measured_s = float(np.median(np.diff([first[anchor.instruction] for anchor in anchors])))
    return measured_s, float(np.median(np.diff([anchor.start_s for anchor in anchors])))


def _kinds(
    lane: RankTimeline, measured: Trace, operation: NDArray[np.int64], waiting: NDArray[np.bool_]
) -> tuple[LayerRow, ...]:
    """Time by kind, each as a union: a product or transfer counts to the kind of the operator that took it, and so does
    a small kernel of a kind that the simulated step has none of, where a small operator took it."""
    words = measured.word("kind").tolist()
    rows: dict[str, list[int]] = defaultdict(list)
    simulated = {item.kind for item in lane.operations}
    for row, (word, index) in enumerate(zip(words, operation.tolist(), strict=True)):
        kind = WAIT if waiting[row] else word
        if index >= 0 and not waiting[row]:
            taker = lane.operations[index].kind
            # The sums and copies of an eager framework are norms, rotations and activations one by one.
            if word in HEAVY or (word not in simulated and taker not in HEAVY):
                kind = taker
        rows[kind].append(row)
    starts, ends = measured.columns["start_s"], measured.end_s
    there = {kind: busy_s(starts[own], ends[own]) for kind, own in rows.items()}
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for item in lane.operations:
        spans[item.kind].append((item.start_s, item.end_s))
    here = {kind: busy_s(*np.array(own).T) for kind, own in spans.items()}
    found = [
        LayerRow(kind, kind, len(rows.get(kind, ())), there.get(kind, 0.0), here.get(kind, 0.0))
        for kind in {**here, **there}
    ]
    return tuple(sorted(found, key=lambda row: (-row.measured_s, -row.simulated_s, row.kind)))


def _operators(lane: RankTimeline, measured: Trace, operation: NDArray[np.int64]) -> tuple[LayerRow, ...]:
    """Time by operator over all layers, what is lost most first; helpers count to the operator that took them."""
    spans: dict[int, list[int]] = defaultdict(list)
    for row, index in enumerate(operation.tolist()):
        if index >= 0:
            spans[index].append(row)
    starts, ends = measured.columns["start_s"], measured.end_s
    sums: dict[tuple[str, str, str], list[float]] = {}
    for index, item in enumerate(lane.operations):
        entry = sums.setdefault((item.name, item.kind, item.phase), [0.0, 0.0, 0.0])
        own = spans.get(index, [])
        entry[0] += 1
        entry[1] += busy_s(starts[own], ends[own]) if own else 0.0
        entry[2] += item.seconds
    found = [LayerRow(name, kind, int(n), there, here, phase) for (name, kind, phase), (n, there, here) in sums.items()]
    return tuple(sorted(found, key=lambda row: (-row.lost_s, row.name, row.phase)))


def _left_over(measured: Trace, operation: NDArray[np.int64]) -> tuple[LeftOver, ...]:
    rows = np.flatnonzero(operation < 0)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    names, kinds = measured.word("name")[rows], measured.word("kind")[rows]
    for name, kind, seconds in zip(names, kinds, measured.columns["duration_s"][rows].tolist(), strict=True):
        entry = sums[name, kind]
        entry[0] += 1
        entry[1] += seconds
    found = [LeftOver(name, kind, int(count), seconds) for (name, kind), (count, seconds) in sums.items()]
    return tuple(sorted(found, key=lambda each: (-each.seconds, each.name)))


def _gaps(measured: Trace, start_s: float, length_s: float) -> tuple[Gap, ...]:
    """The longest stretches without a kernel."""
    order = np.argsort(measured.columns["start_s"], kind="stable")
    starts, ends = measured.columns["start_s"][order], measured.end_s[order]
    last = np.maximum.accumulate(ends)
    gaps = starts[1:] - last[:-1]
    names = measured.word("name")[order]
    found = []
    for place in np.argsort(-gaps, kind="stable")[:MOST].tolist():
        if gaps[place] > 0.0:
            before = int(np.argmax(ends[: place + 1]))
            begin = float(last[place] - start_s)
            found.append(Gap(begin, float(gaps[place]), names[before][:80], names[place + 1][:80]))
    return tuple(found)
