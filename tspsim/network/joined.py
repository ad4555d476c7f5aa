"""How a file says what joins its GPUs or its nodes: a registered topology by name, alone or with its argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from ..base.errors import UnknownNameError, shorten
from .wiring import TOPOLOGIES


@dataclass(frozen=True)
class Joined:
    """Annotates it.

    Parameters
    ----------
    besides
        Names that are allowed too, and no topology's.
    """

    besides: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        properties = {topology.name: {"description": topology.summary} for topology in TOPOLOGIES.values()}
        named = {"type": "string", "enum": [*self.besides, *TOPOLOGIES]}
        one = {"type": "object", "properties": properties, "minProperties": 1, "maxProperties": 1}
        return {"anyOf": [named, one | {"additionalProperties": False}]}

    def _read(self, value: object) -> str | dict[str, Any]:
        if isinstance(value, str) and value in self.besides:
            return value
        stated: object = {value: None} if isinstance(value, str) else value
        if not isinstance(stated, Mapping) or len(stated) != 1:
            names = ", ".join([*self.besides, *TOPOLOGIES])
            raise _refused(f"{shorten(value)} is no one topology; name one of {names}, alone or with its argument")
        (name,) = stated
        if name not in TOPOLOGIES:
            raise _refused(UnknownNameError("topology", name, (*self.besides, *TOPOLOGIES)).message)
        return value if isinstance(value, str) else dict(stated)


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
