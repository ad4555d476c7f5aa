"""How a fabric's switches, or a plan's collective library, choose among equal paths."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from ..base.strict import OneOf
from ..network import ROUTINGS, Routing
from .section import Section, refuse

#: Most draws of paths in one answer.
MOST_SEEDS = 1000


class RoutingSpec(Section):
    """A routing policy. A policy that draws paths is run for every seed, and the answer is the median draw."""

    policy: Annotated[str, OneOf(ROUTINGS.names)] = Field(
        description="of equal paths between switches: by destination, by a hash of each flow, planned for a collective"
    )
    seed: Annotated[StrictInt, Field(ge=0, le=2**31)] = Field(0, description="first seed, for policies that draw paths")
    seeds: Annotated[StrictInt, Field(ge=1, le=MOST_SEEDS)] = Field(
        Routing().seeds, description="number of draws, from `seed` on, for policies that draw paths"
    )

    @model_validator(mode="after")
    def _of_drawn(self) -> RoutingSpec:
        usual = {name: field.default for name, field in type(self).model_fields.items()}
        stated = sorted(name for name in self.model_fields_set - {"policy"} if getattr(self, name) != usual[name])
        if stated and not ROUTINGS.get(self.policy).drawn:
            raise refuse(f"{stated[0]} is of policies that draw paths; '{self.policy}' draws none")
        return self

    def routing(self) -> Routing:
        """The policy as the network takes it."""
        return Routing(self.policy, self.seed, self.seeds)


def _named(value: Any) -> Any:
    return {"policy": value} if isinstance(value, str) else value


#: A policy by its name, or with its options.
RoutingChoice = Annotated[RoutingSpec, BeforeValidator(_named, json_schema_input_type=str | RoutingSpec)]
