"""Pipelines: which layers a stage holds, and in which order it works through micro-batches.

A model is cut into pp·vpp *chunks* of consecutive layers; stage s holds chunks s, s + pp, s + 2·pp, … (Narayanan et
al. 2021, §2.2). An order is a registered object that lists a stage's tasks; with one stage they are forward and
backward of each micro-batch.

The bubble of 1F1B with equal stages is (p − 1)·(t_F + t_B) a step, of the interleaved schedule 1/v of that (ibid.,
§2.2.2), of ZB-H1 (p − 1)·(t_F + t_B − 2·t_W) where t_B holds both gradients (Qi et al. 2023, table 2).
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


@dataclass(frozen=True)
class Chunk:
    """Consecutive layers; the first chunk of a model has its embedding, the last its head."""

    first_layer: int
    layers: int
    has_embedding: bool
    has_head: bool
    #: Which way its micro-batches go along the stages: 1 from the first to the last, −1 back.
    way: int = 1


def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of every chunk, as even as can be; the chunks with embedding and head are the last to get one more.

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
    """Which of a chunk's layers are among ``some`` that are spread evenly over it.

    >>> spread_over(5, 2)
    (False, False, True, False, True)
    """
    some = min(some, layers)
    return tuple((index + 1) * some // layers > index * some // layers for index in range(layers))


def stage_chunks(sizes: tuple[int, ...], stages: int, stage: int) -> tuple[Chunk, ...]:
    """The chunks of one stage, in order."""
    last = len(sizes) - 1
    return tuple(
        Chunk(sum(sizes[:index]), sizes[index], index == 0, index == last) for index in range(stage, len(sizes), stages)
    )


def chunks_both_ways(sizes: tuple[int, ...], stage: int) -> tuple[Chunk, ...]:
    """The chunks of a stage that works for micro-batches from both ends."""
    stages = len(sizes)
    (up,), (down,) = (stage_chunks(sizes, stages, position) for position in (stage, stages - 1 - stage))
    return up, replace(down, way=-1)


def one_forward_one_backward(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """1F1B (Narayanan et al. 2019, PipeDream-Flush): fill, then one forward and one backward in turn, then drain."""
    warm_up = min(micro_batches, stages - stage - 1)
    order = [Task(FORWARD, index, 0) for index in range(warm_up)]
    for index in range(micro_batches - warm_up):
        order += [Task(FORWARD, warm_up + index, 0), Task(BACKWARD, index, 0)]
    return order + [Task(BACKWARD, index, 0) for index in range(micro_batches - warm_up, micro_batches)]


def interleaved(stages: int, stage: int, micro_batches: int, chunks: int) -> list[Task]:
    """Megatron's interleaved 1F1B: groups of ``stages`` micro-batches go through a stage's chunks in turn."""
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
    """ZB-H1: weights' gradients are put off, by up to the stage's number, and fill what the drain leaves open."""
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
    """1F1B, interleaved or not, a step further ahead, so that a forward and the backward after it are of different
    micro-batches on every stage and can be interleaved with each other (DualPipe: DeepSeek-V3, §3.2.1; Megatron-Core's
    overlap of expert parallelism). A stage keeps up to twice 1F1B's activations."""
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
    """1F1B's warm-up and one: a stage has as many under way as stages are left to go through, itself included."""
    return (min(micro_batches, stages - stage),)


def kept_by(
    tasks: Callable[[int, int, int, int], list[Task]],
) -> Callable[[int, int, int, Sequence[float]], tuple[int, ...]]:
    """What a stage keeps of an order that repeats: after a warm-up of fewer than two groups of ``stages`` micro-batches
    forwards and backwards take turns through the chunks, so that a third group meets every moment there is."""

    def kept(stages: int, stage: int, micro_batches: int, sizes: Sequence[float]) -> tuple[int, ...]:
        few = min(micro_batches, 3 * stages)
        return most_in_flight(tasks(stages, stage, few, len(sizes)), sizes)

    return kept


class Pipeline(NamedTuple):
    """What an order is asked to run: ``chunks`` a stage; ``splits``: the scheme's backward can leave the gradients of
    weights to a task of their own."""

    stages: int
    chunks: int
    micro_batches: int
    splits: bool


#: Why an order that is made for experts is not tried without.
NO_EXPERTS = "weights twice for a bubble that more chunks a stage have too: tried with experts"
#: Key of a plan and why it cannot be, or None.
Refusal = tuple[str, str] | None


