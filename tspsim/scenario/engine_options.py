"""Options of a serving engine in a scenario: the engine's own names, with values that its scheduler checks."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from ..base.errors import describe
from .section import refuse

#: JSON types of a single option.
PLAIN = ({"type": "boolean"}, {"type": "integer"}, {"type": "number"}, {"type": "string"})
LONGEST_NAME = 200
ALLOWED = "a number, a word, true or false"


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


_NAMES = {"maxLength": LONGEST_NAME, "minLength": 1}
_NESTED = {"type": "object", "additionalProperties": {"anyOf": [*PLAIN]}, "propertyNames": _NAMES}
_SCHEMA = {"type": "object", "additionalProperties": {"anyOf": [*PLAIN, _NESTED]}, "propertyNames": _NAMES}
#: Options of a serving engine by their own names, such as ``max_num_seqs``: numbers, words, true, false, or mappings of
#: those (as ``attention_dp_config`` of TensorRT-LLM); which names there are is the scheduler's business.
EngineOptions = Annotated[
    dict[
        Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST_NAME)],
        Annotated[Any, PlainValidator(_value)],
    ],
    WithJsonSchema(_SCHEMA),
]
