"""What a rank is told to do: plain data, known to the schemes that write it and the engine that runs it.

A :class:`Program` is one role's list of instructions. Each instruction stands on a named *stream* (as in CUDA or
HIP: a stream runs its instructions in order, one at a time) and may wait for earlier instructions of the same
program, by index. Groups of ranks are named by mesh axis, never by rank lists, so the same program serves every
replica. Nothing here knows a device, a link or a clock.

    Compute         operators, back to back, on the rank's own device
    Collective      all ranks of the rank's group along an axis meet, then move data together
    SendReceive     a message to and/or from a neighbour along an axis (Send and Recv are its halves)
    Launch          the host's time to issue one of them, where a software stack is slow at it
    Copy            bytes between a rank's memory and its host's, or on to a store
    Repeat          a body of instructions, several times; streams run through its borders
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.quick import quick
from ..operators import Operator
from .order import waits_in_turn

#: Kinds of collectives that nccl-tests measures.
COLLECTIVE_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")
#: One hop of what travels round the ranks of every node: each sends as much as it receives (``ppermute`` by one place
#: in JAX), along one ring of neighbours or in pieces along several that share no link.
RING_SHIFT = "ring_shift"


@quick
@dataclass(frozen=True, slots=True)
class Compute:
    """Operators that follow each other without a wait between them."""

    operators: tuple[Operator, ...]
    name: str
    part: str = ""
    layer: int = -1
    after: tuple[int, ...] = ()
    stream: str = "compute"

    def at(self, layer: int, after: tuple[int, ...]) -> Compute:
        """The same in another layer, waiting for others."""
        return Compute(self.operators, self.name, self.part, layer, after, self.stream)


class Tokens(NamedTuple):
    """What an all-to-all of an expert-parallel group carries: each rank's ``tokens`` of ``token_bytes`` to ``topk`` of
    ``experts``, which lie in ``kept_groups`` of ``groups``, by kernels on so many ``multiprocessors`` (those that
    DeepEP takes unless told)."""

    tokens: float
    token_bytes: float
    experts: int
    topk: int
    groups: int = 1
    kept_groups: int = 1
    multiprocessors: int = 24


@quick
@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over the rank's group along ``axis``."""

    #: One of :data:`COLLECTIVE_KINDS`, or :data:`RING_SHIFT`.
    kind: str
    axis: str
    #: Bytes as nccl-tests counts them: the gathered result of an all-gather, the whole input of a
    #: reduce-scatter, the vector of an all-reduce or broadcast, what one rank holds before an all-to-all. Of a ring
    #: shift what a rank sends.
    size_bytes: int
    name: str
    #: Position along the axis of a broadcast's source.
    root: int = 0
    #: A name from :mod:`tspsim.network`, or None: the cheapest.
    algorithm: str | None = None
    part: str = ""
    layer: int = -1
    after: tuple[int, ...] = ()
    stream: str = "communication"
    #: Of an all-to-all to experts and back: what an expert-parallel library needs to know beside the bytes.
    tokens: Tokens | None = None
    #: It is one of so many equal slices of one transfer, which starts and ends once: it takes 1/slices of the whole's
    #: time, and the whole is ``slices`` times its bytes.
    slices: int = 1

    def at(self, layer: int, after: tuple[int, ...]) -> Collective:
        """The same in another layer, waiting for others."""
        return Collective(
            self.kind, self.axis, self.size_bytes, self.name, self.root, self.algorithm, self.part, layer, after,
            self.stream, self.tokens, self.slices,
        )  # fmt: skip


@quick
@dataclass(frozen=True, slots=True)
class SendReceive:
    """A message along ``axis``: to the rank ``to`` positions on and from the one ``source`` positions on.

    Either may be None (a pure receive or a pure send). With ``wrap`` the axis is a ring; otherwise a neighbour
    past the end does not exist and that half is nothing.
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

    def at(self, layer: int, after: tuple[int, ...]) -> SendReceive:
        """The same in another layer, waiting for others."""
        return SendReceive(
            self.axis, self.size_bytes, self.name, self.to, self.source, self.wrap, self.part, layer, after,
            self.stream,
        )  # fmt: skip


@quick
@dataclass(frozen=True, slots=True)
class Launch:
    """The host takes ``host_s`` seconds to issue what waits for this.

    It stands on a stream of its own, so the host runs ahead of the device until something makes it wait.
    """

    name: str
    host_s: float
    part: str = ""
    layer: int = -1
    after: tuple[int, ...] = ()
    stream: str = "host"

    def at(self, layer: int, after: tuple[int, ...]) -> Launch:
        """The same in another layer, waiting for others."""
        return Launch(self.name, self.host_s, self.part, layer, after, self.stream)


@quick
@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes ``out`` of a rank's memory to its host's, or ``in``, by copy engines that take nothing from kernels.

    With ``seconds`` they go on from the host to a store, or come from one, which takes as long whatever else moves.
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
        """The same in another layer, waiting for others."""
        return Copy(self.direction, self.size_bytes, self.name, self.seconds, self.part, layer, after, self.stream)


@dataclass(frozen=True, slots=True)
class Repeat:
    """``body`` run ``times`` times; an ``after`` inside counts from the start of the body of its own turn.

    A negative index reaches into the turns before (−1 is the last instruction of the one before) and is nothing where
    there is no such turn; where it ``continues``, what stands before it is one. ``layer_step`` is added to the layer
    from turn to turn: 1 forward, −1 backward.
    """

    body: tuple[Instruction, ...]
    times: int
    layer_step: int = 1
    continues: bool = False


Instruction = Compute | Collective | SendReceive | Launch | Copy
#: What an instruction does, whatever it waits for and in whatever layer.
Content = tuple[object, ...]


def content(instruction: Instruction) -> Content:
    """What an instruction does, as a key."""
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
    """Instructions of an item of a program, unrolled."""
    return item.times * len(item.body) if isinstance(item, Repeat) else 1


class Issued(NamedTuple):
    """An instruction where it stands in the unrolled program: its layer, and absolute indices of what it waits for."""

    instruction: Instruction
    layer: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One role's instructions, in issue order."""

    role: str
    items: tuple[Instruction | Repeat, ...] = field(default=())

    def bodies(self) -> Iterator[tuple[Sequence[Instruction], int]]:
        """Instructions that run as often, in issue order, and how often."""
        for item in self.items:
            yield (item.body, item.times) if isinstance(item, Repeat) else ((item,), 1)

    def counted(self) -> Iterator[tuple[Instruction, int]]:
        """Every instruction as it is written, and how often it runs there."""
        for body, times in self.bodies():
            for instruction in body:
                yield instruction, times

    def unrolled(self) -> Iterator[Issued]:
        """Every instruction in issue order, repeats unrolled."""
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
