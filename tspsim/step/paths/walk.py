"""The longest path of one rank through a task: its time if every other rank is ready and nothing is shared.

A task is what a pipeline stage does for one micro-batch: some instructions, a layer that repeats, some more. The walk
keeps the engine's rules about the rank alone (:mod:`tspsim.program.instructions`) and drops those that can only delay
it: meeting other ranks, sharing links, kernels and transfers that slow each other. Path lengths are monotone in the
times of their pieces, so the walk never ends after the engine.

Unlike the engine, it has one number per path and no events, runs few iterations of what repeats, and tells which part
of a path nothing can hide. A search walks tens of thousands of tasks for each plan that it simulates. If ranks neither
meet nor share, both end at the same time (`tests/step/test_both_walkers.py`).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from ...program.instructions import StreamOrder, waits_in_turn

NEVER = -math.inf
#: Roles of messages between stages.
RECEIVE, SEND = "receive", "send"
#: Arrivals if all inputs are present.
HERE: Mapping[str, float] = MappingProxyType({RECEIVE: NEVER})
#: Relative precision to which all clocks must advance alike to be periodic: floats are added in different orders.
ALIKE = 1e-12


class TimedInstruction(NamedTuple):
    """An instruction with its time alone; ``after`` counts as in :class:`tspsim.program.Repeat`.

    ``role`` is :data:`RECEIVE` or :data:`SEND` for messages between stages, followed by the kind of task if two tasks
    are interleaved.
    """

    stream: str
    duration_s: float
    after: tuple[int, ...]
    is_compute: bool
    role: str = ""


@dataclass(frozen=True)
class Layers:
    """Instructions that run ``times`` times; an ``after`` counts from the start of its own iteration."""

    steps: tuple[TimedInstruction, ...]
    times: int


@dataclass(frozen=True)
class TimedTask:
    """Instructions in issue order; outside of layers an ``after`` is an index into the unrolled list."""

    items: tuple[TimedInstruction | Layers, ...]

    def with_layers(self, layers: int) -> TimedTask:
        """This task of one layer, with ``layers`` layers; what followed the layer waits for the last one.

        Further Layers, those of a draft, keep their number.
        """
        first, length = next(
            ((place, len(item.steps)) for place, item in enumerate(self.items) if isinstance(item, Layers)),
            (len(self.items), 0),
        )
        shift = (layers - 1) * length

        def moved(step: TimedInstruction) -> TimedInstruction:
            return step._replace(after=tuple([index + shift if index >= first else index for index in step.after]))

        before, behind = self.items[:first], self.items[first + 1 :]
        repeated = [replace(item, times=layers) for item in self.items[first : first + 1] if isinstance(item, Layers)]
        return TimedTask((*before, *repeated, *[item if isinstance(item, Layers) else moved(item) for item in behind]))


@dataclass(frozen=True)
class Walk:
    """The result of a walk, in seconds from the task's start."""

    #: End of the last kernel.
    end_s: float
    #: End of the last instruction of any stream.
    last_s: float
    #: Time at which the output is ready to be sent; ``end_s`` if nothing is sent.
    sent_s: float
    #: Sum of the kernels' own times.
    compute_s: float
    #: Part of ``end_s`` in which kernels wait for a transfer that itself waited for the previous kernel: nothing can
    #: hide it.
    gaps_s: float
    #: Role → time at which its message is ready.
    ready_s: Mapping[str, float]


