"""What every section of a scenario is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..base.strict import Strict, refuse
from ..parallel.switches import MOST_RANKS, Degree

__all__ = ["MOST_RANKS", "Degree", "Name", "Prose", "Section", "refuse"]

Name = Annotated[str, Field(min_length=1, max_length=200)]
Prose = Annotated[str, Field(max_length=4000)]


class Section(Strict):
    """A part of a scenario."""
