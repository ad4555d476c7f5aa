"""Base of the sections of a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..base.strict import Strict, refuse
from ..parallel.switches import MOST_RANKS, Degree

__all__ = ["MOST_RANKS", "Degree", "Name", "Prose", "Section", "refuse"]

Name = Annotated[str, Field(min_length=1, max_length=200)]
Prose = Annotated[str, Field(max_length=4000)]


class Section(Strict):
    """A section of a scenario."""
