"""What every sort of question says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...api import Progress

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure of an answer: its key, what it is called, its value (None: it has none) and how it is written."""

    key: str
    name: str
    value: float | None
    text: str


@dataclass(frozen=True)
class Pinned:
    """What of an answer is kept beside others: whose figures, and what its rate may be off by (None: not told)."""

    name: str
    figures: Sequence[Figure]
    doubts: Mapping[str, Any] | None


@dataclass(frozen=True)
class Bought:
    """A purchase: sentences, columns, a row an offer, and the row that wins (None: none does)."""

    words: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int | None


class Sort(Protocol):
    """One sort of question. Documents are the JSON that ``tspsim run --json`` writes."""

    def entries(self, question: Any) -> list[tuple[str, str, str | None]]:
        """Key, catalog and name of the entries that a question names; None where it names none there."""
        ...

    def facts(self, question: Any, result: Any) -> dict[str, Any]:
        """What the page is told of an answer beside its JSON: ``best``, ``doubts``, ``refused``, ``drawn``,
        ``projects``."""
        ...

    def lines(self, document: Document, told: Mapping[str, Any]) -> dict[str, list[Figure]]:
        """Figures by what they are of: a curve draws a line each; ``told`` is what :meth:`facts` tells."""
        ...

    def pinned(self, document: Document, told: Mapping[str, Any]) -> Pinned | None:
        """What a pin keeps; None where nothing ran."""
        ...

    def parts(self, document: Document, told: Mapping[str, Any]) -> list[Any]:
        """The answer as components of the page."""
        ...

    def bought(self, question: Any, progress: Progress) -> Bought:
        """The offers of a question, decided; raises InputError where it has none."""
        ...

    def alone(self, question: Any) -> bool:
        """Whether a question's page is that of one answer, and no comparison."""
        ...
