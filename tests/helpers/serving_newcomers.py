"""What a package of somebody else's might bring to a service: a scheduler, a router, arrivals, lengths, what prompts
share, and a way to count. Nothing of tspsim is changed; it imports nothing but its public rooms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from tspsim.scenario.section import Section
from tspsim.serving import Policy, Request
from tspsim.serving.rank_scheduler import RankScheduler, StepPlan
from tspsim.serving.routers import Backend, Route
from tspsim.traffic import Arrivals, Lengths, Prefixes, Protocol
from tspsim.traffic.prefixes import Shared


class ShortestOptions(Section):
    """Options of the scheduler, by the names that a scenario's ``engine`` has."""

    page: int = Field(4, description="tokens of a block of the cache")


class ShortestFirst(RankScheduler):
    """Prompts are computed alone, the shortest first, and then decode alone."""

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        if self.decoders.count:
            self.decode(plan)
        elif self.waiting:
            sequence = min(self.waiting, key=lambda each: each.target)
            self.admit(sequence)
            self.hold(sequence, sequence.target)
            plan.chunks.append((sequence, sequence.target - sequence.computed))
        return plan


SHORTEST = Policy("shortest", ShortestOptions, ShortestFirst, "page")


class ByLength:
    """Long prompts to the last replica, so that short ones do not wait behind them."""

    name, summary = "by_length", "prompts of 500 tokens and more to the last replica"

    def open(self, replicas: Sequence[Backend]) -> Route:
        last = len(replicas) - 1

        def route(request: Request) -> int:
            if request.prompt_tokens >= 500:
                return last
            return min(range(max(1, last)), key=lambda number: replicas[number].waiting + replicas[number].running)

        return route


BY_LENGTH = ByLength()


class Twice(Arrivals):
    """Two requests at a time."""

    name = "twice"
    every: float = Field(1.0, gt=0, description="seconds from one pair to the next")

    def times(self, random: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
        return np.repeat(np.arange(-(-count // 2)) * self.every, 2)[:count]

    def in_words(self) -> str:
        return f"two requests every {self.every:g} s"


class Either(Lengths):
    """One of two lengths, each as likely."""

    name = "either"
    short: int = Field(gt=0, description="tokens")
    long: int = Field(gt=0, description="tokens")

    def draw(self, random: np.random.Generator, count: int, column: str) -> np.ndarray[Any, Any]:
        return np.where(random.random(count) < 0.5, self.short, self.long)

    def in_words(self) -> str:
        return f"{self.short} or {self.long} tokens"


class First(Prefixes):
    """All prompts begin with the same tokens."""

    name = "first"
    tokens: int = Field(gt=0, description="that all prompts begin with")

    def share(self, random: Any, prompt_tokens: Any, output_tokens: Any, trace: Any) -> Shared:
        tokens = self.tokens

        class Same(Shared):
            block_tokens = 16

            def blocks(self, number: int) -> tuple[int, ...]:
                return tuple(range(min(tokens, int(prompt_tokens[number])) // 16))

        return Same()

    def in_words(self) -> str:
        return f"all prompts begin with the same {self.tokens} tokens"


class Middle(Protocol):
    """The middle half of the requests counts."""

    name = "middle"

    def warm_up(self, arrivals: Arrivals) -> int:
        return 5

    def cool_down(self, arrivals: Arrivals) -> int:
        return 5

    def in_words(self) -> str:
        return "the first five requests and the last five run, but do not count"


#: Group of entry points → names in it, and what they are called here.
ENTRY_POINTS = {
    "tspsim.schedulers": {"shortest": "SHORTEST"},
    "tspsim.routers": {"by_length": "BY_LENGTH"},
    "tspsim.arrivals": {"twice": "Twice"},
    "tspsim.lengths": {"either": "Either"},
    "tspsim.prefixes": {"first": "First"},
    "tspsim.protocols": {"middle": "Middle"},
}
