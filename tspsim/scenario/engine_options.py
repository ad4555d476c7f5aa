"""Options of a serving engine in a scenario: the engine's own names, with values that its scheduler checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from ..base.errors import describe
from .section import refuse

#: JSON types of a single option.
PLAIN = ({"type": "boolean"}, {"type": "integer"}, {"type": "number"}, {"type": "string"})
LONGEST_NAME = 200
ALLOWED = "a number, a word, true or false"


@dataclass(frozen=True)
class OptionsByName:
    """Annotates a mapping of option names to a number, a word, true, false, or a mapping of those (such as
    ``attention_dp_config`` of TensorRT-LLM). The scheduler knows the names."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        names = core_schema.str_schema(min_length=1, max_length=LONGEST_NAME, strict=True)
        return core_schema.dict_schema(names, core_schema.no_info_plain_validator_function(_value))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        names = {"maxLength": LONGEST_NAME, "minLength": 1}
        nested = {"type": "object", "additionalProperties": {"anyOf": [*PLAIN]}, "propertyNames": names}
        return {"type": "object", "additionalProperties": {"anyOf": [*PLAIN, nested]}, "propertyNames": names}


def _value(value: object) -> Any:
    if isinstance(value, Mapping):
        for name, setting in value.items():
            if not isinstance(name, str) or not _plain(setting):
                raise refuse(f"{describe(name)}: {describe(setting)} is no option of an engine; write {ALLOWED}")
        return dict(value)
    if not _plain(value):
        raise refuse(f"{describe(value)} is no option of an engine; write {ALLOWED}, or a mapping of those")
    return value


def _plain(value: object) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))


#: Options of a serving engine by their own names, such as ``max_num_seqs``.
EngineOptions = Annotated[dict[str, Any], OptionsByName()]
