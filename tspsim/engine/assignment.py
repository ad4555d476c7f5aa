"""What is to be run: which rank runs which program, made ready step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import TspsimError
from ..operators import Operator
from ..parallel.mesh import Mesh
from ..program import Collective, Compute, Instruction, Program, SendReceive, Tokens
from .ranks import Step
from .timeline import Label

#: Seconds of one operator on the devices of the cluster.
Cost = Callable[[Operator], float]


@dataclass(frozen=True)
class Assignment:
    """Programs on a mesh: rank r runs ``programs[role_of[r]]``; ``slowness`` stretches the kernels of single ranks."""

    mesh: Mesh
    programs: tuple[Program, ...]
    role_of: NDArray[np.int64] = field(repr=False)
    slowness: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def uniform(cls, mesh: Mesh, program: Program) -> Assignment:
        """Every rank runs the same program."""
        return cls(mesh, (program,), np.zeros(mesh.ranks.size, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Template:
    """A collective, or one direction of a message, before it is known whose: what ranks meet by.

    ``offset`` is how far along the axis a message goes; it is 0 for a collective.
    """

    axis: str
    kind: str
    size_bytes: int
    root: int = 0
    algorithm: str | None = None
    offset: int = 0
    wrap: bool = True
    tokens: Tokens | None = None

    @property
    def is_message(self) -> bool:
        return self.kind == "send_recv"

    def received_bytes(self, members: int) -> float:
        """Payload a rank receives and did not hold, mean over the group."""
        if self.is_message:
            return float(self.size_bytes)
        factor = 2.0 if self.kind == "all_reduce" else 1.0
        return factor * (self.size_bytes * (members - 1) / members)


class Templates:
    """Templates by number, in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[Template, int] = {}

    def number(self, template: Template) -> int:
        return self.numbers.setdefault(template, len(self.numbers))

    def __iter__(self) -> Iterator[tuple[Template, int]]:
        return iter(self.numbers.items())

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Role:
    """A program made ready: its steps by stream, its labels, and a signature equal for programs that cost the same.

    A step's meetings are ``(2·template + half, turn)``: half 0 is a collective or a sending, half 1 a receiving.
    """

    program: Program
    streams: Mapping[str, Sequence[Step]]
    labels: Sequence[Label]
    signature: tuple[object, ...]


def prepare(program: Program, cost: Cost, templates: Templates, first_label: int, mesh: Mesh) -> Role:
    """Cost every operator, intern every template, count turns, and note which instructions somebody waits for."""
    streams: dict[str, list[Step]] = {}
    labels: list[Label] = []
    signature: list[object] = []
    turns: dict[int, int] = {}
    costs: dict[Operator, float] = {}
    issued = list(program.unrolled())
    awaited = {index for _, _, after in issued for index in after}
    # Layers repeat the same instruction objects: each is costed and described once.
    known: dict[int, tuple[float, tuple[int, ...], Label]] = {}
    for index, (instruction, layer, after) in enumerate(issued):
        found = known.get(id(instruction))
        if found is None:
            found = known[id(instruction)] = ready(instruction, cost, costs, templates, mesh)
        duration_s, keys, label = found
        meets = tuple([(key, turns.get(key, 0)) for key in keys])
        for key in keys:
            turns[key] = turns.get(key, 0) + 1
        step = Step(index, after, first_label + index, duration_s, meets, label.is_compute, index in awaited)
        streams.setdefault(instruction.stream, []).append(step)
        labels.append(label if label.layer == layer else label.at_layer(layer))
        signature.append((instruction.stream, duration_s, meets, after))
    check_streams(program, streams)
    return Role(program, streams, labels, tuple(signature))


def check_streams(program: Program, streams: Mapping[str, Sequence[Step]]) -> None:
    """Raise TspsimError where a scheme mixes: a device runs one stream of kernels, and communication beside it."""
    kernels = [name for name, steps in streams.items() if any(step.is_compute for step in steps)]
    if len(kernels) > 1:
        raise TspsimError(f"kernels of '{program.role}' stand on streams {', '.join(kernels)}; a device runs one")
    if not all(step.is_compute for name in kernels for step in streams[name]):
        raise TspsimError(f"stream '{kernels[0]}' of '{program.role}' mixes kernels and communication")


def ready(
    instruction: Instruction,
    cost: Cost,
    costs: dict[Operator, float],
    templates: Templates,
    mesh: Mesh,
) -> tuple[float, tuple[int, ...], Label]:
    """Seconds alone (kernels), meeting keys (communication), and the label of an instruction."""
    if not isinstance(instruction, Compute):
        return 0.0, meeting_keys(instruction, templates), describe(instruction, costs, 0.0, mesh)
    duration_s = 0.0
    for operator in instruction.operators:
        if operator not in costs:
            costs[operator] = cost(operator)
        duration_s += costs[operator]
    return duration_s, (), describe(instruction, costs, duration_s, mesh)


def meeting_keys(instruction: Collective | SendReceive, templates: Templates) -> tuple[int, ...]:
    if isinstance(instruction, Collective):
        template = Template(
            instruction.axis,
            instruction.kind,
            instruction.size_bytes,
            instruction.root,
            instruction.algorithm,
            tokens=instruction.tokens,
        )
        return (2 * templates.number(template),)
    keys = []
    for offset, half in (
        (instruction.to, 0),
        (None if instruction.source is None else -instruction.source, 1),
    ):
        if offset is not None:
            template = Template(
                instruction.axis, "send_recv", instruction.size_bytes, offset=offset, wrap=instruction.wrap
            )
            keys.append(2 * templates.number(template) + half)
    return tuple(keys)


def describe(instruction: Instruction, costs: Mapping[Operator, float], duration_s: float, mesh: Mesh) -> Label:
    """The label of an instruction: what the timeline shows of it."""
    common = (instruction.stream, instruction.name)
    if isinstance(instruction, Compute):
        operators = instruction.operators
        longest = max(operators, key=lambda operator: costs[operator], default=None)
        return Label(
            *common,
            longest.kind if longest is not None else "idle",
            instruction.part,
            instruction.layer,
            sum(operator.hbm_bytes for operator in operators),
            sum(operator.flops for operator in operators),
            "; ".join(f"{operator.name} {operator.shape}" for operator in operators),
            duration_s,
            tuple((operator.kind, costs[operator]) for operator in operators),
            is_compute=True,
        )
    members = mesh.groups(instruction.axis).shape[1]
    if isinstance(instruction, Collective):
        template = Template(instruction.axis, instruction.kind, instruction.size_bytes)
        kind, received = instruction.kind, template.received_bytes(members)
    else:
        kind, received = "send_recv", float(instruction.size_bytes) if instruction.source is not None else 0.0
    shape = f"{instruction.size_bytes / 1e6:.2f} MB over {members} ranks along {instruction.axis}"
    return Label(*common, kind, instruction.part, instruction.layer, received, 0.0, shape)
