"""The whole question: cluster, workload, plans, prices, and what could be bought."""

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
#: Plans that a scenario's line names.
PLANS_SHOWN = 8


class Prices(Section):
    """Prices that replace the device's own in the cost of a run."""

    gpu_hour: UsdPerHour | None = Field(None, description="rent of one GPU")
    electricity: UsdPerKilowattHour | None = Field(None, description="added to rent only when stated")
    capex: Usd | None = Field(
        None, description="purchase of one GPU with its share of server, fabric and installation; with project.own"
    )


class Offer(Section):
    """Hardware that could be bought for the scenario's work; ``tspsim compare`` asks the scenario on each."""

    name: Annotated[str, Field(min_length=1, max_length=60)] = Field(description="how answers call it")
    cluster: ClusterChoice = Field(description="from the catalog, or put together from its parts")
    plans: Annotated[tuple[Name, ...], Field(max_length=MOST_PLANS)] = Field(
        (), description="names of the scenario's plans that are tried on it; all when left out"
    )
    prices: Prices | None = Field(None, description="instead of the scenario's")
    fabric: Parts | None = Field(None, description="price and power of its fabric's pieces, instead of the project's")


class Scenario(Section):
    """A typed and checked question; see :func:`load`."""

    name: Name = Field(description="how answers call it")
    description: Prose = Field("", description="what is asked, in prose")
    cluster: ClusterChoice = Field(description="the first offer's when left out")
    workload: Workload
    traffic: TrafficSpec | None = Field(None, description="requests to be served; without it a scenario is one step")
    loop: Loop | None = Field(None, description="reinforcement learning around the training step")
    plans: Annotated[tuple[PlanSpec, ...], Field(min_length=1, max_length=MOST_PLANS)] = Field(
        description="ways to spread the work over the GPUs; best: the planner's own"
    )
    prices: Prices = Prices()
    offers: Annotated[tuple[Offer, ...], Field(max_length=MOST_PLANS)] = Field((), description="what could be bought")
    project: Project | None = Field(None, description="the whole job: tokens, failures, power, price of the fabric")
    source: Prose = Field("", description="where the question comes from")
    _remarks: tuple[str, ...] = PrivateAttr(())
    _file: str | None = PrivateAttr(None)
    _overridden: tuple[str, ...] = PrivateAttr(())

    @field_validator("plans", mode="before")
    @classmethod
    def _best(cls, plans: Any) -> Any:
        """``plans: best``: one that is searched for."""
        return (plans,) if plans == BEST else plans

    @model_validator(mode="before")
    @classmethod
    def _serves_or_steps(cls, data: Any) -> Any:
        """With traffic steps are what an engine makes of it: a workload states none, and what looks a model up is told
        of one sequence that decodes."""
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
                error = refuse("says how much a single step is; leave it out beside traffic")
                raise _wrong(cls, ("workload", key), error, workload[key])
        step = "verify" if workload.get("speculation") is not None else "decode"
        return {**data, "workload": {**workload, "pass": step, "batch": 1, "context": 1}}

    @model_validator(mode="after")
    def _plans_serve(self) -> Scenario:
        """Keys of plans and of a project that serve requests stand beside traffic alone."""
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
        """Rollouts stand beside a loop alone, and a loop beside what it goes around: a training step."""
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
        """Names are unique; recomputation that is left out follows the pass."""
        names = [plan.name for plan in plans]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise refuse(f"two plans are named '{twice}'; give each its own name")
        workload = info.data.get("workload")  # absent when it is wrong itself, which is then the error
        update = {"recomputation": STEPS.get(workload.pass_).recomputation if workload else "none"}
        return tuple(plan if plan.recomputation else plan.model_copy(update=update) for plan in plans)

    @property
    def faults(self) -> Faults:
        """What is slower than specified, or dead; mostly nothing."""
        stated = self.cluster.faults if isinstance(self.cluster, ClusterInline) else None
        return stated or Faults()

    @property
    def searched(self) -> PlanSpec | None:
        """The plan that has to be searched for; None: all are stated."""
        return next((plan for plan in self.plans if plan.search is not None), None)

    @property
    def variation(self) -> Variation | None:
        """How far GPUs differ, if they do."""
        return self.cluster.variation if isinstance(self.cluster, ClusterInline) else None

    def in_words(self) -> tuple[str, ...]:
        """Sentences on what a reader may not expect of the numbers and the cluster that were stated."""
        stated = self.cluster.in_words() if isinstance(self.cluster, ClusterInline) else ()
        requests = self.traffic.in_words(self.workload.model) if self.traffic is not None else ()
        return (*self._remarks, *stated, *requests)

    def read_from(self, file: str | None, overridden: Sequence[str], remarks: Sequence[str]) -> Scenario:
        """The same question, with its file, the keys that options set, and sentences on how its numbers were read."""
        copy = self.model_copy()
        copy._file, copy._overridden, copy._remarks = file, tuple(overridden), tuple(remarks)
        return copy

    def origin(self, key: str) -> str | None:
        """File or option that the value at a dotted key came from; None for a question that was no file."""
        return origin_of(key, self._overridden, self._file)

    def __repr__(self) -> str:
        where = self.cluster if isinstance(self.cluster, str) else f"{self.cluster.nodes} × {self.cluster.device}"
        work = "requests" if self.traffic is not None else self.workload.pass_
        plans = ", ".join(plan.name for plan in self.plans[:PLANS_SHOWN]) or "no plans"
        more = f" and {len(self.plans) - PLANS_SHOWN} more" if len(self.plans) > PLANS_SHOWN else ""
        return f"<Scenario {self.name}: {self.workload.model}, {work}, on {where}; {plans}{more}>"

    @property
    def asked_in(self) -> str:
        """Name of the file that it was read from, without folders; empty where it was no file."""
        return Path(self._file).name if self._file else ""

    def files(self) -> tuple[Path, ...]:
        """Files that it was read from, or that it names: its own, entries of the catalog, traces."""
        paths = [Path(self._file)] if self._file else []
        kinds = {cast("catalog.Kind", kind): set(catalog.names(cast("catalog.Kind", kind))) for kind in catalog.FOLDERS}
        for text in dict.fromkeys(_texts(self.model_dump(mode="json", by_alias=True))):
            paths += [Path(text)] if catalog.is_file(text) else []
            paths += [catalog.locate(kind, text) for kind, names in kinds.items() if text in names]
        return tuple(dict.fromkeys(paths))

    def plan(self, name: str) -> PlanSpec:
        """The plan of this name; raises UnknownNameError with the nearest."""
        for plan in self.plans:
            if plan.name == name:
                return plan
        raise UnknownNameError("plan", name, [plan.name for plan in self.plans])

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the order of the fields, all defaults filled in, quantities as numbers in SI.

        A scenario that is no purchase has neither ``offers`` nor ``project``; of ``sequences_per_replica`` and
        ``global_batch`` it has one; with ``traffic`` it has nothing that says how much a step is. A plan has
        ``expert_balance`` where it is not the usual one; a cluster has ``gpus_per_node`` where not all are used, and
        ``islands``, ``measured`` and ``routing`` where they are stated; what is bought stands there where it is stated.
        :func:`load` reads it back to the same scenario.
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
    """Every text of nested data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _texts(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _texts(value)


def _wrong(cls: type[Scenario], place: tuple[str, ...], error: Any, value: object) -> ValidationError:
    """One finding at a place of its own."""
    return ValidationError.from_exception_data(cls.__name__, [InitErrorDetails(type=error, loc=place, input=value)])


def origin_of(key: str, overridden: Sequence[str], file: str | None) -> str | None:
    """Where the value at ``key`` came from: the override that set it, the file, or both (a plan, say)."""
    for path in reversed(overridden):
        if f"{key}.".startswith(f"{path}."):
            return "--set"
        if path.split(".")[0] == key.split(".")[0]:
            return f"{file} with --set {shorten(path)}" if file else f"--set {shorten(path)}"
    return file
