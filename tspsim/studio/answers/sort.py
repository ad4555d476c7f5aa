"""The interface of every sort of question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...api import Progress

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure of an answer: its key, its name, its value (None: it has none) and its text."""

    key: str
    name: str
    value: float | None
    text: str


@dataclass(frozen=True)
class Pinned:
    """A pinned answer: the name of its line, its figures, and the uncertainty of its rate (None: unknown)."""

    name: str
    figures: Sequence[Figure]
    doubts: Mapping[str, Any] | None


@dataclass(frozen=True)
class Bought:
    """A purchase: sentences, columns, a row per offer, and the index of the winner's row (None: no winner)."""

    words: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int | None


class Sort(Protocol):
    """One sort of question: a module of this room. Documents are the JSON that ``tspsim run --json`` writes."""

    def entries(self, question: Any) -> list[tuple[str, str, str | None]]:
        """Key, catalog and name of the entries that a question names; None where it names none there."""
        ...

    def facts(self, question: Any, result: Any) -> dict[str, Any]:
        """Further facts for the page beside the answer's JSON: ``best``, ``doubts``, ``refused``, ``drawn``,
        ``projects``."""
        ...

    def lines(self, document: Document, facts: Mapping[str, Any]) -> dict[str, list[Figure]]:
        """Figures by line: a curve draws each line; ``facts`` come from :meth:`facts`."""
        ...

    def pinned(self, document: Document, facts: Mapping[str, Any]) -> Pinned | None:
        """The part of the answer that a pin keeps; None where nothing ran."""
        ...

    def parts(self, document: Document, facts: Mapping[str, Any]) -> list[Any]:
        """The answer as components of the page."""
        ...

    def bought(self, question: Any, progress: Progress) -> Bought:
        """The decided offers of a question; raises InputError where it has none."""
        ...

    def alone(self, question: Any) -> bool:
        """Whether the question's page shows one answer, and not a comparison."""
        ...
