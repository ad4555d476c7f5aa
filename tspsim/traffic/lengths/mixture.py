"""Lengths of several kinds of use, mixed."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..kind import Ints, OneKind
from .base import Lengths, shorthand


class MixtureComponent(BaseModel):
    """One component of a mixture, and its weight."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    weight: Annotated[float, Field(gt=0, le=1e6)] = Field(
        1.0, description="share of requests, relative to the other parts' weights"
    )
    lengths: Annotated[Lengths, OneKind(Lengths.registry, shorthand, without=("mixture",))] = Field(
        description="tokens of its requests"
    )


class Mixture(Lengths):
    """Each request belongs to one of the parts, with probability by weight. Prompts and outputs are drawn
    independently."""

    name = "mixture"
    parts: Annotated[tuple[MixtureComponent, ...], Field(min_length=1, max_length=64)] = Field(
        description="components of the mixture"
    )

    def draw(self, random: np.random.Generator, count: int, column: str) -> Ints:
        weights = np.array([part.weight for part in self.parts])
        which = random.choice(len(self.parts), count, p=weights / weights.sum())
        drawn = np.stack([part.lengths.draw(random, count, column) for part in self.parts])
        tokens: Ints = drawn[which, np.arange(count)]
        return tokens

    def in_words(self) -> str:
        whole = sum(part.weight for part in self.parts)
        parts: list[Any] = [f"{100 * part.weight / whole:.3g} % {part.lengths.in_words()}" for part in self.parts]
        return "; ".join(parts)


Lengths.registry.register(Mixture)
