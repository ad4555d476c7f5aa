"""Programs of a whole step from a scheme's parts: a stage's tasks in order, with data parallelism's exchanges.

Recomputation ``full`` repeats a layer's forward before its backward with its exchanges, except gathers of K and V,
which are kept (docs/memory.md); ``selective`` repeats the attention kernel's forward.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..base.memo import once
from ..model import Block
from ..model.layer import LayerShard
from ..operators import Gemm, Operator
from ..program import Instruction, Program, Repeat
from ..steps import BACKWARD, FORWARD, WEIGHTS, Task
from .builder import ProgramBuilder
from .draft_writer import WriteLayer, draft, in_pools
from .drafting import distinct_passes, drafting
from .expert_rows import own_tokens
from .feature import features_of, pieces_of
from .interleave import flat, shifted
from .job import Job
from .lengths import group_axis
from .pipeline import Chunk, spread_over
from .plan import DRAFT_REPLICAS, EXPERT_POOL
from .recomputed import FULL, INSIDE, KEPT
from .scale_agreement import agree
from .scheme import Scheme, WholeTokens
from .stage_messages import ACTIVATIONS, GRADIENTS, receive, send
from .state import data, offload, served, state_copies, weight_arrivals
from .state.memory import KeptActivations
from .state.owned import OwnedParameters
from .written_layers import WrittenLayer


def axes_of(job: Job) -> tuple[str, ...]:
    """Axes along which programs differ, outermost first: stages, replicas with different sequences, sequence shards,
    and axes of features."""
    tokens = (job.plan.token_axis,) if job.token_shards > 1 or not job.step.serves else ()
    replicas = ("dp",) if job.unequal else ()
    features = dict.fromkeys(axis for feature in features_of(job) for axis in feature.axes(job))
    return ("pp", *replicas, *tokens, *features)


def write_program(scheme: Scheme, job: Job, coordinates: Mapping[str, int] | None = None) -> Program:
    """The program of the ranks at ``coordinates``, for the job's step.

    ``coordinates`` are positions on :func:`axes_of`; default: the first, and in an expert group the busiest.
    """
    return written_passes(scheme, job, coordinates)[0]


def written_passes(
    scheme: Scheme, job: Job, coordinates: Mapping[str, int] | None = None
) -> tuple[Program, Sequence[Job]]:
    """The same, and the jobs of the passes in it, those of a drafter behind the model's."""
    writer = Writer(scheme, job, coordinates or {})
    if job.plan.checkpoint is not None:
        writer.copied = state_copies.begin(writer.builder, writer.whole, writer.share, writer.chunks)
    job.step.write(writer, writer.whole.tasks(writer.stage))
    return writer.builder.program(), writer.passes


def passes_of(job: Job) -> list[Job]:
    """The passes of a step of one that serves: the model's, and those of its drafter that differ."""
    return [job, *(drafting(job, number) for number in range(distinct_passes(job)))]


