"""The answer of a simulation: one entry per plan, as data, and its JSON.

Times are in seconds, sizes in bytes, rates per second of the whole cluster unless the name says otherwise. The entry
of a refused plan has ``error`` and its memory, and no rates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..base.display import Pictured, html_table
from ..base.errors import UnknownNameError
from ..base.units import compact, duration, gib, percent
from .cells import frame

if TYPE_CHECKING:
    import pandas

    from ..engine.timeline import Timeline
    from ..scenario import Scenario

#: Version of the JSON layout; changes if a key changes its meaning or is removed.
SCHEMA_VERSION = 1

#: Plans listed in the repr of a result; a notebook's table has all.
PLANS_SHOWN = 8


@dataclass(frozen=True)
class Memory:
    """Peak memory of the fullest rank in bytes, by part, and the memory that the device offers to a program."""

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
    """90 % interval of a rate in tokens/s, and what it is based on."""

    low: float
    high: float
    basis: str
    #: Intervals of other measures, by their names in ``serving``: (low, high).
    others: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: Low and high factor on the time of each kernel family and of exposed ``transfers``, which plans have in common.
    factors: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The entry ``range``."""
        ends = {name: {"low": low, "high": high} for name, (low, high) in self.others.items()}
        return {"low": self.low, "high": self.high, "basis": self.basis, **ends}


@dataclass(frozen=True)
class LinkUse:
    """Use of the links of one kind over the step: ``mean`` and ``peak`` are shares of capacity in [0, 1]."""

    kind: str
    links: int
    bandwidth_bytes_per_s: float
    carried_bytes: float
    mean: float
    peak: float


@dataclass(frozen=True)
class RankClass:
    """A class of ``size`` ranks that do the same at the same time, and the one that was simulated."""

    representative: int
    size: int
    role: str


