"""A parallel plan and the work it is for, as facts the schemes read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..model import Architecture, Block
from ..model.formats import WeightClass
from ..model.layer import LayerShard
from ..model.serving import ServingLayer
from ..network import Routing
from ..operators import DTYPE_BYTES
from ..steps import STEPS, Batch, Speculation, Step, Task
from . import expert_checks
from .activation_store import ACTIVATION_STORES, WIDE, ActivationStore
from .balance import BALANCES, BUSIEST, Balance, Balanced, balanced
from .checkpoint import CHECKPOINTS
from .dispatch import DISPATCHES, OVERLAPS, ExpertDispatch, ExpertOverlap
from .draft import DRAFTS
from .lengths import Dealt, Groups, Pack, dealt, group_axis
from .pipeline import ORDERS, Chunk, Pipeline, PipelineOrder, chunk_layers, chunks_both_ways, stage_chunks
from .recomputed import FULL, KEPT, RECOMPUTE_METHODS, Partly
from .registries import SCHEMES, scheme_name
from .serving_engine import Captured
from .work import Work

if TYPE_CHECKING:
    from .scheme import Scheme

#: The axis of ranks that gather an expert's slices.
SLICES = "expert slices"



@dataclass(frozen=True)
class Plan:
    """How one model is spread over the GPUs, and which switches of the schedule are set.

    Attributes
    ----------
    degrees
        Size of every mesh axis; their product is the number of GPUs. ``ep`` besides them is the size of the
        groups that experts are spread over: it multiplies nothing, its ranks are those of :attr:`expert_axes`.
    partition
        ``zigzag`` (rank i of n holds token chunks i and 2n−1−i) or ``contiguous``.
    exchange
        How sequence shards see each other's K and V: a registered context method.
    sequence_regions
        Megatron's sequence regions: reduce-scatter and all-gather around the norms instead of an all-reduce.
    overlap
        Exchanges run beside compute. None is the scheme's own default: on for TSP and for the ring exchange, whose
        reason to exist it is; off for TP's reductions and for gathers. ``fused``: TP's products and sums meet in slices
        of one kernel.
    overlap_chunks
        Pieces a tensor-parallel reduction or a context gather is cut into when it is overlapped.
    recomputation
        ``none``, ``selective`` (attention only), ``cheap`` (norms, activations, heads from latents) or ``full`` (a
        layer's input is all that is kept); see :mod:`tspsim.parallel.recompute`.
    micro_batch
        Sequences of one micro-batch; None: one while training, all of them in a forward pass.
    vpp
        Chunks of layers a pipeline stage holds (virtual stages).
    schedule
        Order of micro-batches on a stage, a name in :data:`tspsim.parallel.pipeline.ORDERS`: ``1f1b`` (interleaved
        with vpp > 1), ``zb-h1`` or ``dualpipe``.
    zero
        What data-parallel replicas divide among them: 0 nothing, 1 optimizer state, 2 and gradients, 3 and weights
        (Rajbhandari et al. 2020); 3 is FSDP.
    secondary_shard
        With ZeRO 3: neighbours that keep a second copy of the weights among them, which backwards gather (hpZ).
    weight_wire, gradient_wire
        With ZeRO 3: types in :data:`tspsim.parallel.wires.WIRES` that weights are gathered in ahead of a forward, and
        that gradients are summed in (ZeRO++'s qwZ and qgZ); None: their own.
    checkpoint, checkpoint_rate, checkpoint_every
        How checkpoints are written (a name in :data:`tspsim.parallel.checkpoint.CHECKPOINTS`; None: none is), bytes/s
        that the file system takes of all ranks (None: it keeps up), and one in how many steps.
    shard_group
        Ranks that divide it among themselves, the groups holding the same (hybrid sharding); None: all of them.
    expert_dispatch
        How tokens travel to their experts: a name in :data:`tspsim.parallel.dispatch.DISPATCHES`.
    expert_overlap
        What hides that: a name in :data:`tspsim.parallel.dispatch.OVERLAPS`.
    expert_pieces
        Pieces that dispatch, experts and combine are cut into, so that they run beside each other (Tutel's degree).
    expert_shards
        Where experts and tokens meet (:mod:`tspsim.parallel.expert_shards`, Tutel's r): 0 gathers all experts, more are
        ranks that an expert's columns are multiplied on. None: a whole expert on its rank.
    stage_layers
        Layers of every chunk, first to last; empty: as even as can be.
    recomputed
        Which layers that is said of, where not of all; of the others nothing is made again.
    activation_store
        In which type kept activations wait: a name in :data:`tspsim.parallel.activation_store.ACTIVATION_STORES`; None:
        the stack's.
    offload_layers
        Layers of every chunk, spread over it, whose kept activations wait in the host's memory.
    expert_balance
        What every rank of an expert group gets of its load: a policy of :data:`tspsim.parallel.balance.BALANCES`.
    weight_transport
        How the MLP's weights come to the ranks of the folded axis: a registered transport.
    mlp_pieces
        Pieces in which ``gather`` brings them.
    head_groups
        Groups of heads that TSP attends one after the other; None: one a rank, the published bucket.
    context_transport
        Links that the ring exchange of sequence shards uses: ``ring``, one of a GPU's on a mesh, or ``multi_ring``.
    overlap_by
        What overlapped gathers of K and V are cut by: ``heads``, or ``blocks`` of tokens.
    algorithms
        Collective kind → algorithm name, where the plan insists on one.
    open
        Names of switches above that are not stated: :mod:`tspsim.tuning` chooses them for the cluster. Until then they
        stand at the published schedule.
    chosen
        Names of those that were chosen so.
    expert_owners
        Ranks that keep an expert in slices: as many as ``ep`` is more than the model's experts (:meth:`owned`).
    together
        Axis → ranks of one group along it that share a node, where every node has as many; absent: all of them.
    node_axes, rail_axes
        Axes laid along the node first, and those laid across nodes; see :func:`tspsim.parallel.mesh.build_mesh`.
    node_order
        Nodes, or GPUs, in the order in which the mesh is laid on them; empty: as they are numbered.
    routing
        How its flows choose among equal paths between switches; None: as the cluster's do.
    options
        Keys that the scheme or the context method brings with it.
    """

    name: str
    degrees: Mapping[str, int]
    partition: str = "zigzag"
    exchange: str = "all_gather"
    sequence_regions: bool = False
    overlap: bool | str | None = None
    overlap_chunks: int = 4
    recomputation: str = "none"
    micro_batch: int | None = None
    vpp: int = 1
    schedule: str = "1f1b"
    zero: int = 0
    shard_group: int | None = None
    secondary_shard: int | None = None
    weight_wire: str | None = None
    gradient_wire: str | None = None
    checkpoint: str | None = None
    checkpoint_rate: float | None = None
    checkpoint_every: int = 1
    expert_dispatch: str = "ranks"
    expert_overlap: str = "none"
    expert_pieces: int = 1
    expert_shards: int | None = None
    stage_layers: tuple[int, ...] = ()
    recomputed: Partly | None = None
    activation_store: str | None = None
    offload_layers: int = 0
    expert_balance: Balance = BUSIEST
    weight_transport: str = "ring"
    mlp_pieces: int = 4
    head_groups: int | None = None
    context_transport: str = "ring"
    overlap_by: str = "heads"
    algorithms: Mapping[str, str] = field(default_factory=dict)
    node_axes: tuple[str, ...] = ()
    rail_axes: tuple[str, ...] = ()
    node_order: tuple[int, ...] = ()
    routing: Routing | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    expert_owners: int = 1
    together: Mapping[str, int] = field(default_factory=dict)

    def degree(self, axis: str) -> int:
        return self.degrees.get(axis, 1)

    @property
    def tp(self) -> int:
        return self.degree("tp")

    @property
    def sp(self) -> int:
        return self.degree("sp")

    @property
    def tsp(self) -> int:
        return self.degree("tsp")

    @property
    def pp(self) -> int:
        return self.degree("pp")

    @property
    def dp(self) -> int:
        return self.degree("dp")

    @property
    def ep(self) -> int:
        return self.degree("ep")

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Axes whose ranks may hold different experts, innermost first: a group is filled from them in this order."""
        return *SCHEMES.get(self.scheme).axes, "dp"

    @property
    def expert_parts(self) -> Mapping[str, int] | None:
        """How many ranks of each of :attr:`expert_axes` an expert group takes; None where it cannot be filled."""
        return self._parts(self.ep, self.expert_axes)

    def _parts(self, size: int, axes: Sequence[str]) -> Mapping[str, int] | None:
        """A group of ``size`` ranks takes the innermost axes whole, and the last one it needs in part."""
        parts, left = {}, size
        for axis in axes:
            degree = self.degree(axis)
            parts[axis] = gcd(left, degree)
            left //= parts[axis]
            if left > 1 and parts[axis] < degree:
                return None
        return parts if left == 1 else None

    @property
    def shard_parts(self) -> Mapping[str, int] | None:
        """How many ranks of each axis of the replica axis divide state; None where groups cannot be filled so."""
        return self._parts(self.shard_group or self.secondary_shard or 1, ("sp", "dp"))

    @cached_property
    def scheme(self) -> str:
        """The scheme that its degrees ask for."""
        return scheme_name(self.degrees)

    @cached_property
    def token_axis(self) -> str:
        """The axis that carries sequence shards."""
        return SCHEMES.get(self.scheme).token_axis

    @property
    def recomputation_keys(self) -> str | dict[str, Any]:
        """What is made again, as a scenario's plan states it."""
        partly = self.recomputed
        if partly is None:
            return self.recomputation
        return {"what": self.recomputation, "layers": partly.layers, "method": partly.method}

    def value(self, name: str) -> Any:
        """What a switch or an option stands at."""
        return self.options[name] if name in self.options else getattr(self, name)

    def with_values(self, values: Mapping[str, Any]) -> Plan:
        """The plan with other switches and options."""
        own = {name: value for name, value in values.items() if name in _FIELDS}
        others = {name: value for name, value in values.items() if name not in _FIELDS}
        return replace(self, **own, options={**self.options, **others} if others else self.options)

    @property
    def token_shards(self) -> int:
        return self.degree(self.token_axis)

    @property
    def attended_groups(self) -> int:
        """Groups of heads that TSP attends one after the other."""
        return self.head_groups or self.tsp

    @property
    def order(self) -> PipelineOrder:
        """The order of micro-batches on a stage."""
        order = ORDERS.get(self.schedule)
        return order.of_chunks if self.vpp > 1 and order.of_chunks else order

    @property
    def dispatch(self) -> ExpertDispatch:
        return DISPATCHES.get(self.expert_dispatch)

    @property
    def hiding(self) -> ExpertOverlap:
        """What hides the exchanges with experts."""
        return OVERLAPS.get(self.expert_overlap)

    @property
    def groups(self) -> Mapping[str, Mapping[str, int]]:
        """Axes of groups that its scheme brings, and how many neighbours of each mesh axis are in one."""
        groups = dict(SCHEMES.get(self.scheme).groups(self))
        if self.slice_group > 1:
            groups[SLICES] = self._parts(self.slice_group, self.expert_axes) or {}
        return groups

    @property
    def slice_group(self) -> int:
        """Ranks that gather an expert's slices."""
        return self.expert_owners // self.expert_shards if self.expert_shards else 1

    def owned(self, model: Architecture) -> Plan:
        """The plan with how many ranks keep each of a model's experts in slices."""
        count = model.experts.count if model.experts is not None else self.ep
        sliced = self.expert_shards is not None and self.ep > count and self.ep % count == 0
        return replace(self, expert_owners=self.ep // count) if sliced else self

    def in_one_stage(self, dp: int) -> Plan:
        """The plan without a pipeline, of ``dp`` replicas that divide nothing: for a few layers alone."""
        degrees = {**self.degrees, "pp": 1, "dp": dp}
        alone = replace(self, degrees=degrees, vpp=1, schedule="1f1b", stage_layers=(), zero=0)
        alone = replace(alone, recomputed=None, activation_store=None, offload_layers=0)
        return replace(alone, expert_overlap="shared_experts") if self.hiding.halves else alone

    def node_ranks(self, axis: str) -> int:
        """Ranks of a group along an axis that share a node."""
        return self.together.get(axis, self.degree(axis))


_FIELDS = tuple(each.name for each in fields(Plan))
#: Fields that are keys of a scenario's plan, and are told with its answer.
SWITCHES = _FIELDS[_FIELDS.index("partition") : _FIELDS.index("stage_layers")]


#: Layers that show a steady block: the first fills the pipeline of exchanges, the others repeat.
BLOCKS = 4


@dataclass(frozen=True)
class Job:
    """One model under one plan: what every scheme is handed."""

    model: Architecture
    plan: Plan
    work: Work
    #: Which pass of a serving step is meant; None: the one with most tokens.
    pass_index: int | None = None
    #: Of sequences of unequal length: whose micro-batches are meant (None: those of the replica that has most of them),
    #: and which of them (None: the one with most tokens a rank).
    replica: int | None = None
    pack: Pack | None = None
    #: Seconds of a step in which its checkpoint waits until the one before is in its file.
    held_s: float = 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight element as it is kept and moved: while training the optimizer's, else the precision's."""
        if self.training and self.work.adapters is None:
            return self.work.optimizer.weights
        return DTYPE_BYTES[self.work.precision]

    @property
    def activation_bytes(self) -> float:
        """Bytes of an activation element; eight-bit and narrower formats keep activations in bf16 between kernels."""
        return max(2.0, DTYPE_BYTES[self.work.precision])

    @property
    def step(self) -> Step:
        return self.work.step

    @property
    def training(self) -> bool:
        """Whether a backward follows the forward."""
        return self.work.step.trains

    @property
    def capture(self) -> Captured:
        """How much of the kernels of a serving step's pass its engine launches as graphs."""
        engine, queries = self.work.stack.engine, self.work.load.queries
        return engine.captured(self.rows, queries) if self.step.serves else Captured.NOTHING

    @property
    def captured(self) -> bool:
        """Whether a serving step's engine launches all kernels of the pass as one graph."""
        return self.capture is Captured.WHOLE

    @property
    def host_s(self) -> float:
        """Seconds of a serving step's host, beside launches, that its device waits for: once a pass."""
        passes = self.step.passes(self.work.load, self.plan.pp)
        return sum(self.work.stack.engine.host_s(batch.sequences) + self.between_s for batch in passes)

    @property
    def between_s(self) -> float:
        """Of them those of a pass whatever is in it: small kernels and waits of the stage's layers."""
        routed = sum(block.experts for block in self.model.blocks)
        stages, ranks = self.plan.pp, max(self.whole_ranks, self.plan.ep)
        return self.work.stack.engine.between_s(-(-self.model.layers // stages), -(-routed // stages), ranks)

    @property
    def hidden_host_s(self) -> float:
        """Seconds of it that run beside the device: the step takes them at least."""
        passes = self.step.passes(self.work.load, self.plan.pp)
        return sum(self.work.stack.engine.hidden_s(batch.sequences) for batch in passes)

    @property
    def replica_axis(self) -> str:
        """The axis of ranks that hold the same weights and sum their gradients: sequence shards are such ranks too."""
        return "dp+sp" if self.plan.sp > 1 else "dp"

    @property
    def copies(self) -> int:
        """Ranks on the replica axis."""
        return self.plan.dp * self.plan.sp

    @property
    def expert_ranks(self) -> int:
        """Ranks that one copy of a layer's routed experts is spread over: ``ep``, or without it ``tp`` by columns, and
        both where ranks of ``tp`` serve.

        An engine loads its weights once, so this is no step's own: folded ranks hold all experts of their group
        whatever a step's form, also where each multiplies a part of their columns.
        """
        if self.plan.ep > 1 and (self.scheme.folds or not self.replicates_tokens):
            return self.plan.ep
        return self.plan.tp

    @property
    def replicates_tokens(self) -> bool:
        """Whether ranks of an expert group have the same tokens anyway, as those of ``tp`` where one serves. Nothing is
        exchanged, and what each rank's experts add is summed as tensor parallelism does."""
        return self.plan.ep > 1 and self.whole_ranks % self.plan.ep == 0 and self.step.serves

    @property
    def whole_ranks(self) -> int:
        """Ranks that have the same tokens in a serving step, and divide heads, columns and experts among them."""
        return self.scheme.whole_ranks(self)

    @property
    def expert_copies(self) -> int:
        """Ranks of a pipeline stage that hold the same routed experts."""
        plan = self.plan
        return prod(plan.degree(axis) for axis in plan.expert_axes) // self.expert_ranks

    @property
    def expert_state_shards(self) -> int:
        """Those of them among which state is divided: all, or those of one shard group."""
        plan = self.plan
        if plan.shard_group is None:
            return self.expert_copies
        experts, shards = plan.expert_parts or {}, plan.shard_parts or {}
        inner = [axis for axis in plan.expert_axes if axis not in shards]
        here = prod(plan.degree(axis) // experts[axis] for axis in inner) if plan.ep > 1 else self.own_copies
        return here * prod(max(1, shards[axis] // experts.get(axis, 1)) for axis in shards)

    @property
    def own_copies(self) -> int:
        """Ranks on a scheme's own axes that hold the same experts where none are spread: all but tensor parallel ones,
        whose experts are split by columns."""
        return 1 if self.scheme.usual else prod(self.plan.degree(axis) for axis in self.scheme.axes)

    def ranks_along(self, axis: str) -> int:
        """Ranks of a group along an axis, or along several joined by ``+``."""
        group = self.plan.shard_group or self.plan.secondary_shard
        sizes = {"edp": self.expert_copies, "shard": group or self.copies}
        sizes["replicate"] = self.copies // sizes["shard"]
        sizes["expert shard"] = self.expert_state_shards
        sizes |= {name: prod(parts.values()) for name, parts in self.plan.groups.items()}
        sizes["expert replicate"] = self.expert_copies // self.expert_state_shards
        return prod(sizes[part] if part in sizes else self.plan.degree(part) for part in axis.split("+"))

    @property
    def expert_axis(self) -> str:
        """The axis of those ranks: ``edp``, or without expert groups all that hold what this rank holds."""
        if self.plan.ep > 1:
            return "edp"
        return self.replica_axis if self.scheme.usual else "+".join(("dp", *self.scheme.axes))

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

    @property
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

    @cached_property
    def dealt(self) -> Dealt:
        """Who works on which of them; raises InputError where they cannot be dealt so."""
        work, plan, options = self.work, self.plan, self.plan.options
        halves, regions = (2 if plan.partition == "zigzag" else 1), plan.tp if plan.sequence_regions else 1
        groups = Groups(
            plan.dp, plan.token_shards, options.get("rank_tokens"), bool(options.get("dynamic_sp")),
            lambda ranks: ranks * regions * (halves if ranks > 1 else 1),
        )  # fmt: skip
        try:
            return dealt(self.model, work.unequal.tokens, work.causal, options.get("deal", "work"), groups)
        except InputError as error:
            raise self._refuse(error.key or "rank_tokens", error.message) from None

    @cached_property
    def packs(self) -> tuple[Pack, ...]:
        """A replica's micro-batches of sequences of unequal length."""
        return max(self.dealt.packs, key=len) if self.replica is None else self.dealt.packs[self.replica]

    @cached_property
    def packed(self) -> Pack:
        """The micro-batch of them that is meant."""
        if self.pack is not None:
            return self.pack
        packs = self.packs if self.replica is not None else [pack for each in self.dealt.packs for pack in each]
        return max(packs, key=lambda pack: sum(pack.tokens) / pack.ranks)

    def taking(self, pack: Pack) -> Job:
        """The job in one micro-batch of sequences of unequal length, its plan that of the ranks that share it."""
        plan = self.plan
        if pack.ranks > plan.token_shards:
            ranks = pack.ranks // plan.token_shards
            degrees = {**plan.degrees, plan.token_axis: pack.ranks, "dp": plan.dp // ranks}
            together = {plan.token_axis: plan.node_ranks(group_axis(ranks)) if plan.together else pack.ranks}
            own = {name: value for name, value in plan.options.items() if name != "dynamic_sp"}
            plan = replace(plan, degrees=degrees, together=together, options=own)
        found = replace(self, plan=plan, pack=pack)
        found.__dict__["packs"] = self.packs
        return found

    def every_pack(self) -> Iterator[Job]:
        """The job in every micro-batch of any replica, those that are alike once."""
        packs = (pack for each in self.dealt.packs for pack in each)
        for tokens, ranks in dict.fromkeys((pack.tokens, pack.ranks) for pack in packs):
            yield self.taking(Pack(tokens, ranks))

    @property
    def cached(self) -> int:
        """Tokens of each that are in the cache before a pass."""
        return self.rows[0][1] if self.step.serves else 0

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica's step, or passes of a serving one."""
        if self.unequal:
            return len(self.packs)
        return len(self.passes) or self.work.sequences // self.sequences

    @cached_property
    def passes(self) -> tuple[Batch, ...]:
        """Forwards of a serving step, padded as its engine does, or halves of them that take turns; none of others."""
        engine = self.work.stack.engine
        passes = self.step.passes(self.work.load, self.plan.pp)
        if self.plan.hiding.halves:
            passes = tuple(half for batch in passes for half in batch.halves)
        filled = [engine.filled(tuple(batch.rows), self.work.load.queries) for batch in passes]
        return tuple(
            batch if rows == tuple(batch.rows) else replace(batch, rows=rows, outputs=batch.head_tokens)
            for batch, rows in zip(passes, filled, strict=True)
        )

    @cached_property
    def batch(self) -> Batch:
        """Rows of one pass of a serving step."""
        if self.pass_index is None:
            return max(self.passes, key=lambda batch: batch.tokens)
        return self.passes[self.pass_index]

    @property
    def rows(self) -> tuple[tuple[int, int, int], ...]:
        """Of that pass, as layers take them; none of a step that does not serve."""
        if not self.step.serves:
            return ()
        return tuple((queries, context, sequences) for queries, context, sequences in self.batch.rows)

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

    def drafting(self, number: int = 0) -> Job:
        """Pass ``number`` of the drafter: a query of every sequence."""
        return replace(self, work=replace(self.work, load=self.work.load.drafting(number)))

    def at(self, index: int) -> Job:
        """The job in one pass of a serving step, or in one micro-batch of sequences of unequal length; any other is the
        same in all of its micro-batches."""
        if self.unequal:
            return self.taking(self.packs[index])
        if not self.step.serves:
            return self
        found = replace(self, pass_index=index)
        found.__dict__["passes"] = self.passes  # the same in all of them, and long where chunks are many
        return found

    @property
    def group_tokens(self) -> int:
        """Tokens of one micro-batch, over all token shards."""
        if self.unequal:
            return sum(self.packed.tokens)
        return self.batch.tokens if self.step.serves else self.work.sequence * self.sequences

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch that a rank holds."""
        return self.group_tokens // (self.packed.ranks if self.unequal else self.token_shards)

    def one_forward(self) -> Job:
        """The forward of a few layers and one micro-batch or pass, with a pipeline's stages as replicas beside each
        other."""
        alone = self.plan.in_one_stage(self.plan.dp * self.plan.pp)
        return Job(self.model.steady(BLOCKS), alone, self.work.one_forward(self.sequences))

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
            return ServingLayer(self.model, shards, wide, self.activation_bytes, block, work.formats)
        return LayerShard(self.model, shards, work.precision, self.activation_bytes, block)

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Layers of every chunk of the pipeline."""
        return self.plan.stage_layers or chunk_layers(self.model.layers, self.plan.pp * self.plan.vpp)

    def chunks(self, stage: int) -> tuple[Chunk, ...]:
        if self.training and self.plan.pp > 1 and self.plan.order.both_ways:
            return chunks_both_ways(self.chunk_sizes, stage)
        return stage_chunks(self.chunk_sizes, self.plan.pp, stage)

    @property
    def order(self) -> PipelineOrder:
        """The order of a stage's tasks: the plan's, or where forwards and backwards are interleaved what stands in."""
        order = self.plan.order
        if self.training and self.plan.hiding.micro_batches and order.of_micro_batches:
            return order.of_micro_batches
        return order

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
        return partly.what(what, chunk.layers) if partly is not None else (what,) * chunk.layers

    def making(self, again: str) -> Job:
        """The job as one layer of it meets it, of which that much is made again."""
        if self.plan.recomputed is None and self.plan.recomputation == again:
            return self
        return replace(self, plan=replace(self.plan, recomputation=again, recomputed=None))

    @property
    def least_again(self) -> Job:
        """The job without copies to the host, and where nothing is made again of any layer, if that is so of some."""
        job = self if self.plan.recomputed is None else self.making(KEPT)
        return job if not job.plan.offload_layers else replace(job, plan=replace(job.plan, offload_layers=0))

    @property
    def store(self) -> ActivationStore:
        """In which type kept activations wait: as the plan says, or the stack."""
        return ACTIVATION_STORES.get(self.plan.activation_store or self.work.stack.activation_store or WIDE.name)

    @property
    def expert_loads(self) -> Balanced:
        """What each rank of an expert group gets to do, by the plan's policy."""
        experts, plan = self.model.experts, self.plan
        assert experts is not None
        if plan.expert_shards == 0:  # tokens stay where they are, whatever experts they visit
            return Balanced(self.work.routing.rank_loads(experts.count, 1) * plan.ep)
        tokens = -(-self.tokens // plan.tp) if self.step.serves else self.tokens  # ranks of tp take a part each
        assignments, owners = float(tokens * plan.ep * experts.topk), plan.ep // plan.expert_owners
        found = balanced(self.work.routing, plan.expert_balance, experts.count, owners, assignments)
        return found.of_slices(plan.expert_owners) if plan.expert_owners > 1 else found

    @property
    def scheme(self) -> Scheme:
        """What spreads a replica."""
        return SCHEMES.get(self.plan.scheme)

    @property
    def head_shards(self) -> int:
        """Ranks, or steps of the folded schedule, that the heads are spread over."""
        return self.scheme.head_shards(self)

    def check(self) -> None:
        """Refuse a plan whose degrees cannot divide the model or the tokens; raises InputError with the remedy."""
        model, plan, scheme = self.model, self.plan, self.scheme
        axis, columns = scheme.axes[0], scheme.shards(self)
        others = [name for each in SCHEMES.values() if each is not scheme for name in each.axes]
        if any(plan.degree(name) > 1 for name in others):
            beside = " and ".join(name for name in others if name not in scheme.axes)
            raise self._refuse(axis, f"{plan.degree(axis)} {scheme.alone}: leave {beside} at 1 beside it")
        if self.step.serves:
            self._check_serving()
        self._check_unequal()
        self._check_scheme(axis)
        if model.ffn % columns:
            raise self._refuse(axis, f"{columns} does not divide the {model.ffn} FFN columns of {model.name}")
        self._check_experts(axis)
        pieces = plan.token_shards * (2 if plan.partition == "zigzag" and plan.token_shards > 1 else 1)
        lengths = [row[0] for batch in self.passes for row in batch.rows] or [self.work.sequence]
        for length in lengths if self.step.shards_tokens and not self.unequal else ():
            if length % pieces:
                what = "a sequence that is" if length == self.work.sequence else "chunks that are"
                raise self._refuse(
                    plan.token_axis,
                    f"{plan.token_shards} shards in {plan.partition} order need {what} a multiple of {pieces}, "
                    f"not {length}",
                )
        self._check_pipeline()
        self._check_activations()
        self._check_documents(self.work.sequence // pieces)
        self._check_adapters()
        self._check_shard_group()
        self._check_checkpoint()

    def _check_checkpoint(self) -> None:
        plan = self.plan
        stated = [key for key in ("checkpoint_rate", "checkpoint_every") if getattr(plan, key) != getattr(Plan, key)]
        if plan.checkpoint is None:
            if stated:
                raise self._refuse(stated[0], "is of plans that write checkpoints; state checkpoint")
            return
        if not self.training:
            raise self._refuse("checkpoint", f"is of training; a {self.step.title} has no state to write")
        if plan.hiding.micro_batches:
            raise self._refuse("checkpoint", "beside expert_overlap: micro_batches is not built; leave one out")
        if CHECKPOINTS.get(plan.checkpoint).holds_file and plan.checkpoint_rate is None:
            raise self._refuse("checkpoint_rate", f"is needed with checkpoint: {plan.checkpoint}")

    def _check_scheme(self, axis: str) -> None:
        """What the scheme asks, and heads that its ranks can divide; of every size of group that shares a sequence."""
        model = self.model
        sizes = {job.packed.ranks: job for job in self.every_pack()} if self.unequal and self.plan.groups else {}
        for job in (self, *sizes.values()):
            refused = self.scheme.check(job)
            if refused is not None:
                raise self._refuse(*refused)
            shards = job.head_shards
            if model.heads % shards:
                raise self._refuse(axis, f"{shards} does not divide the {model.heads} attention heads of {model.name}")
            if model.kv_heads % shards and shards % model.kv_heads:
                raise self._refuse(
                    axis,
                    f"{shards} neither divides nor is a multiple of the {model.kv_heads} key/value heads of "
                    f"{model.name}",
                )

    def _check_unequal(self) -> None:
        """Sequences of unequal length: keys that are theirs alone, and what is not built beside them."""
        plan, own = self.plan, ("dynamic_sp", "rank_tokens", "deal")
        if not self.unequal:
            stated = next((name for name in own if name in plan.options), None)
            if stated is not None:
                key = "sp" if stated == "dynamic_sp" else stated
                raise self._refuse(key, "is of sequences of unequal length; state workload.lengths, or leave it out")
            return
        if not self.scheme.unequal:
            can = " or ".join(axis for each in SCHEMES.values() if each.unequal for axis in each.axes)
            raise self._refuse(self.scheme.axes[0], f"takes sequences of one length alone; use {can}")
        for key, usual in (("pp", 1), ("ep", 1)):
            if plan.degree(key) != usual:
                raise self._refuse(key, f"{plan.degree(key)} is not built beside workload.lengths; leave it out")
        if plan.micro_batch is not None:
            raise self._refuse("micro_batch", "says how many sequences; of unequal ones state rank_tokens")
        if plan.overlap and plan.tp > 1:
            raise self._refuse("overlap", "of tp's sums is not built beside workload.lengths; leave it out")
        if plan.options.get("dynamic_sp") and plan.dp & (plan.dp - 1):
            raise self._refuse("sp", f"auto shares a sequence by 2, 4, 8, ... of dp = {plan.dp}, no power of two")
        if plan.zero >= 2 and len({len(packs) for packs in self.dealt.packs}) > 1:
            told = f"{plan.zero} exchanges weights or gradients every micro-batch"
            raise self._refuse("zero", f"{told}, of which replicas have unequal numbers; use 0 or 1")

    def _check_serving(self) -> None:
        """What a step of an inference engine has no use for, and contexts that the model was not made for."""
        plan, work, model, title = self.plan, self.work, self.model, self.step.title
        for key, usual in (
            ("zero", 0), ("shard_group", None), ("secondary_shard", None), ("weight_wire", None),
            ("gradient_wire", None), ("vpp", 1), ("micro_batch", None), ("recomputation", "none"),
            ("schedule", "1f1b"), ("activation_store", None), ("offload_layers", 0),
        ):  # fmt: skip
            value = getattr(plan, key)
            if value != usual:
                raise self._refuse(key, f"{value} is of training; a {title} takes none of it: leave {key} out")
        if work.document is not None:
            told = f"{work.document} packs documents into a sequence, which a {title} does not: leave it out"
            raise InputError(told, key="workload.document")
        if not work.causal:
            raise InputError(f"false is of whole sequences; a {title} is causal: leave it out", key="workload.causal")
        if work.multi_token:
            told = f"modules for further tokens are trained; a {title} drafts with them: pass: verify, draft: mtp"
            raise InputError(told, key="workload.multi_token")
        if self.scheme.whole is None:
            can = " or ".join(each.axes[0] for each in SCHEMES.values() if each.whole is not None)
            raise self._refuse(self.scheme.axes[0], f"{self.scheme.summary} does not run a {title}; use {can}")
        load = work.load
        prompts = (row.query_tokens + row.context_tokens for row in load.kept)
        longest = {"context": max(load.contexts, default=0), "sequence": max(prompts, default=0)}
        for key, tokens in longest.items():
            if model.max_context and tokens > model.max_context:
                told = f"{tokens} tokens are more than the {model.max_context} that {model.name} was made for"
                raise InputError(f"{told}; a model file with another max_context takes more", key=f"workload.{key}")
        drafts = load.speculation
        if drafts and drafts.tokens and not DRAFTS.get(drafts.draft).available(model):
            can = " or ".join(each.name for each in DRAFTS.values() if each.available(model))
            told = f"{drafts.draft} drafts with modules for further tokens, and {model.name} has none; use {can}"
            raise InputError(told, key="workload.speculation.draft")

    def _check_experts(self, axis: str) -> None:
        model, plan, experts = self.model, self.plan, self.model.experts
        wrong = expert_checks.check(self)
        if wrong is not None:
            raise self._refuse(*wrong)
        if experts is None:
            if plan.ep > 1:
                raise self._refuse("ep", f"{plan.ep} spreads experts, but {model.name} has none; leave ep out")
            if plan.hiding.halves:
                told = f"{plan.expert_overlap} hides exchanges with experts, but {model.name} has none; leave it out"
                raise self._refuse("expert_overlap", told)
            return
        columns = self.scheme.shards(self)
        if experts.shared_width % columns:
            columns_of = f"the {experts.shared_width} columns of the shared experts of {model.name}"
            raise self._refuse(axis, f"{columns} does not divide {columns_of}")
        self._check_balance()
        wrong = expert_checks.check_dispatch(self, experts)
        if wrong is not None:
            raise self._refuse(*wrong)
        if self.step.serves:
            self._check_serving_experts()
            return
        if not plan.dispatch.trains or plan.hiding.halves:
            key, value = ("expert_dispatch", plan.expert_dispatch)
            if plan.hiding.halves:
                key, value = "expert_overlap", plan.expert_overlap
            raise self._refuse(key, f"{value} is of {', '.join(each.name for each in STEPS.values() if each.serves)}")
        if plan.dispatch.eight_bits and DTYPE_BYTES[self.work.precision] > DTYPE_BYTES["mxfp8"]:
            told = f"{plan.expert_dispatch} sends what products in eight bits read"
            raise self._refuse("expert_dispatch", f"{told}, and these are in {self.work.precision}")
        if plan.hiding.micro_batches and (plan.ep == 1 or plan.order.of_micro_batches is None):
            raise self._refuse("expert_overlap", "micro_batches hides exchanges of ep > 1 in 1f1b; use none")
        if plan.ep == 1:
            if experts.width % plan.tp:
                found = f"{plan.tp} does not divide the {experts.width} columns of an expert of {model.name}; set ep"
                raise self._refuse("tp", found)
            return
        if experts.count % plan.ep and plan.expert_shards is None:
            raise self._refuse("ep", f"{plan.ep} does not divide the {experts.count} experts of {model.name}")
        if plan.expert_parts is None:
            axes = [name for name in plan.expert_axes if plan.degree(name) > 1]
            ranks = " x ".join(f"{name} {plan.degree(name)}" for name in axes) or "1"
            raise self._refuse(
                "ep", f"{plan.ep} ranks cannot be taken from {ranks}, the inner axes whole and the last in equal parts"
            )
        if plan.tp > 1 and not plan.sequence_regions:
            raise self._refuse(
                "ep", "beside tp needs sequence_regions: true, so that every rank sends its own tokens to experts"
            )

    def _check_balance(self) -> None:
        """A policy moves or copies whole experts between the ranks of a group."""
        model, plan, experts = self.model, self.plan, self.model.experts
        policy, balance = BALANCES.get(plan.expert_balance.policy), plan.expert_balance
        assert experts is not None
        if (self.training and not policy.trains) or (self.step.serves and not policy.serves):
            raise self._refuse("expert_balance", f"{policy.name} is not built for a {self.step.title}; use busiest")
        if plan.ep > 1 and experts.count % plan.ep == 0:
            wrong = policy.check(experts.count, plan.ep, balance.options)
            if wrong is not None:
                raise self._refuse("expert_balance", f"{wrong}, of {model.name} with ep {plan.ep}")

    def _check_serving_experts(self) -> None:
        """Experts of a serving step: on the ranks of ``tp``, or over replicas that go in step."""
        model, plan, experts = self.model, self.plan, self.model.experts
        assert experts is not None
        whole = self.whole_ranks
        columns = whole // plan.ep if self.replicates_tokens else whole if plan.ep == 1 else 1
        if experts.width % columns:
            raise self._refuse("tp", f"{columns} does not divide the {experts.width} columns of an expert; set ep")
        if experts.count % plan.ep:
            raise self._refuse("ep", f"{plan.ep} does not divide the {experts.count} experts of {model.name}")
        if plan.ep > 1 and self.scheme.usual and plan.sp > 1:
            raise self._refuse("ep", "spreads experts over tp and dp in a serving step: leave sp at 1")
        if plan.ep > 1 and not self.scheme.usual and self.plan.token_shards % plan.ep:
            key, ranks = plan.token_axis, plan.token_shards
            raise self._refuse("ep", f"{plan.ep} ranks are not a part of {key} = {ranks}; use a divisor of that")
        if plan.expert_parts is None or (self.scheme.usual and plan.ep > plan.tp and plan.ep % plan.tp):
            raise self._refuse("ep", f"{plan.ep} ranks cannot be taken from tp {plan.tp} x dp {plan.dp}, tp whole")
        if plan.hiding.micro_batches:
            raise self._refuse("expert_overlap", "micro_batches hides exchanges behind a backward; use two_batches")
        if plan.hiding.halves and (self.replicates_tokens or plan.ep == 1):
            raise self._refuse("expert_overlap", "two_batches hides exchanges with experts of other replicas; set ep")
        if plan.hiding.halves and any(batch.sequences < 2 for batch in self.step.passes(self.work.load, plan.pp)):
            raise self._refuse("expert_overlap", "two_batches needs two sequences in every pass")

    def _check_documents(self, chunk: int) -> None:
        """Documents end where a shard's chunk of tokens does, and blocks of others then hold nothing to see."""
        document, plan = self.work.document, self.plan
        if document is None:
            return
        if not self.work.causal or chunk % document:
            raise InputError(
                f"documents of {document} tokens do not fill the chunks of {chunk} tokens that plan '{plan.name}' "
                "makes of a sequence; use a divisor of that",
                key="workload.document",
            )
        if plan.token_shards > 1 and plan.overlap_by == "blocks":
            raise self._refuse("overlap_by", "packed documents see nothing of others' blocks: use heads")

    def _check_wires(self) -> None:
        """Second copies of weights and narrow types on the way: of ZeRO 3, whose weights and gradients travel every
        micro-batch."""
        plan = self.plan
        keys = [key for key in ("secondary_shard", "weight_wire", "gradient_wire") if getattr(plan, key) is not None]
        if not keys:
            return
        if plan.zero != 3 or not self.training:
            raise self._refuse(keys[0], f"{getattr(plan, keys[0])} is of training with zero: 3")
        if self.model.experts is not None or self.work.adapters is not None:
            raise self._refuse(keys[0], "is not built for models with experts, nor for adapters")
        if plan.shard_group is not None and plan.secondary_shard is not None:
            raise self._refuse("secondary_shard", "and shard_group both divide weights inside nodes; leave one out")
        if plan.gradient_wire is not None and plan.secondary_shard is None:
            raise self._refuse("gradient_wire", "needs secondary_shard: the ranks that sum among themselves first")
        if plan.secondary_shard is not None and plan.shard_parts is None:
            sizes = f"sp {plan.sp} x dp {plan.dp}"
            raise self._refuse("secondary_shard", f"{plan.secondary_shard} ranks cannot be taken from {sizes}")

    def _check_shard_group(self) -> None:
        plan = self.plan
        self._check_wires()
        if plan.shard_group is None:
            return
        if not plan.zero:
            raise self._refuse("shard_group", f"{plan.shard_group} ranks divide nothing with zero: 0; set zero")
        if plan.shard_parts is None:
            raise self._refuse(
                "shard_group",
                f"{plan.shard_group} ranks cannot be taken from sp {plan.sp} x dp {plan.dp}, "
                "sp whole and dp in equal parts",
            )
        for axis, size in plan.shard_parts.items():
            sharing = (plan.expert_parts or {}).get(axis, 1)
            if size % sharing and sharing % size:
                raise self._refuse(
                    "shard_group",
                    f"groups of {size} ranks of {axis} that divide state and groups of {sharing} that share experts "
                    "do not fit into each other; make one a multiple of the other",
                )

    def _check_adapters(self) -> None:
        if self.work.adapters is None:
            return
        if not self.training:
            raise InputError("adapters are trained; use pass: training, or leave them out", key="workload.adapters")
        if not any(self.work.adapters.beside_layer(self.model, block) for block in dict.fromkeys(self.model.blocks)):
            raise InputError(
                f"no layer of {self.model.name} has these products; routed experts get adapters with experts: each",
                key="workload.adapters.targets",
            )

    def _check_pipeline(self) -> None:
        plan, chunks = self.plan, self.plan.pp * self.plan.vpp
        if not self.unequal and self.work.sequences % self.sequences:
            raise self._refuse(
                "micro_batch", f"{self.sequences} does not divide the {self.work.sequences} sequences of a replica"
            )
        if plan.vpp > 1 and plan.pp == 1:
            raise self._refuse("vpp", f"{plan.vpp} virtual stages need a pipeline; set pp, or leave vpp out")
        if chunks > self.model.layers and not plan.stage_layers:
            found = f"{chunks} pipeline chunks are more than the {self.model.layers} layers"
            remedy = "; embedding and head may have chunks of their own: stage_layers" if self.model.vocab else ""
            raise self._refuse("pp", found + remedy)
        if plan.stage_layers and (len(plan.stage_layers) != chunks or sum(plan.stage_layers) != self.model.layers):
            raise self._refuse(
                "stage_layers",
                f"needs {chunks} numbers (pp·vpp) that add up to {self.model.layers}, not {list(plan.stage_layers)}",
            )
        empty = [index for index, layers in enumerate(plan.stage_layers) if not layers]
        if any(index not in (0, chunks - 1) or not self.model.vocab for index in empty):
            raise self._refuse("stage_layers", "only the embedding's chunk and the head's may have no layer")
        splits = self.scheme.layer_weights is not None
        refused = self.order.check(Pipeline(plan.pp, plan.vpp, self.micro_batches, splits))
        if refused is not None:
            raise self._refuse(*refused)

    def _check_activations(self) -> None:
        """Which layers are recomputed, and where and in which type the others wait for their backward."""
        plan, most = self.plan, max(self.chunk_sizes)
        if not self.training and (plan.recomputed or plan.activation_store or plan.offload_layers):
            stored = "activation_store" if plan.activation_store else "offload_layers"
            key = "recomputation" if plan.recomputed else stored
            raise self._refuse(key, f"is of training; a {self.step.title} keeps nothing for a backward")
        if plan.recomputed is not None:
            grouped = RECOMPUTE_METHODS.get(plan.recomputed.method).group(2) > 1
            if grouped and plan.recomputation != FULL:
                told = f"{plan.recomputation} of layers in groups is not built; use {FULL}"
                raise self._refuse("recomputation.what", told)
            if plan.recomputed.layers > most:
                told = f"{plan.recomputed.layers} are more than the {most} layers of a chunk; use at most {most}"
                raise self._refuse("recomputation.layers", told)
        if self.store.products_in_eight_bits and DTYPE_BYTES[self.work.precision] > DTYPE_BYTES["mxfp8"]:
            told = f"{self.store.name} keeps what products in eight bits read, and these are in {self.work.precision}"
            raise self._refuse("activation_store", f"{told}; use fp8")
        if plan.offload_layers > most:
            told = f"{plan.offload_layers} are more than the {most} layers of a chunk; use at most {most}"
            raise self._refuse("offload_layers", told)
        if plan.offload_layers and self.order.splits_backward:
            raise self._refuse("offload_layers", f"is not built for {plan.schedule}; use 1f1b")
        if plan.offload_layers and not self.work.host_bytes_per_s:
            raise self._refuse("offload_layers", "needs a node whose link to its host's memory is known")

    def _refuse(self, key: str, message: str) -> InputError:
        return InputError(message, key=f"plans.{self.plan.name}.{key}")
