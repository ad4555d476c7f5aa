"""One model under one plan: the facts that schemes, memory and programs read."""

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
from .draft import DRAFTS
from .lengths import OFFLOAD_FROM, Dealt, Groups, Pack, dealt, group_axis
from .pipeline import Chunk, PipelineOrder, chunk_layers, chunks_both_ways, in_turns, stage_chunks
from .plan import Plan
from .recomputed import KEPT
from .registries import SCHEME_FACTS, SchemeFacts
from .serving_engine import Captured
from .work import Work


class MadeOfRows(NamedTuple):
    """Operators of a layer's attention, and the method of its kind that makes them of the rows of a pass."""

    make: Callable[[ServingLayer, tuple[tuple[int, int, int], ...]], tuple[Operator, ...]]
    layer: ServingLayer
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Job:
    """One model under one plan: what every scheme is handed."""

    model: Architecture
    plan: Plan
    work: Work
    #: Which pass of a serving step is meant; None: the one with most tokens.
    pass_index: int | None = None
    #: Of sequences of unequal length: whose micro-batches are meant (None: those of the replica that has most of them),
    #: and which of them (None: the one with most tokens a rank), which those of its replica go with.
    replica: int | None = None
    pack: Pack | None = None
    beside: tuple[Pack, ...] = ()
    #: Seconds of a step in which its checkpoint waits until the one before is in its file.
    held_s: float = 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight element as it is kept and moved: while training the optimizer's, else the precision's."""
        if self.training and self.work.adapters is None:
            return self.work.optimizer.weights
        return self.work.weight_bytes or element_bytes(self.work.precision)

    @property
    def activation_bytes(self) -> float:
        """Bytes of an activation element; eight-bit and narrower formats keep activations in bf16 between kernels."""
        return max(2.0, element_bytes(self.work.precision))

    @property
    def step(self) -> Step:
        """What kind of step it is."""
        return self.work.step

    @property
    def training(self) -> bool:
        """Whether a backward follows the forward."""
        return self.work.step.trains

    @once
    def capture(self) -> Captured:
        """How much of the kernels of a serving step's pass its engine launches as graphs."""
        engine, queries = self.work.stack.engine, self.work.load.queries
        return engine.captured(self.rows, queries) if self.step.serves else Captured.NOTHING

    @once
    def forwards(self) -> tuple[Batch, ...]:
        """What passes the model in a serving step, as it is."""
        return self.step.passes(self.work.load, self.plan.pp)

    @property
    def copies(self) -> int:
        """Ranks on the replica axis."""
        return self.plan.dp * self.plan.sp

    @property
    def replicates_tokens(self) -> bool:
        """Whether ranks of an expert group have the same tokens anyway, as those of ``tp`` where one serves, and of
        ``sp`` beside it where contexts alone are divided. Nothing is exchanged, and what each rank's experts add is
        summed as tensor parallelism does."""
        if not self.step.serves or self.plan.ep == 1:
            return False
        return self.whole_ranks % self.plan.ep == 0 or self.sums_over_experts

    @property
    def sums_over_experts(self) -> bool:
        """Whether the sum behind experts is that of the whole group, ranks of ``sp`` among them: of a step that has all
        tokens on these, experts that ``ep`` spreads over ``tp`` and them."""
        ranks, ep = self.whole_ranks, self.plan.ep
        return ep > ranks and ep % ranks == 0 and ranks * self.context_ranks % ep == 0

    @property
    def context_ranks(self) -> int:
        """Ranks of ``sp`` that have the same tokens, and parts of their contexts: those of a serving step that does not
        divide tokens."""
        return self.plan.sp if self.step.serves and not self.step.shards_tokens and self.scheme.usual else 1

    @property
    def whole_ranks(self) -> int:
        """Ranks that have the same tokens in a serving step, and divide heads, columns and experts among them."""
        return self.scheme.whole_ranks(self)

    @property
    def multi_token(self) -> int:
        """Modules for further tokens that this job runs."""
        return self.model.multi_token if self.training and self.work.multi_token else 0

    def blocks(self, chunks: Sequence[Chunk]) -> Counter[Block]:
        """Kinds of layer in some chunks, and how many of each."""
        kinds: Counter[Block] = Counter()
        for chunk in chunks:
            for block, count in self.model.kinds(chunk.first_layer, chunk.layers):
                kinds[block] += count
            if chunk.has_head and self.further_layers:
                kinds[self.further_block] += self.further_layers
        return kinds

    @once
    def sequences(self) -> int:
        """Sequences of one micro-batch, or prompts that a pass reads whose tokens ranks divide."""
        if self.step.serves and self.step.shards_tokens and self.pass_index is not None:
            return self.rows[0][2]
        if self.unequal:
            return len(self.packed.tokens)
        return self.plan.micro_batch or self.step.micro_batch(self.work.sequences)

    @property
    def sequence(self) -> int:
        """Tokens of each that one pass takes: all, or a chunk of a prompt."""
        if self.unequal:
            return max(self.packed.tokens)
        return self.rows[0][0] if self.step.serves else self.work.sequence

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """Tokens of the sequences of one micro-batch, and how many have as many."""
        if self.unequal:
            return tuple(sorted(Counter(self.packed.tokens).items()))
        return ((self.sequence, self.sequences),)

    @property
    def unequal(self) -> bool:
        """Whether sequences of the step differ in length."""
        return bool(self.work.unequal.tokens)

    @once
    def dealt(self) -> Dealt:
        """Who works on which of them; raises InputError where they cannot be dealt so."""
        work, plan, options = self.work, self.plan, self.plan.options
        halves, regions = (2 if plan.partition == "zigzag" else 1), plan.tp if plan.sequence_regions else 1
        groups = Groups(
            plan.dp, plan.token_shards, options.get("rank_tokens"), bool(options.get("dynamic_sp")),
            lambda ranks: ranks * regions * (halves if ranks > 1 else 1), bool(options.get("padded")),
        )  # fmt: skip
        try:
            return dealt(self.model, work.unequal.tokens, work.causal, options.get("deal", "work"), groups)
        except InputError as error:
            raise self.plan.refusal(error.key or "rank_tokens", error.message) from None

    @once
    def packs(self) -> tuple[Pack, ...]:
        """A replica's micro-batches of sequences of unequal length."""
        if self.beside:
            return self.beside
        return max(self.dealt.packs, key=len) if self.replica is None else self.dealt.packs[self.replica]

    @once
    def packed(self) -> Pack:
        """The micro-batch of them that is meant."""
        if self.pack is not None:
            return self.pack
        packs = self.packs if self.replica is not None else [pack for replica in self.dealt.packs for pack in replica]
        return max(packs, key=lambda pack: sum(pack.tokens) / pack.ranks)

    def taking(self, pack: Pack) -> Job:
        """The job in one micro-batch of sequences of unequal length, its plan that of the ranks that share it."""
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
        """The job in every micro-batch of any replica, those that are alike once."""
        packs = (pack for replica in self.dealt.packs for pack in replica)
        for tokens, ranks in dict.fromkeys((pack.tokens, pack.ranks) for pack in packs):
            yield self.taking(Pack(tokens, ranks))

    @property
    def cached(self) -> int:
        """Tokens of each that are in the cache before a pass."""
        return self.rows[0][1] if self.step.serves else 0

    @once
    def micro_batches(self) -> int:
        """Micro-batches of a replica's step, or passes of a serving one."""
        if self.unequal:
            return len(self.packs)
        return len(self.passes) or self.work.sequences // self.sequences

    @once
    def passes(self) -> tuple[Batch, ...]:
        """Forwards of a serving step, padded as its engine does, or halves of them that take turns; none of others."""
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
        """Rows of one pass of a serving step."""
        if self.pass_index is None:
            return max(self.passes, key=lambda batch: batch.tokens)
        return self.passes[self.pass_index]

    @once
    def rows(self) -> tuple[tuple[int, int, int], ...]:
        """Of that pass, as layers take them; none of a step that does not serve."""
        if not self.step.serves:
            return ()
        return tuple([(queries, context, sequences) for queries, context, sequences in self.batch.rows])

    @once
    def attention_operators(self) -> dict[Hashable, MadeOfRows]:
        """Those that a writer has made already, by who asks for them."""
        return {}

    @property
    def drafts(self) -> Speculation | None:
        """What the step verifies, and makes again at its end."""
        return self.work.load.speculation if self.step.serves else None

    @property
    def draft_layers(self) -> int:
        """Layers of the drafter; none where nothing is drafted."""
        return DRAFTS.get(self.drafts.draft).layers if self.drafts and self.drafts.tokens else 0

    @property
    def further_layers(self) -> int:
        """Layers behind the model's last: of its modules for further tokens, or of a drafter."""
        return self.multi_token + self.draft_layers

    @property
    def further_block(self) -> Block:
        """What those are made of."""
        return DRAFTS.get(self.drafts.draft).block(self.model) if self.drafts else self.model.further_block

    def at(self, index: int) -> Job:
        """The job in one pass of a serving step, or in one micro-batch of sequences of unequal length; any other is the
        same in all of its micro-batches."""
        if self.unequal:
            return self.taking(self.packs[index])
        if not self.step.serves:
            return self
        # The passes are the same in all of them, and long where chunks are many.
        return knowing(replace(self, pass_index=index), passes=self.passes)

    @once
    def group_tokens(self) -> int:
        """Tokens of one micro-batch, over all token shards."""
        if self.unequal:
            return sum(self.packed.tokens)
        return self.batch.tokens if self.step.serves else self.work.sequence * self.sequences

    @once
    def tokens(self) -> int:
        """Tokens of one micro-batch that a rank holds."""
        return self.group_tokens // (self.packed.ranks if self.unequal else self.token_shards)

    def of_rows(self, rows: tuple[tuple[int, int, int], ...]) -> Job:
        """The job in some rows of its pass."""
        return knowing(replace(self), passes=self.passes, batch=replace(self.batch, rows=rows))

    @property
    def token_shards(self) -> int:
        """Ranks that the tokens of a pass are divided over."""
        return self.plan.token_shards if self.step.shards_tokens else 1

    @property
    def head_tokens(self) -> int:
        """Tokens of one micro-batch that a rank takes through the language-model head."""
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
        """The layers that a stage holds, in the order of its chunks."""
        if self.training and self.plan.pp > 1 and self.plan.order.both_ways:
            return chunks_both_ways(self.chunk_sizes, stage)
        return stage_chunks(self.chunk_sizes, self.plan.pp, stage)

    @property
    def order(self) -> PipelineOrder:
        """The order of a stage's tasks: the plan's, or where forwards and backwards are interleaved what stands in."""
        order = self.plan.order
        if self.training and self.plan.hiding.micro_batches and order.of_micro_batches:
            order = order.of_micro_batches
        return in_turns(order, self.plan.accumulation) if self.training else order

    def tasks(self, stage: int) -> list[Task]:
        """What a stage does in a step, in order."""
        plan = self.plan
        tasks = self.step.tasks(self.order, plan.pp, stage, self.micro_batches, plan.vpp)
        if not (self.step.serves and plan.hiding.halves):
            return tasks
        return [task._replace(beside=index % 2 == 0) for index, task in enumerate(tasks)]

    def again(self, chunk: Chunk) -> tuple[str, ...]:
        """What of each of a chunk's layers its backward makes again."""
        what, partly = self.plan.recomputation, self.plan.recomputed
        return partly.by_layer(what, chunk.layers) if partly is not None else (what,) * chunk.layers

    def making(self, again: str) -> Job:
        """The job as one layer of it meets it, of which that much is made again."""
        if self.plan.recomputed is None and self.plan.recomputation == again:
            return self
        return replace(self, plan=replace(self.plan, recomputation=again, recomputed=None))

    @property
    def least_again(self) -> Job:
        """The job without copies to and from the host, and where nothing is made again of any layer, if that is so of
        some."""
        job = self if self.plan.recomputed is None else self.making(KEPT)
        if not (job.plan.offload_layers or job.plan.offload_weights):
            return job
        return replace(job, plan=replace(job.plan, offload_layers=0, offload_weights=0))

    @once
    def store(self) -> ActivationStore:
        """In which type kept activations wait: as the plan says, or the stack."""
        return ACTIVATION_STORES.get(self.plan.activation_store or self.work.stack.activation_store or WIDE.name)

    @once
    def expert_loads(self) -> Balanced:
        """What each rank of an expert group gets to do, by the plan's policy."""
        experts, plan = self.model.experts, self.plan
        assert experts is not None
        if plan.expert_shards == 0:  # tokens stay where they are, whatever experts they visit
            return Balanced(self.work.routing.rank_loads(experts.count, 1) * plan.ep)
        tokens = -(-self.tokens // plan.tp) if self.step.serves else self.tokens  # ranks of tp take a part each
        assignments, owners = float(tokens * plan.ep * experts.topk), plan.ep // plan.expert_owners
        loads = balanced(self.work.routing, plan.expert_balance, experts.count, owners, assignments)
        return loads.of_slices(plan.expert_owners) if plan.expert_owners > 1 else loads

    @once
    def stated(self) -> frozenset[str]:
        """Keys of its plan that are stated, and facts of its model and work that do not stand at their default."""
        facts = [f"model.{name}" for name in self.model.stated]
        return self.plan.stated.union(facts, (f"work.{name}" for name in self.work.stated))

    @once
    def scheme(self) -> SchemeFacts:
        """What spreads a replica, as far as jobs ask; all of it: :func:`~tspsim.parallel.scheme.scheme_of`."""
        return SCHEME_FACTS.get(self.plan.scheme)

    @property
    def head_shards(self) -> int:
        """Ranks, or steps of the folded schedule, that the heads are spread over."""
        return self.scheme.head_shards(self)
