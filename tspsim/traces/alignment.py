"""Pairs of measured kernels and simulated operations, and the stretch of the step that a trace shows."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.memo import remembered
from ..base.units import several
from .groups import apart
from .halves import receives
from .kinds import ATTENTION, COLLECTIVES, HEAVY, MOVES
from .match import align
from .names import narrow, waits
from .simulated import Operation, RankTimeline, Simulated, ordered
from .table import Trace, busy_s

_BACKWARD_KERNEL = re.compile(r"bwd|bprop|backward", re.IGNORECASE)
_ATTENTION_KERNEL = re.compile(r"fmha|flash|sdpa|attn|attention", re.IGNORECASE)


def attention_rows(measured: Trace, phase: str = "forward") -> NDArray[Any]:
    """Rows of the attention kernel with the longest total time, of one phase where the trace states phases; of layers
    with linear attention another kernel. A kernel with and without a causal mask, or a window, is one
    (:func:`family_of`): a layer's pieces, or layers, differ so."""
    kinds, phases = measured.word("kind"), measured.word("phase")
    rows = np.flatnonzero(np.isin(kinds, ATTENTION))
    if phase != "forward":
        rows = rows[phases[rows] == phase]
    elif np.isin(phases[rows], ["forward"]).any():
        rows = rows[np.isin(phases[rows], ["forward", ""])]
    else:
        # A trace without phases tells backward kernels from forward ones only by their names.
        names = measured.word("name")[rows]
        rows = rows[[_BACKWARD_KERNEL.search(name) is None for name in names.tolist()]]
    by_family: dict[tuple[str, str], float] = defaultdict(float)
    families = [
        (kind, family_of(name))
        for kind, name in zip(kinds[rows].tolist(), measured.word("name")[rows].tolist(), strict=True)
    ]
    for family, row in zip(families, rows.tolist(), strict=True):
        by_family[family] += float(measured.columns["duration_s"][row])
    longest = {family[0]: family for family in sorted(by_family, key=lambda family: by_family[family])}
    return rows[[longest[family[0]] == family for family in families]]


#: What names of one kernel's variants differ in: numbers, flags, masks and windows.
_VARIANT = re.compile(r"\d+|\b(true|false)\b|_?(no_?|non_?)?(causal|mask(ed)?|window|swa|local)(?=_|\b)", re.IGNORECASE)

#: Copies and signals between ranks that share memory.
_SHARED_MEMORY = re.compile(r"[Mm]emcpy|symmetric_memory|\bbarrier_kernel\(|signal\w*_kernel|stream_write_value")
#: What libraries put around every kernel.
_WRAPPED = re.compile(r"(cutlass::device_kernel|flash::enable_sm\w+|ck_tile::kentry)<")


@remembered(8192)
def family_of(kernel: str) -> str:
    """What variants of one kernel have in common: the first three words of its name without numbers and masks.

    >>> family_of("void flash::flash_fwd_kernel<Traits<128, 64>, true, false>(flash::Params)")
    'void flash::flash_fwd_kernel Traits'
    >>> family_of("aiter::fmha_fwd_hd128_bf16_causal_group") == family_of("aiter::fmha_fwd_hd128_bf16_group")
    True
    """
    return " ".join(re.findall(r"[A-Za-z_:]{4,}", _VARIANT.sub("", _WRAPPED.sub("", kernel)))[:3])


def states_phases(measured: Trace) -> bool:
    """Whether attention is told as forward in a trace, so that what a backward pass computes again is apart."""
    return bool(((measured.word("phase") == "forward") & np.isin(measured.word("kind"), ATTENTION)).any())


