"""The time of a step whose programs are a chain: kernels and transfers one after the other, beside a host that issues
them.

Most steps that serve are. What the engine would find is then a sum of what kernels and transfers take alone, and the
rules that remain are those of a stream (it runs in order) and of a wait. A walk through the program keeps these and
watches that nothing runs beside anything else; where something does, or ranks differ by more than their stage, there is
no answer here and the engine is asked. Every kind of program that is registered is compared to the engine in
`tests/serving`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..network import Cluster, ExpertExchange, Traffic, collective, point_to_point
from ..network.sharing import shares
from ..operators import Operator
from ..program import Collective, Compute, Copy, Instruction, Launch, Program, Repeat, SendReceive
from ..program.mesh import Mesh

#: Sums of the same floats in another order differ in the last digits.
ROUNDING = 1e-12
#: Groups that talk at once, beyond which the engine's folding is cheaper than to look at all of them.
MOST_GROUPS = 16


@dataclass(frozen=True)
class Chain:
    """What a walk found, of each stage: when its last instruction ends, when its first kernel begins and its last one
    ends, seconds of its kernels by operator, and of its transfers by kind."""

    end_s: float
    work_s: tuple[float, ...]
    operators_s: tuple[Mapping[Operator, float], ...]
    transfers_s: tuple[Mapping[str, float], ...]


class Exchanges:
    """Seconds of transfers on a mesh, all groups of a stage at once and nothing else under way."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self.cluster, self.mesh = cluster, mesh
        self._known: dict[Hashable, float | None] = {}
        self._groups: dict[tuple[str, int], list[tuple[int, ...]]] = {}

    def members(self, axis: str) -> int:
        """Ranks of a group."""
        return prod(self.mesh.sizes[part] for part in self.mesh.parts(axis))

    def seconds(self, asked: Collective | SendReceive, stage: int) -> float:
        """Of a collective of a stage, or its message to the next, in a program that is a chain."""
        found = self.known_s(asked, stage)
        assert found is not None
        return found

    def known_s(self, asked: Collective | SendReceive, stage: int) -> float | None:
        """The same in any program; None where it is no chain for that."""
        if isinstance(asked, SendReceive):
            return self.message_s(asked.axis, asked.size_bytes, stage)
        return self.collective_s(asked, stage) if self.members(asked.axis) > 1 else 0.0

    def collective_s(self, asked: Collective, stage: int) -> float | None:
        """Of one collective; None where its groups get in each other's way."""
        how = asked.root, asked.algorithm, asked.tokens
        key = asked.kind, asked.axis, asked.size_bytes, *how, stage
        if key not in self._known:
            exchange = ExpertExchange(**asked.tokens._asdict()) if asked.tokens else None
            self._known[key] = self._together(
                [
                    collective(
                        self.cluster,
                        ranks,
                        asked.kind,
                        asked.size_bytes,
                        root=asked.root,
                        algorithm=asked.algorithm,
                        exchange=exchange,
                    )
                    for ranks in self.groups(asked.axis, stage)
                ]
            )
        return self._known[key]

    def message_s(self, axis: str, size_bytes: int, stage: int) -> float | None:
        """Of every rank's message to the next stage."""
        key = "message", axis, size_bytes, stage
        if key not in self._known:
            pairs = [(int(group[stage]), int(group[stage + 1])) for group in self.mesh.groups(axis)]
            found = None
            if len(pairs) <= MOST_GROUPS:
                found = self._together([point_to_point(self.cluster, *pair, size_bytes) for pair in pairs])
            self._known[key] = found
        return self._known[key]

    def groups(self, axis: str, stage: int) -> list[tuple[int, ...]]:
        """Ranks of the groups along an axis that a stage has; of nodes that are all alike those of the first. Empty
        where they are too many to look at."""
        key = axis, stage
        if key not in self._groups:
            stages = self.mesh.positions["pp"] if "pp" in self.mesh.axes else None
            every = [tuple(group) for group in self.mesh.groups(axis).tolist()]
            every = [group for group in every if stages is None or int(stages[group[0]]) == stage]
            nodes = {rank // self.cluster.gpus_per_node for group in every for rank in group}
            inside = all(len({rank // self.cluster.gpus_per_node for rank in group}) == 1 for group in every)
            if inside and not self.cluster.factors and not self.cluster.layout.dead:
                node = min(nodes)
                every = [group for group in every if group[0] // self.cluster.gpus_per_node == node]
            self._groups[key] = every if len(every) <= MOST_GROUPS else []
        return self._groups[key]

    def _together(self, moved: Sequence[Traffic]) -> float | None:
        """Seconds of transfers that begin at once; None unless all take the same."""
        if not moved or any((each.latency_s, each.fluid_s) != (moved[0].latency_s, moved[0].fluid_s) for each in moved):
            return None
        first = moved[0]
        if len(moved) == 1 or first.fluid_s == 0.0:
            return first.latency_s + first.fluid_s
        bandwidth = self.cluster.links.bandwidth_bytes_per_s
        usages: list[dict[Hashable, float]] = []
        for each in moved:
            busy = [size / float(bandwidth[link]) for link, size in zip(each.links, each.link_bytes, strict=True)]
            longest = max(busy)
            usages.append({link: share / longest for link, share in zip(each.links, busy, strict=True)})
        speeds = shares(usages, [1.0] * len(moved))
        if any(abs(speed - speeds[0]) > ROUNDING for speed in speeds):
            return None
        return first.latency_s + first.fluid_s / speeds[0]


class Walker:
    """Walks programs of one plan.

    Parameters
    ----------
    exchanges
        What transfers take.
    """

    def __init__(self, exchanges: Exchanges) -> None:
        self.exchanges = exchanges

    def chain(self, stages: Sequence[Program], cost: Callable[[Operator], float]) -> Chain | None:
        """The stages' programs, each of which may send to the next; None where they are no chain."""
        arrival: float | None = None
        ends, works, operators, transfers = [], [], [], []
        for stage, program in enumerate(stages):
            walk = _Walk(self.exchanges, stage, cost, arrival)
            if not walk.through(program):
                return None
            arrival = walk.sent_s
            ends.append(max(walk.ends, default=0.0))
            works.append(walk.kernels[1] - walk.kernels[0] if walk.kernels else 0.0)
            operators.append(walk.operators_s)
            transfers.append(walk.transfers_s)
        return Chain(max(ends), tuple(works), tuple(operators), tuple(transfers))


class _Walk:
    """Through one stage's program."""

    def __init__(
        self, exchanges: Exchanges, stage: int, cost: Callable[[Operator], float], arrival_s: float | None
    ) -> None:
        self.exchanges, self.stage, self.cost, self.arrival_s = exchanges, stage, cost, arrival_s
        self.ends: list[float] = []
        self.kernels: tuple[float, float] | None = None
        #: When a message to the next stage is ready to leave, and has come.
        self.sent_s: float | None = None
        self.operators_s: dict[Operator, float] = {}
        self.transfers_s: dict[str, float] = {}
        self._known: dict[int, list[float]] = {}

    def through(self, program: Program) -> bool:
        """Walk; False where it is no chain."""
        # The hot loop of every price that is not tabulated: state in local names, no call an instruction.
        ends, free_s, position = self.ends, 0.0, 0
        numbers: dict[str, int] = {}
        #: When each stream is free.
        streams: list[float] = []
        first_s: float | None = None
        last_s = 0.0
        for item in program.items:
            repeat = item if isinstance(item, Repeat) else Repeat((item,), 1)
            body = []
            for instruction in repeat.body:
                duration_s = self._duration_s(instruction, repeat.times)
                if duration_s is None:
                    return False
                stream = numbers.setdefault(instruction.stream, len(streams))
                if stream == len(streams):
                    streams.append(0.0)
                runs = duration_s > 0.0 and not isinstance(instruction, Launch)
                own = instruction if isinstance(instruction, SendReceive) else None
                body.append((stream, duration_s, instruction.after, runs, isinstance(instruction, Compute), own))
            alone = repeat is not item
            first = 0 if alone or repeat.continues else position
            for _ in range(repeat.times):
                begin = 0 if alone else position
                for stream, duration_s, after, runs, computes, message in body:
                    start = streams[stream]
                    for index in after:
                        index += begin
                        if index >= first and ends[index] > start:
                            start = ends[index]
                    if message is not None and message.source is not None and self.arrival_s is not None:
                        start = max(start, self.arrival_s - duration_s)
                    end = start + duration_s
                    if runs:
                        if start < free_s * (1.0 - ROUNDING):
                            return False
                        free_s = end
                    if computes:
                        if first_s is None:
                            first_s = last_s = start
                        last_s = end if runs else max(last_s, end)
                    elif message is not None and message.to is not None:
                        self.sent_s = end
                    streams[stream] = end
                    ends.append(end)
                position += len(body)
        self.kernels = None if first_s is None else (first_s, last_s)
        return True

    def _duration_s(self, instruction: Instruction, times: int) -> float | None:
        if isinstance(instruction, Compute):
            # Layers of a kind share their operators.
            known = self._known.get(id(instruction.operators))
            alone_s = known or [self.cost(operator) for operator in instruction.operators]
            self._known[id(instruction.operators)] = alone_s
            for operator, seconds in zip(instruction.operators, alone_s, strict=True):
                self.operators_s[operator] = self.operators_s.get(operator, 0.0) + times * seconds
            return sum(alone_s)
        if isinstance(instruction, Launch):
            return instruction.host_s
        if isinstance(instruction, Copy):  # beside kernels, or in their way
            return None
        if isinstance(instruction, Collective):
            if self.exchanges.members(instruction.axis) == 1:
                return 0.0
            kind, moving_s = instruction.kind, self.exchanges.collective_s(instruction, self.stage)
        else:
            stage = self.stage - 1 if instruction.to is None else self.stage
            pairs = {(1, None): True, (None, -1): True}
            if (instruction.to, instruction.source) not in pairs or instruction.axis != "pp" or instruction.wrap:
                return None
            kind, moving_s = "send_recv", self.exchanges.message_s(instruction.axis, instruction.size_bytes, stage)
        if moving_s is not None:
            self.transfers_s[kind] = self.transfers_s.get(kind, 0.0) + times * moving_s
        return moving_s
