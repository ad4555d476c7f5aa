"""A parallel plan in a scenario."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from ..base.errors import InputError, shorten
from ..parallel.reasons import OF_THE_MACHINE
from ..parallel.search_rule import SEARCH_RULES, SearchRule
from ..parallel.switches import declared
from .engine_options import EngineOptions
from .loop import Rollout
from .pools import Pools
from .routing import RoutingChoice
from .section import Name, Section, refuse
from .spread import RankPlacement, Spread
from .tiers import Tiers
from .workload import SpeculationSpec

__all__ = ["PlanSpec", "RankPlacement"]

#: Keys of plans that serve requests; :meth:`Scenario.to_dict` leaves out those that a plan does not state.
SERVING = ("router", "engine", "speculation", "tiers", "pools")
#: Keys that the plain data of a plan has only if they are stated.
WHERE_STATED = (*SERVING, "routing", "rollout")
#: The entry of ``plans`` that asks for a search, and the name of that plan.
BEST = "best"


class SearchConstraints(Section):
    """Constraints of a plan that is searched for."""

    limits: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=20)] = Field(
        (), description="as `tspsim plan --limit` takes them: memory_free>=8GiB, step<=20s, schemes=tp,sp"
    )

    @model_validator(mode="before")
    @classmethod
    def _plainly(cls, value: Any) -> Any:
        """``search: true`` states no constraint."""
        return {} if value is True else value


def apart(of_requests: str = "") -> SearchRule:
    """Search rule of a key of serving or of loops: their own planners search it, the planner of steps does not."""
    return SearchRule(why_not="of no single step", of=lambda model, work: False, of_requests=of_requests)


class PlanSpec(Spread):
    """A plan: how the model is spread over the cluster. Degrees left out are 1, ``dp`` the remaining GPUs."""

    model_config = ConfigDict(extra="allow", json_schema_extra=lambda schema: PlanSpec.complete(schema))

    name: str = Field(description="1 to 60 printable characters, unique in the scenario")
    routing: Annotated[RoutingChoice | None, SearchRule(why_not=OF_THE_MACHINE)] = Field(
        None, description="how its flows choose among equal paths of the fabric; default: `cluster.routing`"
    )
    router: Annotated[Name, apart("every registered router")] = Field(
        "round_robin", description="serving: a registered router, which assigns requests to replicas"
    )
    engine: Annotated[
        EngineOptions, apart("fewer sequences at once, more and fewer tokens a step, prompts cut or whole")
    ] = Field({}, description="serving: options of the engine by their own names")
    speculation: Annotated[SpeculationSpec | None, apart("the model's own drafts, and none")] = Field(
        None, description="serving: drafts that every step verifies; default: the workload's; tokens: 0 for none"
    )
    tiers: Annotated[Tiers | None, apart()] = Field(
        None, description="serving: where blocks of prompts are kept that GPUs evict"
    )
    search: SearchConstraints | None = Field(
        None, description="instead of degrees: search for the best of all plans (`plan`, `compare` and `run`)"
    )
    pools: Annotated[Pools | None, apart("as many of each kind as match, and 1P1D to nP1D at every size")] = Field(
        None, description="serving: prefill and decode on different GPUs; degrees stand in the pools"
    )
    rollout: Annotated[Rollout | None, apart()] = Field(
        None, description="loop: how the plan generates; its own keys train"
    )

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not (1 <= len(value) <= 60 and value.isprintable() and value.strip()):
            raise refuse(f"'{shorten(value)}' is not allowed; a name has 1 to 60 printable characters")
        return value

    @model_validator(mode="after")
    def _degrees_of_pools(self) -> PlanSpec:
        if self.pools is not None:
            beside = sorted(self.model_fields_set - {"name", "pools", "recomputation", "speculation"})
            if beside:
                raise refuse(f"{beside[0]} stands beside pools; state it of each pool")
        return self

    @model_validator(mode="before")
    @classmethod
    def _best(cls, data: Any) -> Any:
        """``best`` alone is a plan to be searched for."""
        return {"name": BEST, "search": {}} if data == BEST else data

    @model_validator(mode="after")
    def _searched_alone(self) -> PlanSpec:
        if self.search is not None:
            beside = sorted(self.model_fields_set - {"name", "search", "recomputation"})
            if beside:
                raise refuse(f"{beside[0]} stands beside search, which finds it; leave it out")
        return self

    @model_serializer(mode="wrap")
    def _of_its_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """All keys; of :data:`WHERE_STATED`, and beside pools of all keys, those that are stated."""
        data, stated = handler(self), self.model_fields_set
        if self.search is not None:
            return {key: data[key] for key in ("name", "search") if key in data}
        data.pop("search", None)
        return {key: value for key, value in data.items() if key in stated or not (self.pools or key in WHERE_STATED)}

    def degrees(self, gpus: int) -> dict[str, int]:
        """Axis → its size on ``gpus`` GPUs, ``dp`` filled in; the product of all but ``ep`` is ``gpus``.

        Raises
        ------
        InputError
            The replica does not divide the GPUs, or a stated dp does not use them all.
        """
        replica, remainder = self.ranks_per_replica, gpus % self.ranks_per_replica
        degrees = self._spread()
        stated = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "1"
        if remainder:
            raise InputError(
                f"{stated} = {replica} GPUs a replica do not divide the cluster's {gpus}"
                + (f"; {remainder} would be left over" if replica <= gpus else ""),
                key=f"plans.{self.name}",
            )
        if self.dp is not None and self.dp * replica != gpus:
            raise InputError(
                f"{self.dp} replicas of {replica} GPUs are {self.dp * replica}, but the cluster has {gpus}; "
                f"use {gpus // replica} or leave dp out",
                key=f"plans.{self.name}.dp",
            )
        return {**degrees, "ep": self.ep, "dp": gpus // replica}


def declare() -> None:
    """Register the search rules in the annotations of this room's keys."""
    own = {rule.name for rule in declared()}
    for name, field in PlanSpec.model_fields.items():
        for rule in field.metadata:
            if isinstance(rule, SearchRule) and (rule.name or name) not in own:
                SEARCH_RULES.register(replace(rule, name=rule.name or name))


declare()
