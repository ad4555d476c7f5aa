"""Instructions of a rank: plain data, written by parallelization schemes and run by the engine.

A :class:`Program` is the list of instructions of one role. Each instruction stands on a named *stream* (as in CUDA or
HIP, a stream runs its instructions in order, one at a time) and may wait for earlier instructions of the same
program, by index. Groups of ranks are named by mesh axis, not by rank lists, so that one program serves every
replica. Instructions know no device, link or clock.

    Compute         operators, back to back, on the rank's own device
    Collective      all ranks of the rank's group along an axis meet, then move data together
    SendReceive     a message to and/or from a neighbour along an axis (Send and Recv are its halves)
    Launch          host time to issue an instruction, for software stacks that are slow at it
    Copy            bytes between a rank's memory and its host's, or on to a store
    Repeat          a body of instructions, several times; streams run through its borders

One rule says when an instruction may start: the one before it on its stream, and those named in its ``after``, have
ended. Inside a Repeat, ``after`` counts from the start of its own iteration.

Two modules apply the rule in time. :mod:`tspsim.engine.ranks` replays it as events: ranks meet, share links and
devices, and so delay one another. :mod:`tspsim.step.paths.walk` adds it up along one rank, a lower bound without a
clock that skips equal iterations. `tests/step/test_both_walkers.py` compares the two.

A rank is a GPU's number in the cluster (node-major). The :class:`Mesh` is an integer array with one dimension per axis;
its entries are ranks, of the whole cluster or of a part of it. Groups along an axis are its lines.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.memo import once
from ..base.quick import quick
from ..operators import BatchQuantity, Operator


def waits_in_turn(after: Sequence[int], begin: int, first: int) -> tuple[int, ...]:
    """Absolute indices of the dependencies of an iteration that begins at index ``begin``.

    Indices before ``first``, the begin of the first iteration, are dropped.

        >>> waits_in_turn((1, -2), begin=6, first=3), waits_in_turn((1, -2), begin=3, first=3)
        ((7, 4), (4,))
    """
    if len(after) == 1:
        place = begin + after[0]
        return (place,) if place >= first else ()
    return tuple([begin + index for index in after if begin + index >= first])


class StreamOrder:
    """Instructions of a rank's streams in issue order, and the instructions that must end before each."""

    __slots__ = ("_count", "_newest")

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._count = 0

    def issue(self, stream: str, after: Sequence[int]) -> Sequence[int]:
        """Issue one instruction; returns the indices of those that must end before it begins."""
        place = self._count
        self._count = place + 1
        newest = self._newest.get(stream)
        self._newest[stream] = place
        return after if newest is None else (newest, *after)


def orders(issued: Iterable[tuple[str, Sequence[int]]]) -> Iterator[Sequence[int]]:
    """For every instruction, given as (stream, absolute dependencies): the indices that must end before it begins."""
    order = StreamOrder()
    for stream, after in issued:
        yield order.issue(stream, after)


def waits_for_all(issued: Sequence[tuple[str, Sequence[int]]], place: int) -> bool:
    """Whether an instruction begins only after all before it have ended."""
    before = list(orders(issued[: place + 1]))
    ended: set[int] = set()
    left = [place]
    while left:
        new = [index for index in before[left.pop()] if index not in ended]
        left += new
        ended.update(new)
    return len(ended) == place


# --- instructions ---------------------------------------------------------------------------------------------

#: Multiprocessors that an expert-parallel library takes unless told (those of DeepEP).
MULTIPROCESSORS = 24
#: Kinds of collectives that nccl-tests measures.
COLLECTIVE_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")
#: One hop of data around a ring of ranks: every rank sends as many bytes as it receives (``ppermute`` by one place in
#: JAX), along one ring of neighbours or in pieces along several rings that share no link.
RING_SHIFT = "ring_shift"


