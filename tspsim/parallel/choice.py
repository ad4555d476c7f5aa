"""Switches of a plan that a scheme leaves to the tuner."""

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
        The switches that attention's kernels depend on; they matter most, and a tuner settles them first.
    options
        (job, whether GPUs of a node have links of their own) → candidate values of the switches, simplest first; some
        may not be legal.
    word
        Plan → its word in names of plans.
    sentence
        Plan → its choice, for people.
    searched
        Whether a search over many plans tries values: the fastest, or those with least memory, somewhere.
    settings
        Plan → values of the switches beyond those that the plan states.
    """

    switches: tuple[str, ...]
    first: tuple[str, ...]
    options: Callable[[Job, bool], Iterator[Values]]
    word: Callable[[Plan], str]
    sentence: Callable[[Plan], str]
    searched: Callable[[Values], bool] = lambda values: True
    settings: Callable[[Plan], Values] = lambda plan: {}

    def settings_of(self, plan: Plan) -> Values:
        """The values of the switches."""
        return {name: plan.value(name) for name in self.switches} | dict(self.settings(plan))
