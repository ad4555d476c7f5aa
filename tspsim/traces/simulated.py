"""The simulated side of a comparison: what one rank of a plan does, operator by operator, and a replay of it.

A timeline's row is an instruction, which may be several kernels. Here each operator of it has its own piece of the row,
in proportion to what it takes alone. :func:`replay` runs a rank's instructions again with other times: streams run in
order, an instruction begins behind what it waits for, and what the simulation adds to that (peers that come late) stays
as long as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InfeasibleError, InputError, UnknownNameError
from ..operators import Computes, FusedMoE, Gemm, GroupedGemm, Operator, Role
from ..parallel import Job, Plan
from ..parallel.stack import ADD_TO_GRADIENT
from ..program import Collective, Compute, Copy, Launch, SendReceive
from ..step.costs import Costs
from ..step.question import Question
from ..step.simulation import admitted, scheduled, step_of

_BY_ROLE = {
    Role.ROPE: "rope",
    Role.MERGE: "attention",
    Role.ACTIVATION: "activation",
    Role.EXPERTS_ACTIVATION: "activation",
    Role.EXPERT_CHOICE: "router",
    Role.EXPERT_CAST: "quantize",
    Role.EXPERT_ROWS: "permute",
    Role.EXPERT_SUM: "permute",
    Role.NORM: "norm",
    Role.EMBEDDING: "embedding",
    Role.LOSS: "loss",
}
_JOINED = frozenset({Role.QKV, Role.LATENT_DOWN, Role.GATE_UP})
_WIDE = frozenset({"fp32", "fp16", "bf16"})
_BY_OP = {"cache_write": "cache", "softmax": "sample", "adamw": "optimizer", "add": "elementwise", "copy": "quantize"}


def kind_of_operator(operator: Operator) -> str:
    """The word of :mod:`.kinds` for an operator: by what it is in its layer."""
    if isinstance(operator, GroupedGemm | FusedMoE):
        return "grouped_gemm"
    if operator.kind == "gemm":
        return "gemm"
    if operator.kind == "attention":
        return "attention"
    if operator.kind == "linear_attention":
        return "linear_attention"
    op = getattr(operator, "op", "")
    if op == "cache_write":
        return "cache"
    return _BY_ROLE.get(operator.role) or _BY_OP.get(op, "elementwise")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator of one instruction, or a transfer."""

    #: Place of its instruction among those of :class:`RankTimeline`.
    instruction: int
    kind: str
    name: str
    part: str
    phase: str
    layer: int
    stream: str
    start_s: float
    seconds: float
    is_transfer: bool
    operator: Operator | None = None
    shape: str = ""
    #: Of a transfer: its bytes as nccl-tests count them, and the axis that its group lies along.
    size_bytes: float = 0.0
    axis: str = ""
    #: Of a collective what was asked.
    collective: Collective | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """m, n, k of a plain product."""
        return (self.operator.m, self.operator.n, self.operator.k) if isinstance(self.operator, Gemm) else None

    @property
    def computes(self) -> Computes:
        """What it makes of a product; the output where it is none."""
        return self.operator.computes if self.operator is not None else Computes.OUTPUT

    @property
    def joins(self) -> str:
        """The role of a product of several weights (Q, K and V; gate and up), which others multiply one by one."""
        return self.operator.role if self.operator is not None and self.operator.role in _JOINED else ""

    @property
    def of_dense_mlp(self) -> bool:
        """Whether it is a product of a dense MLP, or of shared experts."""
        return self.kind == "gemm" and self.operator is not None and self.operator.role in (Role.GATE_UP, Role.DOWN)

    @property
    def is_wide(self) -> bool:
        """Whether it is a product whose operands have 16 bits and more."""
        operator = self.operator
        if operator is None or self.kind not in ("gemm", "grouped_gemm"):
            return False
        return operator.dtype in _WIDE and getattr(operator, "weight_dtype", None) in (None, *_WIDE)

    @property
    def casts(self) -> bool:
        """Whether casts of its operands are in its time: a product in eight bits and fewer."""
        return self.kind in ("gemm", "grouped_gemm") and not self.is_wide

    @property
    def calls(self) -> int:
        """Kernels that a library without a grouped product makes of it."""
        return self.operator.batch if isinstance(self.operator, GroupedGemm) else 1