@dataclass(frozen=True, repr=False)
class PlanResult:
    """The answer for one plan."""

    name: str
    degrees: Mapping[str, int]
    memory: Memory
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    #: Highest rate in requests/s, of a plan that is refused because requests arrive faster.
    served_at_most: float | None = None
    #: Makespan of one step (forward pass, or training step).
    step_time_s: float = 0.0
    tokens_per_step: float = 0
    gpus: int = 0
    #: Tokens/s of the cluster if the model were one steady block (no embedding, head or loss).
    block_forward_tokens_per_s: float = 0.0
    #: Model FLOPs over dense peak; causal attention halved, dropped tokens not counted.
    mfu: float = 0.0
    #: Share of the assignments of tokens to experts that exceed the capacity and are dropped.
    dropped_share: float = 0.0
    #: Seconds, means over ranks: ``compute``, ``exposed_communication`` by kind, ``bubble`` and ``idle`` add up to
    #: ``step_time_s``; ``host`` is the host's part of ``idle``.
    breakdown_s: Mapping[str, Any] = field(default_factory=dict)
    #: Compute seconds by operator family (``gemm``, ``attention``, ``memory_bound``).
    compute_by_kind_s: Mapping[str, float] = field(default_factory=dict)
    #: Payload bytes that a rank receives and did not hold, per layer's forward, by part; mean over ranks.
    communication_bytes_per_layer: Mapping[str, float] = field(default_factory=dict)
    #: Payload bytes of the whole step by purpose (``attention``, ``weights``, ``gradients``, …) and their ``total``:
    #: received and not held, or copied from and to the host; mean over ranks.
    communication_bytes_per_step: Mapping[str, float] = field(default_factory=dict)
    #: Use of links by kind.
    links: tuple[LinkUse, ...] = ()
    #: ``(source, target, share of capacity)`` of every link of the first node and of its rails.
    link_shares: tuple[tuple[str, str, float], ...] = ()
    #: ``(source, target)`` of every dead link.
    dead_links: tuple[tuple[str, str], ...] = ()
    classes: tuple[RankClass, ...] = ()
    cost: Mapping[str, Any] = field(default_factory=dict)
    range: Range | None = None
    bottleneck: str = ""
    notes: tuple[str, ...] = ()
    #: Size and cost of a checkpoint, if the plan writes any (:func:`tspsim.step.checkpointing.checkpoint_of`).
    checkpoint: Mapping[str, float] = field(default_factory=dict)
    #: What users of a serving step see (:mod:`tspsim.step.metrics`).
    inference: Mapping[str, Any] = field(default_factory=dict)
    #: If paths are drawn: policy, seeds, and ``step_time_s`` at 5, 50 and 95 % of the draws; the plan's other numbers
    #: are those of the median draw (:mod:`tspsim.step.draws`).
    draws: Mapping[str, Any] = field(default_factory=dict)
    #: Parts of an iteration of reinforcement learning (:mod:`tspsim.loop`). The *step* is then the whole iteration, and
    #: ``tokens_per_step`` counts all prompts and answers; links and timeline are those of one update.
    loop: Mapping[str, Any] = field(default_factory=dict)
    #: Latencies, rates, caches and money of served requests (:mod:`tspsim.serving.metrics`). The *step* is then the
    #: whole run: ``step_time_s`` its wall-clock time, ``tokens_per_step`` the output tokens.
    serving: Mapping[str, Any] = field(default_factory=dict)
    #: One entry per point of a curve over concurrency or rate, as ``serving`` with its own ``range``; empty for one
    #: point.
    curve: tuple[Mapping[str, Any], ...] = ()
    #: Runs behind the points (:class:`tspsim.serving.runs.ServingRun`): requests and logs, for pages.
    runs: tuple[Any, ...] = field(default=(), repr=False, compare=False)
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

    @property
    def merit(self) -> tuple[bool, float]:
        """Key that ranks plans: :func:`merit_of` for served requests, otherwise tokens/s."""
        return merit_of(self.serving) if self.serving else (True, self.tokens_per_s)

    @property
    def lasting_tokens_per_s(self) -> float:
        """Tokens/s in the steady state: for served requests, output tokens/s of the steady part if the run has one."""
        return float((self.serving.get("steady") or {}).get("output_tokens_per_s", self.tokens_per_s))

    def __repr__(self) -> str:
        return f"<PlanResult {self.name}: {self.in_a_line()}>"

    def in_a_line(self) -> str:
        """Rate, step and memory in one line, or the reason of a refusal."""
        if self.error is not None:
            return f"refused: {self.error}"
        rate, step = compact(self.tokens_per_s, "tokens/s"), duration(self.step_time_s)
        if self.serving:
            waits = {"ttft_s": "first token after", "tpot_s": "a token every"}
            means = [
                f"{word} {duration(self.serving[key]['mean'])}" for key, word in waits.items() if self.serving[key]
            ]
            return f"{compact(self.lasting_tokens_per_s, 'output tokens/s')}, {', '.join(means)}"
        if self.inference:
            waits = {"time_to_first_token_s": "first token after", "time_per_output_token_s": "a token every"}
            seen = [f"{words} {duration(self.inference[key])}" for key, words in waits.items() if key in self.inference]
            return f"{rate}, {', '.join(seen)}, {gib(self.memory.peak_bytes)}"
        return f"{rate}, step {step}, MFU {percent(self.mfu)}, {gib(self.memory.peak_bytes)}"

    def to_json(self) -> dict[str, Any]:
        """The plan's entry in the JSON answer."""
        entry: dict[str, Any] = {"name": self.name, "degrees": dict(self.degrees), "settings": dict(self.settings)}
        if self.error is not None:
            return entry | {"error": self.error, "memory": self.memory.to_json(), "notes": list(self.notes)}
        assert self.range is not None
        if self.serving:
            return entry | {
                "tokens_per_s": self.tokens_per_s,
                "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
                "memory": self.memory.to_json(),
                "cost": dict(self.cost),
                "range": self.range.to_json(),
                "bottleneck": self.bottleneck,
                "notes": list(self.notes),
                "serving": dict(self.serving),
                **({"curve": [dict(point) for point in self.curve]} if self.curve else {}),
            }
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
            "communication_bytes_per_step": dict(self.communication_bytes_per_step),
            "links": [vars(use) for use in self.links],
            "classes": [vars(cls) for cls in self.classes],
            "cost": dict(self.cost),
            "range": self.range.to_json(),
            "bottleneck": self.bottleneck,
            "notes": list(self.notes),
            **({"checkpoint": dict(self.checkpoint)} if self.checkpoint else {}),
            **({"inference": dict(self.inference)} if self.inference else {}),
            **({"draws": dict(self.draws)} if self.draws else {}),
            **({"loop": dict(self.loop)} if self.loop else {}),
        }


def merit_of(serving: Mapping[str, Any]) -> tuple[bool, float]:
    """Key that ranks points and plans that serve requests, from their steady part if there is one.

    Plans that keep the bounds come first, then requests/s within the bounds; without bounds, output tokens/s.
    """
    lasting = serving.get("steady") or serving
    good = lasting["goodput_requests_per_s"]
    kept = (serving.get("bounds") or {}).get("kept", True)
    return bool(kept), float(lasting["output_tokens_per_s"] if good is None else good)


