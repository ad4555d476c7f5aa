"""What every section of a scenario is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema

from ..strict import Strict
from ..units import PositiveNumber

#: Products of degrees beyond this are no cluster anybody asks about; the bound keeps work finite.
MOST_RANKS = 2**20

Name = Annotated[str, Field(min_length=1, max_length=200)]
Prose = Annotated[str, Field(max_length=4000)]
Degree = Annotated[PositiveNumber, Field(le=MOST_RANKS)]


class Section(Strict):
    """A part of a scenario."""


@dataclass(frozen=True)
class OneOf:
    """Annotates a name that must be one of ``names()``, asked when a scenario is read: registries may have grown."""

    names: Callable[[], Sequence[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._check, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": list(self.names()), "type": "string"}

    def _check(self, value: object) -> str:
        names = self.names()
        if not isinstance(value, str) or value not in names:
            quoted = [repr(name) for name in names]
            expected = " or ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value


def refuse(sentence: str) -> PydanticCustomError:
    """An error whose text is already what the user reads."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