@quick
@dataclass(frozen=True, slots=True)
class Compute:
    """Operators that run back to back."""

    operators: tuple[Operator, ...]
    name: str
    part: str = ""
    layer: int = -1
    after: tuple[int, ...] = ()
    stream: str = "compute"
    #: In a serving step: what the size of each operator depends on.
    sized_by: tuple[BatchQuantity, ...] = ()

    @property
    def few(self) -> bool:
        """Whether all its kernels have few blocks, so that on a stream of their own they leave the device to others."""
        return bool(self.operators) and all(operator.units for operator in self.operators)

    def at(self, layer: int, after: tuple[int, ...]) -> Compute:
        """A copy in another layer, with other dependencies."""
        return Compute(self.operators, self.name, self.part, layer, after, self.stream, self.sized_by)


class ExpertExchange(NamedTuple):
    """What the ranks of an expert-parallel group send each other (dispatch or combine).

    Attributes
    ----------
    tokens
        Tokens of each rank.
    token_bytes
        Bytes of one token on the wire, with its scales.
    experts, topk
        Routed experts of a layer, and those that a token visits.
    groups, kept_groups
        Groups of neighbouring experts, and the groups that a token's experts lie in (group-limited routing; DeepSeek-V3
        §2.1.2).
    multiprocessors
        SMs that the communication kernels occupy.
    notice_s
        Seconds of the kernel in which ranks tell each other how much comes, for each doubling of their nodes.
    """

    tokens: float
    token_bytes: float
    experts: int = 256
    topk: int = 8
    groups: int = 1
    kept_groups: int = 1
    multiprocessors: int = MULTIPROCESSORS
    notice_s: float = 0.0


@quick
@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over the rank's group along ``axis``."""

    #: One of :data:`COLLECTIVE_KINDS`, or :data:`RING_SHIFT`.
    kind: str
    axis: str
    #: Bytes as nccl-tests counts them: the gathered result of an all-gather, the input of a reduce-scatter, the vector
    #: of an all-reduce or broadcast, what one rank holds before an all-to-all; of a ring shift, what a rank sends.
    size_bytes: int
    name: str
    #: Position of a broadcast's source along the axis.
    root: int = 0
    #: A name from :mod:`tspsim.network`, or None: the cheapest.
    algorithm: str | None = None
    part: str = ""
    layer: int = -1
    after: tuple[int, ...] = ()
    stream: str = "communication"
    #: Of an expert-parallel all-to-all: what its library needs beside the bytes.
    tokens: ExpertExchange | None = None
    #: This collective is one of ``slices`` equal slices of a transfer with one start and one end: it takes 1/slices of
    #: the time of ``slices`` times its bytes.
    slices: int = 1
    #: In a serving step: what its size depends on.
    sized_by: BatchQuantity = BatchQuantity.TOKENS

    def at(self, layer: int, after: tuple[int, ...]) -> Collective:
        """A copy in another layer, with other dependencies."""
        return Collective(
            self.kind, self.axis, self.size_bytes, self.name, self.root, self.algorithm, self.part, layer, after,
            self.stream, self.tokens, self.slices, self.sized_by,
        )  # fmt: skip


@quick
@dataclass(frozen=True, slots=True)
class SendReceive:
    """A message along ``axis``: sent to the rank ``to`` positions on, received from the rank ``source`` positions on.

    None leaves a half out (a pure receive or a pure send). With ``wrap`` the axis is a ring; without it, a half whose
    neighbour lies past the end is left out.
    """

    axis: str
    size_bytes: int
    name: str
    to: int | None = 1
    source: int | None = -1
    wrap: bool = True
    part: str = ""
    layer: int = -1
    after: tuple[int, ...] = ()
    stream: str = "communication"
    #: In a serving step: what its size depends on.
    sized_by: BatchQuantity = BatchQuantity.TOKENS

    def at(self, layer: int, after: tuple[int, ...]) -> SendReceive:
        """A copy in another layer, with other dependencies."""
        return SendReceive(
            self.axis, self.size_bytes, self.name, self.to, self.source, self.wrap, self.part, layer, after,
            self.stream, self.sized_by,
        )  # fmt: skip


