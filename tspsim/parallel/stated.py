"""Values of a stack's YAML file with their sources."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Value = TypeVar("Value")


class StackSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stated(StackSection, Generic[Value]):
    """A value and its source."""

    value: Value
    source: str = Field(min_length=3, max_length=2000)


class Expected(Stated[Value], Generic[Value]):
    """A value that differs between installations, with its 90 % interval ``range``."""

    range: tuple[Value, Value] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.ends
        if not low <= self.value <= high:
            raise ValueError(f"value {self.value} must lie in its range, {low} to {high}")
        return self

    @property
    def ends(self) -> tuple[Any, Any]:
        """The range; without one, the value twice."""
        return self.range if self.range is not None else (self.value, self.value)
