"""A parallel plan, as facts the schemes read."""

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
from .recomputed import KEPT, Partly
from .registries import SCHEME_FACTS
from .switches import BESIDE, OpenSwitches, Switches

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
class Plan(OpenSwitches, Switches):
    """How one model is spread over the GPUs, and which switches of the schedule are set
    (:mod:`tspsim.parallel.switches`).

    Attributes
    ----------
    degrees
        Size of every mesh axis; their product is the number of GPUs. ``ep`` besides them is the size of the
        groups that experts are spread over: it multiplies nothing, its ranks are those of :attr:`expert_axes`.
    vpp
        Chunks of layers a pipeline stage holds (virtual stages).
    recomputation, recomputed
        What a backward makes again (:mod:`tspsim.parallel.recompute`), and of which layers where not of all; of the
        others nothing is made again.
    algorithms
        Collective kind → algorithm name, where the plan insists on one.
    open
        Names of switches that are not stated: :mod:`tspsim.step.tuning` chooses them for the cluster. Until then they
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
    vpp: int = 1
    recomputation: str = field(default=KEPT, kw_only=True)
    recomputed: Partly | None = None
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

    @once
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


def mesh_axes() -> tuple[str, ...]:
    """Mesh axes, from the one whose ranks talk most to the one whose ranks talk least: those of all schemes, stages and
    replicas. The default placement puts them on the graph in this order, the first along the node."""
    return *scheme_axes(), "pp", "dp"


def scheme_axes() -> tuple[str, ...]:
    """Those that schemes spread a replica over."""
    return tuple(dict.fromkeys(axis for scheme in SCHEME_FACTS.values() for axis in scheme.axes))


def scheme_name(degrees: Mapping[str, int]) -> str:
    """The scheme that degrees ask for: the one whose own axes have several ranks, or the usual one."""
    usual, *others = sorted(SCHEME_FACTS.values(), key=lambda scheme: not scheme.usual)
    return next((scheme.name for scheme in others if any(degrees.get(axis, 1) > 1 for axis in scheme.axes)), usual.name)


_FIELDS = tuple(one.name for one in fields(Plan))


def check_own_keys(owner: str, keys: Iterable[str]) -> None:
    """Raises ValueError where a key that a registered object brings is a key of every plan."""
    if taken := sorted({*keys} & {*_FIELDS, "pp", "dp", "ep"}):
        raise ValueError(f"{owner}: '{taken[0]}' is a key of every plan; name it otherwise")


#: Fields that are keys of a scenario's plan, and are told with its answer.
SWITCHES = tuple(
    name
    for one in fields(Switches)
    for name in (("vpp", one.name) if one.name == "schedule" else (one.name,))
    if name not in BESIDE
)
