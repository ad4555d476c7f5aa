"""What a fleet's answer says of what is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from ..base.units import duration
from .need_keys import Needs
from .result import FleetAnswer


@dataclass(frozen=True)
class Reached:
    """One need: what a fleet reached, and what it may be at most.

    ``value`` is in seconds of ``done_by`` and ``p95_wait``, a number of jobs of the others; of several draws it is the
    worst, and ``best`` the other end.
    """

    need: str
    value: float
    most: float
    best: float | None = None

    @property
    def kept(self) -> bool:
        """Whether that is enough."""
        return self.value <= self.most

    def in_words(self) -> str:
        """As a sentence's part."""
        return IN_WORDS[self.need](self.value, self.most)

    def range_in_words(self) -> str:
        """From the best to the worst of draws; empty where all are alike."""
        if self.best is None or self.best == self.value:
            return ""
        told = _time if self.need in IN_SECONDS else lambda value: f"{value:,.0f}"
        return f"{told(self.best)} to {told(self.value)}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; None where a job was not done in the time that was looked at."""
        value, best = (None if each == inf else each for each in (self.value, self.best))
        told = {"need": self.need, "value": value, "most": self.most}
        return told if self.best is None else told | {"of_draws": [best, value]}


#: Needs whose value is a time.
IN_SECONDS = ("done_by", "p95_wait")


def worst_of(draws: Sequence[Sequence[Reached]]) -> tuple[Reached, ...]:
    """Of every need what the worst draw reached, and the best."""
    return tuple(
        replace(max(column, key=lambda each: each.value), best=min(each.value for each in column))
        for column in zip(*draws, strict=True)
    )


def _time(value: float) -> str:
    return "never" if value == inf else duration(value)


IN_WORDS: dict[str, Callable[[float, float], str]] = {
    "done_by": lambda value, most: f"all jobs are done {'by ' if value < inf else ''}{_time(value)} ({duration(most)})",
    "p95_wait": lambda value, most: f"95 % of jobs wait up to {_time(value)} ({duration(most)})",
    "deadlines": lambda value, most: f"late jobs: {value:,.0f} ({most:,.0f})",
    "services": lambda value, most: f"services that miss their bounds: {value:,.0f} ({most:,.0f})",
}


def reached(needs: Needs, answer: FleetAnswer) -> tuple[Reached, ...]:
    """What a fleet's answer says of every need that is stated."""
    return tuple(_reached(needs, answer))


def _reached(needs: Needs, answer: FleetAnswer) -> Iterator[Reached]:
    facts = answer.facts
    if needs.done_by is not None:
        ends = (inf if job.end_s is None else job.end_s for job in facts.jobs)
        yield Reached("done_by", max(ends, default=0.0), needs.done_by)
    if needs.p95_wait is not None:
        waits = [
            facts.horizon_s - job.submit_s if job.wait_s is None else job.wait_s
            for job in facts.jobs
            if job.state not in ("to come", "withdrawn")
        ]
        yield Reached("p95_wait", float(np.quantile(waits, 0.95)) if waits else 0.0, needs.p95_wait)
    if needs.deadlines:
        dated = (job for job in facts.jobs if job.deadline_s is not None)
        late = sum(job.end_s is None or job.end_s > (job.deadline_s or 0.0) for job in dated)
        yield Reached("deadlines", float(late), 0.0)
    if needs.services:
        scaled = {each["name"]: each.get("bounds") or {} for each in facts.parts.get("services", ())}
        entries = [
            plan.serving.get("bounds") or {}
            for plan in answer.plans
            if plan.serving and plan.name.rpartition(", ")[0] not in scaled
        ]
        missed = sum(not entry.get("kept", True) for entry in (*entries, *scaled.values()))
        yield Reached("services", float(missed), 0.0)
