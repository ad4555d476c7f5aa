"""A fleet's answer, of every job and of the cluster, as data; only this module makes its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.display import html_table
from ..base.units import duration, percent
from ..step.result import Result
from .question import FleetQuestion

if TYPE_CHECKING:
    import pandas

Floats = NDArray[np.float64]

#: Most classes in a fleet's text.
CLASSES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The answer of one job.

    Attributes
    ----------
    nodes, gpus
        Its last or requested number; ``gpus`` in all.
    start_s, end_s, wait_s
        None where it has not started or ended in the simulated time. ``wait_s`` is until its first start.
    ettr
        Effective training time ratio: lasting work over time from the first start to the end (Kokolis et
        al. 2024, arXiv:2410.21680, without the first wait, which is ``wait_s``); None before it has run.
    slowdown
        By neighbours and by power: time at work over the time of the same work alone, at least 1.
    restarts
        Number of restarts.
    state
        ``done``, ``running``, ``waiting``, or ``held`` by the entry that must be done first.
    """

    name: str
    kind: str
    user: str
    nodes: int
    gpus: int
    submit_s: float
    start_s: float | None
    end_s: float | None
    wait_s: float | None
    ettr: float | None
    slowdown: float
    restarts: int
    state: str
    gpu_hours: float
    cost_usd: float | None
    deadline_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The job's entry."""
        return {
            "name": self.name,
            "class": self.kind,
            "user": self.user,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "submit_s": self.submit_s,
            "start_s": self.start_s,
            "end_s": self.end_s,
            "wait_s": self.wait_s,
            "ettr": self.ettr,
            "slowdown": self.slowdown,
            "restarts": self.restarts,
            "state": self.state,
            "gpu_hours": self.gpu_hours,
            "cost_usd": self.cost_usd,
            **({"deadline_s": self.deadline_s} if self.deadline_s is not None else {}),
        }


@dataclass(frozen=True)
class FleetTimes:
    """The fleet over time, for pages and traces.

    Attributes
    ----------
    at_s, allocated_gpus, waiting_jobs, nodes_down, watts
        One row per instant of change, valid until the next.
    spell_job, spell_start_s, spell_end_s, spell_nodes, spell_why
        One row per interval of a job on nodes: position in ``jobs``, from, until, nodes, and why it ended (``done``,
        ``failed``, ``stopped``, ``cut off``).
    """

    at_s: Floats
    allocated_gpus: Floats
    waiting_jobs: Floats
    nodes_down: Floats
    watts: Floats
    spell_job: NDArray[np.int64]
    spell_start_s: Floats
    spell_end_s: Floats
    spell_nodes: tuple[tuple[int, ...], ...]
    spell_why: tuple[str, ...]


