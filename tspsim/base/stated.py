"""Values of files with their sources."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import Field, model_validator

from .strict import FileKey, Strict

Value = TypeVar("Value")
#: Where a value is from.
Source = Annotated[str, Field(min_length=3, max_length=2000)]


class Stated(Strict, Generic[Value]):
    """A value and its source."""

    value: Value
    source: Source


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


#: Mark of a field whose value a file states with its source.
STATED = FileKey(Stated)
