"""What a simulation answers: one entry a plan, as data; the JSON of the contract is made here and nowhere else.

Every time is in seconds, every size in bytes, every rate a second and for the whole cluster unless its name says
otherwise. An entry of a plan that was refused has ``error`` and its memory, and no rates.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._display import html_table
from .errors import UnknownNameError
from .units import compact, duration, gib, percent

if TYPE_CHECKING:
    import pandas

    from .engine.timeline import Timeline
    from .scenario import Scenario

#: Version of the JSON layout; it changes when a key changes its meaning or leaves.
SCHEMA_VERSION = 1

#: Plans that a result's own text lists; a notebook's table has them all.
PLANS_SHOWN = 8

#: What a cell of a table holds: a number, a truth, text, or nothing.
Cell = int | float | bool | str | None

#: Rates and times of a plan's entry that are columns under their own names.
_RATES = (
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "block_forward_tokens_per_s",
    "step_time_s",
    "mfu",
    "dropped_share",
)


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
    #: Of other measures, by their names in ``serving``: (low, high).
    others: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: Low and high factor of the time of each kernel family, and of exposed ``transfers``: what plans have in common.
    factors: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The entry ``range``."""
        ends = {name: {"low": low, "high": high} for name, (low, high) in self.others.items()}
        return {"low": self.low, "high": self.high, "basis": self.basis, **ends}


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


@dataclass(frozen=True, repr=False)
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
    checkpoint
        Of a plan that writes checkpoints what one is and costs (:func:`tspsim.checkpointing.checkpoint_of`).
    inference
        Of a serving step what its users see (:mod:`tspsim.inference`).
    draws
        Of a plan whose paths are drawn: policy, seeds, and ``step_time_s`` at 5, 50 and 95 % of them; the plan's own
        numbers are those of the draw at 50 % (:mod:`tspsim.draws`).
    loop
        Of an iteration of reinforcement learning its parts (:mod:`tspsim.loop`). Then a *step* is the whole iteration,
        and ``tokens_per_step`` are those of all prompts and answers; links and timeline are those of one update.
    serving
        Of requests served: waits, rates, caches, money (:mod:`tspsim.serving.metrics`). Then a *step* is the whole run:
        ``step_time_s`` is its wall, ``tokens_per_step`` are the outputs, and ``tokens_per_s`` is outputs a second.
    curve
        One entry a point of a curve over concurrency or rate, each as ``serving`` with its own ``range``; empty where
        there is one point.
    runs
        What the points were made of (:class:`tspsim.serving.runs.ServingRun`): requests and logs, for pages.
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
    checkpoint: Mapping[str, float] = field(default_factory=dict)
    inference: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Any] = field(default_factory=dict)
    loop: Mapping[str, Any] = field(default_factory=dict)
    serving: Mapping[str, Any] = field(default_factory=dict)
    curve: tuple[Mapping[str, Any], ...] = ()
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
    def merit(self) -> float:
        """What plans are ranked by: requests/s within the bounds where requests are served under some, else
        tokens/s."""
        good = self.serving.get("goodput_requests_per_s")
        return self.tokens_per_s if good is None else float(good)

    def __repr__(self) -> str:
        return f"<PlanResult {self.name}: {self.in_a_line()}>"

    def in_a_line(self) -> str:
        """Rate, step and memory, or why there are none."""
        if self.error is not None:
            return f"refused: {self.error}"
        rate, step = compact(self.tokens_per_s, "tokens/s"), duration(self.step_time_s)
        if self.serving:
            waits = {"ttft_s": "first token after", "tpot_s": "a token every"}
            told = [f"{word} {duration(self.serving[key]['mean'])}" for key, word in waits.items() if self.serving[key]]
            return f"{compact(self.tokens_per_s, 'output tokens/s')}, {', '.join(told)}"
        if self.inference:
            waits = {"time_to_first_token_s": "first token after", "time_per_output_token_s": "a token every"}
            seen = [f"{words} {duration(self.inference[key])}" for key, words in waits.items() if key in self.inference]
            return f"{rate}, {', '.join(seen)}, {gib(self.memory.peak_bytes)}"
        return f"{rate}, step {step}, MFU {percent(self.mfu)}, {gib(self.memory.peak_bytes)}"

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


def waits_of(plan: PlanResult) -> list[str]:
    """Mean waits of requests, for the first token and for each further one."""
    waits = (plan.serving.get(key) for key in ("ttft_s", "tpot_s"))
    return [duration(wait["mean"]) if wait else "–" for wait in waits]


