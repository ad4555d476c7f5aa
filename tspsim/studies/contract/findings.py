"""The finding of one law about one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["kept", "broken", "left out"]


@dataclass(frozen=True)
class Finding:
    """A law, the question it was checked in, and its outcome; ``why`` says what is wrong, or why it was left out."""

    law: str
    where: str
    outcome: Outcome
    why: str = ""

    def to_json(self) -> dict[str, str]:
        return {"law": self.law, "where": self.where, "outcome": self.outcome, "why": self.why}


def judged(law: str, where: str, kept: bool, why: str = "") -> Finding:
    """A kept or broken law; ``why`` is only used where it is broken."""
    return Finding(law, where, "kept") if kept else Finding(law, where, "broken", why)
