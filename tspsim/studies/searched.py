"""The record of a search for a machine's best plan, for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.units import percent, were

#: Gaps up to the first share count as none; gaps above the second are reported before everything else.
CLOSE, TOLD_FIRST = 0.01, 0.02


@dataclass(frozen=True)
class Searched:
    """The record of a search for a plan."""

    #: Name of its plan; empty where nothing fits: ``error`` says why.
    plan: str
    error: str = ""
    #: Plans that were simulated, and layouts that were bounded.
    simulated: int = 0
    bounded: int = 0
    #: Share by which a searched plan that was not simulated may be better.
    gap: float = 0.0
    #: Whether the budget was enough to prove that.
    complete: bool = True
    #: Keys that were searched, with the tried values of some.
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Limits of the search, as stated: plans outside them, which may be better, were not searched.
    limits: Sequence[str] = ()

    @property
    def doubt(self) -> float:
        """Share by which the machine may be better than with this plan; a negligible gap counts as zero."""
        return self.gap if self.gap > CLOSE else 0.0

    def opening(self, name: str) -> str:
        """A warning how far the plan of the machine ``name`` may be off; empty where the gap is small."""
        if not self.plan or (self.gap <= TOLD_FIRST and (self.complete or self.gap > 0.0)):
            return ""
        far = f"another plan may be up to {percent(self.gap)} better" if self.gap else "nothing is proven"
        return f"Not searched enough: {name}: {far}; give more with --budget."

    def in_words(self, name: str) -> str:
        """The search in a sentence, for the machine ``name``."""
        if not self.plan:
            return f"{name}: {self.error}."
        within = f" within {', '.join(self.limits)}" if self.limits else ""
        proven = self.complete and self.gap <= CLOSE
        which = "is the best of all plans searched" if proven else "is the best found of the plans searched"
        text = f"{name}: {self.plan} {which}{within}; {were(self.simulated)} simulated"
        if proven:
            return f"{text}, and no other can be better by more than {100 * CLOSE:.0f} %."
        left = f"another may be {100 * self.gap:.1f} % better" if self.gap > CLOSE else "others were left"
        return f"{text}, then the budget of work ran out: {left}."

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        keys = {key: list(values) for key, values in self.keys.items()}
        return {**vars(self), "keys": keys, "limits": list(self.limits)}
