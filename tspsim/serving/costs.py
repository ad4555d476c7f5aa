"""Costs of an engine's steps from the product's own programs, tabulated on demand.

A step is written as a program and added up, or run by the engine (:mod:`.programs`): exactly the answer of a question
about that step alone. A run needs many thousand similar steps, so decode steps are tabulated (:class:`Decodes`), and
linear interpolation between tabulated points stays within :data:`~tspsim.serving.tables.EPSILON`.

With a pipeline the seconds of a decode step are its period (:func:`tspsim.step.metrics.turn_s`): as many parts of the
batch run at once as there are stages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from ..base.memo import BoundedCache, Itself, once
from ..parallel import Plan
from ..parallel.draft import DRAFTS
from ..parallel.engine_memory import ALL_FOR_CACHES
from ..parallel.serving_engine import NO_GRAPHS
from ..parallel.state import capacity
from ..parallel.state.capacity import Capacity
from ..program import Launch
from ..step.question import Question
from ..steps import PromptChunk, Speculation
from .compositions import StepComposition
from .decodes import Decodes
from .grid import Cells, around
from .mixed import Mixed
from .model_drafts import ModelDrafts, hiding_nothing
from .overlapped import Overlapped
from .programs import ALONE, Priced, StepPrograms
from .sampled import Deviation, Seen
from .shape import Shape
from .step_ranges import StepRanges
from .tables import Floats, KnotCurve
from .traffic import ProcessTimes
from .work import StepWork

#: MOST_KEPT: steps with prompts whose seconds, or ranges, are kept. MOST_PLANS: plans per cluster whose tables are
#: kept.
MOST_KEPT, MOST_PLANS = 4096, 64
#: Tokens of a prompt whose launches are counted.
TYPICAL_PROMPT = 512
Found = TypeVar("Found")


@dataclass
class PlanTables:
    """Tables of a plan's steps that do not depend on captured graphs: curves of decode steps, shapes of steps with
    prompts, overlapped and serial."""

    curves: dict[Hashable, KnotCurve] = field(default_factory=dict)
    shapes: dict[StepComposition, Shape | None] = field(default_factory=dict)
    serial: dict[StepComposition, Shape | None] = field(default_factory=dict)


class ProgramCosts:
    """Costs of the steps of one plan's engine (:class:`tspsim.serving.work.StepCost`).

    Parameters
    ----------
    question, plan
        Resolved; the work's step does not matter, but it must be a serving one.
    speculation
        Drafts that decoding sequences verify in every step; None: none.
    num_gpu_blocks
        Blocks of the cache as stated, instead of the memory rule's.
    tables
        Tables of other engines of the same plan.
    """

    def __init__(
        self,
        question: Question,
        plan: Plan,
        *,
        speculation: Speculation | None = None,
        num_gpu_blocks: int | None = None,
        tables: PlanTables | None = None,
    ) -> None:
        self.question, self.plan, self.num_gpu_blocks = question, plan, num_gpu_blocks
        tables = tables or PlanTables()
        self.programs = StepPrograms(question, plan, speculation)
        self._decodes = Decodes(self.programs, tables.curves)
        breakpoints = self._decodes.breakpoints
        plain = StepPrograms(capturing_nothing(question), plan, speculation)
        self._mixed = Mixed(self.programs, plain, tables.shapes, breakpoints)
        quiet = replace(plan, expert_overlap=ALONE), undrafted(speculation)
        serial = StepPrograms(question, *quiet), StepPrograms(capturing_nothing(question), *quiet)
        self._overlapped = Overlapped(self.programs, Mixed(*serial, tables.serial, breakpoints, serial=True))
        #: Passes of a draft model have tables of their own beside prompts, and so have steps that only verify.
        self._drafter: ModelDrafts | None = None
        if speculation is not None and speculation.model is not None and speculation.tokens and plan.pp == 1:
            self._drafter = ModelDrafts(question, plan, speculation, costs_of)
            self._verifier = costs_of(hiding_nothing(question), plan, speculation=undrafted(speculation))
        self._alone: dict[int, Cells] = {}
        self._seen = Seen()
        self._ranges, self._kept = BoundedCache(MOST_KEPT), BoundedCache(MOST_KEPT)

    # --- steps ------------------------------------------------------------------------------------------------

    def seconds(self, works: Sequence[StepWork]) -> float:
        """Seconds of one step. Attention replicas that step together all wait for the busiest; experts process the
        tokens of all."""
        self._seen.add(works)
        return self._together(works)

    def prepare(self) -> None:
        """Writes the programs that all tables begin with, so that the first step asked for takes no longer than
        others."""
        self._decodes.prepare()
        if self._drafter is not None:
            self._verifier.prepare()
        else:
            self._mixed.prepare()
            self._mixed.plain.prepare()
        self.programs.prepare()

    def seconds_of(self, work: StepWork) -> float:
        """Seconds of one step of one attention replica, which is not kept for :meth:`check`."""
        return self._seconds(work, None)

    def _together(self, works: Sequence[StepWork]) -> float:
        if len(works) == 1:
            return self._seconds(works[0], None)
        experts = self._mean_tokens(works)
        return max(self._seconds(work, experts) for work in works if work.tokens)

    def _mean_tokens(self, works: Sequence[StepWork]) -> int | None:
        """Mean tokens of attention replicas that share experts, each with its padding; None where all have the same
        number."""
        tokens = [self._padded(work) for work in works]
        return None if len(set(tokens)) == 1 else -(-sum(tokens) // len(tokens))

    def _padded(self, work: StepWork) -> int:
        if not work.chunks:
            return self._decodes.padded(work.sequences) * work.query_len if work.sequences else 0
        rows = [(tokens, context, 1) for tokens, context, _ in work.chunks]
        if work.sequences:
            rows.append((work.query_len, max(1, work.context_tokens // work.sequences), work.sequences))
        filled = self.question.work.stack.engine.filled(tuple(rows), self.programs.query_len)
        return sum(query_len * count for query_len, _, count in filled)

    def decode_ends_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        """Ends of the next ``steps`` decode steps, from now on: shape (steps,)."""
        return self.decode_each_s(works, steps).cumsum()

    def decode_each_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        """Seconds of each of these steps: shape (steps,)."""
        self._seen.add(works, steps)
        experts = self._mean_tokens(works)
        by_replica = [self._decodes.steps_s(work, steps, experts) for work in works if work.sequences]
        taken: Floats = by_replica[0] if len(by_replica) == 1 else np.max(by_replica, axis=0)
        return taken

    def _seconds(self, work: StepWork, expert_tokens: int | None) -> float:
        if not work.columns[0]:
            return self._decodes.step_s(work, expert_tokens)
        whole_s = self._whole_s(work, expert_tokens)
        if work.sequences or not self.programs.divides_prompts:
            return whole_s
        alone_s = [
            min(self._piece(*chunk[:2]), self._whole_s(StepWork((chunk,)), expert_tokens)) for chunk in work.chunks
        ]
        return min(whole_s, sum(alone_s))

    def _whole_s(self, work: StepWork, expert_tokens: int | None) -> float:
        """Seconds of a step with prompts in one pass."""
        if self._drafter is not None:
            sequences = work.sequences + len(work.chunks)
            alone_s = self._verifier._whole_s(work, expert_tokens) - self._verifier.programs.host_s(sequences, 0.0)
            device_s = alone_s + self._drafter.seconds(work)
            return device_s + self.programs.host_s(sequences, device_s)
        for table in (self._mixed, self._overlapped):
            seconds = table.seconds(work, expert_tokens)
            if seconds is not None:
                return seconds
        # Pieces that decode kernels read may have no tables: programs of such steps are written.
        key = work, expert_tokens
        if key not in self._kept:
            share = 1.0 if expert_tokens is None else expert_tokens / self._padded(work)
            self._kept[key] = self.programs.together_s(work, share)
        found_s: float = self._kept[key]
        return found_s

    def _piece(self, tokens: int, cached: int) -> float:
        """Seconds of a chunk whose tokens ranks divide, interpolated between tabulated lengths and contexts."""
        low, high = around(cached)
        start = float(self._behind(low)(tokens)[0])
        if cached == low:
            return start
        return start + (float(self._behind(high)(tokens)[0]) - start) * ((cached - low) / (high - low))

    def _behind(self, cached: int) -> Cells:
        if cached not in self._alone:

            def value(tokens: int) -> Floats:
                return np.array([self.programs.seconds(self.programs.divided(PromptChunk(tokens, cached)))])

            self._alone[cached] = Cells(value, 0.0)
        return self._alone[cached]

    def exact(self, work: StepWork) -> Priced:
        """A step by its program, without interpolation; for prompts that ranks divide, the last chunk."""
        return self.programs.price(self.programs.of(work)[-1])

    def breakdown(self, work: StepWork) -> dict[str, float]:
        """Seconds of a step by part: attention, experts, products, other kernels, collectives by kind, host, idle."""
        parts: dict[str, float] = {}
        for job in self.programs.of(work):
            for name, seconds in self.programs.price(job).parts_s.items():
                parts[name] = parts.get(name, 0.0) + seconds
        return parts

    def range_of(self, work: StepWork) -> tuple[float, float]:
        """The 90 % range of a step's seconds, as factors: one factor per kernel family, one for exposed transfers,
        one for the stack and one for the engine's host, independent (:meth:`tspsim.hardware.Costs.range_of`).

        They are common to all steps of a kind, so that a run whose steps all take less, or more, is at the end of
        its range.
        """
        key = work.chunks, work.sequences, work.context_tokens
        return self._ranges.once(key, lambda: self.programs.range_of(self.programs.of(work)[-1]))

    @once
    def ranges(self) -> StepRanges:
        """Ranges of steps from tables."""
        sizes = self._mixed.sizes
        return StepRanges(self.programs, self._decodes.standing, self._shape_of, sizes[-1] if sizes else 0)

    def _shape_of(self, work: StepWork) -> Shape | None:
        """The parts that a step with prompts is assembled from; None where other tables, or programs, give it."""
        if self._drafter is not None or (self.programs.divides_prompts and not work.sequences):
            return None
        return self._mixed.shape_of(work)

    def check(self, samples: int = 50, seed: int = 0) -> Deviation:
        """Deviation of sampled steps (``seed``) from every kernel of their programs on the cluster."""
        deviations = []
        for work in self._seen.some(samples, seed):
            whole_s = sum(self.programs.simulated(job).seconds for job in self.programs.of(work))
            deviations.append((abs(self._together([work]) / whole_s - 1.0), work))
        if not deviations:
            return Deviation(0)
        most, worst = max(deviations, key=lambda deviation: deviation[0])
        return Deviation(len(deviations), sum(off for off, _ in deviations) / len(deviations), most, worst)

    # --- the engine -------------------------------------------------------------------------------------------

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a reader of the plan beside those of its programs."""
        return ()

    @property
    def front_end_s(self) -> float:
        """Seconds from a request's arrival to its first schedule, plus from its first token to the client."""
        return self.question.work.stack.engine.front_end.value

    @property
    def process(self) -> ProcessTimes:
        """Times of the server's process that reads all requests and streams all answers."""
        engine = self.question.work.stack.engine
        intake = engine.intake_of(self.question.model.chat)
        return ProcessTimes(intake.value, engine.tokenize.value, engine.streamed.value, engine.turns)

    @once
    def launching_s(self) -> float:
        """Seconds in which the host launches the kernels and collectives of a pass of one prompt."""
        jobs = self.programs.of(StepWork((PromptChunk(TYPICAL_PROMPT, 0, True),)))
        programs = [program for job in jobs for program in self.programs.written_of(job)[0]]
        issued = [one.instruction for program in programs for one in program.unrolled()]
        return sum([instruction.host_s for instruction in issued if isinstance(instruction, Launch)])

    @once
    def capacity(self) -> Capacity:
        """Capacity of the caches of one replica by the engine's rule."""
        job = self.programs.decoding((1,))
        return capacity.capacity_of(job, self.question.device.visible_memory_bytes)

    @once
    def block_tokens(self) -> int:
        """Tokens of a block of the cache, over all ranks that share a context."""
        return self.capacity.block_tokens * self.capacity.share.ranks

    @once
    def capacity_tokens(self) -> int | None:
        """Tokens that the cache of one replica holds, in whole blocks; None where caches do not grow."""
        if self.num_gpu_blocks is not None:
            return self.num_gpu_blocks * self.block_tokens
        return self.tokens_of(self._longest)

    def tokens_beside_states(self, share: float = 1.0) -> int | None:
        """Tokens in a ``share`` of the memory for caches, where states of linear attention have their own memory, or
        take blocks like tokens."""
        if self.num_gpu_blocks is not None:
            return self.num_gpu_blocks * self.block_tokens
        sessions = share * self.capacity.without_states.sessions(self._longest)
        return None if sessions == float("inf") else self._whole(sessions * self._longest)

    def _whole(self, tokens: float) -> int:
        """Rounds down to whole blocks."""
        return int(tokens) // self.block_tokens * self.block_tokens

    @property
    def _longest(self) -> int:
        """Context length at which blocks of a cache are counted."""
        return self.question.model.max_context or 2**17

    def tokens_of(self, context: int) -> int | None:
        """Tokens that the cache of one replica holds in sequences of ``context``; None where caches do not grow."""
        sessions = self.capacity.sessions(context)
        if sessions == float("inf"):
            return None
        return self._whole(sessions * context)