class _Clocks:
    """Ends of instructions so far, and lengths of the chains of transfers since the last kernel.

    ``chains[i]`` is the time from the end of the last kernel to that of instruction i, if i waited for the kernel;
    only indices from ``root`` on can have one.
    """

    def __init__(self, start_s: float, arrivals: Mapping[str, float]) -> None:
        self.start_s, self.arrivals = start_s, arrivals
        self.before = StreamOrder().issue
        self.ends: list[float] = []
        self.chains: list[float] = []
        self.root = 0
        #: Chain of instructions without dependencies: if nothing was issued before the start, it began there.
        self.begun_s = 0.0 if start_s == 0.0 else NEVER
        self.kernel_s = self.compute_s = self.gaps_s = 0.0
        self.ready_s: dict[str, float] = {}

    def take(self, step: TimedInstruction, after: Sequence[int]) -> None:
        """Issue one instruction."""
        ends, chains, root = self.ends, self.chains, self.root
        ready, chain = self.start_s, self.begun_s
        for index in self.before(step.stream, after):
            if ends[index] > ready:
                ready = ends[index]
            if index >= root and chains[index] > chain:
                chain = chains[index]
        if step.is_compute:
            if chain > 0.0:
                self.gaps_s += chain
            end = self.kernel_s = max(ready, self.kernel_s) + step.duration_s
            self.compute_s += step.duration_s
            self.root, self.begun_s = len(ends), NEVER
            chains.append(0.0)
        else:
            if step.role in self.arrivals:
                ready = max(ready, self.arrivals[step.role])
            elif step.role:
                self.ready_s[step.role] = max(self.ready_s.get(step.role, NEVER), ready)
            end = ready + step.duration_s
            chains.append(chain + step.duration_s)
        ends.append(end)


def walk(task: TimedTask, *, arrivals: Mapping[str, float] = HERE, from_zero: bool = False) -> Walk:
    """Walk a task whose kernels may begin at 0.

    Parameters
    ----------
    arrivals
        Role → arrival of its message from a neighbouring stage, in seconds.
    from_zero
        Nothing was issued before 0 (the first task of a step); otherwise transfers without dependencies have ended.
    """
    clocks = _Clocks(0.0 if from_zero else NEVER, arrivals)
    # Maps unrolled indices to those that ran. Of layers the last iterations ran, as many as one reaches back; a
    # dependency on an earlier iteration can only delay, and is dropped.
    starts: list[int] = []
    borders: list[int] = []
    skipped: list[int] = []
    unrolled = 0
    for item in task.items:
        if isinstance(item, Layers):
            turns = _run_layers(clocks, item.steps, item.times)
            starts.append(unrolled)
            unrolled += item.times * len(item.steps)
            borders.append(unrolled - min(turns, _reach(item.steps)) * len(item.steps))
            skipped.append((item.times - turns) * len(item.steps) + (skipped[-1] if skipped else 0))
            continue
        after = item.after
        if borders and after:
            after = _dependencies(after, starts, borders, skipped)
        clocks.take(item, after)
        unrolled += 1
    last_s = max(clocks.kernel_s, *clocks.ends)
    sent_s = clocks.ready_s.get(SEND, clocks.kernel_s)
    return Walk(clocks.kernel_s, last_s, sent_s, clocks.compute_s, clocks.gaps_s, clocks.ready_s)


def in_pieces_s(task: TimedTask, stream: str) -> float:
    """Seconds of a task's pieces, each with its inner waits; a piece begins at a kernel that waits for ``stream``.

    Left out: times between pieces, in which another task's may run, and waits across pieces. A repeated layer is cut at
    its borders too, which can only leave out more.
    """
    total_s, alone = 0.0, list[TimedInstruction]()
    for item in task.items:
        if isinstance(item, Layers):
            total_s += item.times * sum(_piece_s(item.steps, *piece) for piece in _pieces(item.steps, stream))
        else:
            alone.append(item)
    # Outside of layers dependencies count from the task's start: none of them is inside a piece then.
    if len(alone) < len(task.items):
        return total_s + sum(step.duration_s for step in alone if step.is_compute)
    return total_s + sum(_piece_s(alone, *piece) for piece in _pieces(alone, stream))


