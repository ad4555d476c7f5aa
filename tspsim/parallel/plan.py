"""A parallel plan: the facts that schemes read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import gcd
from typing import Any

from ..base.errors import InputError
from ..base.memo import once
from ..base.quick import replace, stated_fields
from ..model import Architecture
from ..network import Routing
from .dispatch import DISPATCHES, OVERLAPS, ExpertDispatch, ExpertOverlap
from .pipeline import PipelineOrder, order_of
from .recomputed import KEPT, PartialRecompute
from .registries import SCHEME_FACTS
from .switches import BESIDE, OpenSwitches, Switches

#: Axis of the ranks that gather an expert's slices.
SLICES = "expert slices"
#: Axis of the ranks of an expert group in a node.
EXPERT_NODE = "expert node"
#: Key and axis of replicas that keep offloaded weights together.
WEIGHT_PEERS = "weight_peers"
#: Axis of tensor-parallel ranks that hold the same head of K and V.
KV_COPIES = "kv copies"
#: Key of the GPUs that hold experts alone, and the axis of those in a node.
EXPERT_POOL, POOL_NODE = "expert_pool", "expert pool node"
#: Key of the replicas that hold a draft model alone.
DRAFT_REPLICAS = "draft_replicas"
#: Axis and key of neighbours that divide weights, and the axis across them inside the group that divides gradients.
WEIGHT_SHARD, WEIGHT_LEVELS = "weight_shard", "weight levels"


@dataclass(frozen=True)
class Plan(OpenSwitches, Switches):
    """How one model is spread over GPUs, with the switches of its schedule (:mod:`tspsim.parallel.switches`).

    Attributes
    ----------
    degrees
        Size of every mesh axis; their product is the number of GPUs. ``ep`` is no factor of it: it is the size of
        expert groups, whose ranks are those of :attr:`expert_axes`.
    vpp
        Chunks of layers per pipeline stage (virtual stages).
    recomputation, recomputed
        What a backward recomputes (:mod:`tspsim.parallel.recompute`), and in which layers if not in all.
    algorithms
        Collective kind → algorithm that the plan pins.
    open
        Switches that are not stated, which :mod:`tspsim.step.tuning` chooses; until then they have published values.
    chosen
        Switches that were chosen so.
    expert_owners
        Ranks that keep each expert in slices: ``ep`` over the model's experts, if larger than 1 (:meth:`owned`).
    kv_copies
        Neighbours on ``tp`` that hold the same head of K and V, of whose weights they sum gradients (:meth:`owned`).
    together
        Axis → ranks of a group along it in one node, if equal in all nodes; absent: the whole group.
    node_axes, rail_axes
        Axes along the node, and across nodes; see :func:`tspsim.parallel.mesh.build_mesh`.
    node_order
        Order of nodes, or GPUs, in the mesh; empty: by number.
    routing
        Choice of its flows among equal paths between switches; None: the cluster's.
    options
        Values of keys that the scheme, features or the context method add.
    """

    name: str
    degrees: Mapping[str, int]
    vpp: int = 1
    recomputation: str = field(default=KEPT, kw_only=True)
    recomputed: PartialRecompute | None = None
    algorithms: Mapping[str, str] = field(default_factory=dict)
    node_axes: tuple[str, ...] = ()
    rail_axes: tuple[str, ...] = ()
    node_order: tuple[int, ...] = ()
    routing: Routing | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    expert_owners: int = 1
    kv_copies: int = 1
    together: Mapping[str, int] = field(default_factory=dict)

    def refusal(self, key: str, message: str) -> InputError:
        """An error about one of the plan's keys."""
        return InputError(message, key=f"plans.{self.name}.{key}")

    def degree(self, axis: str) -> int:
        """Ranks along a mesh axis; 1 if it is not stated."""
        return self.degrees.get(axis, 1)

    @once
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.degree("tp")

    @once
    def sp(self) -> int:
        """Sequence shards."""
        return self.degree("sp")

    @once
    def tsp(self) -> int:
        """Ranks of folded tensor and sequence parallelism."""
        return self.degree("tsp")

    @once
    def pp(self) -> int:
        """Pipeline stages."""
        return self.degree("pp")

    @once
    def dp(self) -> int:
        """Replicas."""
        return self.degree("dp")

    @once
    def ep(self) -> int:
        """Ranks that experts are spread over."""
        return self.degree("ep")

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Axes whose ranks may hold different experts, innermost first: expert groups are filled in this order."""
        return *SCHEME_FACTS.get(self.scheme).axes, "dp"

    @property
    def expert_parts(self) -> Mapping[str, int] | None:
        """Axis → ranks of it in an expert group; None if groups cannot be filled."""
        return self._parts(self.ep, self.expert_axes)

    @property
    def attention_replicas(self) -> int:
        """Attention replicas of one serving engine, which step together since they share experts."""
        return (self.expert_parts or {}).get("dp", 1) if self.ep > 1 else 1

    def _parts(self, size: int, axes: Sequence[str]) -> Mapping[str, int] | None:
        """Ranks of each axis in a group of ``size``: innermost axes whole, the last one in part; None: impossible."""
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
        """Axis → ranks of it that divide state; None if groups cannot be filled."""
        return self._parts(self.shard_group or self.secondary_shard or 1, ("sp", "dp"))

    @once
    def scheme(self) -> str:
        """The scheme that its degrees select."""
        return scheme_name(self.degrees)

    @once
    def token_axis(self) -> str:
        """The axis of sequence shards."""
        return SCHEME_FACTS.get(self.scheme).token_axis

    @property
    def recomputation_keys(self) -> str | dict[str, Any]:
        """The recomputation, as a scenario's plan states it."""
        return recomputation_keys(self.recomputation, self.recomputed)

    def value(self, name: str) -> Any:
        """The value of a switch or an option."""
        return self.options[name] if name in self.options else getattr(self, name)

    def with_values(self, values: Mapping[str, Any]) -> Plan:
        """The plan with other values of switches and options."""
        own = {name: value for name, value in values.items() if name in _FIELDS}
        others = {name: value for name, value in values.items() if name not in _FIELDS}
        return replace(self, **own, options={**self.options, **others} if others else self.options)

    @once
    def stated(self) -> frozenset[str]:
        """Keys that differ from their defaults: switches, options, and axes with several ranks."""
        degrees = [axis for axis, degree in self.degrees.items() if degree > 1]
        return stated_fields(self).union(self.options, degrees)

    @property
    def token_shards(self) -> int:
        """Ranks that divide the tokens."""
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
        """How the exchanges with experts are hidden."""
        return OVERLAPS.get(self.expert_overlap)

    @once
    def groups(self) -> Mapping[str, Mapping[str, int]]:
        """Axes of groups that its scheme and features add, with the neighbours of each mesh axis in a group."""
        groups = dict(SCHEME_FACTS.get(self.scheme).groups(self))
        if self.expert_nodes > 1:
            groups[EXPERT_NODE] = self._parts(self.ep // self.expert_nodes, self.expert_axes) or {}
        if self.slice_group > 1:
            groups[SLICES] = self._parts(self.slice_group, self.expert_axes) or {}
        if self.kv_copies > 1:
            groups[KV_COPIES] = {"tp": self.kv_copies}
        return groups

    @property
    def expert_nodes(self) -> int:
        """Nodes of an expert group whose dispatch places experts on nodes first, with equal ranks; otherwise 1."""
        near = self.together.get("ep", 0)
        return self.ep // near if self.dispatch.by_nodes is not None and 1 < near < self.ep else 1

    @property
    def slice_group(self) -> int:
        """Ranks that gather an expert's slices."""
        return self.expert_owners // self.expert_shards if self.expert_shards else 1

    def owned(self, model: Architecture, *, training: bool) -> Plan:
        """The plan with the numbers of ranks that keep each of a model's experts in slices, and in training each head
        of K and V."""
        count = model.experts.count if model.experts is not None else self.ep
        sliced = self.expert_shards is not None and self.ep > count and self.ep % count == 0
        copies = self.tp // model.kv_heads if training and model.latent is None and self.tp % model.kv_heads == 0 else 1
        derived = self.ep // count if sliced else self.expert_owners, max(1, copies)
        if derived == (self.expert_owners, self.kv_copies):
            return self
        return replace(self, expert_owners=derived[0], kv_copies=derived[1])

    def in_one_stage(self, dp: int) -> Plan:
        """The plan of a few layers alone: no pipeline, ``dp`` replicas that divide nothing."""
        degrees = {**self.degrees, "pp": 1, "dp": dp}
        alone = replace(self, degrees=degrees, vpp=1, schedule="1f1b", stage_layers=(), accumulation=1, zero=0)
        alone = replace(alone, recomputed=None, activation_store=None, offload_layers=0, offload_weights=0)
        return replace(alone, expert_overlap="shared_experts") if self.hiding.halves else alone

    def node_ranks(self, axis: str) -> int:
        """Ranks of a group along an axis that share a node."""
        return self.together.get(axis, self.degree(axis))


def recomputation_keys(recomputation: str, partly: PartialRecompute | None) -> str | dict[str, Any]:
    """The recomputation of all layers or of some, as a scenario's plan states it."""
    if partly is None:
        return recomputation
    return {"what": recomputation, "layers": partly.layers, "method": partly.method}


def mesh_axes() -> tuple[str, ...]:
    """Mesh axes from the one with most communication to the one with least: all schemes', stages, replicas. The default
    placement lays them out in this order, the first along the node."""
    return *scheme_axes(), "pp", "dp"


def scheme_axes() -> tuple[str, ...]:
    """Axes that schemes spread a replica over."""
    return tuple(dict.fromkeys(axis for scheme in SCHEME_FACTS.values() for axis in scheme.axes))


def scheme_name(degrees: Mapping[str, int]) -> str:
    """The scheme that degrees select: the one whose own axes have several ranks, or the default."""
    usual, *others = sorted(SCHEME_FACTS.values(), key=lambda scheme: not scheme.usual)
    return next((scheme.name for scheme in others if any(degrees.get(axis, 1) > 1 for axis in scheme.axes)), usual.name)


_FIELDS = tuple(one.name for one in fields(Plan))


def check_own_keys(owner: str, keys: Iterable[str]) -> None:
    """Raise ValueError if a registered object adds a key that every plan has."""
    if taken := sorted({*keys} & {*_FIELDS, "pp", "dp", "ep"}):
        raise ValueError(f"{owner}: '{taken[0]}' is a key of every plan; name it otherwise")


#: Fields that are keys of a scenario's plan, and appear in its answer.
SWITCHES = tuple(
    name
    for one in fields(Switches)
    for name in (("vpp", one.name) if one.name == "schedule" else (one.name,))
    if name not in BESIDE
)