def attention_again(measured: Trace) -> int | None:
    """Number of forward attention kernels within the backward pass: what recomputation computes again. None where the
    trace states no phases, or where attention is several kernels without its name."""
    forward = attention_rows(measured)
    names, phases = measured.word("name"), measured.word("phase")
    kinds = set(measured.word("kind")[forward].tolist())
    if not states_phases(measured) or len(kinds) != 1 or _ATTENTION_KERNEL.search(names[forward[0]]) is None:
        return None
    family = family_of(names[forward[0]])
    rows = np.flatnonzero(np.isin(measured.word("kind"), ATTENTION) & (phases == "backward"))
    again = [name for name in names[rows].tolist() if _BACKWARD_KERNEL.search(name) is None]
    return sum(family_of(name) == family for name in again)


def anchors_of(lane: RankTimeline, phases: bool = True) -> list[Operation]:
    """The first forward attention of each instruction; without ``phases`` in the trace, which only tell by their names
    kernels of gradients, with what a backward pass computes again."""
    firsts: dict[int, Operation] = {}
    for operation in lane.operations:
        forward = operation.phase == "forward" or (not phases and operation.runs_forward)
        if operation.kind in ATTENTION and forward and operation.layer >= 0 and not operation.merges:
            firsts.setdefault(operation.instruction, operation)
    return ordered(list(firsts.values()))


