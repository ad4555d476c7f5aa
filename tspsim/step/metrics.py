"""The parts of a step's time, from its timeline.

A rank's step is its compute, plus communication that no compute covers (*exposed*), plus waiting. In a gap of the
compute stream, the transfer that ends last is what the rank waited for and claims the time it moved; the others claim
theirs in turn. What is left of the gap is ``idle``: no data moved for this rank, it waited for other ranks. The host's
launches claim time likewise, as a part of their own.

Also the metrics of a serving step for its users (time to first token, time per output token, rates per user), and its
host time: what the engine does beside launching kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.quick import replace
from ..engine.core import Submission
from ..engine.timeline import ON_HOST, Label, Timeline
from ..parallel.job import Job
from ..parallel.lengths import OFFLOAD_FROM
from ..parallel.plan import DRAFT_REPLICAS
from ..parallel.state import capacity
from ..parallel.state.capacity import Capacity
from ..steps import ServingStep

Floats = NDArray[np.float64]

#: Parts of a layer's forward, as schemes name them.
FORWARD_PARTS = ("attention", "mlp")


@dataclass(frozen=True)
class Breakdown:
    """Seconds of a step, mean over ranks: ``compute_s`` by operator family, ``exposed_s`` by kind of communication,
    ``host_s`` of waiting for launches alone."""

    compute_s: Mapping[str, float]
    exposed_s: Mapping[str, float]
    idle_s: float
    host_s: float = 0.0

    @property
    def total_compute_s(self) -> float:
        return sum(self.compute_s.values())


def breakdown(submission: Submission) -> Breakdown:
    """The parts of the makespan; every simulated rank counts for the ranks of its class.

    Ranks with equal columns (replicas in step) are evaluated once.
    """
    timeline = submission.timeline
    columns = timeline.columns()
    makespan_s = submission.makespan_s
    origin_s = float(columns["start_s"].min(initial=0.0)) if len(timeline) else 0.0
    order = np.argsort(columns["rank"], kind="stable")
    ranks = columns["rank"][order]
    borders = np.flatnonzero(np.diff(ranks)) + 1
    pieces = (
        dict(zip(ranks[np.concatenate([[0], borders])].tolist(), np.split(order, borders), strict=True))
        if len(ranks)
        else {}
    )
    kinds = Kinds.of(timeline)
    seen: dict[bytes, tuple[dict[str, float], dict[str, float], float]] = {}
    compute: dict[str, float] = {}
    exposed: dict[str, float] = {}
    idle_s, total = 0.0, sum(simulated.size for simulated in submission.ranks)
    for simulated in submission.ranks:
        rows = pieces[simulated.rank.number]
        which = kinds.number[rows]
        start_s, end_s = (columns[name][rows] - origin_s for name in ("start_s", "end_s"))
        key = which.tobytes() + start_s.tobytes() + end_s.tobytes()
        if key not in seen:
            seen[key] = of_rank(kinds, which, start_s, end_s, makespan_s)
        share = simulated.size / total
        for table, part in ((compute, seen[key][0]), (exposed, seen[key][1])):
            for kind, seconds in part.items():
                table[kind] = table.get(kind, 0.0) + share * seconds
        idle_s += share * seen[key][2]
    return Breakdown(compute, exposed, idle_s, exposed.pop(ON_HOST, 0.0))


@dataclass(frozen=True)
class Kinds:
    """Labels of a timeline that differ in more than their layer, and the index of each row's label (``number``)."""

    labels: Sequence[Label]
    number: NDArray[np.int32]

    @classmethod
    def of(cls, timeline: Timeline) -> Kinds:
        return cls(*timeline.kinds())


def of_rank(
    kinds: Kinds, which: NDArray[np.int32], start_s: Floats, end_s: Floats, makespan_s: float
) -> tuple[dict[str, float], dict[str, float], float]:
    """Compute by family, exposed communication and launches by kind, and idle time of one rank, in seconds."""
    computing = np.array([label.is_compute for label in kinds.labels], dtype=bool)[which]
    compute: dict[str, float] = {}
    taken = shared(start_s[computing], end_s[computing])
    seconds = np.bincount(which[computing], weights=taken, minlength=len(kinds.labels)).tolist()
    for label, taken_s in zip(kinds.labels, seconds, strict=True):
        for family, alone_s in label.parts_s if label.alone_s > 0.0 and taken_s > 0.0 else ():
            compute[family] = compute.get(family, 0.0) + taken_s * (alone_s / label.alone_s)
    moving = ~computing & (end_s > start_s)
    names = sorted({label.kind for label in kinds.labels})
    kind = np.array([names.index(label.kind) for label in kinds.labels], dtype=np.int64)[which[moving]]
    open_ = gaps(start_s[computing], end_s[computing], makespan_s)
    seconds, idle_s = claimed(open_, (start_s[moving], end_s[moving], kind), len(names))
    exposed = {name: each_s for name, each_s in zip(names, seconds, strict=True) if each_s is not None}
    return compute, exposed, idle_s


