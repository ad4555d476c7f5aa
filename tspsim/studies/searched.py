"""What a search for a machine's best plan did, for those who tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.units import percent, were

#: Gaps up to this share are as good as none; larger ones than the second are told before all else.
CLOSE, TOLD_FIRST = 0.01, 0.02


@dataclass(frozen=True)
class Searched:
    """What a search for a plan did."""

    #: What it found; empty where nothing fits, and ``error`` says why.
    plan: str
    error: str = ""
    #: Plans that were simulated, and layouts that were bounded.
    simulated: int = 0
    bounded: int = 0
    #: By what share a plan that was searched and not simulated may be better.
    gap: float = 0.0
    #: Whether time was enough to prove that.
    complete: bool = True
    #: Keys that were chosen, and of some the values that were looked at.
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: What was asked of a plan, as stated: others, which may be better, were not searched.
    limits: Sequence[str] = ()

    @property
    def doubt(self) -> float:
        """By what share the machine may be better than with the plan that was found; what is as good as nothing is
        none."""
        return self.gap if self.gap > CLOSE else 0.0

    def opening(self, name: str) -> str:
        """How far the plan of the machine called ``name`` may be off, where a reader has to know that first."""
        if not self.plan or (self.gap <= TOLD_FIRST and (self.complete or self.gap > 0.0)):
            return ""
        far = f"another plan may be up to {percent(self.gap)} better" if self.gap else "nothing is proven"
        return f"Not searched enough: {name}: {far}; give more with --budget."

    def in_words(self, name: str) -> str:
        """In a sentence, of the machine called ``name``."""
        if not self.plan:
            return f"{name}: {self.error}."
        within = f" within {', '.join(self.limits)}" if self.limits else ""
        proven = self.complete and self.gap <= CLOSE
        which = "is the best of all plans searched" if proven else "is the best found of the plans searched"
        told = f"{name}: {self.plan} {which}{within}; {were(self.simulated)} simulated"
        if proven:
            return f"{told}, and no other can be better by more than {100 * CLOSE:.0f} %."
        left = f"another may be {100 * self.gap:.1f} % better" if self.gap > CLOSE else "others were left"
        return f"{told}, then the budget of work ran out: {left}."

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        keys = {key: list(values) for key, values in self.keys.items()}
        return {**vars(self), "keys": keys, "limits": list(self.limits)}
