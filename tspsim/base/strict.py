"""Base class and annotations for sections of files: frozen, unknown keys refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticKnownError, PydanticSerializationError, core_schema

from .errors import is_ctrl_c
from .memo import once


class Strict(BaseModel):
    """Frozen; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(once,))

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """As pydantic's. Ctrl-C while a part writes itself stays Ctrl-C; pydantic calls it an error of
        serialization."""
        try:
            return super().model_dump(**how)
        except PydanticSerializationError as error:
            if is_ctrl_c(error):
                raise KeyboardInterrupt from None
            raise


@dataclass(frozen=True)
class OneOrSeveral:
    """Annotates a tuple that may be written as one value, and says so in its JSON Schema."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        several = handler(source)
        single = several["items_schema"][0]
        return core_schema.no_info_before_validator_function(
            one_or_several, several, json_schema_input_schema=core_schema.union_schema([single, several])
        )


def one_or_several(value: object) -> tuple[object, ...]:
    """One value, or a list of them, as a tuple.

    >>> one_or_several(3), one_or_several([3, 4])
    ((3,), (3, 4))
    """
    return tuple(value) if isinstance(value, list | tuple) else (value,)


@dataclass(frozen=True)
class OneOf:
    """Annotates a name that must be one of ``names()``, read when a file is read: registries may have grown."""

    names: Callable[[], Sequence[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, core_schema.str_schema())

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
