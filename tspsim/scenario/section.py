"""What every section of a scenario is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_core import PydanticCustomError

from ..base.strict import Strict
from ..base.units import PositiveNumber

#: Products of degrees beyond this are no cluster anybody asks about; the bound keeps work finite.
MOST_RANKS = 2**20

Name = Annotated[str, Field(min_length=1, max_length=200)]
Prose = Annotated[str, Field(max_length=4000)]
Degree = Annotated[PositiveNumber, Field(le=MOST_RANKS)]


class Section(Strict):
    """A part of a scenario."""


def refuse(sentence: str) -> PydanticCustomError:
    """An error whose text is already what the user reads."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
