"""The question of a fleet as a file states it: cluster, jobs, scheduler, failures, power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    StrictBool,
    StrictInt,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..base import catalog
from ..base.errors import did_you_mean, shorten
from ..base.strict import OneOrSeveral
from ..base.units import PositiveCount, PositiveNumber, Quantity, Seconds, in_si
from ..scenario import ClusterInline, PlanSpec, Prices, Workload
from ..scenario.loop import Loop
from ..scenario.question import origin_of
from ..scenario.section import Name, Prose, Section, refuse
from ..scenario.traffic import TrafficSpec
from ..traffic import ARRIVALS, Arrivals, OneKind
from . import durations, placements, schedulers
from .durations import DURATIONS, Durations
from .failure_keys import Checkpoints, FailureKeys, Maintenance
from .failure_keys import in_words as failures_in_words
from .need_keys import FleetOffer, Needs
from .placements import PLACEMENTS, Placement
from .power_keys import PositiveWatts, PowerKeys
from .replica_keys import Replicas
from .schedulers import JOB_SCHEDULERS, JobScheduler

PositiveSeconds = Annotated[float, Quantity("s", positive=True, examples=("90 days", "720 h"))]
MOST_ENTRIES = 10_000
#: Keys of a job that a log's rows do not contain.
BESIDE_A_FILE = {"name", "file", "kind", "preemptible", "priority", "checkpoint", "submit", "busy"}


@dataclass(frozen=True)
class AsStated:
    """A job's key that its own scenario reads: a mapping here, checked there. Its keys are the section's, without those
    of the job itself."""

    section: type[BaseModel]
    without: frozenset[str] = frozenset()

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        stated = handler(self.section.__pydantic_core_schema__)
        if not self.without:
            return stated
        keys = dict(handler.resolve_ref_schema(stated))
        keys["properties"] = {name: value for name, value in keys["properties"].items() if name not in self.without}
        keys["required"] = [name for name in keys.get("required", ()) if name not in self.without]
        return keys


#: Most offers of one question.
MOST_OFFERS = 64


class JobKeys(Section):
    """One job, or a class of jobs that arrive, or the jobs of a log."""

    name: Name = Field(description="its name in answers")
    kind: Name | None = Field(None, alias="class", description="its class in statistics; default: its name")
    user: Name | None = Field(None, description="its owner; default: its class")
    workload: Annotated[dict[str, Any], AsStated(Workload)] | None = Field(
        None,
        description="what it computes; without one its duration is stated (`hours`) and it has no traffic on links",
    )
    plan: Annotated[dict[str, Any] | Literal["best"], AsStated(PlanSpec, frozenset({"name"}))] | None = Field(
        None, description="its plan, as an entry of plans without a name; best: searched for"
    )
    traffic: Annotated[dict[str, Any], AsStated(TrafficSpec)] | None = Field(None, description="a service's requests")
    loop: Annotated[dict[str, Any], AsStated(Loop)] | None = Field(None, description="reinforcement learning")
    replicas: Replicas | None = Field(
        None, description="of a service: its replicas follow its load, each on `nodes` or `gpus` of its own"
    )
    nodes: Annotated[tuple[PositiveNumber, ...], Field(min_length=1, max_length=64), OneOrSeveral()] | None = Field(
        None, description="a number, or several that it can run on, the preferred one first; default 1"
    )
    gpus: PositiveNumber | None = Field(None, description="GPUs of one shared node; instead of nodes")
    tokens: PositiveCount | None = Field(None, description="its end: tokens trained on")
    steps: PositiveCount | None = Field(None, description="its end: steps")
    hours: Annotated[Durations, OneKind(DURATIONS, durations.shorthand)] | None = Field(
        None, description="its end: time at full speed on its preferred nodes, or its distribution"
    )
    submit: Seconds = Field(
        0.0, description="time of submission from the begin of the fleet; of a class, of its first job"
    )
    arrivals: Annotated[Arrivals, OneKind(ARRIVALS)] | None = Field(
        None, description="of a class: when its jobs are submitted; rates are jobs a second, such as 4/day"
    )
    count: PositiveCount | None = Field(None, description="of a class: how many jobs; default: until the horizon")
    limit: PositiveSeconds | None = Field(
        None, description="expected duration for schedulers; default: its duration without failures"
    )
    priority: StrictInt = Field(0, description="larger goes first, where the scheduler has priorities")
    preemptible: StrictBool = Field(False, description="may be preempted; continues from its last checkpoint")
    deadline: PositiveSeconds | None = Field(None, description="should be done by then")
    after: Name | None = Field(None, description="the entry whose jobs must be done first")
    checkpoint: Checkpoints | None = Field(None, description="checkpoints instead of its plan's")
    busy: PositiveWatts | None = Field(
        None, description="power of one of its GPUs at work with its share of server and fabric; default: `power.busy`"
    )
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None, description="a log of jobs: sacct --parsable2, Standard Workload Format, CSV with named columns"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> JobKeys:
        if self.file is not None:
            beside = sorted(self.model_fields_set - BESIDE_A_FILE)
            if beside:
                raise refuse(f"{beside[0]} stands beside file, whose rows say it; leave it out")
            return self
        if self.nodes is not None and self.gpus is not None:
            raise refuse("state nodes or gpus, not both")
        ends = [key for key in ("tokens", "steps", "hours") if getattr(self, key) is not None]
        if len(ends) != 1:
            problem = "state one of tokens, steps and hours" if ends else "needs an end: tokens, steps or hours"
            raise refuse(problem)
        if self.workload is None:
            needing = next(
                (key for key in ("plan", "traffic", "loop", "tokens", "steps") if getattr(self, key) is not None), None
            )
            if needing is not None:
                raise refuse(f"{needing} needs a workload; without one state hours")
        elif self.plan is None:
            raise refuse("a workload needs a plan, such as plan: {tp: 8}, or plan: best")
        if self.traffic is not None and self.hours is None:
            raise refuse("a service runs for hours; state them")
        if self.replicas is not None and (self.traffic is None or self.arrivals is not None or self.after is not None):
            raise refuse("replicas are of one service: state its traffic, and neither arrivals nor after")
        if self.arrivals is None and self.count is not None:
            raise refuse("count is of a class of jobs; state arrivals")
        if self.arrivals is not None and (
            self.arrivals.closed or self.arrivals.searches or len(self.arrivals.points()) > 1
        ):
            raise refuse("arrivals of jobs have one stated rate")
        if self.nodes is not None and len(set(self.nodes)) < len(self.nodes):
            raise refuse("nodes names a size twice")
        return self

    @property
    def counted_as(self) -> str:
        """Its class."""
        return self.kind or self.name


class FleetQuestion(Section):
    """Many jobs on one cluster; see :func:`tspsim.fleet.load`."""

    name: Name = Field(description="its name in answers")
    description: Prose = Field("", description="the question in prose")
    cluster: ClusterInline = Field(description="the cluster, as in a scenario; every job gets some of its nodes")
    jobs: Annotated[tuple[JobKeys, ...], Field(min_length=1, max_length=MOST_ENTRIES)] = Field(
        description="jobs, classes of arriving jobs, and logs"
    )
    scheduler: Annotated[JobScheduler, OneKind(JOB_SCHEDULERS, schedulers.shorthand)] = Field(
        schedulers.fcfs.FirstCome(), validate_default=True, description="which waiting jobs start"
    )
    placement: Annotated[Placement, OneKind(PLACEMENTS, placements.shorthand)] = Field(
        placements.packed.Packed(), validate_default=True, description="which nodes a job gets"
    )
    horizon: PositiveSeconds | None = Field(
        None, description="length of the simulation; default: until all jobs are done"
    )
    failures: FailureKeys | None = Field(None, description="what fails; default: nothing")
    maintenance: Annotated[tuple[Maintenance, ...], Field(max_length=100)] = Field(
        (), description="planned outages of nodes"
    )
    neighbours: StrictBool = Field(True, description="whether jobs whose flows share links slow each other")
    power: PowerKeys | None = Field(None, description="power, its cap and its price")
    prices: Prices = Prices()
    needs: Needs | None = Field(None, description="requirements; `tspsim compare` finds the number of nodes for them")
    offers: Annotated[tuple[FleetOffer, ...], Field(max_length=MOST_OFFERS)] = Field(
        (), description="hardware offered, each with its largest number of nodes; none: the fleet's cluster"
    )
    seed: Annotated[StrictInt, Field(ge=0)] = Field(0, description="seed of all draws")
    source: Prose = Field("", description="origin of the question")
    _file: str | None = PrivateAttr(None)
    _overridden: tuple[str, ...] = PrivateAttr(())

    @field_validator("jobs")
    @classmethod
    def _named(cls, jobs: tuple[JobKeys, ...]) -> tuple[JobKeys, ...]:
        names = [job.name for job in jobs]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise refuse(f"two entries are named '{twice}'; give each its own name")
        entries = set(names)
        waits = {job.name: job.after for job in jobs if job.after is not None}
        for name, after in waits.items():
            if after not in entries:
                raise refuse(f"job '{name}': after: unknown job '{shorten(after)}'{did_you_mean(after, names)}")
        for name in waits:
            path = [name]
            while (path[-1] in waits) and (waits[path[-1]] not in path):
                path.append(waits[path[-1]])
            if path[-1] in waits:
                circle = [*path[path.index(waits[path[-1]]) :], waits[path[-1]]]
                raise refuse(f"after goes in a circle: {' → '.join(circle)}; one of them has to begin")
        return jobs

    @field_validator("offers")
    @classmethod
    def _offered_once(cls, offers: tuple[FleetOffer, ...]) -> tuple[FleetOffer, ...]:
        names = [offer.name for offer in offers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise refuse(f"two offers are named '{twice}'; give each its own name")
        return offers

    @model_validator(mode="after")
    def _ends(self) -> FleetQuestion:
        endless = next((job for job in self.jobs if job.arrivals is not None and job.count is None), None)
        if endless is not None and self.horizon is None:
            raise refuse(f"job '{endless.name}': arrivals without count need a horizon, such as horizon: 90 days")
        if self.failures is not None and self.failures.spares >= self.cluster.nodes:
            raise refuse(f"failures.spares: {self.failures.spares}, and the cluster has {self.cluster.nodes} nodes")
        usable = self.cluster.nodes - (self.failures.spares if self.failures is not None else 0)
        for job in self.jobs:
            if job.busy is not None and self.power is None:
                raise refuse(f"job '{job.name}': busy is of a fleet whose draw is looked at; state power too")
            if min(job.nodes or (1,)) > usable:
                limit = f"the cluster has {self.cluster.nodes}"
                spared = f", of which {self.cluster.nodes - usable} are spares" if usable < self.cluster.nodes else ""
                raise refuse(f"job '{job.name}': nodes: {min(job.nodes or (1,))}, and {limit}{spared}")
        if self.cluster.islands and any(island.device is not None for island in self.cluster.islands):
            raise refuse("cluster.islands with devices of their own are not built for fleets; leave device out")
        return self

    def read_from(self, file: str | None, overridden: Sequence[str]) -> FleetQuestion:
        """The same question, with its file and the keys that options set."""
        copy = self.model_copy()
        copy._file, copy._overridden = file, tuple(overridden)
        return copy

    def with_plans(self, plans: Mapping[str, Mapping[str, Any]]) -> FleetQuestion:
        """The same question with other plans of some jobs, by name."""
        jobs = tuple(
            job.model_copy(update={"plan": dict(plans[job.name])}) if job.name in plans else job for job in self.jobs
        )
        return self.model_copy(update={"jobs": jobs}).read_from(self._file, self._overridden)

    def origin(self, key: str) -> str | None:
        """File or option that set a key; None for a question without a file."""
        return origin_of(key, self._overridden, self._file)

    @property
    def file_name(self) -> str:
        """Name of its file, without folders; empty without a file."""
        return Path(self._file).name if self._file else ""

    def files(self) -> tuple[Path, ...]:
        """Its own file, and the logs that it names."""
        paths = [Path(self._file)] if self._file else []
        paths += [Path(job.file) for job in self.jobs if job.file is not None and catalog.is_file(job.file)]
        return tuple(dict.fromkeys(paths))

    def in_words(self) -> tuple[str, ...]:
        """Assumptions and stated facts, as sentences."""
        until = "until all jobs are done" if self.horizon is None else f"for {self.horizon / 86_400.0:,.4g} days"
        return (
            f"Jobs start {self.scheduler.in_words()} (`scheduler`), {self.placement.in_words()} (`placement`).",
            f"The fleet is simulated {until} (`horizon`); all draws use seed {self.seed} (`seed`).",
            *(failures_in_words(self.failures) if self.failures is not None else ()),
            *(self.power.in_words() if self.power is not None else ()),
            *(
                f"A GPU of `{job.name}` draws {job.busy:,.0f} W at work (`busy`)."
                for job in self.jobs
                if job.busy is not None
            ),
            *self.cluster.in_words(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, defaults filled in, quantities as numbers in SI; :func:`tspsim.fleet.load` reads it back."""
        data = self.model_dump(mode="json", by_alias=True)
        for key in ("gpus_per_node", "islands", "measured", "routing"):
            if not data["cluster"][key]:
                del data["cluster"][key]
        for key in ("failures", "maintenance", "power"):
            if not data[key]:
                del data[key]
        data["jobs"] = [{key: value for key, value in job.items() if value is not None} for job in data["jobs"]]
        return {key: in_si(value) if key != "jobs" else [_in_si(job) for job in value] for key, value in data.items()}


def _in_si(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job's plain data; the parts of its own scenario stay as stated."""
    raw = ("workload", "plan", "traffic", "loop")
    return {key: value if key in raw else in_si(value) for key, value in job.items()}
