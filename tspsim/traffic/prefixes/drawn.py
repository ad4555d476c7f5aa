"""Numbers that a scenario states or draws: calls below a call, depth of a tree, tokens that a call fetches.

A drawn number has any kind of length: ``breadth: 3``, or ``breadth: {kind: uniform, of: 4, from: 0.25}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import core_schema

from ...base.errors import InputError
from ...base.units import Count
from ..kind import Kind, OneKind, dumped
from ..lengths import LENGTHS, Lengths, drawn_lengths

#: Calls of one task, at most.
MOST_CALLS = 10_000

#: Rows of a file are not random, and mixtures describe prompts of several kinds of use.
KINDS = OneKind(LENGTHS, without=("file", "mixture"))
#: A number, or the distribution it is drawn from.
Number = int | Lengths


@dataclass(frozen=True)
class Drawable:
    """Annotates a :data:`Number`; a stated one lies between ``least`` and ``most``."""

    least: int
    most: int

    @property
    def _stated(self) -> TypeAdapter[int]:
        return TypeAdapter(Annotated[Count, Field(ge=self.least, le=self.most)])

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        stated = self._stated

        def read(value: Any) -> Any:
            return KINDS.read(value) if isinstance(value, Mapping | Kind) else stated.validate_python(value)

        def write(value: Any, info: core_schema.SerializationInfo) -> Any:
            return dumped(value, info.context) if isinstance(value, Kind) else value

        written = core_schema.plain_serializer_function_ser_schema(write, info_arg=True)
        return core_schema.no_info_plain_validator_function(read, serialization=written)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        kinds = KINDS.__get_pydantic_json_schema__(schema, handler)["anyOf"]
        return {"anyOf": [self._stated.json_schema(), *kinds]}


Times = Annotated[Number, Drawable(1, MOST_CALLS)]
Tokens = Annotated[Number, Drawable(0, 2**40)]


@dataclass
class Draws:
    """Draws the numbers of a task. Without ``random`` all numbers must be stated.

    Attributes
    ----------
    calls
        Calls of this task so far.
    """

    random: np.random.Generator | None = None
    calls: int = field(default=0, init=False)

    def of(self, number: Number, key: str, least: int = 0, most: int = 2**40) -> int:
        """The number as stated, or a drawn one.

        Raises
        ------
        InputError
            The drawn number is outside the bounds.
        """
        if isinstance(number, int):
            return number
        assert self.random is not None
        (drawn,) = drawn_lengths(number, self.random, 1, "output_tokens")
        if not least <= drawn <= most:
            what = f"a task drew {drawn:,}, and {least:,} to {most:,} are allowed; state a cap or a floor"
            raise InputError(what, key=f"traffic.prefix.{key}")
        return int(drawn)

    def further(self, calls: int = 1) -> None:
        """Counts further calls of the task.

        Raises
        ------
        InputError
            The task has too many calls.
        """
        self.calls += calls
        if self.calls > MOST_CALLS:
            raise InputError(f"a task of more than {MOST_CALLS:,} calls; draw fewer", key="traffic.prefix")


def in_words(number: Number) -> str:
    """The number in words: ``4``, or ``1 to 4, all as likely``."""
    return f"{number:,}" if isinstance(number, int) else f"({number.in_words().replace(' tokens', '')})"