def capturing_nothing(question: Question) -> Question:
    """The question of an engine without graphs; only host times remain of its settings."""
    stack = question.work.stack
    engine = replace(stack.engine, graphs=NO_GRAPHS, slots=None, limits=(), memory=ALL_FOR_CACHES)
    engine = replace(engine, block_tokens=1, pages=())
    return replace(question, work=replace(question.work, stack=replace(stack, engine=engine)))


def undrafted(speculation: Speculation | None) -> Speculation | None:
    """The same verification, with a drafter that computes nothing."""
    if speculation is None:
        return None
    nobody = next(draft.name for draft in DRAFTS.values() if not (draft.layers or draft.whole))
    return replace(speculation, draft=nobody, model=None, tree=())


def costs_of(
    question: Question, plan: Plan, *, speculation: Speculation | None = None, num_gpu_blocks: int | None = None
) -> ProgramCosts:
    """The costs of a plan's steps. Tables of one question are shared with later questions of the same content.

    Raises
    ------
    InputError
        The plan does not serve this model.
    """
    alike = *content(capturing_nothing(question), plan), speculation
    tables = kept(question, "known", alike, PlanTables)
    return kept(
        question,
        "costs",
        (*content(question, plan), speculation, num_gpu_blocks),
        lambda: ProgramCosts(question, plan, speculation=speculation, num_gpu_blocks=num_gpu_blocks, tables=tables),
    )


def kept(question: Question, what: str, key: Hashable, make: Callable[[], Found]) -> Found:
    """An object made once per key, stored with the question's cluster."""
    memo = question.cluster.memo
    return memo.once(("steps of engines", what), lambda: BoundedCache(MOST_PLANS)).once(key, make)


def content(question: Question, plan: Plan) -> tuple[Hashable, ...]:
    """The content that costs depend on, beside the cluster that stores them."""
    work = question.work
    facts = [getattr(plan, name) for name in type(plan).__dataclass_fields__ if name != "name"]
    plan_key = tuple(tuple(sorted(fact.items())) if isinstance(fact, dict) else fact for fact in facts)
    slow = tuple((slow_gpu.gpu, slow_gpu.factor) for slow_gpu in question.scenario.faults.slow_gpus)
    work_key = (
        work.precision, work.runtime_reserve_bytes, work.routing, repr(work.stack), repr(work.formats),
    )  # fmt: skip
    return question.model, Itself(question.device), work_key, plan_key, slow
