"""The scenario: cluster, workload, plans, prices, and offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails

from ..base import catalog
from ..base.errors import UnknownNameError, did_you_mean, shorten
from ..base.units import Usd, UsdPerHour, UsdPerKilowattHour, in_si
from ..steps import STEPS
from .cluster import ClusterChoice, ClusterInline, Faults
from .loop import Loop
from .plan import BEST, SERVING, PlanSpec
from .project import Parts, Project
from .section import Name, Prose, Section, refuse
from .traffic import TrafficSpec
from .variation import Variation
from .workload import Workload

MOST_PLANS = 100
#: Plans that the repr of a scenario names.
PLANS_SHOWN = 8


class Prices(Section):
    """Prices that replace the device's own in the cost of a run."""

    gpu_hour: UsdPerHour | None = Field(None, description="rent of one GPU")
    electricity: UsdPerKilowattHour | None = Field(None, description="added to the rent if stated")
    capex: Usd | None = Field(
        None, description="purchase of one GPU with its share of server, fabric and installation; with project.own"
    )


class Offer(Section):
    """Hardware on offer for the scenario's work; ``tspsim compare`` answers the scenario on each offer."""

    name: Annotated[str, Field(min_length=1, max_length=60)] = Field(description="name in answers")
    cluster: ClusterChoice = Field(description="from the catalog, or described by its parts")
    plans: Annotated[tuple[Name, ...], Field(max_length=MOST_PLANS)] = Field(
        (), description="names of the scenario's plans that are tried on it; default: all"
    )
    prices: Prices | None = Field(None, description="default: the scenario's")
    fabric: Parts | None = Field(None, description="price and power of its fabric's parts; default: the project's")