@quick
@dataclass(frozen=True, slots=True)
class Launch:
    """The host takes ``host_s`` seconds to issue the instructions that wait for this one.

    It has its own stream: the host runs ahead of the device until a dependency stops it.
    """

    name: str
    host_s: float
    part: str = ""
    layer: int = -1
    after: tuple[int, ...] = ()
    stream: str = "host"

    def at(self, layer: int, after: tuple[int, ...]) -> Launch:
        """A copy in another layer, with other dependencies."""
        return Launch(self.name, self.host_s, self.part, layer, after, self.stream)


@quick
@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes copied ``out`` of a rank's memory to its host's, or ``in``, by copy engines that take nothing from kernels.

    With ``seconds`` the bytes go on from the host to a store, or come from one; that part takes ``seconds``, whatever
    else moves.
    """

    direction: str
    size_bytes: int
    name: str
    seconds: float = 0.0
    part: str = ""
    layer: int = -1
    after: tuple[int, ...] = ()
    stream: str = "host copies"

    def at(self, layer: int, after: tuple[int, ...]) -> Copy:
        """A copy in another layer, with other dependencies."""
        return Copy(self.direction, self.size_bytes, self.name, self.seconds, self.part, layer, after, self.stream)


@dataclass(frozen=True, slots=True)
class Repeat:
    """``body`` run ``times`` times; an ``after`` inside counts from the start of its own iteration.

    A negative index points into earlier iterations (−1 is the last instruction of the previous one) and is dropped if
    there is none; if the Repeat ``continues``, the instructions before it count as earlier iterations. ``layer_step``
    is added to the layer in each iteration: 1 forward, −1 backward.
    """

    body: tuple[Instruction, ...]
    times: int
    layer_step: int = 1
    continues: bool = False


Instruction = Compute | Collective | SendReceive | Launch | Copy
#: What an instruction does, without its layer and dependencies.
Content = tuple[object, ...]


def content(instruction: Instruction) -> Content:
    """A key of what an instruction does, without its layer and dependencies."""
    common = (instruction.stream, instruction.name, instruction.part)
    if isinstance(instruction, Compute):
        return *common, instruction.operators
    if isinstance(instruction, Collective):
        how = instruction.root, instruction.algorithm, instruction.tokens, instruction.slices
        return *common, instruction.kind, instruction.axis, instruction.size_bytes, how
    if isinstance(instruction, Launch):
        return *common, instruction.host_s
    if isinstance(instruction, Copy):
        return *common, instruction.direction, instruction.size_bytes, instruction.seconds
    ends = instruction.to, instruction.source
    return *common, instruction.axis, instruction.size_bytes, ends, instruction.wrap


def length_of(item: Instruction | Repeat) -> int:
    """Instructions of a program's item, unrolled."""
    return item.times * len(item.body) if isinstance(item, Repeat) else 1


class Issued(NamedTuple):
    """An instruction of the unrolled program, with its layer and the absolute indices of its dependencies."""

    instruction: Instruction
    layer: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One role's instructions, in issue order."""

    role: str
    items: tuple[Instruction | Repeat, ...] = field(default=())

    def bodies(self) -> Iterator[tuple[Sequence[Instruction], int]]:
        """Runs of instructions in issue order, and how often each runs."""
        for item in self.items:
            yield (item.body, item.times) if isinstance(item, Repeat) else ((item,), 1)

    def counted(self) -> Iterator[tuple[Instruction, int]]:
        """Every instruction as written, and how often it runs."""
        for body, times in self.bodies():
            for instruction in body:
                yield instruction, times

    def unrolled(self) -> Iterator[Issued]:
        """Every instruction in issue order, Repeats unrolled."""
        position = 0
        for item in self.items:
            if not isinstance(item, Repeat):
                yield Issued(item, item.layer, item.after)
                position += 1
                continue
            first = 0 if item.continues else position
            for turn in range(item.times):
                for instruction in item.body:
                    waits = instruction.after
                    if waits:
                        waits = waits_in_turn(waits, position, first)
                    layer = instruction.layer + turn * item.layer_step if instruction.layer >= 0 else -1
                    yield Issued(instruction, layer, waits)
                position += len(item.body)