def shared(start_s: Floats, end_s: Floats) -> Floats:
    """Seconds of intervals; the time in which n of them overlap (on parallel streams) counts 1/n for each.

    >>> shared(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    array([1.5, 1.5, 1. ])
    """
    order = np.argsort(start_s, kind="stable")
    if not np.any(np.maximum.accumulate(end_s[order])[:-1] > start_s[order][1:]):
        return end_s - start_s
    edges, place = np.unique(np.concatenate([start_s, end_s]), return_inverse=True)
    begins, ends = np.split(place, 2)
    running = np.cumsum(np.bincount(begins, minlength=len(edges)) - np.bincount(ends, minlength=len(edges)))
    passed = np.concatenate([[0.0], np.cumsum(np.diff(edges) / np.maximum(running[:-1], 1))])
    return np.asarray(passed[ends] - passed[begins])


def claimed(
    gaps: tuple[Floats, Floats], transfers: tuple[Floats, Floats, NDArray[np.int64]], kinds: int
) -> tuple[list[float | None], float]:
    """Seconds of gaps that transfers of each kind claim (None: none lay in a gap), and seconds that are left.

    Parameters
    ----------
    gaps
        Left and right ends, shape (gaps,), sorted and disjoint.
    transfers
        Starts, ends, and indices of their kinds, shape (transfers,).

    Notes
    -----
    In each gap the transfer that ends last comes first. The time claimed so far below an end is then one interval,
    ``lowest`` to ``top``, with earlier claims from ``above`` on: the next transfer, [b, f], claims [b, lowest], or
    starts an interval of its own if f < lowest.
    """
    left, right = gaps
    start, end, kind = transfers
    # For each gap, the transfers in it; a transfer may lie in several gaps.
    first, following = np.searchsorted(right, start, side="right"), np.searchsorted(left, end, side="left")
    times = np.maximum(following - first, 0)
    which = np.repeat(np.arange(len(start)), times)
    gap = np.arange(len(which)) - np.repeat(np.cumsum(times) - times - first, times)
    begin, finish = np.maximum(start[which], left[gap]), np.minimum(end[which], right[gap])
    # Rounded, since a folded run and a whole one may differ by rounding in equal ends.
    order = np.lexsort((-kind[which], -np.round(begin, 9), -np.round(finish, 9), gap))
    gap, begin, finish, kind = gap[order], begin[order], finish[order], kind[which][order]
    counts = np.bincount(gap, minlength=len(left))
    place = np.cumsum(counts) - counts
    taken, idle = np.zeros(len(gap)), np.zeros(len(left))
    above, top, lowest = right.copy(), right.copy(), right.copy()
    for turn in range(int(counts.max(initial=0))):
        here = np.flatnonzero(counts > turn)
        b, f = begin[place[here] + turn], finish[place[here] + turn]
        apart = f < lowest[here]
        over = np.where(apart, top[here], np.maximum(top[here], np.minimum(f, above[here])))
        low = np.minimum(f, lowest[here])
        taken[place[here] + turn] = np.maximum(low - b, 0.0) + (over - top[here])
        idle[here] += np.where(apart, above[here] - top[here], 0.0)
        above[here] = np.where(apart, lowest[here], above[here])
        top[here] = np.where(apart, f, over)
        lowest[here] = np.minimum(lowest[here], b)
    idle += (above - top) + (lowest - left)
    seconds, met = np.bincount(kind, taken, kinds).tolist(), np.bincount(kind, minlength=kinds).tolist()
    return [each_s if often else None for each_s, often in zip(seconds, met, strict=True)], float(idle.sum())


def gaps(start_s: Floats, end_s: Floats, until_s: float) -> tuple[Floats, Floats]:
    """Left and right ends of the parts of [0, ``until_s``] that no interval covers.

    >>> gaps(np.array([3.0, 1.0]), np.array([4.0, 2.0]), 4.0)
    (array([0., 2.]), array([1., 3.]))
    """
    order = np.argsort(start_s, kind="stable")
    following = np.append(start_s[order], until_s)
    reached = np.maximum.accumulate(np.append(0.0, end_s[order]))
    open_ = following > reached
    return reached[open_], following[open_]


def transfer_range(submission: Submission) -> tuple[float, float] | None:
    """Low and high factor of a run's transfers (90 % interval): their ranges, weighted by the time of each; None
    where there are none."""
    uses, instances = submission.system.uses(), submission.system.instances
    used = [(instance.traffic, uses[channel] * instance.traffic.alone_s) for instance, channel in instances]
    total = sum([seconds for _, seconds in used])
    if not total > 0.0:
        return None
    low, high = (sum([getattr(t, end) * seconds for t, seconds in used]) / total for end in ("low", "high"))
    return low, high