class Scenario(Section):
    """A checked question; see :func:`load`."""

    name: Name = Field(description="name in answers")
    description: Prose = Field("", description="the question, in prose")
    cluster: ClusterChoice = Field(description="default: the first offer's")
    workload: Workload
    traffic: TrafficSpec | None = Field(None, description="requests to be served; without it a scenario is one step")
    loop: Loop | None = Field(None, description="reinforcement learning around the training step")
    plans: Annotated[tuple[PlanSpec, ...], Field(min_length=1, max_length=MOST_PLANS)] = Field(
        description="ways to spread the work over the GPUs; best: search for one"
    )
    prices: Prices = Prices()
    offers: Annotated[tuple[Offer, ...], Field(max_length=MOST_PLANS)] = Field((), description="hardware on offer")
    project: Project | None = Field(None, description="the whole job: tokens, failures, power, prices")
    source: Prose = Field("", description="source of the question")
    _remarks: tuple[str, ...] = PrivateAttr(())
    _file: str | None = PrivateAttr(None)
    _overridden: tuple[str, ...] = PrivateAttr(())

    @field_validator("plans", mode="before")
    @classmethod
    def _best(cls, plans: Any) -> Any:
        """``plans: best`` is one plan to be searched for."""
        return (plans,) if plans == BEST else plans

    @model_validator(mode="before")
    @classmethod
    def _serves_or_steps(cls, data: Any) -> Any:
        """A scenario with traffic states no step: its engine makes the steps.

        The workload gets a decode step of one sequence, since looking a model up needs some step.
        """
        if not isinstance(data, Mapping):
            return data
        workload = data.get("workload")
        if not isinstance(workload, Mapping):
            return data
        if data.get("traffic") is None:
            if workload.get("engine"):
                error = refuse("is of a scenario with traffic; leave it out of a single step")
                raise _wrong(cls, ("workload", "engine"), error, workload["engine"])
            return data
        amounts = dict.fromkeys(key for step in STEPS.values() for key in (*step.needs, *step.takes))
        for key in ("pass", *amounts):
            if workload.get(key) is not None and key != "speculation":
                error = refuse("states the size of a single step; leave it out beside traffic")
                raise _wrong(cls, ("workload", key), error, workload[key])
        step = "verify" if workload.get("speculation") is not None else "decode"
        return {**data, "workload": {**workload, "pass": step, "batch": 1, "context": 1}}

    @model_validator(mode="after")
    def _plans_serve(self) -> Scenario:
        """Keys of plans and of a project that serve requests need traffic."""
        if self.traffic is None and self.project is not None:
            key = next((key for key in ("users", "requests") if getattr(self.project, key) is not None), None)
            if key is not None:
                raise refuse(f"project.{key} is of a scenario with traffic; state what is to be served")
        routed = next((plan for plan in self.plans if plan.routing), None) if self.traffic is not None else None
        if routed is not None:
            problem = "routing of a plan is of a single step; state cluster.routing, whose first draw serves"
            raise refuse(f"plan '{routed.name}': {problem}")
        clusters = (self.cluster, *(offer.cluster for offer in self.offers)) if self.traffic is not None else ()
        if any(isinstance(cluster, ClusterInline) and cluster.variation is not None for cluster in clusters):
            raise refuse("cluster.variation is of single steps; leave it out of a scenario with traffic")
        for plan in self.plans if self.traffic is None else ():
            stated = next((key for key in SERVING if key in plan.model_fields_set and key != "pools"), None)
            if stated is not None:
                problem = f"{stated} is of a scenario with traffic; leave it out of a single step"
                raise refuse(f"plan '{plan.name}': {problem}")
        return self

    @model_validator(mode="after")
    def _plans_loop(self) -> Scenario:
        """Rollouts need a loop, and a loop needs a training step."""
        if self.loop is None:
            rolls = next((plan for plan in self.plans if plan.rollout is not None), None)
            if rolls is not None:
                raise refuse(f"plan '{rolls.name}': rollout is of a scenario with loop; leave it out of a single step")
            return self
        if self.traffic is not None:
            raise refuse("traffic and loop are two questions; leave one out")
        work = self.workload
        if not STEPS.get(work.pass_).trains:
            raise refuse(f"loop goes around a training step; workload.pass is {work.pass_}")
        counts = ("global_batch", "sequences_per_replica", "lengths", "document", "multi_token", "adapters")
        usual = Workload.model_fields
        beside = next((key for key in counts if getattr(work, key) != usual[key].default), None)
        if beside is not None:
            raise refuse(f"workload.{beside} is not of a loop, which says what is trained on; leave it out")
        clusters = (self.cluster, *(offer.cluster for offer in self.offers))
        if any(isinstance(cluster, ClusterInline) and cluster.variation is not None for cluster in clusters):
            raise refuse("cluster.variation is of single steps; leave it out beside loop")
        for plan in self.plans:
            if plan.rollout is None:
                raise refuse(f"plan '{plan.name}': a loop needs to know how it generates; state rollout: {{tp: …}}")
            wrong = next((key for key in ("routing", "checkpoint") if getattr(plan, key) is not None), None)
            if wrong is not None:
                raise refuse(f"plan '{plan.name}': {wrong} is not built beside loop; leave it out")
            inline = self.cluster if isinstance(self.cluster, ClusterInline) else None
            uneven = inline is not None and (inline.islands or inline.measured or self.faults != Faults())
            if plan.rollout.nodes is not None and uneven:
                raise refuse(f"plan '{plan.name}': rollout.nodes are cut off a cluster whose nodes are alike")
            if plan.rollout.ahead and plan.rollout.nodes is None:
                raise refuse(f"plan '{plan.name}': rollout.ahead needs nodes of its own; state rollout.nodes")
        return self

    @model_validator(mode="after")
    def _offers_name_plans(self) -> Scenario:
        names = [offer.name for offer in self.offers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise refuse(f"two offers are named '{twice}'; give each its own name")
        names = [plan.name for plan in self.plans]
        for offer in self.offers:
            unknown = next((name for name in offer.plans if name not in names), None)
            if unknown is not None:
                raise refuse(f"offer '{offer.name}': unknown plan '{shorten(unknown)}'{did_you_mean(unknown, names)}")
        return self

    @field_validator("plans")
    @classmethod
    def _complete(cls, plans: tuple[PlanSpec, ...], info: ValidationInfo) -> tuple[PlanSpec, ...]:
        """Plan names are unique; recomputation defaults to the pass's."""
        names = [plan.name for plan in plans]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise refuse(f"two plans are named '{twice}'; give each its own name")
        workload = info.data.get("workload")  # absent if it has an error itself, which is then reported
        update = {"recomputation": STEPS.get(workload.pass_).recomputation if workload else "none"}
        return tuple(plan if plan.recomputation else plan.model_copy(update=update) for plan in plans)

    @property
    def faults(self) -> Faults:
        """Slow and dead parts of the cluster; usually none."""
        stated = self.cluster.faults if isinstance(self.cluster, ClusterInline) else None
        return stated or Faults()

    @property
    def searched(self) -> PlanSpec | None:
        """The plan to be searched for; None: all are stated."""
        return next((plan for plan in self.plans if plan.search is not None), None)

    @property
    def variation(self) -> Variation | None:
        """The variation of GPUs, if the cluster states one."""
        return self.cluster.variation if isinstance(self.cluster, ClusterInline) else None

    def in_words(self) -> tuple[str, ...]:
        """Sentences on how stated numbers were read, and on what is special about the cluster and the requests."""
        stated = self.cluster.in_words() if isinstance(self.cluster, ClusterInline) else ()
        requests = self.traffic.in_words(self.workload.model) if self.traffic is not None else ()
        return (*self._remarks, *stated, *requests)

    def read_from(self, file: str | None, overridden: Sequence[str], remarks: Sequence[str]) -> Scenario:
        """A copy with its file, the keys that options set, and sentences on how its numbers were read."""
        copy = self.model_copy()
        copy._file, copy._overridden, copy._remarks = file, tuple(overridden), tuple(remarks)
        return copy

    def origin(self, key: str) -> str | None:
        """File or option that the value at a dotted key came from; None if the scenario was no file."""
        return origin_of(key, self._overridden, self._file)

    def __repr__(self) -> str:
        where = self.cluster if isinstance(self.cluster, str) else f"{self.cluster.nodes} × {self.cluster.device}"
        work = "requests" if self.traffic is not None else self.workload.pass_
        plans = ", ".join(plan.name for plan in self.plans[:PLANS_SHOWN]) or "no plans"
        more = f" and {len(self.plans) - PLANS_SHOWN} more" if len(self.plans) > PLANS_SHOWN else ""
        return f"<Scenario {self.name}: {self.workload.model}, {work}, on {where}; {plans}{more}>"

    @property
    def file_name(self) -> str:
        """Name of the scenario's file, without folders; empty if it was no file."""
        return Path(self._file).name if self._file else ""

    def files(self) -> tuple[Path, ...]:
        """Files of the scenario: its own, catalog entries that it names, traces."""
        paths = [Path(self._file)] if self._file else []
        kinds = {cast("catalog.Kind", kind): set(catalog.names(cast("catalog.Kind", kind))) for kind in catalog.FOLDERS}
        for text in dict.fromkeys(_texts(self.model_dump(mode="json", by_alias=True))):
            paths += [Path(text)] if catalog.is_file(text) else []
            paths += [catalog.locate(kind, text) for kind, names in kinds.items() if text in names]
        return tuple(dict.fromkeys(paths))

    def plan(self, name: str) -> PlanSpec:
        """The plan of this name; raises UnknownNameError, which offers the nearest."""
        for plan in self.plans:
            if plan.name == name:
                return plan
        raise UnknownNameError("plan", name, [plan.name for plan in self.plans])

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the order of the fields, with all defaults, quantities as numbers in SI units.

        Left out: ``offers``, ``project``, ``traffic`` and ``loop`` if not stated; one of ``sequences_per_replica`` and
        ``global_batch``; with ``traffic``, all keys that size a step; a plan's default ``expert_balance``; of a
        cluster, ``gpus_per_node``, ``islands``, ``measured`` and ``routing`` if not stated; ``capex`` and ``own`` if
        not stated. :func:`load` reads the result back to an equal scenario.
        """
        data = self.model_dump(mode="json", by_alias=True)
        workload = data["workload"]
        if self.traffic is None:
            del workload["global_batch" if self.workload.global_batch is None else "sequences_per_replica"]
            del workload["engine"]
            step = STEPS.get(self.workload.pass_)
            amounts = dict.fromkeys(key for step_kind in STEPS.values() for key in (*step_kind.needs, *step_kind.takes))
            for key in [key for key in amounts if key not in (*step.needs, *step.takes)]:
                workload.pop(key, None)
            for key in ("lengths", "length_seed") if self.workload.lengths is None else ():
                workload.pop(key, None)
        else:
            for key in ("pass", *dict.fromkeys(key for step in STEPS.values() for key in (*step.needs, *step.takes))):
                if key != "speculation":
                    workload.pop(key, None)
            workload.pop("length_seed", None)
        for cluster in (data["cluster"], *(offer["cluster"] for offer in data["offers"])):
            for key in ("gpus_per_node", "islands", "measured", "routing"):
                if isinstance(cluster, dict) and not cluster[key]:
                    del cluster[key]
        for prices in (data["prices"], *(offer["prices"] for offer in data["offers"])):
            if prices and prices["capex"] is None:
                del prices["capex"]
        if data["project"] and data["project"]["own"] is None:
            del data["project"]["own"]
        for plan in data["plans"]:
            if plan.get("expert_balance") == PlanSpec.model_fields["expert_balance"].default.policy:
                del plan["expert_balance"]
        seldom = ("offers", "project", "traffic", "loop")
        return {key: in_si(value) for key, value in data.items() if value or key not in seldom}


def _texts(data: object) -> Iterator[str]:
    """Every string of nested data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _texts(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _texts(value)


def _wrong(cls: type[Scenario], place: tuple[str, ...], error: Any, value: object) -> ValidationError:
    """A validation error at a place."""
    return ValidationError.from_exception_data(cls.__name__, [InitErrorDetails(type=error, loc=place, input=value)])


def origin_of(key: str, overridden: Sequence[str], file: str | None) -> str | None:
    """Where the value at ``key`` came from: the override that set it, the file, or both (such as a plan)."""
    for path in reversed(overridden):
        if f"{key}.".startswith(f"{path}."):
            return "--set"
        if path.split(".")[0] == key.split(".")[0]:
            return f"{file} with --set {shorten(path)}" if file else f"--set {shorten(path)}"
    return file
