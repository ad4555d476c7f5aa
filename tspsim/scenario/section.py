"""What every section of a scenario is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from ..units import PositiveCount

#: Products of degrees beyond this are no cluster anybody asks about; the bound keeps work finite.
MOST_RANKS = 2**20

Name = Annotated[str, Field(min_length=1, max_length=200)]
Prose = Annotated[str, Field(max_length=4000)]
Degree = Annotated[PositiveCount, Field(le=MOST_RANKS)]


@dataclass(frozen=True)
class OneOf:
    """The type of a key that takes one of some names: ``Literal`` of names that are asked for when a value is read."""

    names: Callable[[], tuple[str, ...]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": list(self.names()), "type": "string"}

    def _check(self, value: object) -> object:
        names = self.names()
        if value in names:
            return value
        expected = ", ".join(map(repr, names))
        raise PydanticCustomError("enum", "Input should be {expected}", {"expected": expected})


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def refuse(sentence: str) -> PydanticCustomError:
    """An error whose text is already what the user reads."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
