"""Writing what drafts a serving step's next tokens: by modules of the model, by a model of its own, or on replicas that
do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

from ..model import Block
from ..model.layer import LayerShard
from ..operators import Operator
from ..program import Repeat
from ..steps import Task
from .builder import ProgramBuilder
from .decode import draft_pool
from .drafting import distinct_passes, draft_passes, drafter_of, drafting
from .job import Job
from .placement import Chunk
from .scheme import Scheme, WholeTokens
from .state.memory import KeptActivations

#: (layer shard, what it keeps for its backward) → instructions that complete the layer; writes it.
WriteLayer = Callable[[LayerShard, KeptActivations], list[int]]


class DraftWriter(Protocol):
    """The writer of a stage (:class:`tspsim.parallel.step.Writer`), as far as drafts need it."""

    scheme: Scheme
    job: Job
    kinds: dict[Block, LayerShard]
    layer: LayerShard
    pieces: Scheme | WholeTokens
    builder: ProgramBuilder
    passes: list[Job]
    position: int
    written: dict[Hashable, tuple[Repeat, list[int], list[int]]]

    @property
    def head(self) -> Callable[[ProgramBuilder, Job, LayerShard], None]: ...
    def forward(self, chunk: Chunk, task: Task) -> None: ...
    def wait(self, ready: list[int]) -> None: ...
    def join(self) -> tuple[Operator, ...]: ...
    def layers(self, chunk: Chunk, write: WriteLayer, task: Task, step: int = 1) -> list[int]: ...


def draft(writer: DraftWriter, layer: WriteLayer, task: Task) -> None:
    """Write the passes that make the next drafts, one token after the other."""
    whole = writer.job
    drafter = drafter_of(whole)
    if drafter is not None:
        draft_by_model(writer, drafter, layer, task)
        return
    layers = whole.draft_layers
    for number in range(draft_passes(whole)):
        if number < distinct_passes(whole):
            writer.job = drafting(whole, number)
            writer.passes.append(writer.job)
        if not writer.job.tokens:
            break
        writer.builder.capture = writer.job.capture
        writer.builder.part = "draft"
        writer.builder.compute("join with next token", *writer.join())
        writer.builder.further_token = True
        ready = writer.layers(Chunk(whole.model.layers, layers, False, True), layer, task)
        writer.builder.part = "draft"
        writer.wait(ready)
        if writer.job.head_tokens:
            writer.head(writer.builder, writer.job, writer.layer)
        writer.builder.further_token = False
    writer.job = whole
    writer.builder.capture = whole.capture


def in_pools(writer: DraftWriter, chunk: Chunk, task: Task) -> None:
    """Write a replica's part of a step with drafting replicas (:mod:`.decode.draft_pool`).

    In every turn it verifies drafts, or drafts after verification. With two turns, the first turn's drafts are present
    when a step begins, and the second's are made meanwhile.
    """
    whole, drafter, builder = writer.job, drafter_of(writer.job), writer.builder
    count = draft_pool.turns_of(whole)
    if not draft_pool.drafts_here(builder, whole):
        for turn in range(count):
            if turn:
                draft_pool.await_tokens(builder, whole, turn, draft_pool.DRAFTED)
            writer.job = draft_pool.part_of(whole, turn, count)
            builder.capture = writer.job.capture
            writer.forward(chunk, task)
            draft_pool.send(builder, whole, turn, draft_pool.ACCEPTED)
        draft_pool.await_tokens(builder, whole, 0, draft_pool.DRAFTED)
    else:
        assert drafter is not None

        def layer(shard: LayerShard, kind: KeptActivations) -> list[int]:
            return writer.pieces.layer(builder, writer.job, shard, writer.position)

        for turn in reversed(range(count)):
            if not turn:
                draft_pool.await_tokens(builder, whole, turn, draft_pool.ACCEPTED)
            writer.job = whole
            draft_by_model(writer, drafter, layer, task, turn, count)
            draft_pool.send(builder, whole, turn, draft_pool.DRAFTED)
        for turn in range(1, count):
            draft_pool.await_tokens(builder, whole, turn, draft_pool.ACCEPTED)
    writer.job, builder.capture = whole, whole.capture


def draft_by_model(
    writer: DraftWriter, drafter: Job, layer: WriteLayer, task: Task, turn: int = 0, turns: int = 1
) -> None:
    """Write the draft passes of a separate model, from its embedding to its head; of a drafting replica, those of one
    of its ``turns``."""
    whole, model, alone = writer.job, drafter.model, draft_pool.size(writer.job.plan)
    mine = writer.kinds, writer.layer, writer.written
    writer.kinds = {block: drafter.layer(writer.scheme.shards(drafter), block) for block in model.distinct}
    writer.layer, writer.written = next(iter(writer.kinds.values())), {}
    writer.builder.further_token = True
    for number in range(draft_passes(whole)):
        if number < distinct_passes(whole):
            writer.job = drafting(whole, number)
            if alone:
                writer.job = draft_pool.part_of(writer.job, turn, turns, drafts=True)
            writer.passes.append(writer.job)
        if not writer.job.tokens:
            break
        writer.builder.capture, writer.builder.part = writer.job.capture, "draft"
        writer.pieces.embed(writer.builder, writer.job, writer.layer)
        writer.wait([writer.builder.length - 1])
        ready = writer.layers(Chunk(0, model.layers, True, True), layer, task)
        writer.builder.part = "draft"
        writer.wait(ready)
        if writer.job.head_tokens:
            writer.head(writer.builder, writer.job, writer.layer)
    writer.builder.further_token = False
    writer.job, (writer.kinds, writer.layer, writer.written) = whole, mine
    writer.builder.capture = whole.capture
