"""Time of one engine step from the product's own programs: exactly the answer to a question about that step alone
(:func:`tspsim.step.simulation.run_plan`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import hypot
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import InputError
from ..base.memo import Itself, knowing, once, remembered
from ..base.quick import replace
from ..hardware import Costs
from ..hardware.over_tokens import TOKEN_PRICERS, OverTokens, over_tokens
from ..hardware.pricers import price
from ..operators import BatchQuantity, Gemm, Operator, Role
from ..parallel import Job, Plan, axes_of, build_mesh, scheme_of
from ..parallel.checks import check
from ..parallel.serving_engine import Captured
from ..parallel.step import written_passes
from ..program import Collective, Program, SendReceive
from ..program.instructions import Mesh
from ..program.layout import MOVES, InstructionLayout, StageCall, Timed, flattened, quantities
from ..step import metrics
from ..step.description import range_of
from ..step.question import Question
from ..step.simulation import run, scheduled
from ..steps import DECODE_STEP, MIXED_STEP, PREFILL_STEP, VERIFY_STEP, Load, PromptChunk, Speculation, Step
from .exchanges import Exchanges
from .row_consumers import ALIKE
from .row_prices import RowPrices
from .row_variants import KernelsOfRows, LaidOut, RowMaker, RowVariants, Times
from .work import StepWork

#: The overlap of a step that cannot be split in two.
ALONE = "none"
#: Rows of products on which two ways to price them are compared.
ROWS = (17, 4096)
#: Operators whose seconds are kept.
MOST_OPERATORS = 2**14
#: Context and batch of the step for which a plan's schedule is chosen.
TYPICAL_CONTEXT, TYPICAL_BATCH = 8192, 32


@dataclass(frozen=True)
class Priced:
    """The price of one step."""

    #: From its begin to the begin of the next.
    seconds: float
    #: Seconds of its programs.
    makespan_s: float
    #: Seconds of kernels by family (:attr:`Operator.kind`), mean over ranks.
    compute_s: dict[str, float]
    #: Seconds by part: attention, experts, products, other kernels, collectives by kind, host, idle.
    parts_s: dict[str, float]
    #: Whether it was added up; otherwise the engine ran it.
    chained: bool


#: Programs of a step's stages, and the jobs of its passes.
WrittenPasses = tuple[list[Program], Sequence[Job]]


class Chain(NamedTuple):
    """A step whose kernels and transfers follow each other: its kernel calls with their seconds, and the totals."""

    calls: Sequence[StageCall]
    layout: InstructionLayout
    taken_s: Sequence[float]
    makespan_s: float
    seconds: float


def part_of(operator: Timed) -> str:
    """The part that the time of a kernel, or of a transfer, belongs to."""
    if isinstance(operator, MOVES):
        return operator.kind if isinstance(operator, Collective) else "send_recv"
    if operator.role is Role.ATTENTION:
        return "attention"
    if operator.role.routed:
        return "experts"
    return "products" if operator.kind == "gemm" else "other kernels"


def is_routed(call: StageCall) -> bool:
    """Whether it multiplies routed experts."""
    return isinstance(call.what, Operator) and call.what.role.routed


def by_experts(call: StageCall, quantity: BatchQuantity) -> BatchQuantity:
    """What its size depends on, with the tokens that routed experts get apart from others."""
    return BatchQuantity.EXPERTS if quantity is BatchQuantity.TOKENS and is_routed(call) else quantity


def once_a_plan(changed: dict[Itself, Plan], plan: Plan, **changes: Any) -> Plan:
    """The plan with changes, one object for each plan: what it has found of itself is there for the next step."""
    key = Itself(plan)
    if key not in changed:
        changed[key] = replace(plan, **changes)
    return changed[key]


class StepPrograms:
    """Steps of one plan.

    Parameters
    ----------
    question
        Resolved; its work may be any serving step.
    plan
        One of its plans.
    speculation
        Drafts that decoding sequences verify; None: none.
    """

    def __init__(self, question: Question, plan: Plan, speculation: Speculation | None = None) -> None:
        self.question, self.plan, self.speculation = question, plan, speculation
        self.costs = Costs(question.device)
        cluster = question.cluster
        self.mesh: Mesh = build_mesh(plan, cluster.gpus, cluster.gpus_per_node)
        self._exchanges = Exchanges(cluster, self.mesh)
        self._adds_up = not question.scenario.faults.slow_gpus
        self._plans: dict[str, Plan] = {}
        #: Of each of them the same where a step hides nothing, and with the layers that stand for all.
        self._unhidden: dict[Itself, Plan] = {}
        self._short: dict[Itself, Plan] = {}
        self._operators_s: dict[Captured, Callable[[Operator], float]] = {}
        self._once_s: dict[Captured, Callable[[Operator], float]] = {}
        self._layouts: dict[Hashable, InstructionLayout | None] = {}
        #: Of a product of one row, under a capture: an engine's seconds over its kernel's, None where they differ.
        self._factors: dict[tuple[Gemm, Captured], float | None] = {}
        self._over_tokens: dict[tuple[Operator, ...], OverTokens] = {}
        #: Sequences of a one-pass step → host seconds after its programs, and those beside them.
        self._hosts: dict[int, tuple[float, float]] = {}
        self.decode_step = VERIFY_STEP if speculation and speculation.tokens else DECODE_STEP
        #: Numbers of programs written and of engine runs so far.
        self.written = self.ran = 0

    def prepare(self) -> None:
        """Finds what steps of all sizes need."""
        _ = self._between_s
        with suppress(InputError):
            _ = self.divides_prompts

    # --- jobs -------------------------------------------------------------------------------------------------

    def job(self, step: Step, load: Load) -> Job:
        """One step of the plan, with the schedule of a typical one."""
        question, plan = self.question, self._plan_of(step)
        if plan.hiding.halves and load.batch + load.prompts < 2:
            plan = once_a_plan(self._unhidden, plan, expert_overlap=ALONE)
        return Job(question.model, plan, replace(question.work, pass_=step.name, load=load))

    def _plan_of(self, step: Step) -> Plan:
        """The plan with the schedule of a typical step."""
        if step.name not in self._plans:
            work = replace(self.question.work, pass_=step.name, load=self._typical(step))
            chosen = scheduled(replace(self.question, work=work), self.plan)
            check(chosen)
            self._plans[step.name] = chosen.plan
        return self._plans[step.name]

    def _typical(self, step: Step) -> Load:
        longest = self.question.model.max_context or TYPICAL_CONTEXT
        context = min(TYPICAL_CONTEXT, longest // 2)
        prompts = 2 if self.plan.hiding.halves else 1
        load = Load(prompts=prompts, prompt=context) if "sequence" in step.needs else Load()
        if "batch" in step.needs:
            load = replace(load, batch=TYPICAL_BATCH, contexts=(context,), speculation=self.speculation)
        return load

    @once
    def divides_prompts(self) -> bool:
        """Whether ranks divide the tokens of a prompt that is read alone."""
        return self.job(PREFILL_STEP, self._typical(PREFILL_STEP)).token_shards > 1

    def decoding(self, contexts: Sequence[int], expert_share: float = 1.0) -> Job:
        """A step in which every sequence puts out a token, or verifies drafts."""
        load = Load(
            batch=len(contexts), contexts=tuple(contexts), speculation=self.speculation, expert_share=expert_share
        )
        return self.job(self.decode_step, load)

    def of(self, work: StepWork, expert_share: float = 1.0) -> list[Job]:
        """The jobs of a step: one pass; or, if nothing decodes and ranks can divide the tokens of prompts and that
        takes less, one pass per chunk, divided or not. ``expert_share``: mean tokens of the replicas that
        share experts, relative to these."""
        together = self.together(work, expert_share)
        if work.sequences or not work.chunks or not self.divides_prompts:
            return together
        alone: list[Job] = []
        for chunk in work.chunks:
            ways = self.divided(chunk, expert_share), self.together(StepWork((chunk,)), expert_share)
            alone += min(ways, key=self.seconds)
        return min(alone, together, key=self.seconds)

    def divided(self, chunk: PromptChunk, expert_share: float = 1.0) -> list[Job]:
        """A pass of one chunk of a prompt whose tokens ranks divide evenly, with padding."""
        plan = self._plan_of(PREFILL_STEP)
        parts = plan.token_shards * (2 if plan.partition == "zigzag" else 1)
        tokens = -(-chunk.query_tokens // parts) * parts
        load = Load(prompts=1, prompt=tokens, cached=chunk.context_tokens, expert_share=expert_share)
        return [self.job(PREFILL_STEP, load)]

    def together(self, work: StepWork, expert_share: float = 1.0) -> list[Job]:
        """One pass of all work. Chunks that decode kernels would run are padded where prefill kernels take less."""
        first, *longer = self._ways(work, expert_share)
        return [min((first, *longer), key=self._job_s)] if longer else [first]

    def together_s(self, work: StepWork, expert_share: float = 1.0) -> float:
        """Seconds of that pass."""
        return min(map(self._job_s, self._ways(work, expert_share)))

    def _ways(self, work: StepWork, expert_share: float) -> list[Job]:
        """A pass of all work; where decode kernels run some chunks, also one with padded chunks."""
        if not work.chunks:
            return [self.decoding(work.contexts, expert_share)]
        job = self.mixed(work, expert_share)
        return [job, job.padding_prompts()] if job.work.load.short_prompts else [job]

    def mixed(self, work: StepWork, expert_share: float = 1.0) -> Job:
        """A pass of chunks of prompts beside decoding sequences, none of them padded."""
        load = Load(
            prompts=len(work.chunks),
            prompt_chunks=work.chunks,
            batch=work.sequences,
            contexts=work.contexts,
            speculation=self.speculation,
            expert_share=expert_share,
        )
        return self.job(MIXED_STEP, load)

    # --- parts of a step -------------------------------------------------------------------------------------

    @once
    def query_len(self) -> int:
        """Positions that a decoding sequence computes."""
        return 1 + (self.speculation.tokens if self.speculation else 0)

    def written_of(self, job: Job) -> WrittenPasses:
        """The programs of a job's stages, and the jobs of the last one's passes."""
        self.written += 1
        stages = [written_passes(scheme_of(job.plan), job, {"pp": stage}) for stage in range(job.plan.pp)]
        return [program for program, _ in stages], [part for _, passes in stages for part in passes]

    def laid_out(self, job: Job) -> LaidOut:
        """The different kernel calls of a job's programs, and their positions."""
        return self._variants.laid_out(job)[0]

    def variant(self, job: Job) -> tuple[LaidOut, dict[int, RowMaker]] | None:
        """A step's program, where only operators of rows change with these, with what makes each of them, by position;
        None for other steps, and where not all of it follows one another."""
        if not self._adds_up or not self._variants.alone(job):
            return None
        first, written = self._variants.laid_out(job)
        if written is None or not first.layout.chained:
            return None
        return first, self._variants.makers_of(job, first.layout)

    def calls_of_rows(self, job: Job, layout: InstructionLayout, positions: Sequence[int]) -> list[StageCall] | None:
        """Of a job whose programs have this layout, calls that are made of rows alone; None where others are asked
        for."""
        return self._variants.of_rows(job, layout, positions)

    def makers_of_rows(
        self, job: Job, layout: InstructionLayout, positions: Mapping[BatchQuantity, Sequence[int]]
    ) -> dict[BatchQuantity, list[KernelsOfRows]]:
        """What makes calls of the rows of the model's own pass: of all parts of a step that are made so."""
        return self._variants.makers_at(job, layout, positions)

    @once
    def _variants(self) -> RowVariants:
        return RowVariants(self.written_out)

    def written_out(self, job: Job) -> tuple[LaidOut, Sequence[Job]]:
        """The same from programs written for this job, and the jobs of their passes."""
        layout, every, _, passes = self._looked_up(job)
        return LaidOut(layout.different(every), layout), passes

    def quantities(self, job: Job) -> list[BatchQuantity]:
        """What the size of each of the different kernel calls depends on."""
        layout, _, stages, _ = self._looked_up(job)
        every = quantities(stages)
        return [every[index] for index, _ in layout.where]

    def passes(self, job: Job) -> Sequence[Job]:
        """The passes of a job's programs as they were written: the model's, and its drafter's."""
        return self._looked_up(job)[3]

    def _looked_up(self, job: Job) -> tuple[InstructionLayout, list[Timed], list[Program], Sequence[Job]]:
        """The layout of a job's programs; the kernels and transfers in which it is looked up, their programs and the
        jobs of their passes."""
        shorter, passes = self._shorter(job)
        form, every = flattened(shorter)
        key = job.capture, form
        if key not in self._layouts:
            self._layouts[key] = InstructionLayout.of(self.written_of(job)[0], shorter)
        layout = self._layouts[key]
        if layout is not None:
            return layout, every, shorter, passes
        # Some of its instructions are not in the shorter program.
        whole, passes = self.written_of(job)
        layout = InstructionLayout.of(whole, whole)
        assert layout is not None
        return layout, flattened(whole)[1], whole, passes

    def _shorter(self, job: Job) -> WrittenPasses:
        """The programs with the fewest layers that contain all kinds. With a pipeline, all layers."""
        if job.plan.pp > 1:
            return self.written_of(job)
        plan = once_a_plan(self._short, job.plan, stage_layers=(self._different_layers,))
        # The passes are those of the whole model.
        return self.written_of(knowing(replace(job, plan=plan), passes=job.passes))

    @once
    def _different_layers(self) -> int:
        """Number of first layers that contain all kinds."""
        blocks = self.question.model.blocks
        return 1 + max(blocks.index(block) for block in dict.fromkeys(blocks))

    def taken_s(self, calls: Iterable[StageCall], captured: Captured) -> Times:
        """Seconds of kernel calls under a capture; None where only the engine can price some: transfers whose groups
        share links unevenly."""
        cost, exchanges = self._known(captured), self._exchanges
        taken = [exchanges.seconds(what, stage) if isinstance(what, MOVES) else cost(what) for what, stage in calls]
        return None if None in taken else taken  # type: ignore[return-value]

    def once_s(self, captured: Captured) -> Callable[[Operator], float]:
        """Seconds of operators under a capture, without memoization."""
        if captured not in self._once_s:
            question = self.question
            self._once_s[captured] = question.work.stack.cost(self._price, question.device, captured)
        return self._once_s[captured]

    @once
    def rows(self) -> RowPrices:
        """Seconds of kernels as functions of rows."""
        return RowPrices(self.question.device, self.once_s)

    def over_tokens(self, products: Mapping[int, Timed], captured: Captured) -> tuple[OverTokens, list[int]]:
        """Seconds of several kernels by their rows, many numbers at once, and the keys of those of which it is known,
        in order: as they are priced one by one, up to a factor (an engine's own pace)."""
        engine = self.question.work.stack.engine
        proportional: list[tuple[int, Operator, float]] = []
        for key, what in products.items():
            if isinstance(what, Gemm) and type(what) in TOKEN_PRICERS:
                one = what.over(1)
                if (one, captured) not in self._factors:
                    self._factors[one, captured] = self._factor_of(one, engine.finding(one), captured)
                factor = self._factors[one, captured]
                if factor is not None:
                    proportional.append((key, engine.finding(one), factor))
        every = tuple([product for _, product, _ in proportional])
        if every not in self._over_tokens:
            self._over_tokens[every] = over_tokens(self.question.device, every)
        over, factors = self._over_tokens[every], np.array([factor for _, _, factor in proportional])[:, None]
        return lambda rows: factors * over(rows), [key for key, _, _ in proportional]

    def _factor_of(self, one: Gemm, priced: Operator, captured: Captured) -> float | None:
        """An engine's seconds of a product over those of its kernel; None where they are not proportional."""
        cost, alone_s = self.once_s(captured), over_tokens(self.question.device, (priced,))(np.array([ROWS]))[0]
        ratios = [cost(one.over(m)) / own_s for m, own_s in zip(ROWS, alone_s.tolist(), strict=True)]
        return ratios[0] if max(ratios) - min(ratios) <= ALIKE * min(ratios) else None

    def _known(self, captured: Captured) -> Callable[[Operator], float]:
        """Seconds of operators under a capture, memoized."""
        if captured not in self._operators_s:
            cost = self.question.work.stack.cost(self.costs, self.question.device, captured)
            self._operators_s[captured] = remembered(MOST_OPERATORS)(cost)
        return self._operators_s[captured]

    def experts_s(self, tokens: int, captured: Captured) -> float:
        """Seconds of the experts' kernels in a decode step with a mean of ``tokens`` tokens per replica."""
        calls, layout = self.laid_out(self.decoding((TYPICAL_BATCH,), tokens / self.query_len))
        runs = layout.follows[list(layout.starts)].sum(axis=0).tolist()
        routed = [(call, count) for call, count in zip(calls, runs, strict=True) if is_routed(call)]
        taken_s = self.taken_s([call for call, _ in routed], captured)
        assert taken_s is not None
        return float(sum(count * call_s for (_, count), call_s in zip(routed, taken_s, strict=True)))

    def _price(self, operator: Operator) -> float:
        return float(price(self.question.device, operator).seconds)

    def host_s(self, sequences: int, makespan_s: float) -> float:
        """Host seconds after the programs of a one-pass step (:func:`tspsim.step.metrics.host_s`)."""
        hosts = self._hosts.get(sequences)
        if hosts is None:
            stack = self.question.work.stack
            visible_s = stack.step_s + stack.engine.host_s(sequences) + self._between_s
            hosts = self._hosts[sequences] = visible_s, stack.engine.hidden_s(sequences)
        visible_s, hidden_s = hosts
        return visible_s + (hidden_s - makespan_s if hidden_s > makespan_s else 0.0)

    @once
    def _between_s(self) -> float:
        """Fixed seconds of a pass (:func:`tspsim.step.metrics.between_s`)."""
        return metrics.host_of_a_pass_s(self.decoding((1,)))

    # --- times ------------------------------------------------------------------------------------------------

    def seconds(self, jobs: Iterable[Job]) -> float:
        """Seconds of consecutive passes."""
        return sum(map(self._job_s, jobs))

    def _job_s(self, job: Job) -> float:
        chain = self.chain(job) if self._adds_up else None
        return self.simulated(job).seconds if chain is None else chain.seconds

    def price(self, job: Job) -> Priced:
        """One step, added up if it is a chain."""
        chain = self.chain(job) if self._adds_up else None
        return self.simulated(job) if chain is None else self._added_up(job, chain)

    def chain(self, job: Job) -> Chain | None:
        """A step whose programs form a chain; None for any other."""
        if not self._variants.alone(job) and set(axes_of(job)) != {"pp"}:
            return None
        (calls, layout), written = self._variants.laid_out(job)
        if not layout.chained:
            return None

        def price(some: Iterable[StageCall]) -> Times:
            return self.taken_s(some, job.capture)

        taken_s = price(calls) if written is None else written.taken_s(calls, price)
        if taken_s is None:
            return None
        makespan_s = layout.makespan_s(taken_s)
        slowest_s = layout.slowest_s(taken_s) if job.plan.pp > 1 else 0.0
        period_s = metrics.turn_s(job, makespan_s, slowest_s)
        return Chain(calls, layout, taken_s, makespan_s, makespan_s + metrics.host_s(job, period_s, makespan_s))

    def _added_up(self, job: Job, chain: Chain) -> Priced:
        stages, layout = len(chain.layout.starts), chain.layout
        runs = layout.follows[list(layout.starts)].tolist()
        compute: defaultdict[str, float] = defaultdict(float)
        parts: defaultdict[str, float] = defaultdict(float)
        for index, ((what, stage), call_s) in enumerate(zip(chain.calls, chain.taken_s, strict=True)):
            # A message takes as long on the receiving stage as on the sending one.
            taken_s = runs[stage][index] * call_s * (2 if isinstance(what, SendReceive) else 1) / stages
            if isinstance(what, Operator):
                compute[what.kind] += taken_s
            if taken_s or isinstance(what, Operator):
                parts[part_of(what)] += taken_s
        host = job.work.stack.step_s + metrics.host_of_passes_s(job)
        parts["host"] += host
        parts["idle"] += max(0.0, chain.seconds - sum(parts.values()))
        return Priced(chain.seconds, chain.makespan_s, dict(compute), dict(parts), chained=True)

    def transfer_s(self, transfer: Collective | SendReceive, stage: int) -> float | None:
        """Seconds of a transfer; None where groups share links unevenly."""
        return self._exchanges.seconds(transfer, stage)

    def transfer_range(self, transfer: Collective | SendReceive, stage: int) -> tuple[float, float]:
        """Low and high factor of a transfer's seconds (90 % interval)."""
        return self._exchanges.range_of(transfer, stage)

    def range_of(self, job: Job) -> tuple[float, float]:
        """The 90 % range of a step's seconds, as factors: that of the step alone, and of the engine's host."""
        costs, stack = Costs(self.question.device), job.work.stack
        submission = run(self.question, self.mesh, job, costs, every_rank=False)
        costs.transfers = metrics.transfer_range(submission) or costs.transfers
        makespan_s = submission.makespan_s
        seconds = makespan_s + metrics.host_s(job, metrics.period_s(job, submission), makespan_s)
        step_range = range_of(costs, 1.0, seconds, metrics.breakdown(submission), stack)
        sequences = sum(batch.sequences for batch in job.forwards)
        host_s, (least_s, most_s) = stack.engine.host_s(sequences), stack.engine.host_range_s(sequences)
        faster = hypot(seconds - 1.0 / step_range.high, host_s - least_s)
        slower = hypot(1.0 / step_range.low - seconds, most_s - host_s)
        return max(0.0, 1.0 - faster / seconds), 1.0 + slower / seconds

    def simulated(self, job: Job, *, every_rank: bool = False) -> Priced:
        """The step as the engine simulates it."""
        self.ran += 1
        submission = run(self.question, self.mesh, job, self.costs, every_rank=every_rank)
        makespan_s = submission.makespan_s
        period_s = metrics.period_s(job, submission)
        between_s = metrics.host_s(job, period_s, makespan_s)
        breakdown = metrics.breakdown(submission)
        parts = dict(breakdown.exposed_s)
        names = {"gemm": "products", "memory_bound": "other kernels"}
        for family, taken in breakdown.compute_s.items():
            name = names.get(family, family)
            parts[name] = parts.get(name, 0.0) + taken
        host = job.work.stack.step_s + metrics.host_of_passes_s(job)
        parts |= {"host": host + breakdown.host_s, "idle": max(0.0, between_s - host + breakdown.idle_s)}
        return Priced(makespan_s + between_s, makespan_s, dict(breakdown.compute_s), parts, chained=False)
