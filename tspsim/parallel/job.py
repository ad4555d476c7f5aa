"""A job: one model under one plan, with the facts that schemes, memory and programs read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.errors import InputError
from ..base.memo import knowing, once
from ..base.quick import replace
from ..model import Architecture, Block
from ..model.layer import LayerShard, ServingLayer
from ..model.parts import WeightClass
from ..operators import Operator, element_bytes
from ..steps import Batch, Speculation, Step, Task
from .activation_store import ACTIVATION_STORES, WIDE, ActivationStore
from .balance import Balanced, balanced
from .column_inputs import COLUMN_INPUTS, ColumnInputs
from .draft import DRAFTS
from .interleave import HALVES, INTERLEAVINGS, Interleaving
from .lengths import OFFLOAD_FROM, Groups, Pack, SequenceAssignment, assign, group_axis
from .mixed_precision import MIXED_PRECISIONS, MixedPrecision
from .pipeline import IN_ROUNDS, Chunk, ChunkPlacement, PipelineOrder, chunk_layers, in_turns
from .plan import Plan
from .recomputed import KEPT
from .registries import SCHEME_FACTS, SchemeFacts
from .serving_engine import Captured
from .tensor_scales import TENSOR_SCALES, TensorScales
from .work import Work

#: What a job knows of all passes of a step that serves, and of each.
OF_ALL_PASSES = frozenset({"forwards", "micro_batches", "stated", "scheme", "chunk_sizes"})
OF_ONE_PASS = frozenset({"batch", "rows", "capture", "group_tokens", "tokens"})


class MadeOfRows(NamedTuple):
    """Operators of a layer's attention, and the method of its kind that makes them of the rows of a pass."""

    make: Callable[[ServingLayer, tuple[tuple[int, int, int], ...]], tuple[Operator, ...]]
    layer: ServingLayer
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Job:
    """One model under one plan for some work: the argument of every scheme."""

    model: Architecture
    plan: Plan
    work: Work
    #: Index of the pass of a serving step; None: the one with most tokens.
    pass_index: int | None = None
    #: With unequal sequences: the replica (None: the one with most micro-batches), its micro-batch (None: the one with
    #: most tokens per rank), and the replica's other micro-batches.
    replica: int | None = None
    pack: Pack | None = None
    beside: tuple[Pack, ...] = ()
    #: Seconds of a step in which its checkpoint waits for the file of the previous one.
    held_s: float = 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight element in memory and on links: the optimizer's while training, else the precision's."""
        if self.training and self.work.adapters is None:
            return self.work.optimizer.weights
        return self.work.weight_bytes or element_bytes(self.work.precision)

    @property
    def activation_bytes(self) -> float:
        """Bytes of an activation element; with eight bits and fewer, activations are bf16 between kernels."""
        return max(2.0, element_bytes(self.work.precision))

    @property
    def step(self) -> Step:
        """The kind of step."""
        return self.work.step

    @property
    def training(self) -> bool:
        """Whether a backward follows the forward."""
        return self.work.step.trains

    @once
    def capture(self) -> Captured:
        """The part of a serving step's pass that its engine launches as graphs."""
        engine, queries = self.work.stack.engine, self.work.load.queries
        return engine.captured(self.rows, queries) if self.step.serves else Captured.NOTHING

    @once
    def forwards(self) -> tuple[Batch, ...]:
        """Passes of a serving step, without padding."""
        return self.step.passes(self.work.load, self.plan.pp)

    @property
    def copies(self) -> int:
        """Ranks on the replica axis."""
        return self.plan.dp * self.plan.sp

    @property
    def replicates_tokens(self) -> bool:
        """Whether ranks of an expert group have the same tokens, as those of ``tp`` do in serving steps, and of ``sp``
        beside it if only contexts are divided.

        Nothing is dispatched then, and the ranks' results are summed as in tensor parallelism.
        """
        if not self.step.serves or self.plan.ep == 1:
            return False
        return self.tensor_ranks % self.plan.ep == 0 or self.sums_over_experts

    @property
    def sums_over_experts(self) -> bool:
        """Whether the sum after experts is over the whole expert group, with ranks of ``sp``: if ``ep`` spreads experts
        over ``tp`` and ``sp`` in a step whose ranks of ``sp`` have all tokens."""
        ranks, ep = self.tensor_ranks, self.plan.ep
        return ep > ranks and ep % ranks == 0 and ranks * self.context_ranks % ep == 0

    @property
    def context_ranks(self) -> int:
        """Ranks of ``sp`` with the same tokens and parts of contexts, in serving steps that do not divide tokens."""
        return self.plan.sp if self.step.serves and not self.step.shards_tokens and self.scheme.usual else 1

    @property
    def tensor_ranks(self) -> int:
        """Ranks with the same tokens in a serving step, which divide heads, columns and experts."""
        return self.scheme.tensor_ranks(self)

    @property
    def multi_token(self) -> int:
        """MTP modules that the job runs."""
        return self.model.multi_token if self.training and self.work.multi_token else 0

    def blocks(self, chunks: Sequence[Chunk]) -> Counter[Block]:
        """Kinds of layer in some chunks, with the number of each."""
        kinds: Counter[Block] = Counter()
        for chunk in chunks:
            for block, count in self.model.kinds(chunk.first_layer, chunk.layers):
                kinds[block] += count
            if chunk.has_head and self.further_layers:
                kinds[self.further_block] += self.further_layers
        return kinds

    @once
    def sequences(self) -> int:
        """Sequences of a micro-batch, or prompts of a pass whose tokens are divided."""
        if self.step.serves and self.step.shards_tokens and self.pass_index is not None:
            return self.rows[0][2]
        if self.unequal:
            return len(self.packed.tokens)
        return self.plan.micro_batch or self.step.micro_batch(self.work.sequences)

    @property
    def sequence(self) -> int:
        """Tokens of each sequence in a pass: all, or a chunk of a prompt."""
        if self.unequal:
            return max(self.packed.tokens)
        return self.rows[0][0] if self.step.serves else self.work.sequence

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """(tokens, number of such sequences) of a micro-batch."""
        if self.unequal:
            return tuple(sorted(Counter(self.packed.tokens).items()))
        return ((self.sequence, self.sequences),)

    @property
    def unequal(self) -> bool:
        """Whether sequences of the step differ in length."""
        return bool(self.work.unequal.tokens)

    @once
    def assignment(self) -> SequenceAssignment:
        """The assignment of unequal sequences to ranks; raises InputError if there is none."""
        work, plan, options = self.work, self.plan, self.plan.options
        halves, regions = (2 if plan.partition == "zigzag" else 1), plan.tp if plan.sequence_regions else 1
        groups = Groups(
            plan.dp, plan.token_shards, options.get("rank_tokens"), bool(options.get("dynamic_sp")),
            lambda ranks: ranks * regions * (halves if ranks > 1 else 1), bool(options.get("padded")),
        )  # fmt: skip
        try:
            return assign(self.model, work.unequal.tokens, work.causal, options.get("deal", "work"), groups)
        except InputError as error:
            raise self.plan.refusal(error.key or "rank_tokens", error.message) from None

    @once
    def packs(self) -> tuple[Pack, ...]:
        """A replica's micro-batches of unequal sequences."""
        if self.beside:
            return self.beside
        return max(self.assignment.packs, key=len) if self.replica is None else self.assignment.packs[self.replica]

    @once
    def packed(self) -> Pack:
        """The current micro-batch of unequal sequences."""
        if self.pack is not None:
            return self.pack
        packs = (
            self.packs if self.replica is not None else [pack for replica in self.assignment.packs for pack in replica]
        )
        return max(packs, key=lambda pack: sum(pack.tokens) / pack.ranks)

    def taking(self, pack: Pack) -> Job:
        """The job in one micro-batch of unequal sequences, with the plan of the ranks that share it."""
        plan = self.plan
        if plan.offload_layers and max(pack.tokens) < plan.options.get(OFFLOAD_FROM, 0):
            plan = replace(plan, offload_layers=0)
        if pack.ranks > plan.token_shards:
            ranks = pack.ranks // plan.token_shards
            degrees = {**plan.degrees, plan.token_axis: pack.ranks, "dp": plan.dp // ranks}
            together = {plan.token_axis: plan.node_ranks(group_axis(ranks)) if plan.together else pack.ranks}
            own = {name: value for name, value in plan.options.items() if name != "dynamic_sp"}
            plan = replace(plan, degrees=degrees, together=together, options=own)
        return replace(self, plan=plan, pack=pack, beside=self.packs)

    def every_pack(self) -> Iterator[Job]:
        """The job in each distinct micro-batch of any replica."""
        packs = (pack for replica in self.assignment.packs for pack in replica)
        for tokens, ranks in dict.fromkeys((pack.tokens, pack.ranks) for pack in packs):
            yield self.taking(Pack(tokens, ranks))

    @property
    def cached(self) -> int:
        """Cached tokens of each sequence before a pass."""
        return self.rows[0][1] if self.step.serves else 0

    @once
    def micro_batches(self) -> int:
        """Micro-batches of a replica's step, or passes of a serving step."""
        if self.unequal:
            return len(self.packs)
        return len(self.passes) or self.work.sequences // self.sequences

    @once
    def passes(self) -> tuple[Batch, ...]:
        """Passes of a serving step with its engine's padding, or their interleaved halves; empty for other steps."""
        engine, load, whole = self.work.stack.engine, self.work.load, self.forwards
        passes = whole
        if load.pads_prompts:
            passes = tuple(replace(batch, rows=load.padded(batch.rows), outputs=batch.head_tokens) for batch in whole)
        if self.plan.hiding.halves:
            passes = tuple(half for batch in passes for half in batch.halves)
        filled = [engine.filled(tuple(batch.rows), load.queries) for batch in passes]
        return tuple(
            batch if rows == tuple(batch.rows) else replace(batch, rows=rows, outputs=batch.head_tokens)
            for batch, rows in zip(passes, filled, strict=True)
        )

    def padding_prompts(self) -> Job:
        """The job with short pieces of prompts padded for prefill kernels."""
        return replace(self, work=replace(self.work, load=replace(self.work.load, pads_prompts=True)))

    @once
    def batch(self) -> Batch:
        """The current pass of a serving step."""
        if self.pass_index is None:
            return max(self.passes, key=lambda batch: batch.tokens)
        return self.passes[self.pass_index]

    @once
    def rows(self) -> tuple[tuple[int, int, int], ...]:
        """Rows of that pass; empty if the step does not serve."""
        if not self.step.serves:
            return ()
        return tuple([(queries, context, sequences) for queries, context, sequences in self.batch.rows])

    @once
    def attention_operators(self) -> dict[Hashable, MadeOfRows]:
        """Cache of a layer's attention operators, and how they are made of rows, by method and kind of layer."""
        return {}

    @property
    def drafts(self) -> Speculation | None:
        """Drafts that the step verifies, and makes for the next one."""
        return self.work.load.speculation if self.step.serves else None

    @property
    def draft_layers(self) -> int:
        """Layers of the drafter; 0 without drafts."""
        return DRAFTS.get(self.drafts.draft).layers if self.drafts and self.drafts.tokens else 0

    @property
    def further_layers(self) -> int:
        """Layers after the model's last: of its MTP modules, or of a drafter."""
        return self.multi_token + self.draft_layers

    @property
    def further_block(self) -> Block:
        """The kind of those layers."""
        return DRAFTS.get(self.drafts.draft).block(self.model) if self.drafts else self.model.further_block

    def at(self, index: int) -> Job:
        """The job in one pass of a serving step, or one micro-batch of unequal sequences; otherwise the job itself."""
        if self.unequal:
            return self.taking(self.packs[index])
        if not self.step.serves:
            return self
        # All of them share the passes, which are many if chunks are; a single one is what the whole job has.
        facts = {name: value for name, value in vars(self).items() if name in OF_ALL_PASSES}
        if len(self.passes) == 1 and self.pass_index is None:
            facts |= {name: value for name, value in vars(self).items() if name in OF_ONE_PASS}
        return knowing(replace(self, pass_index=index), passes=self.passes, **facts)

    @once
    def group_tokens(self) -> int:
        """Tokens of one micro-batch, over all token shards."""
        if self.unequal:
            return sum(self.packed.tokens)
        return self.batch.tokens if self.step.serves else self.work.sequence * self.sequences

    @once
    def tokens(self) -> int:
        """Tokens of one micro-batch on a rank."""
        return self.group_tokens // (self.packed.ranks if self.unequal else self.token_shards)

    def of_rows(self, rows: tuple[tuple[int, int, int], ...]) -> Job:
        """The job with other rows in its pass."""
        return knowing(replace(self), passes=self.passes, batch=replace(self.batch, rows=rows))

    @property
    def token_shards(self) -> int:
        """Ranks that divide the tokens of a pass."""
        return self.plan.token_shards if self.step.shards_tokens else 1

    @property
    def head_tokens(self) -> int:
        """Tokens of one micro-batch that go through the LM head on a rank."""
        return self.batch.head_tokens if self.step.serves else self.tokens

    def layer(self, shards: int, block: Block | None = None) -> LayerShard:
        """``1/shards`` of a layer of one kind (None: the model's first), in this work's types."""
        work = self.work
        if self.step.serves:
            wide = work.formats.multiplied(WeightClass.ATTENTION)
            drafts = self.drafts.tokens if self.drafts else 0
            return ServingLayer(
                self.model, shards, wide, self.activation_bytes, block, formats=work.formats, verified=1 + drafts
            )
        return LayerShard(self.model, shards, work.precision, self.activation_bytes, block, work.document or 0)

    @once
    def chunk_sizes(self) -> tuple[int, ...]:
        """Layers of every chunk of the pipeline."""
        return self.plan.stage_layers or chunk_layers(self.model.layers, self.plan.pp * self.plan.vpp)

    def chunks(self, stage: int) -> tuple[Chunk, ...]:
        """The chunks of a stage, in order."""
        return self.placement.chunks(self.chunk_sizes, self.plan.pp, stage)

    @property
    def placement(self) -> ChunkPlacement:
        """Which chunks a stage holds, and which way micro-batches go; orders of training change it."""
        return self.plan.order.placement if self.training and self.plan.pp > 1 else IN_ROUNDS

    @property
    def order(self) -> PipelineOrder:
        """The order of a stage's tasks: the plan's, or its variant for interleaved micro-batches."""
        order = self.plan.order
        if self.interleaves and order.of_micro_batches:
            order = order.of_micro_batches
        return in_turns(order, self.plan.accumulation) if self.training else order

    @property
    def interleaves(self) -> bool:
        """Whether forwards and backwards of different micro-batches are interleaved."""
        return self.training and self.plan.hiding.micro_batches

    @property
    def interleaving(self) -> Interleaving:
        """The order of two interleaved tasks: the stack's in training; halves of a serving step alternate."""
        return INTERLEAVINGS.get(self.work.stack.interleaving if self.training else HALVES)

    @property
    def column_inputs(self) -> ColumnInputs:
        """What column-split products keep of inputs that sequence regions gathered: the stack's."""
        return COLUMN_INPUTS.get(self.work.stack.column_inputs)

    @property
    def mixed_precision(self) -> MixedPrecision:
        """How bf16 products and fp32 weights go together: the stack's."""
        return MIXED_PRECISIONS.get(self.work.stack.mixed_precision)

    @property
    def tensor_scales(self) -> TensorScales:
        """Where operands with one scale a tensor get it from: the stack's."""
        return TENSOR_SCALES.get(self.work.stack.tensor_scales)

    @property
    def regions(self) -> bool:
        """Whether the residual stream's tokens are divided among ranks of ``tp``."""
        return self.plan.sequence_regions and self.plan.tp > 1

    def tasks(self, stage: int) -> list[Task]:
        """The tasks of a stage in a step, in order."""
        plan = self.plan
        tasks = self.step.tasks(self.order, plan.pp, stage, self.micro_batches, plan.vpp)
        if not (self.step.serves and plan.hiding.halves):
            return tasks
        return [task._replace(beside=index % 2 == 0) for index, task in enumerate(tasks)]

    def recomputation_of(self, chunk: Chunk) -> tuple[str, ...]:
        """The recomputation of each of a chunk's layers."""
        what, partly = self.plan.recomputation, self.plan.recomputed
        return partly.by_layer(what, chunk.layers) if partly is not None else (what,) * chunk.layers

    def with_recomputation(self, what: str) -> Job:
        """The job with the given recomputation in every layer."""
        if self.plan.recomputed is None and self.plan.recomputation == what:
            return self
        return replace(self, plan=replace(self.plan, recomputation=what, recomputed=None))

    @property
    def with_least_recomputation(self) -> Job:
        """The job without copies to and from the host, and without recomputation if some layers have none."""
        job = self if self.plan.recomputed is None else self.with_recomputation(KEPT)
        if not (job.plan.offload_layers or job.plan.offload_weights):
            return job
        return replace(job, plan=replace(job.plan, offload_layers=0, offload_weights=0))

    @once
    def store(self) -> ActivationStore:
        """The type in which activations are kept: the plan's, or the stack's."""
        return ACTIVATION_STORES.get(self.plan.activation_store or self.work.stack.activation_store or WIDE.name)

    @once
    def expert_loads(self) -> Balanced:
        """The work of each rank of an expert group, under the plan's balance policy."""
        experts, plan = self.model.experts, self.plan
        assert experts is not None
        if plan.expert_shards == 0:  # tokens stay on their ranks, whatever experts they visit
            return Balanced(self.work.routing.rank_loads(experts.count, 1) * plan.ep)
        tokens = -(-self.tokens // plan.tp) if self.step.serves else self.tokens  # ranks of tp divide the tokens
        assignments, owners = float(tokens * plan.ep * experts.topk), plan.ep // plan.expert_owners
        loads = balanced(self.work.routing, plan.expert_balance, experts.count, owners, assignments)
        return loads.of_slices(plan.expert_owners) if plan.expert_owners > 1 else loads

    @once
    def stated(self) -> frozenset[str]:
        """Stated keys of its plan, and facts of its model and work that differ from their defaults."""
        facts = [f"model.{name}" for name in self.model.stated]
        return self.plan.stated.union(facts, (f"work.{name}" for name in self.work.stated))

    @once
    def scheme(self) -> SchemeFacts:
        """The plan's scheme as jobs read it; in full: :func:`~tspsim.parallel.scheme.scheme_of`."""
        return SCHEME_FACTS.get(self.plan.scheme)

    @property
    def head_shards(self) -> int:
        """Ranks, or steps of the folded schedule, that divide the heads."""
        return self.scheme.head_shards(self)