@dataclass(frozen=True)
class PipelineOrder:
    """In which order a stage works through micro-batches."""

    name: str
    #: ``(stages, stage, micro-batches, chunks a stage) → tasks``.
    tasks: Callable[[int, int, int, int], list[Task]]
    #: What of a plan does not go with this order.
    check: Callable[[Pipeline], Refusal] = lambda pipeline: None
    #: The orders that stand in for it where a stage has several chunks of layers, and where forwards and backwards of
    #: different micro-batches are interleaved; None where it stays itself, and where it cannot.
    of_chunks: PipelineOrder | None = None
    of_micro_batches: PipelineOrder | None = None
    #: Gradients of weights are put off, to a kind of task of their own.
    splits_backward: bool = False
    #: ``(stages, stage, micro-batches, bytes of a micro-batch in each chunk) →`` micro-batches of each chunk that a
    #: stage keeps when they are most, in closed form; None: its tasks are walked.
    kept: Callable[[int, int, int, Sequence[float]], tuple[int, ...]] | None = None
    #: Micro-batches enter at both ends: a stage holds two chunks, its own and that of the stage opposite.
    both_ways: bool = False
    #: Stages hand over as they compute: one sends when it has computed, receives when it has nothing to compute, and
    #: does nothing else meanwhile. Of passes without a backward, whose messages all go one way.
    waits: bool = False
    #: Why a search for plans does not look at it; empty: it does.
    why_not: str = ""
    #: It does where tokens travel to experts, which this order is made to hide.
    for_experts: bool = False
    #: What a plan's name says of it.
    word: str = ""
    #: What frameworks call it that have it (:mod:`tspsim.studies.launch`), by theirs.
    launched: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def searched(self) -> bool:
        return not self.why_not

    def in_flight(self, stages: int, stage: int, micro_batches: int, sizes: Sequence[float]) -> tuple[int, ...]:
        """Micro-batches of each of a stage's chunks whose activations it keeps when they are most, by ``sizes`` a
        chunk."""
        if self.kept is not None:
            return self.kept(stages, stage, micro_batches, sizes)
        return most_in_flight(self.tasks(stages, stage, micro_batches, len(sizes)), sizes)


def check_groups(pipeline: Pipeline) -> Refusal:
    """Interleaving goes through micro-batches in groups of as many as stages."""
    stages, count = pipeline.stages, pipeline.micro_batches
    if pipeline.chunks > 1 and count % stages:
        return "vpp", f"interleaving needs micro-batches in groups of pp = {stages}, not {count}"
    return None


def check_zero_bubble(pipeline: Pipeline) -> Refusal:
    """One chunk a stage, and a backward that can leave the weights' gradients out."""
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
    """The order of that name, of so many chunks a stage."""
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
#: Hand-over as in pipelines before non-blocking ones (EnergonAI: Du et al. 2022, arXiv:2209.02341). With f for a stage,
#: x for a message, m micro-batches, p stages of equal work:
#:     without waiting  p·f + (p − 1)·x + (m − 1)·max(f, x)
#:     blocking         p·f + (p − 1)·x + (m − 1)·(f + 2x) where stages lie between others, f + x with two of them
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
    """The order of a step whose micro-batches go through the pipeline in ``turns`` of gradient accumulation: it fills
    and empties in each (torchtitan's and NeMo Automodel's local batch, a pipeline schedule's one ``step``)."""
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
    """Raises TspsimError unless every stage does every kind of task of every micro-batch once in each of its chunks; of
    micro-batches that enter at both ends each way numbers its own, in one chunk."""
    kinds = (FORWARD, BACKWARD, *([WEIGHTS] if order.splits_backward else []))
    all_of_them = set(product(kinds, range(micro_batches), range(chunks)))
    wanted = len(kinds) * micro_batches * (1 if order.both_ways else chunks)
    for stage in range(stages):
        tasks = order.tasks(stages, stage, micro_batches, chunks)
        done = {(task.kind, task.micro_batch, task.chunk) for task in tasks}
        if not len(tasks) == len(done) == wanted or not (order.both_ways or done == all_of_them):
            problem = f"gives stage {stage} of {stages} {len(tasks)} tasks, not each of the {wanted} that it has once"
            raise TspsimError(f"pipeline order '{order.name}' {problem}")


def most_in_flight(tasks: list[Task], sizes: Sequence[float]) -> tuple[int, ...]:
    """Micro-batches of each of a stage's chunks whose activations it keeps when they are most, by ``sizes`` a chunk.

    A forward beside a backward takes its place: layer by layer, one's activations come as the other's go.
    """
    kept = [0] * len(sizes)
    peak, size, most = tuple(kept), 0.0, 0.0
    for task in tasks:
        if task.kind == FORWARD:
            kept[task.chunk] += 1
            size += sizes[task.chunk]
        elif task.kind == BACKWARD:
            kept[task.chunk] -= 1
            size -= sizes[task.chunk]
        if size > most and not task.beside:
            peak, most = tuple(kept), size
    return peak
