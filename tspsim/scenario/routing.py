"""How a fabric's switches, or a plan's collective library, choose among equal paths."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from ..network import ROUTINGS, Routing
from .section import refuse


def _named(value: Any) -> Any:
    return {"policy": value} if isinstance(value, str) else value


def _of_drawn(routing: Routing) -> Routing:
    stated = [field.name for field in fields(Routing)[1:] if getattr(routing, field.name) != field.default]
    if stated and not ROUTINGS.get(routing.policy).drawn:
        raise refuse(f"{stated[0]} is of policies that draw paths; '{routing.policy}' draws none")
    return routing


#: A policy by its name, or with its options.
RoutingChoice = Annotated[
    Routing, AfterValidator(_of_drawn), BeforeValidator(_named, json_schema_input_type=str | Routing)
]
