"""The simulated side of a comparison: the operators of one rank of a plan, and a replay of the rank.

A row of a timeline is an instruction, which may be several kernels. Here each of its operators gets a part of the row,
in proportion to the operator's own time. :func:`replay` runs a rank's instructions again with other times. Streams run
in order, and an instruction begins after its dependencies. Further delays of the simulation (peers that come late) keep
their length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, UnknownNameError
from ..engine.ranks import ROUNDS, second_round
from ..hardware import Costs
from ..hardware.pricers import price
from ..hardware.prices import cast_of
from ..operators import Computes, DeltaScan, FusedMoE, Gemm, GroupedGemm, Operator, Role
from ..parallel import Job, Plan
from ..parallel.stack import ADD_TO_GRADIENT, NORMED_ROTATION
from ..program import Collective, Compute, Copy, Launch, SendReceive
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
#: Small operators whose gradients are operators of their own.
_HAVE_GRADIENTS = frozenset({"norm", "activation"})
#: Part of a program that gathers weights.
_GATHERS = "weights"
#: Parts of a program that gather weights and that sum gradients.
_SHARDED = frozenset({_GATHERS, "gradients"})
_BY_OP = {
    "cache_write": "cache",
    "softmax": "sample",
    "adamw": "optimizer",
    "add": "elementwise",
    "copy": "quantize",
    "cast": "quantize",
    "cast_back": "quantize",
}


def kind_of_operator(operator: Operator) -> str:
    """The kind (:mod:`.kinds`) of an operator, by its role in the layer."""
    if isinstance(operator, GroupedGemm | FusedMoE):
        return "grouped_gemm"
    if operator.kind == "gemm":
        return "gemm"
    if operator.kind == "attention":
        return "linear_attention" if isinstance(operator, DeltaScan) else "attention"
    op = getattr(operator, "op", "")
    if op == "cache_write":
        return "cache"
    return _BY_ROLE.get(operator.role) or _BY_OP.get(op, "elementwise")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator of one instruction, or a transfer."""

    #: Index of its instruction in :attr:`RankTimeline.steps`.
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
    #: A transfer's bytes as nccl-tests count them, and the axis of its group.
    size_bytes: float = 0.0
    axis: str = ""
    #: The instruction of a collective.
    collective: Collective | None = None
    #: A cast that is part of the price of the product behind it.
    prepares: bool = False

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """m, n, k of a plain product."""
        return (self.operator.m, self.operator.n, self.operator.k) if isinstance(self.operator, Gemm) else None

    @property
    def merges(self) -> bool:
        """Whether it joins the outputs of attention over pieces of a context."""
        return self.operator is not None and self.operator.role is Role.MERGE

    @property
    def runs_forward(self) -> bool:
        """Whether its kernels are those of a forward pass: what a backward pass computes again too."""
        again = self.kind == "attention" and self.computes is Computes.OUTPUT
        return self.phase == "forward" or self.part.endswith(" again") or again

    @property
    def computes(self) -> Computes:
        """The result of a product that it computes: output or a gradient; the output for other operators."""
        return self.operator.computes if self.operator is not None else Computes.OUTPUT

    @property
    def adds(self) -> bool:
        """Whether it adds around a norm, and is no norm itself."""
        return self.kind == "norm" and getattr(self.operator, "op", "") == "copy"

    @property
    def gives_output(self) -> bool:
        """Whether it is a small operator of a forward pass, computed again or not, whose gradient is another one."""
        return self.kind in _HAVE_GRADIENTS and self.operator is not None and self.computes is Computes.OUTPUT

    @property
    def joins(self) -> str:
        """The role of a product of several weights (Q, K and V; gate and up), which some frameworks multiply one by
        one."""
        return self.operator.role if self.operator is not None and self.operator.role in _JOINED else ""

    @property
    def is_whole(self) -> bool:
        """Whether its price holds kernels of other kinds too: experts with what routes, activates and sums around them,
        and rotations with the norms of heads."""
        return isinstance(self.operator, FusedMoE) or getattr(self.operator, "op", "") == NORMED_ROTATION

    @property
    def of_dense_mlp(self) -> bool:
        """Whether it is a product of a dense MLP, or of shared experts."""
        return self.kind == "gemm" and self.operator is not None and self.operator.role in (Role.GATE_UP, Role.DOWN)

    @property
    def is_wide(self) -> bool:
        """Whether it is a product with operands of at least 16 bits."""
        operator = self.operator
        if operator is None or self.kind not in ("gemm", "grouped_gemm"):
            return False
        return operator.dtype in _WIDE and getattr(operator, "weight_dtype", None) in (None, *_WIDE)

    @property
    def kernels(self) -> int:
        """Kernels that the simulation counts for it."""
        return self.operator.kernels if self.operator is not None else 1

    @property
    def calls(self) -> int:
        """Number of kernels in a library without a grouped product."""
        return self.operator.batch if isinstance(self.operator, GroupedGemm) else 1