class Writer:
    """Writes the tasks of one stage's ranks."""

    def __init__(self, scheme: Scheme, job: Job, coordinates: Mapping[str, int]) -> None:
        if job.unequal:
            job = replace(job, replica=coordinates.get("dp", 0))
        plan = job.plan
        self.scheme = scheme
        self.job = self.whole = job
        self.position = coordinates.get(plan.token_axis, 0)
        self.stage = coordinates.get("pp", 0)
        names = [f"stage {self.stage}"] if plan.pp > 1 else []
        names += [f"replica {job.replica}"] if job.unequal else []
        names += [f"{plan.token_axis} {self.position}"] if job.token_shards > 1 else []
        names += [f"ep {coordinates['ep']}"] if "ep" in coordinates else []
        names += [f"dp {coordinates['dp']}"] if {EXPERT_POOL, DRAFT_REPLICAS} & {*plan.options} and coordinates else []
        self.chunks = job.chunks(self.stage)
        shards = scheme.shards(job)
        self.kinds = {
            block: job.layer(shards, block)
            for block in (*job.model.distinct, *([job.further_block] if job.further_layers else []))
        }
        self.layer = next(iter(self.kinds.values()))
        self.pieces: Scheme | WholeTokens = scheme
        self.head = scheme.head
        if job.step.serves:
            assert scheme.whole is not None
            whole = pieces_of(job, scheme.whole)
            self.pieces = whole if job.token_shards == 1 else scheme
            self.head = whole.head
        self.builder = ProgramBuilder(", ".join(names) or "all ranks", job, coordinates)
        self.share = OwnedParameters(job, scheme.residency.weight_shards(job))
        self.exchanged_gradients: list[int] = []
        self.copied: list[int] = []
        self._interleaved: dict[Hashable, list[Instruction]] = {}
        self.last_use = 0
        self.passes: list[Job] = []
        #: Whether replicas shard state, so that tasks may gather weights.
        self.divides = job.training and plan.zero > 0
        #: Whether other replicas draft for those that verify.
        self.drafts_elsewhere = DRAFT_REPLICAS in plan.options
        #: Index of the instruction that the next layer with offloaded activations waits for.
        self.gate: int | None = None
        self.written: dict[Hashable, tuple[Repeat, list[int], list[int]]] = {}

    @once
    def arrivals(self) -> weight_arrivals.WeightArrivals:
        """Arrivals of offloaded weights."""
        return weight_arrivals.WeightArrivals()

    def do(self, tasks: Sequence[Task]) -> None:
        """Write tasks in order, interleaved with the next if they are ``beside`` it."""
        waiting = list(tasks)
        while waiting:
            task = waiting.pop(0)
            if task.beside:
                self.interleave(task, waiting.pop(0))
            else:
                self.visit(task, self.chunks[task.chunk])

    def update(self) -> None:
        """Write what follows the last gradient."""
        self.builder.part = "optimizer"
        exchanged = self.exchanged_gradients
        data.finish_step(self.builder, self.whole, self.share, self.chunks, exchanged, self.copied)

    def visit(self, task: Task, chunk: Chunk) -> None:
        """Write one task on a chunk of layers."""
        self.job = self.whole.at(task.micro_batch)
        self.passes.append(self.job)
        pack = self.job.pack
        if pack is not None and pack.ranks > self.whole.plan.token_shards:
            self.position = pack.position
            self.builder.renamed = {self.job.plan.token_axis: group_axis(pack.ranks)}
        elif pack is not None:
            self.builder.renamed = {}
        self.builder.capture = self.job.capture
        if task.kind == FORWARD and self.drafts_elsewhere:
            in_pools(self, chunk, task)
        elif task.kind == FORWARD:
            self.forward(chunk, task)
            if self.job.plan.checkpoint is not None:
                self.copied += state_copies.after_forward(self.builder, self.whole, self.share, chunk, task)
        elif task.kind == BACKWARD:
            self.backward(chunk, task)
        else:
            self.weights(chunk, task)

    def interleave(self, *tasks: Task) -> None:
        """Write tasks with interleaved pieces; each task keeps its own order."""
        whole, last = self.builder, self.job.micro_batches - 1
        # Like layers, a task depends on its micro-batch only in whether that is the first or last.
        key = tuple((task.kind, task.chunk, task.micro_batch == 0, task.micro_batch == last) for task in tasks)
        if key not in self._interleaved:
            alone = []
            for task in tasks:
                self.builder = ProgramBuilder(whole.role, self.job, whole.coordinates)
                self.visit(task, self.chunks[task.chunk])
                alone.append(flat(self.builder.program()))
            self.builder = whole
            self._interleaved[key] = list(self.whole.interleaving.merge(alone))
        for instruction in shifted(self._interleaved[key], whole.length):
            whole.add(instruction)

    def forward(self, chunk: Chunk, task: Task) -> None:
        builder, job, pieces = self.builder, self.job, self.pieces
        scheme_shards = self.scheme.residency.compute_shards(job)
        if not chunk.has_embedding:
            receive(builder, self.job, ACTIVATIONS, chunk)
        elif job.model.vocab:
            if self.divides:
                data.gather_table(builder, job, self.share.embedding(chunk), task, "embedding weights")
            builder.part = "embedding"
            pieces.embed(builder, job, self.layer)
            self.wait([builder.length - 1])

        def layer(shard: LayerShard, kind: KeptActivations) -> list[int]:
            self.bring_weights(kind, task)
            gathered = data.gather_weights(builder, job, self.share, shard.composition, task) if self.divides else None
            ready = pieces.layer(builder, self.job, shard, self.position)
            if gathered is not None:
                data.wait_for_weights(builder, job, gathered, ready)
            self.weights_here(kind)
            if kind.away:
                self.gate = offload.send(builder, job, scheme_shards, kind, ready, self.gate)
            return ready

        ready = self.layers(chunk, layer, task)
        if job.training:
            ready = agree(builder, job, ready)
        if not chunk.has_head:
            send(builder, self.job, ACTIVATIONS, ready, chunk)
        elif job.model.vocab and job.head_tokens:
            if self.divides:
                data.gather_table(builder, job, self.share.head(chunk), task, "head weights")
            builder.part = "head"
            self.wait(ready)
            self.head(builder, job, self.layer)
        for module in self.further_tokens(chunk):
            builder.compute("join with next token", *self.join(), after=ready)
            ready = self.layers(module, layer, task)
            builder.part = "head"
            self.head(builder, job, self.layer)
        builder.further_token = False
        if chunk.has_head and job.drafts and job.model.vocab and not self.drafts_elsewhere:
            draft(self, layer, task)

    def wait(self, ready: list[int]) -> None:
        """In serving steps, make kernels wait for sums over ranks, before layers and after them."""
        if self.job.step.serves:
            self.builder.compute("rows here", after=ready)

    def backward(self, chunk: Chunk, task: Task) -> None:
        builder, job, scheme = self.builder, self.job, self.scheme
        scheme_shards = scheme.residency.compute_shards(job)
        put_off = job.order.splits_backward
        # Weight gradients of layers are deferred, the head's are not: with its loss it runs once.
        builder.weight_gradients = True
        builder.exchanged_gradients = []
        if not chunk.has_head:
            receive(builder, self.job, GRADIENTS, chunk)
        elif job.model.vocab:
            builder.part = "head backward"
            scheme.head_backward(builder, job, self.layer)

        def layer(shard: LayerShard, kind: KeptActivations) -> list[int]:
            whole = job
            # Inside a group, a layer is recomputed like one that is recomputed alone.
            here = whole.with_recomputation(FULL if kind.recomputation == INSIDE else kind.recomputation)
            here_again = 0
            if kind.away:
                here_again = offload.bring_back(builder, whole, scheme_shards, kind, self.gate)
            self.bring_weights(kind, task)
            gathered = data.gather_weights(builder, here, self.share, shard.composition, task)
            if here.plan.recomputation == FULL:
                builder.recomputing = True
                scheme.layer(builder, here, shard, self.position)
                builder.recomputing = False
            ready = scheme.layer_backward(builder, here, shard, self.position)
            data.wait_for_weights(builder, here, gathered, ready)
            if builder.weight_gradients:
                data.reduce_layer(builder, here, self.share.trained_layer(shard.composition), task)
            self.weights_here(kind)
            if kind.away:
                builder.hold_until(here_again)
                self.gate = builder.first_kernel
            return ready

        brought_home = builder.exchanged_gradients
        for module in self.further_tokens(chunk):
            builder.part = "head backward"
            scheme.head_backward(builder, job, self.layer)
            brought_home = builder.exchanged_gradients
            self.layers(module, layer, task, step=-1)
            products = [operator for operator in self.join() if isinstance(operator, Gemm)]
            builder.part = "head backward"
            builder.compute(
                "join backward", *(gradient for product in products for gradient in builder.gradients(product))
            )
        builder.further_token, builder.weight_gradients = False, not put_off
        if chunk.has_head and job.model.vocab:
            data.reduce_table(builder, job, self.share.head(chunk), "head", task, brought_home)
        ready = agree(builder, job, self.layers(chunk, layer, task, step=-1))
        if chunk.has_embedding and job.model.vocab and job.work.adapters is None:
            builder.part = "embedding backward"
            scheme.embed_backward(builder, job, self.layer)
            data.reduce_table(builder, job, self.share.embedding(chunk), "embedding", task)
        if not chunk.has_embedding:
            send(builder, self.job, GRADIENTS, ready, chunk)

    def bring_weights(self, kind: KeptActivations, task: Task) -> None:
        """Before a layer whose weights are offloaded: write their copy."""
        if not kind.fetched:
            return
        size = self.share.layer_bytes(kind.block)
        if self.job.step.serves:
            size = served.layer_weight_bytes(self.job, self.share.weight_shards, kind.block)
        returning = task.kind == BACKWARD and self.job.plan.offload_layers > 0
        self.arrivals.bring(self.builder, size, beside_activations=returning)

    def weights_here(self, kind: KeptActivations) -> None:
        """After such a layer: make it wait for its weights."""
        if kind.fetched:
            self.last_use = self.arrivals.hold(self.builder)

    def weights(self, chunk: Chunk, task: Task) -> None:
        """Write the third kind of task of zero-bubble orders: the weight gradients that the backward left out."""
        builder, write = self.builder, self.scheme.layer_weights
        assert write is not None

        def layer(shard: LayerShard, kind: KeptActivations) -> list[int]:
            builder.part = "weight gradients"
            write(builder, self.job, shard)
            data.reduce_layer(builder, self.job, self.share.trained_layer(shard.composition), task)
            return []

        self.layers(chunk, layer, task, step=-1)

    def further_tokens(self, chunk: Chunk) -> Iterator[Chunk]:
        """The MTP modules, each a layer after the model's last (DeepSeek-V3, §2.2).

        Their head is the model's. What is written for them is marked, so that it does not count as the model's layers.
        """
        if chunk.has_head and self.job.model.vocab:
            for module in range(self.job.multi_token):
                self.builder.further_token = True
                yield Chunk(self.job.model.layers + module, 1, False, True)

    def join(self) -> tuple[Operator, ...]:
        """The residual stream and the next token's embedding, both normed, through one projection from 2h."""
        tokens, hidden = own_tokens(self.job), self.job.model.hidden
        norm = self.layer.norm(tokens)
        return norm, norm, Gemm(tokens, hidden, 2 * hidden, self.job.work.precision, name="join projection")

    def layers(self, chunk: Chunk, write: WriteLayer, task: Task, step: int = 1) -> list[int]:
        """Write a chunk's layers, first to last, or last to first with ``step`` −1.

        Layers of one kind are written once and repeated, and reused by equal tasks; others are written one by one.
        Returns the instructions that complete the last layer, as indices of the program; without layers, the program's
        last instruction.
        """
        builder, job = self.builder, self.job
        if not chunk.layers:
            return [builder.length - 1]
        blocks = job.model.blocks[chunk.first_layer : chunk.first_layer + chunk.layers]
        blocks = blocks or (job.further_block,) * chunk.layers
        first, kinds = chunk.first_layer, self.kept_kinds(chunk, blocks, task)
        if step < 0:
            blocks, kinds, first = blocks[::-1], kinds[::-1], first + chunk.layers - 1
        builder.begin_run()
        alike = kinds.count(kinds[0]) == len(kinds)
        alone = any(kind.alone for kind in kinds[: 1 if alike else None])
        if alike and not alone:
            # A layer depends on its micro-batch in whether that is the first or the last of a step; in serving steps on
            # the rows of its pass.
            ends = task.micro_batch == 0, task.micro_batch == job.micro_batches - 1
            key = task.kind, *ends, chunk, builder.further_token, job.rows, job.pack
            if key not in self.written:
                builder.begin_layers(first)
                ready = write(self.kinds[blocks[0]], kinds[0])
                self.written[key] = builder.end_layers(chunk.layers, step), ready, builder.exchanged_gradients
            layers, ready, exchanged = self.written[key]
            builder.exchanged_gradients = list(exchanged)
            start = builder.repeat(layers)
        elif job.step.serves and not alone:
            start, ready = self.runs_of_layers(blocks, first, write)
        elif job.plan.recomputed is not None or alone:
            self.gate = builder.length - 1 if task.kind == BACKWARD and builder.length else None
            # Layers with copies to or from the host are written one by one, since each waits for copies of others.
            number = itertools.count()
            for (kind, _), same in itertools.groupby(kinds, lambda kind: (kind, next(number) if kind.alone else -1)):
                builder.begin_layers(first)
                ready, count = write(self.kinds[kind.block], kind), len(list(same))
                start = builder.put_layers(builder.take_layer(), first, count, step)
                if kind.away and self.gate is not None:
                    self.gate += start
                if kind.fetched:
                    self.arrivals.used(start + self.last_use)
                first += step * count
        else:
            for index, block in enumerate(blocks):
                builder.begin_layers(first + step * index)
                ready = write(self.kinds[block], kinds[index])
                start = builder.end_layer()
        self.exchanged_gradients = [start + index for index in builder.exchanged_gradients]
        return [start + index for index in ready]

    def kept_kinds(self, chunk: Chunk, blocks: Sequence[Block], task: Task) -> list[KeptActivations]:
        """Kinds of a chunk's layers for a task; recomputation distinguishes layers in a backward alone."""
        job, plan = self.job, self.job.plan
        again = job.recomputation_of(chunk) if task.kind == BACKWARD else (plan.recomputation,) * chunk.layers
        if self.builder.further_token or not job.training:
            again = (plan.recomputation,) * chunk.layers
        resident = self.builder.further_token or task.kind == WEIGHTS
        away = 0 if resident or not job.training else plan.offload_layers
        fetched = spread_over(chunk.layers, 0 if resident else plan.offload_weights)
        layers = list(zip(blocks, again, spread_over(chunk.layers, away), fetched, strict=True))
        if layers.count(layers[0]) == len(layers):
            return [KeptActivations(*layers[0])] * len(layers)
        return list(itertools.starmap(KeptActivations, layers))

    def runs_of_layers(self, blocks: Sequence[Block], first: int, write: WriteLayer) -> tuple[int, list[int]]:
        """Layers of a serving step, each kind written once; returns where the last begins, and what completes it."""
        builder = self.builder
        layers_of: dict[Block, tuple[WrittenLayer, list[int]]] = {}
        start, ready, layer = 0, [0], first
        for block, same in itertools.groupby(blocks):
            count = len(list(same))
            builder.begin_layers(layer)
            if block not in layers_of:
                done = write(self.kinds[block], KeptActivations(block, KEPT))
                layers_of[block] = builder.take_layer(), done
            written, ready = layers_of[block]
            start = builder.put_layers(written, layer, count)
            layer += count
        return start, ready