def _pieces(steps: Sequence[TimedInstruction], stream: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each piece."""
    length, begin = len(steps), 0
    for place, step in enumerate(steps):
        if place and step.is_compute and any(steps[index % length].stream == stream for index in step.after):
            yield begin, place
            begin = place
    yield begin, length


def _piece_s(steps: Sequence[TimedInstruction], begin: int, end: int) -> float:
    """Seconds of one piece alone."""
    clocks = _Clocks(NEVER, HERE)
    for step in steps[begin:end]:
        clocks.take(step, [index - begin for index in step.after if begin <= index])
    return clocks.kernel_s


def _dependencies(
    after: Sequence[int], starts: Sequence[int], borders: Sequence[int], skipped: Sequence[int]
) -> tuple[int, ...]:
    places = []
    for index in after:
        place = bisect.bisect_right(borders, index)
        if place == len(starts) or index < starts[place]:
            places.append(index - skipped[place - 1] if place else index)
    return tuple(places)


def _run_layers(clocks: _Clocks, layer: Sequence[TimedInstruction], times: int) -> int:
    """Run a layer ``times`` times; returns the iterations that were walked. Those in between advance all clocks alike.

    If every clock that matters later has advanced by the same stride for as many iterations as a layer reaches back, it
    does so for ever, since the rules are max and plus. Streams that nobody waits for (a reduction of gradients) may
    fall behind at their own pace; they advance by their own work, and meet their dependencies in the last iteration,
    which is always walked.
    """
    length, first = len(layer), len(clocks.ends)
    reach = _reach(layer)
    core = core_streams(layer)
    own_s: dict[str, float] = {}
    for step in layer:
        own_s[step.stream] = own_s.get(step.stream, 0.0) + step.duration_s
    strides: list[float] = []
    turns = 0
    while turns < times:
        position = first + turns * length
        before = clocks.compute_s, clocks.gaps_s
        for step in layer:
            clocks.take(step, waits_in_turn(step.after, position, first) if step.after else ())
        turns += 1
        left = times - turns
        if turns > 1:
            strides.append(_stride(clocks.ends, position, layer, core))
        if left < 2 or not _settled(strides, reach):
            continue
        jump, stride = left - 1, strides[-1]
        for index in range(max(first, position - (reach - 1) * length), position + length):
            stream = layer[(index - first) % length].stream
            clocks.ends[index] += jump * (stride if stream in core else own_s[stream])
        if any(step.is_compute for step in layer):
            clocks.kernel_s += jump * stride
        clocks.compute_s += jump * (clocks.compute_s - before[0])
        clocks.gaps_s += jump * (clocks.gaps_s - before[1])
        times = turns + 1
        strides = []
    return turns


def _reach(layer: Sequence[TimedInstruction]) -> int:
    """Iterations that a layer's dependencies reach back, at least one."""
    return max(1, *(-(index // len(layer)) for step in layer for index in step.after), 1)


def core_streams(layer: Sequence[TimedInstruction]) -> frozenset[str]:
    """Streams of kernels, and streams that an instruction of another stream waits for."""
    core = {step.stream for step in layer if step.is_compute}
    for step in layer:
        core |= {layer[index % len(layer)].stream for index in step.after} - {step.stream}
    return frozenset(core)


def _stride(ends: Sequence[float], position: int, layer: Sequence[TimedInstruction], core: frozenset[str]) -> float:
    """The advance of every core stream's ends over an iteration; NaN if they differ."""
    length, stride = len(layer), NEVER
    for offset, step in enumerate(layer):
        if step.stream not in core:
            continue
        now, before = ends[position + offset], ends[position + offset - length]
        if now == NEVER:
            continue
        advance = now - before
        if stride == NEVER:
            stride = advance
        elif not abs(advance - stride) <= ALIKE * abs(now):
            return math.nan
    return stride


def _settled(strides: Sequence[float], reach: int) -> bool:
    """Whether the last ``reach`` strides are equal."""
    last = strides[-reach:]
    return len(last) == reach and all(math.isfinite(s) and abs(s - last[0]) <= 1e-9 * abs(s) for s in last)
