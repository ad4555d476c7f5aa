"""A parallel plan, as facts the schemes read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import gcd
from typing import Any

from ..base.errors import InputError
from ..base.memo import once
from ..base.quick import replace, stated_fields
from ..model import Architecture
from ..network import Routing
from .balance import BUSIEST, Balance
from .dispatch import DISPATCHES, OVERLAPS, ExpertDispatch, ExpertOverlap
from .pipeline import PipelineOrder, order_of
from .recomputed import Partly
from .registries import SCHEME_FACTS, scheme_name

#: The axis of ranks that gather an expert's slices.
SLICES = "expert slices"
#: The axis of ranks of an expert group that share a node.
EXPERT_NODE = "expert node"
#: The key of replicas that keep weights among them, and their axis.
WEIGHT_PEERS = "weight_peers"
#: The key of GPUs that keep experts alone, and the axis of those of a node.
EXPERT_POOL, POOL_NODE = "expert_pool", "expert pool node"
#: The key of replicas that keep a draft model alone.
DRAFT_REPLICAS = "draft_replicas"
#: The axis of neighbours that divide weights, and the key of a plan that says how many; across them inside the group
#: that divides gradients.
WEIGHT_SHARD, WEIGHT_LEVELS = "weight_shard", "weight levels"


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
        reason to exist it is; off for TP's reductions and for gathers. ``fused``: TP's products and sums, and exchanges
        with experts, meet in slices of one kernel.
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
        With ZeRO 3: types of :func:`tspsim.operators.dtypes.wires` that weights are gathered in ahead of a forward, and
        that gradients are summed in (ZeRO++'s qwZ and qgZ); None: their own.
    checkpoint, checkpoint_rate, checkpoint_every
        How checkpoints are written (a name in ``checkpoint.CHECKPOINTS``; None: none is), bytes/s
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
    accumulation
        Turns of gradient accumulation in each of which a pipeline fills and empties.
    recomputed
        Which layers that is said of, where not of all; of the others nothing is made again.
    activation_store
        In which type kept activations wait: a name in :data:`tspsim.parallel.activation_store.ACTIVATION_STORES`; None:
        the stack's.
    offload_layers
        Layers of every chunk, spread over it, whose kept activations wait in the host's memory.
    offload_weights
        Layers of every chunk, spread over it, whose weights lie in the host's memory and come ahead of use
        (:mod:`tspsim.parallel.state.weight_offload`).
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
        Names of switches above that are not stated: :mod:`tspsim.step.tuning` chooses them for the cluster. Until then
        they stand at the published schedule.
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
    accumulation: int = 1
    recomputed: Partly | None = None
    activation_store: str | None = None
    offload_layers: int = 0
    offload_weights: int = 0
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

    def refusal(self, key: str, message: str) -> InputError:
        """An error about one of its keys."""
        return InputError(message, key=f"plans.{self.name}.{key}")

    def degree(self, axis: str) -> int:
        """Ranks along a mesh axis; one where it is not named."""
        return self.degrees.get(axis, 1)

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.degree("tp")

    @property
    def sp(self) -> int:
        """Sequence shards."""
        return self.degree("sp")

    @property
    def tsp(self) -> int:
        """Ranks of folded tensor and sequence parallelism."""
        return self.degree("tsp")

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.degree("pp")

    @property
    def dp(self) -> int:
        """Replicas."""
        return self.degree("dp")

    @property
    def ep(self) -> int:
        """Ranks that experts are spread over."""
        return self.degree("ep")

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Axes whose ranks may hold different experts, innermost first: a group is filled from them in this order."""
        return *SCHEME_FACTS.get(self.scheme).axes, "dp"

    @property
    def expert_parts(self) -> Mapping[str, int] | None:
        """How many ranks of each of :attr:`expert_axes` an expert group takes; None where it cannot be filled."""
        return self._parts(self.ep, self.expert_axes)

    @property
    def attention_replicas(self) -> int:
        """Attention replicas of one serving engine, which step together: those that share experts."""
        return (self.expert_parts or {}).get("dp", 1) if self.ep > 1 else 1

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

    @once
    def scheme(self) -> str:
        """The scheme that its degrees ask for."""
        return scheme_name(self.degrees)

    @once
    def token_axis(self) -> str:
        """The axis that carries sequence shards."""
        return SCHEME_FACTS.get(self.scheme).token_axis

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

    @once
    def stated(self) -> frozenset[str]:
        """Its keys that do not stand at their default: switches, options, and axes with several ranks."""
        degrees = [axis for axis, degree in self.degrees.items() if degree > 1]
        return stated_fields(self).union(self.options, degrees)

    @property
    def token_shards(self) -> int:
        """Ranks that tokens are divided over."""
        return self.degree(self.token_axis)

    @property
    def attended_groups(self) -> int:
        """Groups of heads that TSP attends one after the other."""
        return self.head_groups or self.tsp

    @property
    def order(self) -> PipelineOrder:
        """The order of micro-batches on a stage."""
        return order_of(self.schedule, self.vpp)

    @property
    def dispatch(self) -> ExpertDispatch:
        """How tokens reach their experts."""
        return DISPATCHES.get(self.expert_dispatch)

    @property
    def copies(self) -> bool:
        """Whether some layers wait for copies to or from the host that others do not."""
        return self.offload_layers > 0 or self.offload_weights > 0

    @property
    def hiding(self) -> ExpertOverlap:
        """What hides the exchanges with experts."""
        return OVERLAPS.get(self.expert_overlap)

    @property
    def groups(self) -> Mapping[str, Mapping[str, int]]:
        """Axes of groups that its scheme brings, and how many neighbours of each mesh axis are in one."""
        groups = dict(SCHEME_FACTS.get(self.scheme).groups(self))
        if self.expert_nodes > 1:
            groups[EXPERT_NODE] = self._parts(self.ep // self.expert_nodes, self.expert_axes) or {}
        if self.slice_group > 1:
            groups[SLICES] = self._parts(self.slice_group, self.expert_axes) or {}
        return groups

    @property
    def expert_nodes(self) -> int:
        """Nodes of an expert group whose dispatch places experts on nodes first, each with as many of its ranks; 1
        where that makes no difference."""
        near = self.together.get("ep", 0)
        return self.ep // near if self.dispatch.by_nodes is not None and 1 < near < self.ep else 1

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
        alone = replace(self, degrees=degrees, vpp=1, schedule="1f1b", stage_layers=(), accumulation=1, zero=0)
        alone = replace(alone, recomputed=None, activation_store=None, offload_layers=0, offload_weights=0)
        return replace(alone, expert_overlap="shared_experts") if self.hiding.halves else alone

    def node_ranks(self, axis: str) -> int:
        """Ranks of a group along an axis that share a node."""
        return self.together.get(axis, self.degree(axis))


_FIELDS = tuple(one.name for one in fields(Plan))
#: Fields that are keys of a scenario's plan, and are told with its answer.
SWITCHES = _FIELDS[_FIELDS.index("partition") : _FIELDS.index("stage_layers")]
