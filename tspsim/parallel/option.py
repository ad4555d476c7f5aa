"""Keys that a scheme, or an object that it asks, adds to those of every plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .sought import Sought


@dataclass(frozen=True)
class Option:
    """A key of a scenario's plan: its name, the type that a stated value must have (any that pydantic knows, or a
    registry, one of whose names it is), the value where none is stated, a line for people, and what a search over plans
    does with it. The plan's ``options`` have it, unless it is None."""

    name: str
    type: Any
    default: Any
    summary: str = ""
    search: Sought | None = None
