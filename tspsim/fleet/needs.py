"""A fleet's answer compared with its requirements."""

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
    """One requirement: the value that a fleet reached, and its limit.

    ``value`` is in seconds for ``done_by`` and ``p95_wait``, otherwise a number of jobs; of several draws it is the
    worst, and ``best`` the best.
    """

    need: str
    value: float
    most: float
    best: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the limit is kept."""
        return self.value <= self.most

    def in_words(self) -> str:
        """A part of a sentence."""
        return IN_WORDS[self.need](self.value, self.most)

    def range_in_words(self) -> str:
        """The range from the best to the worst draw; empty where all are alike."""
        if self.best is None or self.best == self.value:
            return ""
        text = _time if self.need in IN_SECONDS else lambda value: f"{value:,.0f}"
        return f"{text(self.best)} to {text(self.value)}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; None where a job was not done in the simulated time."""
        value, best = (None if end == inf else end for end in (self.value, self.best))
        entry = {"need": self.need, "value": value, "most": self.most}
        return entry if self.best is None else entry | {"of_draws": [best, value]}


#: Requirements whose value is a time.
IN_SECONDS = ("done_by", "p95_wait")


def worst_of(draws: Sequence[Sequence[Reached]]) -> tuple[Reached, ...]:
    """The worst and the best draw of every requirement."""
    return tuple(
        replace(max(column, key=lambda reached: reached.value), best=min(draw.value for draw in column))
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
    """Every stated requirement, with the value that the answer reached."""
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
        scaled = {service["name"]: service.get("bounds") or {} for service in facts.parts.get("services", ())}
        entries = [
            plan.serving.get("bounds") or {}
            for plan in answer.plans
            if plan.serving and plan.name.rpartition(", ")[0] not in scaled
        ]
        missed = sum(not entry.get("kept", True) for entry in (*entries, *scaled.values()))
        yield Reached("services", float(missed), 0.0)