def waits_of(plan: PlanResult) -> list[str]:
    """Mean time to the first token and per further token, as text."""
    waits = (plan.serving.get(key) for key in ("ttft_s", "tpot_s"))
    return [duration(wait["mean"]) if wait else "–" for wait in waits]


@dataclass(frozen=True, repr=False)
class Result(Pictured):
    """The answers to every plan of a scenario, in its order; a notebook shows a table.

    ``provenance`` lists the numbers behind the answer, each ``{"what", "value", "source", "basis"}``, and ``defaults``
    the assumptions that decide answers, as sentences. ``source_scenario`` is the scenario, if available, for further
    questions.
    """

    scenario: Mapping[str, Any]
    cluster: Mapping[str, Any]
    plans: tuple[PlanResult, ...]
    provenance: tuple[Mapping[str, str], ...] = ()
    defaults: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    source_scenario: Scenario | None = field(default=None, repr=False, compare=False)
    #: The run was interrupted; finished plans are here.
    interrupted: bool = False

    def plan(self, name: str) -> PlanResult:
        """The entry of a plan; raises UnknownNameError."""
        for entry in self.plans:
            if entry.name == name:
                return entry
        raise UnknownNameError("plan", name, [entry.name for entry in self.plans])

    @property
    def best(self) -> PlanResult | None:
        """The plan with the highest :attr:`PlanResult.merit` (the first of equals); None if no plan ran."""
        return max((plan for plan in self.plans if plan.ran), key=lambda plan: plan.merit, default=None)

    def __repr__(self) -> str:
        shown = self.plans[:PLANS_SHOWN]
        width = max((len(plan.name) for plan in shown), default=0)
        lines = [f"<Result {self._title()}"]
        for plan in shown:
            mark = "  <- fastest" if plan is self.best and len(self.plans) > 1 else ""
            lines.append(f"  {plan.name:<{width}}  {plan.in_a_line()}{mark}")
        if len(self.plans) > len(shown):
            lines.append(f"  and {len(self.plans) - len(shown)} more plans; to_frame() has them all")
        return "\n".join(lines) + ">"

    def _title(self) -> str:
        device = self.cluster.get("device", {})
        machine = f"{self.cluster.get('gpus', 0):,} × {str(device.get('name', 'GPU')).upper()}"
        return f"{self.scenario.get('name', 'scenario')}: {machine}"

    def _repr_html_(self) -> str:
        """The table of plans, for notebooks."""
        best = self.best
        served = any(plan.serving for plan in self.plans)
        times = ["first token", "a token every"] if served else ["step", "MFU"]
        columns = ["plan", "tokens/s", "likely", "against the fastest", *times, "memory per GPU"]
        rows = []
        for plan in self.plans:
            memory = f"{gib(plan.memory.peak_bytes)} of {gib(plan.memory.capacity_bytes)}"
            if not plan.ran or best is None:
                rows.append([plan.name, "refused", "", "", "", "", memory])
                continue
            likely = f"{compact(plan.range.low)} – {compact(plan.range.high)}" if plan.range else ""
            ratio = f"{plan.tokens_per_s / best.tokens_per_s:.2f}×"
            shown = [duration(plan.step_time_s), percent(plan.mfu)]
            if served:
                shown = waits_of(plan)
            rows.append([plan.name, compact(plan.tokens_per_s), likely, ratio, *shown, memory])
        notes = [f"{plan.name} is refused: {plan.error}" for plan in self.plans if not plan.ran]
        return html_table(self._title(), columns, rows, notes)

    def to_frame(self) -> pandas.DataFrame:
        """One row per plan, indexed by name, under the flat names of sweeps.

        Times in seconds, sizes in bytes; a refused plan has its memory and ``error``.

        >>> import tspsim
        >>> frame = tspsim.simulate("tsp-8x-h100").to_frame()
        >>> frame.index.name, bool(frame.loc["TSP8", "step_time_s"] > 0)
        ('plan', True)
        """
        return frame((plan.name, plan) for plan in self.plans)

    def timeline(self, name: str) -> pandas.DataFrame:
        """What every simulated rank of a plan did, one row per instruction.

        Columns: rank, stream, name, kind, part, layer, start_s, end_s, bytes, flops, shape. A folded run has one rank
        per class (``plan(name).classes``); ``every_rank=True`` in :func:`tspsim.simulate` gives all.
        """
        entry = self.plan(name)
        if entry.timeline is None:
            raise UnknownNameError("timeline of plan", name, [p.name for p in self.plans if p.timeline is not None])
        return entry.timeline.frame()

    def to_json(self) -> dict[str, Any]:
        """The JSON answer (``docs/json.md``) as plain data."""
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
        """:meth:`to_json` as text; equal bytes for equal input in any process."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