# --- the rank mesh --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mesh:
    """Ranks by coordinates."""

    #: Names of the dimensions of ``ranks``, outermost first.
    axes: tuple[str, ...]
    #: Integer array; ``ranks[coordinates]`` is the GPU at those coordinates. Each GPU occurs once.
    ranks: NDArray[np.int64] = field(repr=False)
    #: Axis → its dimensions, outermost first, for axes that are no dimension themselves: groups (:func:`with_groups`)
    #: reuse dimensions of other axes, and an axis that a group splits spans two or three.
    made_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @once
    def sizes(self) -> Mapping[str, int]:
        """Axis → ranks of one group along it."""
        sizes = dict(zip(self.axes, self.ranks.shape, strict=True))
        return sizes | {axis: prod(sizes[part] for part in parts) for axis, parts in self.made_of.items()}

    def parts(self, axis: str) -> tuple[str, ...]:
        """The dimensions of an axis, or of several joined by ``+`` (``dp+sp``: all ranks with the same weights)."""
        return tuple(part for name in axis.split("+") for part in self.made_of.get(name, (name,)))

    def groups(self, axis: str) -> NDArray[np.int64]:
        """All groups along an axis: shape (number of groups, size of the axis), members in axis order."""
        dimensions = [self.axes.index(part) for part in self.parts(axis)]
        moved = np.moveaxis(self.ranks, dimensions, list(range(-len(dimensions), 0)))
        return moved.reshape(-1, prod(self.ranks.shape[d] for d in dimensions))

    @once
    def key(self) -> Hashable:
        """Equal for equal meshes."""
        return self.axes, self.ranks.shape, self.ranks.tobytes(), tuple(sorted(self.made_of.items()))

    def per_rank(self, ranks: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
        """``values`` of ``ranks`` as an array indexed by rank; −1 for GPUs outside the mesh."""
        table = np.full(int(self.ranks.max()) + 1, -1, dtype=np.int64)
        table[ranks.reshape(-1)] = values
        return table

    @once
    def positions(self) -> Mapping[str, NDArray[np.int64]]:
        """Axis → position of every rank on it (arrays indexed by rank, −1 outside the mesh)."""
        table = {}
        for axis in (*self.axes, *self.made_of):
            groups = self.groups(axis)
            table[axis] = self.per_rank(groups, np.tile(np.arange(groups.shape[1]), len(groups)))
        return table

    def coordinates(self, axes: Sequence[str]) -> tuple[list[dict[str, int]], NDArray[np.int64]]:
        """The coordinates on ``axes`` (outermost first) that occur, in order, and the index of every rank's.

        The second is an array by rank, −1 outside the mesh.
        """
        ranks = self.ranks.reshape(-1)
        numbers = np.zeros(ranks.size, dtype=np.int64)
        for axis in axes:
            numbers = numbers * self.sizes[axis] + self.positions[axis][ranks]
        taken, which = np.unique(numbers, return_inverse=True)
        places = np.unravel_index(taken, [self.sizes[axis] for axis in axes])
        rows = zip(*(place.tolist() for place in places), strict=True)
        return [dict(zip(axes, row, strict=True)) for row in rows], self.per_rank(ranks, which)

    def group_of(self, axis: str) -> NDArray[np.int64]:
        """Number of every rank's group along an axis, counted as in :meth:`groups` (by rank, −1 outside the mesh)."""
        groups = self.groups(axis)
        return self.per_rank(groups, np.repeat(np.arange(len(groups)), groups.shape[1]))