def lane_shown(simulated: Simulated, measured: Trace, rank: int) -> tuple[RankTimeline, list[str]]:
    """The simulated rank for a rank of the trace. A trace of some micro-batches gets a stretch from the middle of the
    step with as many layers forward and backward."""
    own = simulated.stands_for(rank)
    lane = simulated.lane(own)
    phased = states_phases(measured)
    anchors, forward = anchors_of(lane, phased), measured.columns["start_s"][attention_rows(measured)]
    shown = len(forward)
    if not anchors or not shown or shown >= 0.8 * len(anchors):
        return lane, []
    if simulated.job.plan.pp == 1 and shown < 0.8 * lane.layers:
        if _ENDS & set(measured.word("kind").tolist()):
            return lane, []  # a whole step of fewer layers than this plan's: the trace is of another model
        return _layers_shown(lane, anchors, shown, _transfers(measured))
    backward = measured.columns["start_s"][attention_rows(measured, "backward")]
    pattern = np.searchsorted(backward, forward)[1:] - np.searchsorted(backward, forward)[:-1]
    best: tuple[int, int, float, float] | None = None
    begun = _transfers(measured)
    transfers = Counter(kind for kind, _ in begun)
    # A backward beside the first forward may begin with an exchange before it.
    ahead = sum(start_s < forward[0] for kind, start_s in begun if kind in _EXCHANGES)
    # A stage in the middle of a pipeline shows what most stages do most of the time.
    stages = simulated.stages()
    for candidate in sorted(stages, key=lambda rank: abs(stages.index(rank) - len(stages) // 2)):
        stretch = _window(simulated.lane(candidate), shown, pattern, len(backward), transfers, phased, ahead)
        if stretch is not None and (best is None or stretch[0] < best[0]):
            best = (stretch[0], candidate, stretch[1], stretch[2])
        if best is not None and best[0] <= 1:
            break
    if best is None:
        return lane, []
    _, candidate, start, end = best
    note = f"the trace shows {shown} layers; the comparison uses as many of rank {candidate}, from mid-step"
    return replace(simulated.lane(candidate).window(start, end), makespan_s=end - start), [note]


#: Kinds of kernels at the begin and the end of every step: a trace with none of them shows layers alone.
_ENDS = frozenset({"embedding", "sample", "loss", "optimizer"})


def _transfers(measured: Trace) -> list[tuple[str, float]]:
    """Kind and start of the transfers of a trace."""
    kinds, names = measured.word("kind").tolist(), measured.word("name").tolist()
    return [
        (kind, start_s)
        for kind, name, start_s in zip(kinds, names, measured.columns["start_s"].tolist(), strict=True)
        if kind in COLLECTIVES and not waits(name)
    ]


def _layers_shown(
    lane: RankTimeline, anchors: Sequence[Operation], shown: int, begun: Sequence[tuple[str, float]]
) -> tuple[RankTimeline, list[str]]:
    """As many layers of a step as a trace shows, those with the transfers that it shows; of equal ones the middle ones.
    A layer attends as often as it does in the lane: two halves of a batch attend apart."""
    own = sorted({anchor.layer for anchor in anchors})
    visits = len(anchors) // len(own)
    count = shown // visits
    if shown % visits or not count:
        return lane, []
    transfers = Counter(kind for kind, _ in begun if kind in _EXCHANGES)

    def off(first: int) -> tuple[int, float]:
        here = [item for item in lane.operations if first <= item.layer < first + count]
        exchanged = Counter(item.kind for item in here if item.kind in _EXCHANGES)
        lacking = sum(bool(transfers[kind]) * abs(exchanged[kind] - transfers[kind]) for kind in _EXCHANGES)
        return lacking, abs(first + count / 2 - len(own) / 2)

    best = min(own[: len(own) - count + 1], key=off)
    note = (
        f"the trace shows {several(count, 'layer')} and no begin or end of a step; as many from mid-step are compared"
    )
    return lane.of_layers(best, count), [note]


def _window(
    lane: RankTimeline,
    layers: int,
    pattern: NDArray[Any],
    backward: int,
    transfers: Mapping[str, int],
    phased: bool,
    ahead: int,
) -> tuple[int, float, float] | None:
    """The stretch with ``layers`` forward layers whose backward layers lie between them most as in ``pattern``, and
    which begins with ``ahead`` exchanges before the first attention; of equal stretches the one nearest to the middle.
    Returns the number of deviations, the begin and the end."""
    anchors = anchors_of(lane, phased)
    if len(anchors) <= layers:
        return None
    back = np.array(sorted(o.start_s for o in lane.operations if o.kind == "attention" and not o.runs_forward))
    exchanged = np.array(sorted(o.start_s for o in lane.operations if o.kind in _EXCHANGES))
    begins = [_with_exchanges(_begin(lane, anchor), anchor.start_s, exchanged, ahead) for anchor in anchors]
    middle = lane.makespan_s / 2
    times = np.array([anchor.start_s for anchor in anchors])
    moved = [kind for kind in ("dispatch", "combine", "all_reduce") if transfers.get(kind)]
    at = {kind: np.array(sorted(o.start_s for o in lane.operations if o.kind == kind)) for kind in moved}
    best: tuple[int, float, float, float] | None = None
    for first in range(len(anchors) - layers):
        # A stretch is one visit to the stage: it does not jump from the last layer to the first.
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


#: Kinds of exchanges with experts.
_EXCHANGES = frozenset({"dispatch", "combine"})


def _with_exchanges(begin_s: float, attention_s: float, exchanged: NDArray[Any], ahead: int) -> float:
    """The begin of a layer with ``ahead`` exchanges before its attention, those that began before it included."""
    there, last = np.searchsorted(exchanged, [begin_s, attention_s])
    lacking = ahead - (last - there)
    return float(exchanged[there - lacking]) if 0 < lacking <= there else begin_s


def _begin(lane: RankTimeline, anchor: Operation) -> float:
    """The begin of the layer's forward pass: its instructions up to attention follow each other on one stream."""
    place = anchor.instruction
    while place > 0:
        step = lane.steps[place - 1]
        if step.stream != lane.steps[anchor.instruction].stream or lane.steps[place].after != (place - 1,):
            break
        place -= 1
        if anchor.instruction - place >= 2:
            break
    return lane.steps[place].start_s


def matched(operations: Sequence[Operation], measured: Trace) -> NDArray[np.int64]:
    """The operation of every kernel. Transfers and kernels are matched apart, and so are phases where the trace states
    them."""
    kinds, phases, shapes, names = (measured.word(column) for column in ("kind", "phase", "shapes", "name"))
    groups, transfer = measured.word("group"), np.isin(kinds, COLLECTIVES)
    # Memory that ranks share has no process group in a profile; PyTorch's tensor-parallel products exchange through it.
    shares = np.array([_SHARED_MEMORY.search(name) is not None for name in names.tolist()], bool)
    groups = np.where(transfer & shares & (groups == ""), "tensor", groups)
    waiting = np.array([waits(name) for name in names.tolist()], bool)
    eight = np.array([narrow(name) for name in names.tolist()], bool) & tells_narrow(operations)
    back = np.array([_BACKWARD_KERNEL.search(name) is not None for name in names.tolist()], bool)
    takers = np.full(len(measured), -1, np.int64)
    sender = receives(kinds, names, exchanges_of(operations))
    if not any(operation.kind == "loss" and operation.phase == "forward" for operation in operations):
        # One operator computes the loss and its gradient; frameworks compute the former in the forward pass.
        phases = np.where((kinds == "loss") & (phases == "forward"), "backward", phases)
    named = set(phases.tolist()) - {""}
    beside = _beside_transfers(measured, kinds, transfer)
    for of_transfers in (False, True):
        rows = np.flatnonzero((transfer == of_transfers) & (sender < 0) & ~beside)
        pool = [index for index, operation in enumerate(operations) if operation.is_transfer == of_transfers]
        splits: dict[str, int] | None = None
        for own in _lanes(named, of_transfers):
            mine = rows[np.isin(phases[rows], own)] if own else rows
            if not of_transfers:
                mine = _apart(mine, measured, kinds)
            theirs = [index for index in pool if not own or operations[index].phase in own]
            theirs.sort(key=lambda index: (operations[index].start_s, index))
            lane = [(mine, theirs)]
            if of_transfers:
                lane = list(apart(mine, kinds, groups, theirs, operations))
            for mine, theirs in lane:
                if not len(mine) or not theirs:
                    continue
                if "grouped_gemm" not in kinds[mine]:  # one kernel per expert
                    theirs = [index for index in theirs for _ in range(operations[index].calls)]
                if splits:
                    theirs = [i for i in theirs for _ in range(splits.get(operations[i].joins, 1))]
                given = align(
                    kinds[mine].tolist(), shapes[mine].tolist(), [operations[index] for index in theirs],
                    waiting[mine].tolist(), eight[mine].tolist(), back[mine].tolist(), may_split=splits is None,
                )  # fmt: skip
                takers[mine] = np.where(given >= 0, np.array([*theirs, -1])[given], -1)
                if splits is None and not any(shapes[mine].tolist()):
                    splits = _splits(operations, theirs, Counter(takers[mine[kinds[mine] == "gemm"]].tolist()))
    _fill(takers, np.flatnonzero(beside), kinds, operations)
    return np.where(sender >= 0, takers[sender], takers)


def _beside_transfers(measured: Trace, kinds: NDArray[np.str_], transfer: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Small copies on streams of transfers: they run beside products of any layer, and prepare or finish a transfer."""
    streams = measured.columns["stream"]
    moves = np.isin(kinds, [*MOVES, "memcpy"])
    working = np.unique(streams[~moves & ~transfer])
    sharded = np.isin(kinds, ["all_gather", "reduce_scatter"]).any()
    return moves & ~np.isin(streams, working) if sharded and len(working) else np.zeros(len(kinds), bool)


def _fill(
    takers: NDArray[np.int64], rows: NDArray[np.int64], kinds: NDArray[np.str_], operations: Sequence[Operation]
) -> None:
    """Give small operators that have no kernels those among ``rows`` in their order."""
    if not len(rows):
        return
    taken = set(takers.tolist())
    wanted = set(kinds[rows].tolist())
    pool = [index for index, item in enumerate(operations) if index not in taken and item.kind in wanted]
    pool.sort(key=lambda index: (operations[index].start_s, index))
    if pool:
        given = align(kinds[rows].tolist(), [""] * len(rows), [operations[index] for index in pool])
        takers[rows] = np.where(given >= 0, np.array([*pool, -1])[given], -1)


def tells_narrow(operations: Sequence[Operation]) -> bool:
    """Whether some products are in eight bits and others in 16, so that kernels' names tell them apart."""
    products = {item.is_wide for item in operations if item.kind in ("gemm", "grouped_gemm")}
    return False in products


def _apart(rows: NDArray[np.int64], measured: Trace, kinds: NDArray[np.str_]) -> NDArray[np.int64]:
    """Rows in order of start, but plain products of a second stream (shared experts) that run beside routed experts
    stand before these: one operator takes a run of kernels."""
    streams, routed = measured.columns["stream"][rows], kinds[rows] == "grouped_gemm"
    if not routed.any() or len(np.unique(streams)) < 2:
        return rows
    main = int(np.bincount(streams[routed] - streams.min()).argmax()) + int(streams.min())
    beside = (streams != main) & ~np.isin(streams, streams[routed | np.isin(kinds[rows], ATTENTION)])
    if not beside.any():
        return rows
    # A run of routed experts ends with the next heavy kernel of their stream that is none.
    heavy = np.isin(kinds[rows], list(HEAVY)) & ~beside
    begins = np.full(len(rows), -1)
    first = -1
    for place in np.flatnonzero(heavy).tolist():
        if not routed[place]:
            first = -1
        elif first < 0:
            first = place
        else:
            begins[first:place] = first
    # A stream's kernels between two attentions of the other belong together.
    visit = np.cumsum(np.isin(kinds[rows], ATTENTION))
    key = np.arange(len(rows), dtype=float)
    begun: dict[tuple[int, int], float] = {}
    for place in np.flatnonzero(beside).tolist():
        own = int(streams[place]), int(visit[place])
        if own not in begun:
            begun[own] = (begins[place] if begins[place] >= 0 else place) - 0.5
        key[place] = begun[own]
    return rows[np.argsort(key, kind="stable")]


def exchanges_of(operations: Sequence[Operation]) -> dict[str, int]:
    """The number of exchanges with experts, by kind."""
    return Counter(operation.kind for operation in operations if operation.kind in _EXCHANGES)


def _splits(operations: Sequence[Operation], own: Sequence[int], kernels: Mapping[int, int]) -> dict[str, int]:
    """Kernels per product of several weights: a split forward product has a split backward one too."""
    counts: dict[str, list[int]] = defaultdict(list)
    for index in own:
        if operations[index].joins:
            counts[operations[index].joins].append(kernels.get(index, 0))
    return {role: max(1, int(np.median(count))) for role, count in counts.items()}


def _lanes(named: set[str], of_transfers: bool) -> list[tuple[str, ...]]:
    """Groups of phases whose kernels keep their order; an empty group stands for all phases."""
    if not {"forward", "backward"} <= named:
        return [()]
    if of_transfers:
        return [("forward", ""), ("backward", "weight gradient"), ("optimizer",)]
    if "weight gradient" in named:
        return [("forward", ""), ("backward",), ("weight gradient",), ("optimizer",)]
    return [("forward", ""), ("backward", "weight gradient"), ("optimizer",)]


def measured_of(
    lane: RankTimeline, measured: Trace, operation: NDArray[np.int64], waiting: NDArray[np.bool_]
) -> tuple[dict[int, float], dict[int, float]]:
    """Measured seconds of kernels and of transfers, by instruction. Left-over kernels count to the operator before them
    on their stream; an operator without kernels takes no time."""
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
            seconds = busy_s(starts[rows], ends[rows]) if rows else 0.0
            if item.kind in _EXCHANGES and len(rows) > 1:
                # A transfer that is sent and received by kernels of their own ends between these two.
                seconds = min(max(item.seconds, seconds), float(ends[rows].max() - starts[rows].min()))
            into[item.instruction] = seconds
    return kernels, transfers
