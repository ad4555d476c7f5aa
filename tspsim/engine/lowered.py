"""Lowering of programs for the machine: operators are costed, templates interned, equal instructions looked up once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..base.errors import TspsimError
from ..base.memo import once
from ..operators import Operator
from ..program import Collective, Compute, Copy, Instruction, Launch, Program, Repeat, SendReceive
from ..program.instructions import Content, Issued, Mesh, content, waits_in_turn
from .instances import Cost, Template, Templates
from .ranks import LoweredInstruction, second_round
from .timeline import ON_HOST, Label, Labels


class Costed(NamedTuple):
    """Cost of an instruction: uncontended seconds of kernels and launches, rendezvous keys of communication, and the
    number of its label.

    A rendezvous key is ``2·template + half``: half 0 is a collective or a send, half 1 a receive.
    """

    duration_s: float
    keys: tuple[int, ...]
    label: int
    is_compute: bool
    #: Share of kernels' time that runs a second round beside a transfer.
    resident: float = 0.0
    #: Whether all kernels have few blocks.
    few: bool = False


class InstructionCosts:
    """Costs of all distinct instructions of a program, by content, and by object for a faster second look-up."""

    def __init__(self) -> None:
        self._by_content: dict[Content, Costed] = {}
        self._by_object: dict[int, tuple[Instruction, Costed]] = {}

    def look_up(self, instruction: Instruction, find: Callable[[Instruction, Content], Costed]) -> Costed:
        """Cost of an instruction; ``find`` computes it for new content."""
        same = self._by_object.get(id(instruction))
        if same is not None and same[0] is instruction:
            return same[1]
        does = content(instruction)
        takes = self._by_content.get(does)
        if takes is None:
            takes = self._by_content[does] = find(instruction, does)
        self._by_object[id(instruction)] = instruction, takes
        return takes

    def __getitem__(self, instruction: Instruction) -> Costed:
        same = self._by_object.get(id(instruction))
        if same is not None and same[0] is instruction:
            return same[1]
        return self._by_content[content(instruction)]

    def values(self) -> Iterable[Costed]:
        """Costs in order of first appearance."""
        return self._by_content.values()


@dataclass(frozen=True)
class LoweredProgram:
    """A lowered program. Streams and labels are unrolled on first use, because few of many roles run: one a class."""

    program: Program
    #: Items in issue order.
    issued: IssuedItems = field(repr=False)
    #: Label of every distinct instruction.
    distinct: Sequence[Label] = field(repr=False)
    #: Equal for programs of equal costs and dependencies.
    signature: Hashable = field(repr=False)
    #: Costs of all distinct instructions.
    by_instruction: InstructionCosts = field(repr=False)

    @property
    def streams(self) -> Mapping[str, Sequence[LoweredInstruction]]:
        """Instructions by stream."""
        return self.issued.streams

    @once
    def labels(self) -> Labels:
        """Label of every instruction of the unrolled program."""
        return labels_of(self.program, self.by_instruction, self.distinct)

    def rows(self) -> Iterator[Issued]:
        """Every instruction of the unrolled program, in a timeline's order."""
        return self.program.unrolled()

    def written_out(self, program: Program) -> LoweredProgram:
        """The lowered program for ``program``, which repeats the same instructions more often; what runs stays."""
        return replace(self, program=program)

    def uses(self) -> Counter[int]:
        """Number of rendezvous of the program, by key."""
        uses: Counter[int] = Counter()
        for takes, times in self._different():
            for key in takes.keys:
                uses[key] += times
        return uses

    def alone_s(self, transfer_s: Mapping[int, float]) -> float:
        """Seconds of all instructions one after the other; ``transfer_s`` are those of a template's transfer."""
        total_s = 0.0
        for takes, times in self._different():
            total_s += times * (takes.duration_s + sum([transfer_s.get(key // 2, 0.0) for key in takes.keys]))
        return total_s

    def _different(self) -> Iterator[tuple[Costed, int]]:
        """(cost, number of runs) of the program's items."""
        # A program has the same layers many times.
        items = {id(item): item for item in self.program.items}
        for number, times in Counter(map(id, self.program.items)).items():
            item = items[number]
            if isinstance(item, Repeat):
                for instruction in item.body:
                    yield self.by_instruction[instruction], times * item.times
            else:
                yield self.by_instruction[item], times


class Compiled(NamedTuple):
    """A compiled item of a program: number of runs, its number among distinct items, and its instructions.

    ``body`` has for every instruction its stream, and fields of its :class:`LoweredInstruction`.
    """

    times: int
    number: int
    body: Sequence[tuple[str, tuple[int, ...], float, tuple[int, ...], bool, float, bool]]


@dataclass(frozen=True)
class IssuedItems:
    """The items of a program in issue order, compiled, and the names of its streams."""

    items: Sequence[Instruction | Repeat]
    compiled: Sequence[Compiled]
    names: Iterable[str]

    @once
    def streams(self) -> Mapping[str, Sequence[LoweredInstruction]]:
        """Instructions by stream in issue order, with their dependencies and the use of each rendezvous."""
        streams: dict[str, list[LoweredInstruction]] = {name: [] for name in self.names}
        appends = {name: stream.append for name, stream in streams.items()}
        uses: dict[int, int] = {}
        # A program has the same layers many times: their streams are looked up once.
        bodies: dict[int, Any] = {}
        position = 0
        for item, compiled in zip(self.items, self.compiled, strict=True):
            alone = not isinstance(item, Repeat)
            first = 0 if isinstance(item, Repeat) and item.continues else position
            if id(compiled) not in bodies:
                bodies[id(compiled)] = [(appends[instruction[0]], *instruction[1:]) for instruction in compiled.body]
            body = bodies[id(compiled)]
            for _ in range(compiled.times):
                begin = position
                for append, waits, duration_s, keys, is_compute, resident, few in body:
                    if waits and not alone:
                        waits = waits_in_turn(waits, begin, first)
                    meets: tuple[tuple[int, int], ...] = ()
                    if keys:
                        for key in keys:
                            use = uses.get(key, 0)
                            uses[key] = use + 1
                            meets += ((key, use),)
                    append(_lowered((position, waits, duration_s, meets, is_compute, resident, few)))
                    position += 1
        return streams


def lower_program(program: Program, cost: Cost, templates: Templates) -> LoweredProgram:
    """Lower a program: cost every operator, and intern every template.

    Raises
    ------
    TspsimError
        A scheme mixes kernels and communication on one stream.
    """
    kernels: dict[str, bool] = {}
    labels: list[Label] = []
    costs: dict[Operator, float] = {}
    costs_of = InstructionCosts()
    numbers: dict[Hashable, int] = {}
    order: list[Compiled] = []
    # A program has the same layers many times: each is compiled once.
    compiled: dict[int, Compiled] = {}

    def new(instruction: Instruction, does: Content) -> Costed:
        takes = costed(instruction, cost, costs, templates, len(labels))
        label = templates.labels.get(does)
        if label is None:
            label = templates.labels[does] = describe(instruction, costs, takes.duration_s, templates.mesh)
        labels.append(label)
        return takes

    def compile_body(instructions: Sequence[Instruction], times: int, begin: int) -> Compiled:
        """Compile the body of a Repeat, or a single instruction, whose dependencies count from the program's start."""
        body, does = [], []
        for instruction in instructions:
            duration_s, keys, _, is_compute, resident, few = costs_of.look_up(instruction, new)
            stream, after = instruction.stream, instruction.after
            if kernels.setdefault(stream, is_compute) is not is_compute:
                # A stream's process runs either kernels or communication.
                raise TspsimError(f"stream '{stream}' of '{program.role}' mixes kernels and communication")
            body.append((stream, after, duration_s, keys, is_compute, resident, few))
            does.append((stream, duration_s, keys, resident, few, tuple([index - begin for index in after])))
        return Compiled(times, numbers.setdefault((times, *does), len(numbers)), body)

    position = 0
    for item in program.items:
        if not isinstance(item, Repeat):
            body_of = compile_body((item,), 1, position)
        elif id(item) in compiled:
            body_of = compiled[id(item)]
        else:
            body_of = compiled[id(item)] = compile_body(item.body, item.times, 0)
        order.append(body_of)
        position += body_of.times * len(body_of.body)
    signature = (tuple([part.number for part in order]), tuple(numbers))
    return LoweredProgram(program, IssuedItems(program.items, order, tuple(kernels)), labels, signature, costs_of)


#: ``LoweredInstruction._make``, three times as fast: a run makes a hundred thousand of these.
_lowered = cast("Callable[[tuple[object, ...]], LoweredInstruction]", partial(tuple.__new__, LoweredInstruction))


def labels_of(program: Program, takes: InstructionCosts, distinct: Sequence[Label]) -> Labels:
    """The label of every instruction of the unrolled program."""
    which: list[NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
    layers = which.copy()
    alone: list[Instruction] = []
    seen: dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]] = {}

    def put_those_alone() -> None:
        which.append(np.array([takes[instruction].label for instruction in alone], dtype=np.int32))
        layers.append(np.array([max(-1, instruction.layer) for instruction in alone], dtype=np.int32))
        alone.clear()

    for item in program.items:
        if not isinstance(item, Repeat):
            alone.append(item)
            continue
        put_those_alone()
        if id(item) not in seen:
            numbers = np.array([takes[instruction].label for instruction in item.body], dtype=np.int32)
            first = np.array([instruction.layer for instruction in item.body], dtype=np.int32)
            turns = item.layer_step * np.arange(item.times, dtype=np.int32)[:, None]
            seen[id(item)] = np.tile(numbers, item.times), np.where(first >= 0, first + turns, -1).reshape(-1)
        which.append(seen[id(item)][0])
        layers.append(seen[id(item)][1])
    put_those_alone()
    return Labels(distinct, np.concatenate(which), np.concatenate(layers).astype(np.int32, copy=False))


def costed(
    instruction: Instruction, cost: Cost, costs: dict[Operator, float], templates: Templates, label: int
) -> Costed:
    """Cost of a new instruction of a program; ``costs`` keeps those of operators."""
    if isinstance(instruction, Launch):
        return Costed(instruction.host_s, (), label, False)
    if not isinstance(instruction, Compute):
        return Costed(0.0, meeting_keys(instruction, templates), label, False)
    duration_s = resident_s = 0.0
    for operator in instruction.operators:
        if operator not in costs:
            costs[operator] = cost(operator)
        duration_s += costs[operator]
        if operator.resident:
            resident_s += second_round(operator.resident) * costs[operator]
    resident = resident_s / duration_s if resident_s > 0.0 else 0.0
    return Costed(duration_s, (), label, True, resident, instruction.few)


def meeting_keys(instruction: Collective | SendReceive | Copy, templates: Templates) -> tuple[int, ...]:
    if isinstance(instruction, Copy):
        kind = f"copy_{instruction.direction}"
        return (2 * templates.number(Template("", kind, instruction.size_bytes, seconds=instruction.seconds)),)
    if isinstance(instruction, Collective):
        template = Template(
            instruction.axis,
            instruction.kind,
            instruction.size_bytes,
            instruction.root,
            instruction.algorithm,
            tokens=instruction.tokens,
            slices=instruction.slices,
        )
        return (2 * templates.number(template),)
    keys = []
    for offset, half in ((instruction.to, 0), (None if instruction.source is None else -instruction.source, 1)):
        if offset is not None:
            template = Template(
                instruction.axis, "send_recv", instruction.size_bytes, offset=offset, wrap=instruction.wrap
            )
            keys.append(2 * templates.number(template) + half)
    return tuple(keys)


def describe(instruction: Instruction, costs: Mapping[Operator, float], duration_s: float, mesh: Mesh) -> Label:
    """Label of an instruction in the timeline, without its layer."""
    common = (instruction.stream, instruction.name)
    if isinstance(instruction, Compute):
        operators = instruction.operators
        longest = max(operators, key=lambda operator: costs[operator], default=None)
        return Label(
            *common,
            longest.kind if longest is not None else "idle",
            instruction.part,
            -1,
            sum(operator.hbm_bytes for operator in operators),
            sum(operator.flops for operator in operators),
            "; ".join(f"{operator.name} {operator.shape}" for operator in operators),
            duration_s,
            tuple((operator.kind, costs[operator]) for operator in operators),
            is_compute=True,
        )
    if isinstance(instruction, Launch):
        return Label(*common, ON_HOST, instruction.part, -1, 0.0, 0.0, "on the host")
    if isinstance(instruction, Copy):
        where = "a store" if instruction.seconds else "the host"
        shape = f"{instruction.size_bytes / 1e6:.2f} MB {instruction.direction}, {where}"
        size = float(instruction.size_bytes)
        return Label(*common, f"copy_{instruction.direction}", instruction.part, -1, size, 0.0, shape, axis="host")
    members = math.prod([mesh.sizes[part] for part in mesh.parts(instruction.axis)])
    if isinstance(instruction, Collective):
        template = Template(instruction.axis, instruction.kind, instruction.size_bytes)
        kind, received = instruction.kind, template.received_bytes(members)
    else:
        kind, received = "send_recv", float(instruction.size_bytes) if instruction.source is not None else 0.0
    shape = f"{instruction.size_bytes / 1e6:.2f} MB over {members} ranks along {instruction.axis}"
    return Label(*common, kind, instruction.part, -1, received, 0.0, shape, axis=instruction.axis)