#: Layers that show a steady block: the first fills the pipeline of exchanges, the others repeat.
BLOCKS = 4


def one_forward(job: Job) -> Job:
    """The forward of a few layers and one micro-batch or pass, with a pipeline's stages as parallel replicas."""
    if job.unequal and job.plan.pp > 1:  # the assignment is kept: stages stay, each with as many layers
        return _on_every_stage(job)
    alone = job.plan.in_one_stage(job.plan.dp * job.plan.pp)
    gone = -(-BLOCKS * job.plan.offload_weights // max(job.chunk_sizes))
    alone = replace(alone, offload_weights=gone) if gone else alone
    return Job(job.model.repeating_layers(BLOCKS), alone, job.work.one_forward(job.sequences))


def _on_every_stage(job: Job) -> Job:
    """The forward of a few layers on every stage."""
    plan = replace(job.plan, stage_layers=(), zero=0, recomputed=None, activation_store=None, offload_layers=0)
    options = {name: value for name, value in plan.options.items() if name != OFFLOAD_FROM}
    plan = replace(plan, offload_weights=0, options=options)
    return Job(job.model.repeating_layers(BLOCKS * plan.pp), plan, job.work.one_forward(job.sequences))


def layer_period_s(submission: Submission) -> float:
    """Steady seconds per layer of the forward: from the end of the first layer's compute to that of the last."""
    timeline = submission.timeline
    columns = timeline.columns()
    layer = np.where(timeline.labelled(of_forward, bool), timeline.layers(), -1)
    last = int(layer.max(initial=-1))
    if last == 0:
        return float(columns["end_s"][layer == 0].max()) - float(columns["start_s"].min())
    return between_layers_s(layer, columns["end_s"])


def steady_layer_s(submission: Submission) -> float:
    """Steady seconds per layer, forward plus backward: between the ends of the first and the last layer's kernels."""
    timeline = submission.timeline
    end_s, layers = timeline.columns()["end_s"], timeline.layers()
    forward = timeline.labelled(of_forward, bool)
    back = timeline.labelled(lambda entry: entry.is_compute, bool) & ~forward
    return sum(between_layers_s(np.where(way, layers, -1), end_s) for way in (forward, back)) or submission.makespan_s


def of_forward(entry: Label) -> bool:
    """Whether a label belongs to a kernel of a layer's forward."""
    return entry.is_compute and entry.part in FORWARD_PARTS


def between_layers_s(layer: NDArray[np.int64], end_s: Floats) -> float:
    """Seconds per layer between the ends of the lowest and the highest layer; −1 marks no layer; 0 for one layer."""
    first, last = int(layer[layer >= 0].min(initial=0)), int(layer.max(initial=-1))
    if last <= first:
        return 0.0
    ends = [float(end_s[layer == index].max()) for index in (first, last)]
    return abs(ends[1] - ends[0]) / (last - first)


def received_bytes_per_layer(submission: Submission, layers: int) -> dict[str, float]:
    """Payload bytes that a rank receives and did not hold, per layer's forward, by part; mean over ranks."""
    timeline = submission.timeline
    columns = timeline.columns()
    size = np.zeros(int(columns["rank"].max(initial=0)) + 1)
    for simulated in submission.ranks:
        size[simulated.rank.number] = simulated.size
    moved = timeline.labelled(lambda entry: 0.0 if entry.is_compute else entry.size_bytes, np.float64)
    received = np.where(timeline.layers() >= 0, moved, 0.0) * size[columns["rank"]]
    part = timeline.labelled(lambda entry: FORWARD_PARTS.index(entry.part) if entry.part in FORWARD_PARTS else -1, int)
    result = {}
    for index, name in enumerate(FORWARD_PARTS):
        result[name] = as_whole(float(received[part == index].sum()) / float(size.sum()) / layers)
    return result | {"total": as_whole(sum(result.values()))}


def moved_bytes_per_step(submission: Submission) -> dict[str, float]:
    """Payload bytes per step, by purpose: received and not held, or copied from and to the host; mean over ranks.

    Forward and backward of a part count together.
    """
    timeline = submission.timeline
    columns = timeline.columns()
    size = np.zeros(int(columns["rank"].max(initial=0)) + 1)
    for simulated in submission.ranks:
        size[simulated.rank.number] = simulated.size
    labels, which = timeline.kinds()
    often = np.bincount(which, weights=size[columns["rank"]], minlength=len(labels)) / max(float(size.sum()), 1.0)
    moved: dict[str, float] = {}
    for label, times in zip(labels, often.tolist(), strict=True):
        if not label.is_compute and label.size_bytes * times > 0.0:
            name = label.part.removesuffix(" again").removesuffix(" backward") or "other"
            moved[name] = moved.get(name, 0.0) + times * label.size_bytes
    volumes = {name: as_whole(value) for name, value in sorted(moved.items())}
    return volumes | {"total": as_whole(sum(volumes.values()))}


def as_whole(value: float) -> float:
    """The value as an int if it is whole, so that exact volumes print exactly."""
    return int(value) if value == int(value) else value


# --- metrics of a serving step for its users --------------------------------------------------------------------


def period_s(job: Job, submission: Submission) -> float:
    """Seconds from one step of a batch to its next.

    A pipeline works on as many parts of the batch as it has stages, which follow one another through the stages (a
    closed tandem queue of equal jobs). A part returns after its own passage through all stages, or after a turn of the
    slowest stage for each part, whichever is longer.
    """
    parts = parts_of(job)
    return turn_s(job, submission.makespan_s, slowest_stage_s(submission) if parts > 1 else 0.0)


def parts_of(job: Job) -> int:
    """Parts of a batch that a pipeline's stages work on at the same time."""
    step = job.step
    assert isinstance(step, ServingStep)
    return step.in_flight(job.work.load, job.plan.pp)


def turn_s(job: Job, makespan_s: float, slowest_s: float) -> float:
    """:func:`period_s` from the time of one part, and of the slowest stage for it."""
    parts = parts_of(job)
    return makespan_s if parts == 1 else max(makespan_s, parts * slowest_s)


def host_s(job: Job, run_s: float, makespan_s: float) -> float:
    """Seconds between the end of a step's programs and the next step: host time, and a pipeline's wait for its slowest
    stage (``run_s``: :func:`period_s`, or the makespan of a step that does not serve)."""
    stack = job.work.stack
    collected_s = stack.collection_s * job.model.layers * job.micro_batches if job.training else 0.0
    return stack.step_s + collected_s + host_of_passes_s(job) + max(run_s, hidden_host_s(job)) - makespan_s


def slowest_stage_s(submission: Submission) -> float:
    """Longest seconds from the start of a rank's first kernel to the end of its last."""
    timeline = submission.timeline
    columns = timeline.columns()
    computing = timeline.labelled(lambda entry: entry.is_compute, bool)
    longest = 0.0
    for simulated in submission.ranks:
        mine = computing & (columns["rank"] == simulated.rank.number)
        if mine.any():
            longest = max(longest, float(columns["end_s"][mine].max() - columns["start_s"][mine].min()))
    return longest


def answer(job: Job, step_s: float, room: Capacity) -> dict[str, Any]:
    """The entry ``inference`` of a plan.

    ``time_to_first_token_s`` of prompts that end in the step, ``time_per_output_token_s`` of decoding sequences (with
    the mean number of accepted drafts), and the rates that users see; absent if the step has no such sequences.
    """
    load = job.work.load
    said: dict[str, Any] = {}
    if load.prompts:
        said["time_to_first_token_s"] = step_s + job.work.stack.engine.front_end.value
    if load.batch:
        said["time_per_output_token_s"] = step_s / load.advance
        said["tokens_per_s_per_user"] = load.advance / step_s
        said["output_tokens_per_s"] = job.plan.dp * load.batch * load.advance / step_s
    kept = *load.kept, *load.decoding()
    longest = max(queries + context for queries, context, _ in kept)
    said["capacity"] = capacity.answer(room, longest, load.streams)
    return said


# --- seconds of a serving step's host -------------------------------------------------------------------------


def host_of_passes_s(job: Job) -> float:
    """Seconds of host time beside launches that the device waits for, over the step's passes."""
    return sum(job.work.stack.engine.host_s(sequences) + host_of_a_pass_s(job) for sequences in _sequences(job))


def host_of_a_pass_s(job: Job) -> float:
    """The part of a pass that does not depend on its batch: small kernels and waits of the stage's layers, and the
    host's work between verifying drafts and making the next."""
    engine, routed = job.work.stack.engine, job.model.routed_layers
    stages, ranks = job.plan.pp, max(job.tensor_ranks, job.plan.ep)
    drafted = engine.drafted.value if job.drafts is not None and job.drafts.tokens else 0.0
    layers = -(-job.model.layers // stages), -(-routed // stages)
    return engine.between_s(*layers, ranks, job.model.experts) + drafted


def hidden_host_s(job: Job) -> float:
    """Seconds of host time beside the device: a lower bound of the step."""
    return sum(map(job.work.stack.engine.hidden_s, _sequences(job)))


def _sequences(job: Job) -> list[int]:
    """Sequences of every pass that a replica's host sees; if other replicas draft, it verifies theirs too."""
    plan, drafting = job.plan, int(job.plan.options.get(DRAFT_REPLICAS, 0))
    return [-(-batch.sequences * plan.dp // max(1, plan.dp - drafting)) for batch in job.forwards]
