"""What came of holding one law against one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["kept", "broken", "left out"]


@dataclass(frozen=True)
class Finding:
    """A law, under which question it was held, and what came of it; ``why`` says what is wrong, or why it was left
    out."""

    law: str
    where: str
    outcome: Outcome
    why: str = ""

    def to_json(self) -> dict[str, str]:
        return {"law": self.law, "where": self.where, "outcome": self.outcome, "why": self.why}


def judged(law: str, where: str, kept: bool, why: str = "") -> Finding:
    """``why`` is kept where the law is broken."""
    return Finding(law, where, "kept") if kept else Finding(law, where, "broken", why)