@dataclass(frozen=True, slots=True)
class SimulatedInstruction:
    """An instruction with the times that it had."""

    stream: str
    after: tuple[int, ...]
    start_s: float
    seconds: float


@dataclass(frozen=True)
class RankTimeline:
    """What one rank did in a simulated step, or in a stretch of one.

    ``makespan_s`` from the first instruction to the last, ``between_s`` what passes before the next step begins.
    """

    rank: int
    operations: tuple[Operation, ...]
    steps: tuple[SimulatedInstruction, ...]
    makespan_s: float
    between_s: float
    job: Job
    question: Question
    #: The simulated step that it is of, whole.
    step_s: float = 0.0

    @property
    def layers(self) -> int:
        return len({operation.layer for operation in self.operations if operation.layer >= 0})

    def window(self, start_s: float, end_s: float) -> RankTimeline:
        """The part of it whose instructions begin in a stretch of time."""
        kept = [index for index, step in enumerate(self.steps) if start_s <= step.start_s < end_s]
        number = {old: new for new, old in enumerate(kept)}
        steps = tuple(
            SimulatedInstruction(
                step.stream,
                tuple(number[earlier] for earlier in step.after if earlier in number),
                step.start_s - start_s,
                step.seconds,
            )
            for step in (self.steps[index] for index in kept)
        )
        operations = tuple(
            replace(operation, instruction=number[operation.instruction], start_s=operation.start_s - start_s)
            for operation in self.operations
            if operation.instruction in number
        )
        end = max((step.start_s + step.seconds for step in steps), default=0.0)
        return replace(self, operations=operations, steps=steps, makespan_s=end, between_s=0.0)


def replay(lane: RankTimeline, seconds: Mapping[int, float]) -> tuple[float, float]:
    """When the last instruction ends, and how long any works, where some instructions take other ``seconds``.

    With none it is the makespan of the lane.
    """
    from .table import busy_s

    ends: list[float] = []
    begins: list[float] = []
    was: list[float] = []
    stream_end: dict[str, float] = {}
    stream_was: dict[str, float] = {}
    for index, step in enumerate(lane.steps):
        before = max([was[earlier] for earlier in step.after] + [stream_was.get(step.stream, 0.0)])
        now = max([ends[earlier] for earlier in step.after] + [stream_end.get(step.stream, 0.0)])
        start = now + max(step.start_s - before, 0.0)
        length = seconds.get(index, step.seconds)
        begins.append(start)
        ends.append(start + length)
        was.append(step.start_s + step.seconds)
        stream_end[step.stream], stream_was[step.stream] = ends[-1], was[-1]
    at_work = [index for index, step in enumerate(lane.steps) if step.stream != "host" and ends[index] > begins[index]]
    busy = busy_s(np.array(begins)[at_work], np.array(ends)[at_work]) if at_work else 0.0
    return max(ends, default=0.0), busy


def plan_named(question: Question, name: str | None) -> Plan:
    """The plan of that name; without one the only plan, or the first."""
    if name is None:
        return question.plans[0]
    for plan in question.plans:
        if plan.name == name:
            return plan
    raise UnknownNameError("plan", name, [plan.name for plan in question.plans], key="--plan")


