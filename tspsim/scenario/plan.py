"""A parallel plan of a scenario."""

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
from ..parallel.sought import SOUGHT, Sought
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

#: Keys of plans that serve requests; a plan that states none has none in its plain data.
SERVING = ("router", "engine", "speculation", "tiers", "pools")
#: Keys that a plan's plain data has where they are stated.
WHERE_STATED = (*SERVING, "routing", "rollout")
#: An entry of ``plans`` that is searched for, and what it is called then.
BEST = "best"


class SearchConstraints(Section):
    """What a plan that is searched for has to keep."""

    limits: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=20)] = Field(
        (), description="as `tspsim plan --limit` takes them: memory_free>=8GiB, step<=20s, schemes=tp,sp"
    )

    @model_validator(mode="before")
    @classmethod
    def _plainly(cls, value: Any) -> Any:
        """``search: true`` asks for nothing more."""
        return {} if value is True else value


def apart(of_requests: str = "") -> Sought:
    """A key of requests or of loops, which have planners and claims of their own: of no step."""
    return Sought(why_not="of no single step", of=lambda model, work: False, of_requests=of_requests)


class PlanSpec(Spread):
    """One way to spread the model over the cluster. Degrees left out are one, dp the GPUs that are left."""

    model_config = ConfigDict(extra="allow", json_schema_extra=lambda schema: PlanSpec.complete(schema))

    name: str = Field(description="1 to 60 printable characters, unique in the scenario")
    routing: Annotated[RoutingChoice | None, Sought(why_not=OF_THE_MACHINE)] = Field(
        None, description="how its flows choose among equal paths of the fabric, instead of `cluster.routing`"
    )
    router: Annotated[Name, apart("every registered router")] = Field(
        "round_robin", description="of requests: which replica one goes to, a registered router"
    )
    engine: Annotated[
        EngineOptions, apart("fewer sequences at once, more and fewer tokens a step, prompts cut or whole")
    ] = Field({}, description="of requests: options of the serving engine by their own names")
    speculation: Annotated[SpeculationSpec | None, apart("the model's own drafts, and none")] = Field(
        None, description="of requests: drafts that every step verifies, instead of the workload's; tokens: 0 for none"
    )
    tiers: Annotated[Tiers | None, apart()] = Field(
        None, description="of requests: where prompts' blocks are kept that GPUs forget"
    )
    search: SearchConstraints | None = Field(
        None, description="instead of degrees: the best of all plans, searched for by `plan`, `compare` and `run`"
    )
    pools: Annotated[Pools | None, apart("as many of each kind as match, and 1P1D to nP1D at every size")] = Field(
        None, description="of requests: prompts are read and answers written on different GPUs; degrees stand there"
    )
    rollout: Annotated[Rollout | None, apart()] = Field(
        None, description="of a loop: how it generates; the plan's own keys train"
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
        """The word alone is a plan that is searched for."""
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
        """All keys; those of serving, and of routing, where they are stated, and beside pools no others."""
        data, stated = handler(self), self.model_fields_set
        if self.search is not None:
            return {key: data[key] for key in ("name", "search") if key in data}
        data.pop("search", None)
        return {key: value for key, value in data.items() if key in stated or not (self.pools or key in WHERE_STATED)}

    def degrees(self, gpus: int) -> dict[str, int]:
        """The size of every axis on ``gpus`` GPUs, dp filled in; the product of all but ``ep`` is ``gpus``.

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
    """Keys of this room, which say what a search does with them in their annotations as those of every plan do."""
    own = {rule.name for rule in declared()}
    for name, field in PlanSpec.model_fields.items():
        for rule in field.metadata:
            if isinstance(rule, Sought) and (rule.name or name) not in own:
                SOUGHT.register(replace(rule, name=rule.name or name))


declare()
