"""Pipelines: the layers of a stage, and its order of micro-batches.

A model is cut into pp·vpp *chunks* of consecutive layers, which a placement gives to the stages
(:mod:`tspsim.parallel.placement`). An order is a registered object that lists a stage's tasks; with one stage these are
forward and backward of each micro-batch.

The bubble of 1F1B with equal stages is (p − 1)·(t_F + t_B) per step, of the interleaved schedule 1/v of that (ibid.,
§2.2.2), of ZB-H1 (p − 1)·(t_F + t_B − 2·t_W) where t_B has both gradients (Qi et al. 2023, table 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from ..base.errors import TspsimError
from ..base.memo import remembered
from ..base.registry import Registry
from ..steps import BACKWARD, FORWARD, WEIGHTS, Task
from .placement import IN_ROUNDS, ChunkPlacement


def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of every chunk, as equal as possible; the chunks with embedding and head are the last to get one more.

    >>> chunk_layers(126, 16)
    (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    """
    base, extra = divmod(layers, chunks)
    order = [*range(1, chunks - 1), 0, chunks - 1] if chunks > 1 else [0]
    sizes = [base] * chunks
    for index in order[:extra]:
        sizes[index] += 1
    return tuple(sizes)


@remembered(4096)
def spread_over(layers: int, some: int) -> tuple[bool, ...]:
    """Whether each layer of a chunk is one of ``some`` that are spread evenly over it.

    >>> spread_over(5, 2)
    (False, False, True, False, True)
    """
    some = min(some, layers)
    return tuple((index + 1) * some // layers > index * some // layers for index in range(layers))


def one_forward_one_backward(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """1F1B (Narayanan et al. 2019, PipeDream-Flush): fill, then one forward and one backward in turn, then drain."""
    warm_up = min(micro_batches, stages - stage - 1)
    order = [Task(FORWARD, index, 0) for index in range(warm_up)]
    for index in range(micro_batches - warm_up):
        order += [Task(FORWARD, warm_up + index, 0), Task(BACKWARD, index, 0)]
    return order + [Task(BACKWARD, index, 0) for index in range(micro_batches - warm_up, micro_batches)]


def interleaved(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """Megatron's interleaved 1F1B: groups of ``stages`` micro-batches pass through a stage's chunks in turn."""
    total = micro_batches * chunks
    warm_up = total if micro_batches == stages else min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)

    def task(kind: str, number: int) -> Task:
        group, inside = divmod(number, stages * chunks)
        chunk, position = divmod(inside, stages)
        return Task(kind, group * stages + position, chunk if kind == FORWARD else chunks - 1 - chunk)

    order = [task(FORWARD, number) for number in range(warm_up)]
    for number in range(total - warm_up):
        order += [task(FORWARD, warm_up + number), task(BACKWARD, number)]
    return order + [task(BACKWARD, number) for number in range(total - warm_up, total)]


def zero_bubble_h1(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """ZB-H1: weight gradients are deferred, by up to the stage's number of micro-batches, and fill the drain."""
    order: list[Task] = []
    waiting: list[int] = []
    for task in one_forward_one_backward(stages, stage, micro_batches, chunks):
        order.append(task)
        if task.kind == BACKWARD:
            waiting.append(task.micro_batch)
            if len(waiting) > stage:
                order.append(Task(WEIGHTS, waiting.pop(0), 0))
    return order + [Task(WEIGHTS, micro_batch, 0) for micro_batch in waiting]


def interleaved_micro_batches(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """1F1B, interleaved or not, one step further ahead, so that each forward and the backward after it are of different
    micro-batches and can be interleaved (DualPipe: DeepSeek-V3, §3.2.1; Megatron-Core's overlap of expert parallelism).
    A stage keeps up to twice the activations of 1F1B."""
    plain = interleaved if chunks > 1 else one_forward_one_backward
    order = plain(stages, stage, micro_batches, chunks)
    forwards = [task for task in order if task.kind == FORWARD]
    backwards = [task for task in order if task.kind == BACKWARD]
    ahead = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
    if chunks > 1 and micro_batches == stages:
        ahead = len(forwards)
    order = forwards[:ahead]
    for index, task in enumerate(backwards):
        order += [forward._replace(beside=True) for forward in forwards[ahead + index : ahead + index + 1]]
        order.append(task)
    return order


def kept_one_forward_one_backward(
    stages: int, stage: int, micro_batches: int, sizes: Sequence[float]
) -> tuple[int, ...]:
    """1F1B's warm-up and one: a stage has as many micro-batches in flight as there are stages from it to the last."""
    return (min(micro_batches, stages - stage),)


def kept_by(
    tasks: Callable[[int, int, int, int], list[Task]],
) -> Callable[[int, int, int, Sequence[float]], tuple[int, ...]]:
    """Micro-batches in flight of a periodic order, from its tasks for three groups of ``stages`` micro-batches.

    The warm-up is shorter than two groups; then forwards and backwards alternate through the chunks, so that a third
    group shows every state.
    """

    def kept(stages: int, stage: int, micro_batches: int, sizes: Sequence[float]) -> tuple[int, ...]:
        few = min(micro_batches, 3 * stages)
        return most_in_flight(tasks(stages, stage, few, len(sizes)), sizes)

    return kept


class Pipeline(NamedTuple):
    """A pipeline for an order to check: ``chunks`` per stage; ``splits``: whether the scheme's backward can leave
    weight gradients to a separate task."""

    stages: int
    chunks: int
    micro_batches: int
    splits: bool


#: Why an order made for experts is not tried without them.
NO_EXPERTS = "weights twice for a bubble that more chunks a stage have too: tried with experts"
#: Key of a plan and why it does not fit; None: it does.
Refusal = tuple[str, str] | None


@dataclass(frozen=True)
class PipelineOrder:
    """A pipeline schedule: the order of a stage's tasks."""

    name: str
    #: ``(stages, stage, micro_batches, chunks per stage) → tasks``.
    tasks: Callable[[int, int, int, int], list[Task]]
    #: Why a pipeline does not fit this order; None: it does.
    check: Callable[[Pipeline], Refusal] = lambda pipeline: None
    #: Variants for stages with several chunks, and for interleaved forwards and backwards of different micro-batches;
    #: None: the order itself, and no variant.
    of_chunks: PipelineOrder | None = None
    of_micro_batches: PipelineOrder | None = None
    #: Whether weight gradients are tasks of their own, deferred.
    splits_backward: bool = False
    #: ``(stages, stage, micro_batches, bytes of a micro-batch in each chunk) →`` micro-batches of each chunk in flight
    #: at the stage's peak, in closed form; None: its tasks are walked.
    kept: Callable[[int, int, int, Sequence[float]], tuple[int, ...]] | None = None
    #: Which chunks of layers a stage holds, and which way micro-batches go.
    placement: ChunkPlacement = IN_ROUNDS
    #: Whether messages block: a stage sends after it has computed, receives when it has nothing to compute, and does
    #: nothing else meanwhile. For passes without a backward, whose messages all go one way.
    waits: bool = False
    #: Why a search for plans skips it; empty: it does not.
    why_not: str = ""
    #: Whether it is for exchanges with experts, and a search tries it with experts alone.
    for_experts: bool = False
    #: Its word in names of plans.
    word: str = ""
    #: Framework → its name for it (:mod:`tspsim.studies.launch`).
    launched: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def searched(self) -> bool:
        return not self.why_not

    @property
    def both_ways(self) -> bool:
        """Whether micro-batches enter at both ends."""
        return self.placement.both_ways

    def in_flight(self, stages: int, stage: int, micro_batches: int, sizes: Sequence[float]) -> tuple[int, ...]:
        """Micro-batches of each of a stage's chunks in flight at its peak; ``sizes``: bytes per chunk."""
        if self.kept is not None:
            return self.kept(stages, stage, micro_batches, sizes)
        return most_in_flight(self.tasks(stages, stage, micro_batches, len(sizes)), sizes)


def check_groups(pipeline: Pipeline) -> Refusal:
    """Interleaving needs micro-batches in groups of as many as there are stages."""
    stages, count = pipeline.stages, pipeline.micro_batches
    if pipeline.chunks > 1 and count % stages:
        return "vpp", f"interleaving needs micro-batches in groups of pp = {stages}, not {count}"
    return None


def check_zero_bubble(pipeline: Pipeline) -> Refusal:
    """One chunk per stage, and a backward that can leave weight gradients out."""
    if pipeline.chunks > 1 or not pipeline.splits:
        return "schedule", "zb-h1 runs with vpp 1 and tensor or sequence parallelism; use 1f1b"
    return None


INTERLEAVED_MICRO_BATCHES = PipelineOrder(
    "interleaved-micro-batches", interleaved_micro_batches, check_groups, kept=kept_by(interleaved_micro_batches)
)
INTERLEAVED = PipelineOrder(
    "interleaved", interleaved, check_groups, of_micro_batches=INTERLEAVED_MICRO_BATCHES, kept=kept_by(interleaved),
    launched={"megatron": "interleaved 1F1B", "torchtitan": "Interleaved1F1B"},
)  # fmt: skip

#: Orders that a plan may name.
ORDERS: Registry[PipelineOrder] = Registry("pipeline order", "tspsim.pipeline_orders", PipelineOrder)


def order_of(schedule: str, vpp: int) -> PipelineOrder:
    """The order of that name, for ``vpp`` chunks per stage."""
    order = ORDERS.get(schedule)
    return order.of_chunks if vpp > 1 and order.of_chunks else order


ORDERS.register(
    PipelineOrder(
        "1f1b",
        one_forward_one_backward,
        of_chunks=INTERLEAVED,
        of_micro_batches=INTERLEAVED_MICRO_BATCHES,
        kept=kept_one_forward_one_backward,
        launched={"megatron": "1F1B", "torchtitan": "1F1B"},
    )
)
ORDERS.register(
    PipelineOrder(
        "zb-h1", zero_bubble_h1, check_zero_bubble, splits_backward=True, kept=kept_one_forward_one_backward, word="zb"
    )
)
#: Blocking messages, as in early pipelines (EnergonAI: Du et al. 2022, arXiv:2209.02341). With f per stage, x per
#: message, m micro-batches, p equal stages:
#:     non-blocking     p·f + (p − 1)·x + (m − 1)·max(f, x)
#:     blocking         p·f + (p − 1)·x + (m − 1)·(f + 2x) with inner stages, f + x with two stages
ORDERS.register(
    PipelineOrder(
        "blocking",
        one_forward_one_backward,
        kept=kept_one_forward_one_backward,
        waits=True,
        why_not="of passes without a backward, and never faster",
    )
)


@remembered(256)
def in_turns(order: PipelineOrder, turns: int) -> PipelineOrder:
    """The order of a step with gradient accumulation in ``turns``, in each of which the pipeline fills and empties (the
    local batch of torchtitan and NeMo Automodel, one ``step`` of a pipeline schedule)."""
    if turns == 1:
        return order

    def tasks(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
        of_a_turn = micro_batches // turns
        once = order.tasks(stages, stage, of_a_turn, chunks)
        return [
            task._replace(micro_batch=task.micro_batch + turn * of_a_turn) for turn in range(turns) for task in once
        ]

    def check(pipeline: Pipeline) -> Refusal:
        if pipeline.stages == 1:
            return "accumulation", "turns are of a pipeline; without one micro_batch says how sequences accumulate"
        if order.both_ways:
            return "accumulation", f"{order.name} has micro-batches from both ends, which runs in one turn"
        count = pipeline.micro_batches
        if count % turns:
            return "accumulation", f"{turns} turns do not divide the {count} micro-batches of a replica"
        return order.check(pipeline._replace(micro_batches=count // turns))

    def kept(stages: int, stage: int, micro_batches: int, sizes: Sequence[float]) -> tuple[int, ...]:
        return order.in_flight(stages, stage, micro_batches // turns, sizes)

    return replace(order, tasks=tasks, check=check, kept=kept)


@remembered(4096)
def check_tasks(order: PipelineOrder, stages: int, micro_batches: int, chunks: int) -> None:
    """Raise TspsimError unless every stage does every task of every micro-batch once in each chunk; with micro-batches
    from both ends, each direction counts its own, in one chunk."""
    kinds = (FORWARD, BACKWARD, *([WEIGHTS] if order.splits_backward else []))
    all_of_them = set(product(kinds, range(micro_batches), range(chunks)))
    wanted = len(kinds) * micro_batches * (1 if order.both_ways else chunks)
    for stage in range(stages):
        tasks = order.tasks(stages, stage, micro_batches, chunks)
        done = {(task.kind, task.micro_batch, task.chunk) for task in tasks}
        if not len(tasks) == len(done) == wanted or not (order.both_ways or done == all_of_them):
            problem = f"gives stage {stage} of {stages} {len(tasks)} tasks, not each of the {wanted} that it has once"
            raise TspsimError(f"pipeline order '{order.name}' {problem}")


def most_in_flight(tasks: list[Task], sizes: Sequence[float], frees: str = BACKWARD) -> tuple[int, ...]:
    """Micro-batches of each of a stage's chunks in flight at its peak; ``sizes``: bytes per chunk; ``frees``: the kind
    of task after which a micro-batch keeps nothing.

    A forward interleaved with a backward adds none: layer by layer, one's activations arrive as the other's are freed.
    """
    kept = [0] * len(sizes)
    peak, size, most = tuple(kept), 0.0, 0.0
    for task in tasks:
        if task.kind == FORWARD:
            kept[task.chunk] += 1
            size += sizes[task.chunk]
        elif task.kind == frees:
            kept[task.chunk] -= 1
            size -= sizes[task.chunk]
        if size > most and not task.beside:
            peak, most = tuple(kept), size
    return peak