class Simulated:
    """A plan's step that ran, of which lanes of ranks are asked.

    Raises
    ------
    InputError
        The scenario asks for requests or iterations; a trace is laid over a step.
    InfeasibleError
        The plan does not fit.
    """

    def __init__(self, question: Question, plan: Plan, costs: Costs | None = None) -> None:
        scenario = question.scenario
        for key in ("traffic", "loop"):
            if getattr(scenario, key) is not None:
                what = "requests" if key == "traffic" else "iterations"
                raise InputError(f"asks for {what}; a trace is laid over one step, stated by workload.pass", key=key)
        own_question = question.on(plan)
        self.question = own_question
        self.job = scheduled(own_question, plan)
        admission = admitted(own_question, self.job)
        if admission.error is not None:
            raise InfeasibleError(f"plan {plan.name}: {admission.error}")
        costs = costs or Costs(own_question.device)
        self.run = step_of(own_question, self.job, costs)
        self._cost = self.job.work.stack.cost(costs, own_question.device, self.job.capture)
        self._seconds: dict[Operator, float] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that were simulated, one of each class."""
        return tuple(entry.rank.number for entry in self.run.submission.ranks)

    def stages(self) -> list[int]:
        """One simulated rank of every role, in their order."""
        return list(
            {entry.role.program.role: entry.rank.number for entry in reversed(self.run.submission.ranks)}.values()
        )[::-1]

    def stands_for(self, rank: int) -> int:
        """The simulated rank for a rank of the machine: itself, else the last representative before it."""
        return max((number for number in self.ranks if number <= rank), default=self.ranks[0])

    def _alone(self, operator: Operator) -> float:
        seconds = self._seconds.get(operator)
        if seconds is None:
            seconds = self._seconds[operator] = max(float(self._cost(operator)), 0.0)
        return seconds

    def lane(self, rank: int) -> RankTimeline:
        """What one simulated rank did."""
        submission = self.run.submission
        timeline = submission.timeline
        columns = timeline.columns()
        rows: NDArray[Any] = np.flatnonzero(columns["rank"] == rank)
        simulated = next(candidate for candidate in submission.ranks if candidate.rank.number == rank)
        starts, ends = columns["start_s"][rows].tolist(), columns["end_s"][rows].tolist()
        operations: list[Operation] = []
        steps: list[SimulatedInstruction] = []
        issued = simulated.role.rows()
        adds = self.job.work.stack.products_accumulate
        for number, (entry, start, end) in enumerate(zip(issued, starts, ends, strict=True)):
            instruction = entry.instruction
            steps.append(SimulatedInstruction(instruction.stream, tuple(entry.after), start, end - start))
            part, stream, layer = instruction.part, instruction.stream, entry.layer
            if isinstance(instruction, Compute):
                alone = [self._alone(operator) for operator in instruction.operators]
                stretch = (end - start) / sum(alone) if sum(alone) > 0.0 else 0.0
                clock = start
                for operator, seconds in zip(instruction.operators, alone, strict=True):
                    if adds and operator.name == ADD_TO_GRADIENT and operations:
                        operations[-1] = replace(operations[-1], seconds=operations[-1].seconds + seconds * stretch)
                        clock += seconds * stretch
                        continue
                    kind, phase, length = kind_of_operator(operator), _phase(part, operator), seconds * stretch
                    operations.append(
                        Operation(
                            number, kind, operator.name, part, phase, layer, stream, clock, length, False, operator,
                            operator.shape,
                        )
                    )  # fmt: skip
                    clock += length
            elif isinstance(instruction, Collective | SendReceive):
                shape = f"{instruction.size_bytes / 1e6:.1f} MB along {instruction.axis}"
                kind, phase = _transfer(instruction), _phase(part, None)
                operations.append(
                    Operation(
                        number, kind, instruction.name, part, phase, layer, stream, start, end - start, True, None,
                        shape, instruction.size_bytes, instruction.axis,
                        instruction if isinstance(instruction, Collective) else None,
                    )
                )  # fmt: skip
            elif not isinstance(instruction, Launch | Copy):
                raise TypeError(type(instruction).__name__)
        return RankTimeline(
            rank, tuple(operations), tuple(steps), submission.makespan_s, self.run.between_s, self.job, self.question,
            self.run.makespan_s,
        )  # fmt: skip


def _phase(part: str, operator: Operator | None) -> str:
    if "optimizer" in part:
        return "optimizer"
    if operator is not None and operator.computes is Computes.WEIGHT_GRADIENT:
        return "weight gradient"
    return "backward" if "backward" in part else "forward"


def _transfer(instruction: Collective | SendReceive) -> str:
    """Kind of a transfer; exchanges with experts by their direction, which their name says."""
    if isinstance(instruction, SendReceive):
        return "send_recv"
    if instruction.tokens is not None:
        return "combine" if instruction.name.startswith("combine") else "dispatch"
    return {"ring_shift": "send_recv"}.get(instruction.kind, instruction.kind)


def ordered(operations: Sequence[Operation]) -> list[Operation]:
    """By start, those of one instruction as it holds them."""
    return sorted(operations, key=lambda operation: operation.start_s)