@dataclass(frozen=True, slots=True)
class SimulatedInstruction:
    """An instruction and its simulated times."""

    stream: str
    after: tuple[int, ...]
    start_s: float
    seconds: float


@dataclass(frozen=True)
class RankTimeline:
    """The work of one rank in a simulated step, or in a stretch of one.

    ``makespan_s`` is the time from the first instruction to the last, ``between_s`` the time until the next step
    begins.
    """

    rank: int
    operations: tuple[Operation, ...]
    steps: tuple[SimulatedInstruction, ...]
    makespan_s: float
    between_s: float
    job: Job
    question: Question
    #: Length of the whole simulated step.
    step_s: float = 0.0

    @property
    def span_s(self) -> float:
        """Time from the rank's first kernel to the end of its last."""
        begin = min((operation.start_s for operation in self.operations), default=0.0)
        return max((operation.end_s for operation in self.operations), default=begin) - begin

    @property
    def layers(self) -> int:
        return len({operation.layer for operation in self.operations if operation.layer >= 0})

    def window(self, start_s: float, end_s: float) -> RankTimeline:
        """The instructions that begin in a stretch of time."""
        kept = [index for index, step in enumerate(self.steps) if start_s <= step.start_s < end_s]
        return self._of(kept, start_s)

    def of_layers(self, first: int, count: int) -> RankTimeline:
        """The instructions of some layers that follow each other."""
        own = {item.instruction for item in self.operations if first <= item.layer < first + count}
        return self._of(sorted(own), min((self.steps[index].start_s for index in own), default=0.0))

    def _of(self, kept: Sequence[int], start_s: float) -> RankTimeline:
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
    """The end of the last instruction and the busy time, where some instructions take other ``seconds``.

    Without other times the end is the lane's makespan.
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
    """The plan with a name; without a name the first plan."""
    if name is None:
        return question.plans[0]
    for plan in question.plans:
        if plan.name == name:
            return plan
    raise UnknownNameError("plan", name, [plan.name for plan in question.plans], key="--plan")


class Simulated:
    """A simulated step of a plan, and the lanes of its ranks.

    Raises
    ------
    InputError
        The scenario asks for requests or iterations; a trace is laid over a step.
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
        #: Why the plan would not fit; what was measured did.
        self.unfit = admitted(own_question, self.job).error or ""
        costs = costs or Costs(own_question.device)
        self.run = step_of(own_question, self.job, costs)
        self._cost = self.job.work.stack.cost(costs, own_question.device, self.job.capture)
        slowdown = self.job.work.stack.slowdown(own_question.device)
        #: Time beside a transfer over time alone, of a kernel and of one that runs a whole second round.
        self._beside = (slowdown, max(slowdown, ROUNDS))
        self._seconds: dict[Operator, float] = {}
        self._casts: dict[Operator, float] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The simulated ranks, one of each class."""
        return tuple(entry.rank.number for entry in self.run.submission.ranks)

    def stages(self) -> list[int]:
        """One simulated rank of every role, in the order of roles."""
        return list(
            {entry.role.program.role: entry.rank.number for entry in reversed(self.run.submission.ranks)}.values()
        )[::-1]

    def stands_for(self, rank: int) -> int:
        """The simulated rank for a rank of the machine: the rank itself, else the last representative before it."""
        return max((number for number in self.ranks if number <= rank), default=self.ranks[0])

    def _alone(self, operator: Operator) -> float:
        seconds = self._seconds.get(operator)
        if seconds is None:
            seconds = self._seconds[operator] = max(float(self._cost(operator)), 0.0)
        return seconds

    def _cast_share(self, operator: Operator) -> float:
        """The share of a product's time in which a kernel casts what it reads."""
        if not isinstance(operator, Gemm):
            return 0.0
        share = self._casts.get(operator)
        if share is None:
            device = self.question.device
            cast = float(cast_of(device, operator).seconds)
            share = self._casts[operator] = cast / float(price(device, operator).seconds) if cast else 0.0
        return share

    def _lengths(self, operators: Sequence[Operator], total_s: float) -> list[float]:
        """The part of each operator in the time of an instruction. What transfers beside it cost falls to kernels that
        run a second round more than to others."""
        alone = [self._alone(operator) for operator in operators]
        usual, whole = self._beside
        rounds = [second_round(operator.resident) if operator.resident else 0.0 for operator in operators]
        beside = [usual + (whole - usual) * share for share in rounds]
        lost = [seconds * (factor - 1.0) for seconds, factor in zip(alone, beside, strict=True)]
        if not any(operator.resident for operator in operators) or not sum(lost):
            stretch = total_s / sum(alone) if sum(alone) > 0.0 else 0.0
            return [seconds * stretch for seconds in alone]
        share = (total_s - sum(alone)) / sum(lost)
        return [seconds + share * more for seconds, more in zip(alone, lost, strict=True)]

    def lane(self, rank: int) -> RankTimeline:
        """The timeline of one simulated rank."""
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
                clock = start
                lengths = self._lengths(instruction.operators, end - start)
                for operator, length in zip(instruction.operators, lengths, strict=True):
                    if adds and operator.name == ADD_TO_GRADIENT and operations:
                        operations[-1] = replace(operations[-1], seconds=operations[-1].seconds + length)
                        clock += length
                        continue
                    kind, phase = kind_of_operator(operator), _phase(part, operator)
                    if part in _SHARDED and getattr(operator, "op", "") == "copy":
                        kind = "copy"  # a shard's weights are copied out of what was gathered, and gradients into it
                    cast_s = self._cast_share(operator) * length
                    if cast_s:
                        name, shape = f"cast for {operator.name}", operator.shape
                        operations.append(
                            Operation(
                                number,
                                "quantize",
                                name,
                                part,
                                phase,
                                layer,
                                stream,
                                clock,
                                cast_s,
                                False,
                                None,
                                shape,
                                prepares=True,
                            )
                        )
                        clock, length = clock + cast_s, length - cast_s
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
        operations = _with_phases_of_gathers(operations, steps)
        return RankTimeline(
            rank, tuple(operations), tuple(steps), submission.makespan_s, self.run.between_s, self.job, self.question,
            self.run.makespan_s,
        )  # fmt: skip


