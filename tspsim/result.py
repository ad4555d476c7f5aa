"""What a simulation answers: one entry a plan, as data; the JSON of the contract is made here and nowhere else.

Every time is in seconds, every size in bytes, every rate a second and for the whole cluster unless its name says
otherwise. An entry of a plan that was refused has ``error`` and its memory, and no rates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import UnknownNameError

if TYPE_CHECKING:
    import pandas

    from .engine.timeline import Timeline

#: Version of the JSON layout; it changes when a key changes its meaning or leaves.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Memory:
    """Peak memory of the fullest rank, by part, against what the device shows to a program."""

    parts: Mapping[str, float]
    capacity_bytes: float

    @property
    def peak_bytes(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "parts": dict(self.parts),
        }


@dataclass(frozen=True)
class Range:
    """A rate in tokens/s that the truth should lie in nine times of ten, and what the claim rests on."""

    low: float
    high: float
    basis: str


@dataclass(frozen=True)
class LinkUse:
    """How busy the links of one kind were over the step: ``mean`` and ``peak`` are shares of capacity in [0, 1]."""

    kind: str
    links: int
    bandwidth_bytes_per_s: float
    carried_bytes: float
    mean: float
    peak: float


@dataclass(frozen=True)
class RankClass:
    """Ranks that do the same at the same time: one ran, ``size`` are meant."""

    representative: int
    size: int
    role: str


@dataclass(frozen=True)
class PlanResult:
    """The answer for one plan.

    Attributes
    ----------
    step_time_s
        Makespan of one step (forward pass, or training step).
    block_forward_tokens_per_s
        The cluster's tokens/s if the model were one steady block (no embedding, head or loss).
    mfu
        Model FLOPs over dense peak; causal attention halved, dropped tokens not counted.
    dropped_share
        Share of the assignments of tokens to experts that is over capacity and dropped.
    breakdown_s
        ``compute``, ``exposed_communication`` by kind, ``bubble`` and ``idle``: means over ranks; they add up to
        ``step_time_s``.
    compute_by_kind_s
        The compute part by operator family (``gemm``, ``attention``, ``memory_bound``).
    communication_bytes_per_layer
        Payload a rank receives and did not hold, in one layer's forward, averaged over ranks.
    links
        Use of the fabric by kind of link.
    link_shares
        ``(source, target, share of capacity)`` for every link of the first representative's node and its rails.
    dead_links
        ``(source, target)`` of every link of the cluster that carries nothing because it is dead.
    inference
        Of a serving step what its users see (:mod:`tspsim.inference`).
    """

    name: str
    degrees: Mapping[str, int]
    memory: Memory
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    step_time_s: float = 0.0
    tokens_per_step: float = 0
    gpus: int = 0
    block_forward_tokens_per_s: float = 0.0
    mfu: float = 0.0
    dropped_share: float = 0.0
    breakdown_s: Mapping[str, Any] = field(default_factory=dict)
    compute_by_kind_s: Mapping[str, float] = field(default_factory=dict)
    communication_bytes_per_layer: Mapping[str, float] = field(default_factory=dict)
    links: tuple[LinkUse, ...] = ()
    link_shares: tuple[tuple[str, str, float], ...] = ()
    dead_links: tuple[tuple[str, str], ...] = ()
    classes: tuple[RankClass, ...] = ()
    cost: Mapping[str, Any] = field(default_factory=dict)
    range: Range | None = None
    bottleneck: str = ""
    notes: tuple[str, ...] = ()
    inference: Mapping[str, Any] = field(default_factory=dict)
    timeline: Timeline | None = field(default=None, repr=False, compare=False)

    @property
    def ran(self) -> bool:
        return self.error is None

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_per_step / self.step_time_s if self.ran else 0.0

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.gpus if self.ran else 0.0

    def to_json(self) -> dict[str, Any]:
        """The plan's entry of the contract."""
        entry: dict[str, Any] = {
            "name": self.name,
            "degrees": dict(self.degrees),
            "settings": dict(self.settings),
        }
        if self.error is not None:
            return entry | {"error": self.error, "memory": self.memory.to_json(), "notes": list(self.notes)}
        assert self.range is not None
        return entry | {
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "step_time_s": self.step_time_s,
            "tokens_per_step": self.tokens_per_step,
            "block_forward_tokens_per_s": self.block_forward_tokens_per_s,
            "mfu": self.mfu,
            "dropped_share": self.dropped_share,
            "breakdown_s": dict(self.breakdown_s),
            "compute_by_kind_s": dict(self.compute_by_kind_s),
            "memory": self.memory.to_json(),
            "communication_bytes_per_layer": dict(self.communication_bytes_per_layer),
            "links": [vars(use) for use in self.links],
            "classes": [vars(cls) for cls in self.classes],
            "cost": dict(self.cost),
            "range": vars(self.range),
            "bottleneck": self.bottleneck,
            "notes": list(self.notes),
            **({"inference": dict(self.inference)} if self.inference else {}),
        }


@dataclass(frozen=True)
class Result:
    """Every plan of one scenario, in the scenario's order.

    ``provenance`` lists what the numbers rest on: ``{"what", "value", "source", "basis"}`` each.
    ``defaults`` lists the assumptions that decide answers, as sentences.
    """

    scenario: Mapping[str, Any]
    cluster: Mapping[str, Any]
    plans: tuple[PlanResult, ...]
    provenance: tuple[Mapping[str, str], ...] = ()
    defaults: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()

    def plan(self, name: str) -> PlanResult:
        """The entry of one plan; raises UnknownNameError."""
        for entry in self.plans:
            if entry.name == name:
                return entry
        raise UnknownNameError("plan", name, [entry.name for entry in self.plans])

    def timeline(self, name: str) -> pandas.DataFrame:
        """What every simulated rank of a plan did, one row an instruction.

        Columns: rank, stream, name, kind, part, layer, start_s, end_s, bytes, flops, shape. Folded runs hold one rank a
        class (see ``plan(name).classes``); ``every_rank=True`` in :func:`tspsim.simulate` holds them all.
        """
        entry = self.plan(name)
        if entry.timeline is None:
            raise UnknownNameError("timeline of plan", name, [p.name for p in self.plans if p.timeline is not None])
        return entry.timeline.frame()

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON (``docs/json.md``), as plain data."""
        return {
            "schema": SCHEMA_VERSION,
            "scenario": dict(self.scenario),
            "cluster": dict(self.cluster),
            "plans": [entry.to_json() for entry in self.plans],
            "provenance": [dict(item) for item in self.provenance],
            "defaults": list(self.defaults),
            "unexplained": list(self.unexplained),
        }

    def dumps(self) -> str:
        """:meth:`to_json` as text: the same bits for the same input in any process."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