@dataclass(frozen=True, repr=False)
class Result:
    """Every plan of one scenario, in the scenario's order; a notebook shows it as a table.

    ``provenance`` lists what the numbers rest on: ``{"what", "value", "source", "basis"}`` each.
    ``defaults`` lists the assumptions that decide answers, as sentences. ``asked`` is the question where it is at hand,
    so that a page can ask further.
    """

    scenario: Mapping[str, Any]
    cluster: Mapping[str, Any]
    plans: tuple[PlanResult, ...]
    provenance: tuple[Mapping[str, str], ...] = ()
    defaults: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    asked: Scenario | None = field(default=None, repr=False, compare=False)
    #: Somebody stopped it: what was finished is here.
    interrupted: bool = False

    def plan(self, name: str) -> PlanResult:
        """The entry of one plan; raises UnknownNameError."""
        for entry in self.plans:
            if entry.name == name:
                return entry
        raise UnknownNameError("plan", name, [entry.name for entry in self.plans])

    @property
    def best(self) -> PlanResult | None:
        """The plan with most tokens/s, or most requests/s within bounds (the first of equals); None where no plan
        ran."""
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
        columns = ["plan", "tokens/s", "likely", "against the fastest", *times, "memory a GPU"]
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
        """One row a plan, named by it: the numbers of its entry under the flat names that sweeps use.

        Times in seconds, sizes in bytes; a refused plan has its memory and ``error``.

        >>> import tspsim
        >>> frame = tspsim.simulate("tsp-8x-h100").to_frame()
        >>> frame.index.name, bool(frame.loc["TSP8", "step_time_s"] > 0)
        ('plan', True)
        """
        import pandas

        rows = [flat(plan.to_json()) for plan in self.plans]
        return pandas.DataFrame(rows, index=pandas.Index([plan.name for plan in self.plans], name="plan"))

    def to_html(self, path: str | Path) -> Path:
        """Write the report to ``path``, whole or not at all; returns where it is.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        # Pages are made floors above answers, so the room is only known when a page is wanted.
        importlib.import_module(f"{__package__}.report").write_report(self, Path(path))
        return Path(path)

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


def flat(plan: Mapping[str, Any]) -> dict[str, Cell]:
    """A plan's entry of the contract as cells of a table: what is nested has its keys joined with ``_``."""
    cells: dict[str, Cell] = {f"degree_{axis}": degree for axis, degree in plan.get("degrees", {}).items()}
    if "memory" in plan:
        memory = plan["memory"]
        cells |= {
            "memory_peak_bytes": float(memory["peak_bytes"]),
            "memory_capacity_bytes": float(memory["capacity_bytes"]),
            "memory_fits": memory["fits"],
        }
        cells |= {f"memory_{part}_bytes": float(size) for part, size in memory["parts"].items()}
    if "error" in plan:
        return cells | {"error": plan["error"]}
    if "serving" in plan:
        return cells | _of_requests(plan)
    parts = plan["breakdown_s"]
    exposed = parts["exposed_communication"]
    cells |= {name: float(plan[name]) for name in _RATES if isinstance(plan.get(name), int | float)}
    cells |= {
        "tokens_per_step": plan["tokens_per_step"],
        "tokens_per_s_low": plan["range"]["low"],
        "tokens_per_s_high": plan["range"]["high"],
        "compute_s": parts["compute"],
        "exposed_communication_s": sum(exposed.values()),
        "bubble_s": parts["bubble"],
        "idle_s": parts["idle"],
        "communication_bytes_per_layer": float(plan["communication_bytes_per_layer"]["total"]),
        "bottleneck": plan["bottleneck"],
    }
    cells |= {f"compute_{family}_s": seconds for family, seconds in plan["compute_by_kind_s"].items()}
    cells |= {f"exposed_{kind}_s": seconds for kind, seconds in exposed.items()}
    cells |= _served(plan.get("inference", {}))
    cells |= {name: value for name, value in plan.get("loop", {}).items() if isinstance(value, int | float)}
    return cells | _costs(plan["cost"])


def _costs(cost: Mapping[str, Any]) -> dict[str, Cell]:
    """Money and energy; dollars a column a basis."""
    cells: dict[str, Cell] = {}
    for name, value in cost.items():
        if isinstance(value, Mapping):
            cells |= {f"{name}_{basis}": float(price) for basis, price in value.items()}
        else:
            cells[name] = float(value)
    return cells


def _nested(name: str, value: Mapping[str, Any]) -> dict[str, Cell]:
    """A mapping's cells, names joined with ``_``, however deep they lie."""
    cells: dict[str, Cell] = {}
    for key, each in value.items():
        cells |= _nested(f"{name}_{key}", each) if isinstance(each, Mapping) else {f"{name}_{key}": each}
    return cells


def _of_requests(plan: Mapping[str, Any]) -> dict[str, Cell]:
    """An entry of requests served: means and percentiles a column each, ranges as ``_low`` and ``_high``."""
    cells: dict[str, Cell] = {name: float(plan[name]) for name in ("tokens_per_s", "tokens_per_s_per_gpu")}
    spread = plan["range"]
    cells |= {"tokens_per_s_low": spread["low"], "tokens_per_s_high": spread["high"]}
    for name, value in plan["serving"].items():
        if isinstance(value, Mapping):
            cells |= _nested(name, value)
        elif value is not None:  # a column wall_s is the time that an answer took
            cells["serving_wall_s" if name == "wall_s" else name] = value
        if isinstance(spread.get(name), Mapping):
            cells |= {f"{name}_{end}": spread[name][end] for end in ("low", "high")}
    return cells | {"bottleneck": plan["bottleneck"]} | _costs(plan["cost"])


def _served(inference: Mapping[str, Any]) -> dict[str, Cell]:
    """What users of a serving step see, and what its caches hold."""
    cells: dict[str, Cell] = {
        name: float(value) for name, value in inference.items() if isinstance(value, int | float)
    }
    room = inference.get("capacity", {})
    if room:
        cells |= {
            "cache_capacity_bytes": float(room["cache_bytes"]),
            "sessions": float(room["sessions"]),
            "session_context": room["context"],
            "session_tokens": room["tokens"],
            "longest_context": room["longest_context"],
        }
        cells |= dict(zip(("sessions_low", "sessions_high"), map(float, room["sessions_range"]), strict=True))
    return cells