#: Parts of a program that run in a backward pass: what is computed again too, and sums of gradients, which autograd's
#: engine launches.
_BACK = re.compile(r"backward|\bagain\b|^gradients$")


def phase_of_part(part: str) -> str:
    """The pass that a part of a program is of."""
    if "optimizer" in part:
        return "optimizer"
    return "backward" if _BACK.search(part) else "forward"


def _phase(part: str, operator: Operator | None) -> str:
    phase = phase_of_part(part)
    gradient = operator is not None and operator.computes is Computes.WEIGHT_GRADIENT
    return "weight gradient" if gradient and phase != "optimizer" else phase


def _with_phases_of_gathers(operations: list[Operation], steps: Sequence[SimulatedInstruction]) -> list[Operation]:
    """Gathers of weights, and the copies behind them, with the phase of the kernels that use the weights: a shard's
    weights are gathered forward and backward."""
    gathers = {item.instruction for item in operations if item.part == _GATHERS}
    if not gathers:
        return operations
    phases = {item.instruction: item.phase for item in reversed(operations) if item.part != _GATHERS}
    used = dict(phases)
    #: By stream the phase of the next instruction that is no gather, and by gather that of the first one behind it.
    following: dict[str, str] = {}
    behind: dict[int, str] = {}
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if index in gathers:
            used[index] = behind.get(index) or following.get(step.stream, "")
        elif index in phases:
            following[step.stream] = phases[index]
        for earlier in step.after:
            if earlier in gathers and used.get(index):
                behind[earlier] = used[index]
    return [
        replace(item, phase=used[item.instruction]) if item.part == _GATHERS and used.get(item.instruction) else item
        for item in operations
    ]


def _transfer(instruction: Collective | SendReceive) -> str:
    """Kind of a transfer; exchanges with experts by their direction, which is in their name."""
    if isinstance(instruction, SendReceive):
        return "send_recv"
    if instruction.tokens is not None:
        return "combine" if instruction.name.startswith("combine") else "dispatch"
    return {"ring_shift": "send_recv"}.get(instruction.kind, instruction.kind)


def ordered(operations: Sequence[Operation]) -> list[Operation]:
    """Operations by start; those of one instruction keep their order."""
    return sorted(operations, key=lambda operation: operation.start_s)
