"""Switches of a plan that a scheme leaves to be chosen for the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .job import Job
from .plan import Plan

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """Switches of a plan that are chosen together.

    Attributes
    ----------
    switches
        Keys of a scenario's plan: fields of :class:`~tspsim.parallel.plan.Plan`, or options.
    first
        Those of them that attention's kernels depend on; they matter most, and a tuner settles them before the others.
    options
        (job, whether GPUs of a node have links of their own) → values of the switches worth a look, simplest first;
        some may not be legal.
    word
        What a plan's name says of them.
    sentence
        What a plan chose, for people.
    searched
        Of these values, those that a search over many plans looks at: fastest, or least memory, somewhere.
    settings
        Plan → the switches as they stand, where that is more than what the plan states.
    """

    switches: tuple[str, ...]
    first: tuple[str, ...]
    options: Callable[[Job, bool], Iterator[Values]]
    word: Callable[[Plan], str]
    sentence: Callable[[Plan], str]
    searched: Callable[[Values], bool] = lambda values: True
    settings: Callable[[Plan], Values] = lambda plan: {}

    def settings_of(self, plan: Plan) -> Values:
        """The switches as they stand."""
        return {name: plan.value(name) for name in self.switches} | dict(self.settings(plan))
