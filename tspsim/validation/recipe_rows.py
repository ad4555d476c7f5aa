"""Which published rows a recipe is of: the facts of a row, and what a recipe asks of them.

A recipe states what rows of its kind leave out. There are three kinds: what runs with experts had in graphs and how
their tokens travelled (:mod:`.recipes`), what ran otherwise than a stack's usual version (:mod:`.as_run`), and batches
(:mod:`.unstated`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

#: After every container.
OPEN = "~"


@dataclass(frozen=True)
class RowFacts:
    """What a published row says of its run: the address of its source, model as it is called, GPU, type, number of
    GPUs, notes."""

    address: str
    model: str
    device: str = ""
    precision: str = ""
    gpus: int = 0
    notes: str = ""

    @property
    def container(self) -> str:
        """The release of NeMo's container that the notes name; empty if none.

        >>> RowFacts("", "", notes="NeMo 26.04.01 container").container
        '26.04.01'
        """
        named = re.search(r"NeMo (\d+\.\d+(?:\.\d+)?)", self.notes)
        return named.group(1) if named else ""


@dataclass(frozen=True)
class RowsOfRecipe:
    """The rows that a recipe is of; what is empty, or 0, allows all.

    ``source`` is a part of a row's address; ``model`` and ``notes`` are patterns of how the model's name, in small
    letters and digits, and the notes begin. ``since`` and ``until`` are containers, both included.
    """

    source: str = ""
    model: str = ""
    devices: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    since: str = ""
    until: str = OPEN
    gpus: int = 0
    notes: str = ""

    def matches(self, row: RowFacts) -> bool:
        """Whether a row is one of them."""
        name = re.sub(r"[^a-z0-9]", "", row.model.lower())
        return (
            self.source in row.address
            and re.match(self.model, name) is not None
            and (not self.devices or row.device in self.devices)
            and (not self.types or row.precision in self.types)
            and self.since <= row.container <= self.until
            and self.gpus in (0, row.gpus)
            and re.match(self.notes, row.notes) is not None
        )


Recipe = TypeVar("Recipe", bound=RowsOfRecipe)


def recipe_of(recipes: Iterable[Recipe], row: RowFacts) -> Recipe | None:
    """The first recipe that is of a row; None if none is."""
    return next((recipe for recipe in recipes if recipe.matches(row)), None)