@dataclass(frozen=True)
class FleetFacts:
    """The facts of a fleet.

    Attributes
    ----------
    allocated, productive
        Shares of the cluster's GPU-hours in the simulated time: held by jobs, and in which kernels did
        lasting work.
    lost_gpu_hours
        The other GPU-hours by cause; with the productive ones they add up to all.
    energy_kwh, cost_usd
        Of the whole time; None without the device's power or price.
    """

    nodes: int
    gpus: int
    horizon_s: float
    allocated: float
    productive: float
    lost_gpu_hours: Mapping[str, float]
    energy_kwh: float | None
    cost_usd: float | None
    jobs: tuple[JobAnswer, ...] = field(repr=False)
    times: FleetTimes = field(repr=False, compare=False)
    #: Facts of parts that a scenario switches on, by JSON key: ``failures``, ``power``, ``neighbours``.
    parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the cluster in the simulated time."""
        return self.gpus * self.horizon_s / 3600.0

    def waits_s(self, kind: str | None = None) -> Floats:
        """First waits of started jobs, of one class or all."""
        waits = [job.wait_s for job in self.jobs if job.wait_s is not None and kind in (None, job.kind)]
        return np.array(waits, dtype=np.float64)

    def to_json(self) -> dict[str, Any]:
        """The entry ``fleet``."""
        return {
            "nodes": self.nodes,
            "gpus": self.gpus,
            "horizon_s": self.horizon_s,
            "allocated": self.allocated,
            "productive": self.productive,
            "lost_gpu_hours": dict(self.lost_gpu_hours),
            "energy_kwh": self.energy_kwh,
            "cost_usd": self.cost_usd,
            "classes": self.classes(),
            **self.parts,
            "jobs": [job.to_json() for job in self.jobs],
        }

    def classes(self) -> list[dict[str, Any]]:
        """Jobs, waits and ends of every class, in order of first submission."""
        kinds: dict[str, list[JobAnswer]] = {}
        for job in self.jobs:
            kinds.setdefault(job.kind, []).append(job)
        return [_class(kind, jobs) for kind, jobs in kinds.items()]


def _class(kind: str, jobs: list[JobAnswer]) -> dict[str, Any]:
    waits = np.array([job.wait_s for job in jobs if job.wait_s is not None])
    late = sum(job.deadline_s is not None and (job.end_s is None or job.end_s > job.deadline_s) for job in jobs)
    dated = any(job.deadline_s is not None for job in jobs)
    return {
        "class": kind,
        "jobs": len(jobs),
        "done": sum(job.state == "done" for job in jobs),
        "gpu_hours": sum(job.gpu_hours for job in jobs),
        "mean_wait_s": float(waits.mean()) if len(waits) else None,
        "p50_wait_s": float(np.quantile(waits, 0.5)) if len(waits) else None,
        "p95_wait_s": float(np.quantile(waits, 0.95)) if len(waits) else None,
        "restarts": sum(job.restarts for job in jobs),
        **({"late": late} if dated else {}),
    }


@dataclass(frozen=True, repr=False)
class FleetAnswer(Result):
    """A fleet's answer. ``plans`` are the simulated steps of its jobs, one per distinct job and size."""

    fleet: FleetFacts | None = None
    question: FleetQuestion | None = field(default=None, repr=False, compare=False)

    @property
    def facts(self) -> FleetFacts:
        """The facts of the fleet."""
        assert self.fleet is not None
        return self.fleet

    def __repr__(self) -> str:
        facts = self.facts
        lines = [
            f"<FleetAnswer {self._title()}, {duration(facts.horizon_s)}",
            f"  allocated {percent(facts.allocated)}, productive {percent(facts.productive)}",
        ]
        for kind in facts.classes()[:CLASSES_SHOWN]:
            wait = "" if kind["mean_wait_s"] is None else f", mean wait {duration(kind['mean_wait_s'])}"
            lines.append(f"  {kind['class']}: {kind['done']:,} of {kind['jobs']:,} done{wait}")
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        """The table of classes, for notebooks."""
        columns = ["class", "jobs", "done", "GPU-hours", "mean wait", "95 % wait", "restarts"]
        rows = [
            [
                kind["class"],
                f"{kind['jobs']:,}",
                f"{kind['done']:,}",
                f"{kind['gpu_hours']:,.0f}",
                *("–" if kind[key] is None else duration(kind[key]) for key in ("mean_wait_s", "p95_wait_s")),
                f"{kind['restarts']:,}",
            ]
            for kind in self.facts.classes()
        ]
        summary = f"allocated {percent(self.facts.allocated)}, productive {percent(self.facts.productive)}"
        return html_table(self._title(), columns, rows, [summary])

    def to_frame(self) -> pandas.DataFrame:
        """One row per job, indexed by name: the keys of its JSON entry."""
        import pandas

        rows = [job.to_json() for job in self.facts.jobs]
        return pandas.DataFrame(rows).set_index("name")

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON (``docs/json.md``), as plain data."""
        data = super().to_json()
        return {"schema": data.pop("schema"), "fleet": self.facts.to_json(), **data}
