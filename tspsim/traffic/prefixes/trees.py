"""Agents as trees of calls: a task is calls of a model, each of which is sent when those it needs have ended.

A call's prompt is the text that it goes on with (a call before it, prompt and answer), or else the task's own text that
all calls begin with; then the answers that it reads, what it fetches from memory, and what is new. So calls that go on
with the same text share it as a prefix, and one that joins others waits for the last of them:

    sent(k) = max over needed of ended + tool(k),        task = last end − first sending.

Tools run between a call and those before it, where the call has one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from ...units import Count, PositiveNumber, Seconds
from ..kind import Floats, Ints
from ..traces import Trace
from .base import Prefixes, Shared
from .share import BLOCK_TOKENS
from .tools import WithTools

#: Calls of one task, at most.
MOST_CALLS = 10_000


class Call(NamedTuple):
    """One call of a task: numbers of those that it needs, of the one whose text it goes on with, of those whose answers
    it reads; whether a tool runs before it; tokens that it fetches from memory, and new ones where they are stated."""

    name: str
    after: tuple[int, ...] = ()
    goes_on: int | None = None
    reads: tuple[int, ...] = ()
    tool: bool = False
    memory: int = 0
    new: int | None = None


class Trees(WithTools):
    """Tasks of calls that wait for each other; ``prompt`` is what is new in each, ``output`` each one's answer."""

    task: Annotated[Count, Field(ge=0)] = Field(0, description="text that all calls of a task begin with")

    @property
    @abstractmethod
    def calls(self) -> tuple[Call, ...]:
        """Those of one task, each behind all that it needs."""

    @model_validator(mode="after")
    def _few_enough(self) -> Trees:
        if self.most_calls > MOST_CALLS:
            raise ValueError(f"a task of {self.most_calls:,} calls; at most {MOST_CALLS:,}")
        return self

    @property
    def most_calls(self) -> int:
        """Of a task, told without listing them where they may be many."""
        return len(self.calls)

    @cached_property
    def _calls(self) -> tuple[Call, ...]:
        return self.calls

    @property
    def turns_each(self) -> int:  # type: ignore[override]
        return len(self._calls)

    @property
    def follows(self) -> tuple[tuple[int, ...], ...]:
        return tuple(call.after for call in self._calls)

    def prompts(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        count = self.turns_each
        tasks = -(-len(prompt_tokens) // count)
        new, answers = (np.resize(each, tasks * count).reshape(tasks, count) for each in (prompt_tokens, output_tokens))
        whole = np.zeros_like(new)
        for number, call in enumerate(self._calls):
            begins = self.task if call.goes_on is None else whole[:, call.goes_on] + answers[:, call.goes_on]
            read = answers[:, list(call.reads)].sum(axis=1)
            whole[:, number] = begins + read + call.memory + (new[:, number] if call.new is None else call.new)
        return whole.ravel()[: len(prompt_tokens)]

    def share(
        self, random: np.random.Generator, prompt_tokens: Ints, output_tokens: Ints, trace: Trace | None
    ) -> Shared:
        return Texts(self._calls, prompt_tokens + output_tokens, self.task)

    def think_s(self, random: np.random.Generator, count: int) -> Floats:
        drawn = super().think_s(random, count)
        with_tool = np.array([call.tool for call in self._calls])
        return np.where(np.resize(with_tool, count), drawn, 0.0)

    def shape_in_words(self) -> str:
        """How many calls a task has, and how many one after the other."""
        depth: list[int] = []
        for call in self._calls:
            depth.append(1 + max((depth[each] for each in call.after), default=0))
        return f"{self.turns_each:,} calls, {max(depth):,} one after the other"


class Texts(Shared):
    """Blocks of every call: those of the text that it goes on with, or of its task, and its own."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, calls: Sequence[Call], said: Ints, task: int) -> None:
        self._calls, self._said, self._task = calls, said, task

    def blocks(self, number: int) -> tuple[int, ...]:
        task, call = divmod(number, len(self._calls))
        before = self._calls[call].goes_on
        if before is None:
            first = task * (len(self._calls) + 1) << 32
            begins = tuple(range(first, first + self._task // self.block_tokens))
        else:
            begins = self.blocks(number - call + before)
        first = task * (len(self._calls) + 1) + call + 1 << 32
        whole = int(self._said[number]) // self.block_tokens
        return begins + tuple(range(first + len(begins), first + whole))

    def conversation(self, number: int) -> int | None:
        return number // len(self._calls)


class Research(Trees):
    """Deep research: a plan, ``breadth`` searches below it and below each of them, ``depth`` levels, each with a tool;
    then every level is summed up from what lies below it, last a report."""

    name = "research"
    breadth: Annotated[PositiveNumber, Field(le=100)] = Field(description="searches below a call")
    depth: Annotated[PositiveNumber, Field(le=10)] = Field(1, description="levels of searches")
    tool: Seconds = Field(1.0, description="that a call takes on a worker, mean")
    memory: Annotated[Count, Field(ge=0)] = Field(0, description="tokens that a search fetches")

    @property
    def most_calls(self) -> int:
        return int(2 * sum(self.breadth**level for level in range(self.depth + 1)))

    @property
    def calls(self) -> tuple[Call, ...]:
        found = [Call("plan")]
        levels = [[0]]
        while len(levels) <= self.depth:
            level = []
            for above in levels[-1]:
                for _ in range(self.breadth):
                    level.append(len(found))
                    found.append(Call("search", (above,), reads=(above,), tool=True, memory=self.memory))
            levels.append(level)
        ready = {call: call for call in levels[-1]}
        for level, below in zip(levels[-2::-1], levels[:0:-1], strict=True):
            for place, above in enumerate(level):
                parts = tuple(ready[each] for each in below[place * self.breadth : (place + 1) * self.breadth])
                ready[above] = len(found)
                found.append(Call("sum up" if above else "report", parts, goes_on=above, reads=parts))
        return tuple(found)

    def in_words(self) -> str:
        what = f"{self.breadth:,} searches below each of {self.depth:,} levels"
        return f"research of {what} ({self.shape_in_words()}), {self.tools_in_words()} before a search"


class Debate(Trees):
    """Several models argue: every round each goes on with its own text and reads the others' last answers; a judge
    reads the last round (Du et al. 2023, arXiv:2305.14325)."""

    name = "debate"
    debaters: Annotated[PositiveNumber, Field(ge=2, le=100)] = Field(description="that argue")
    rounds: Annotated[PositiveNumber, Field(le=100)] = Field(2, description="answers of each")
    tool: Seconds = Field(0.0, description="that a call takes on a worker, mean")

    @property
    def calls(self) -> tuple[Call, ...]:
        found: list[Call] = []
        for turn in range(self.rounds):
            last = range(len(found) - self.debaters, len(found)) if turn else range(0)
            for place in range(self.debaters):
                others = tuple(each for each in last if each - last.start != place)
                found.append(Call(f"debater {place}", tuple(last), last.start + place if turn else None, others))
        last_round = tuple(range(len(found) - self.debaters, len(found)))
        return (*found, Call("judge", last_round, reads=last_round))

    def in_words(self) -> str:
        return f"debates of {self.debaters:,} over {self.rounds:,} rounds and a judge ({self.shape_in_words()})"


class Retrieval(Trees):
    """Hierarchical retrieval: a call a level chooses where to look further down; ``breadth`` calls read what is found
    there beside each other, and one answers."""

    name = "retrieval"
    levels: Annotated[PositiveNumber, Field(le=100)] = Field(2, description="choices one after the other")
    breadth: Annotated[PositiveNumber, Field(le=1000)] = Field(4, description="readers of what was found")
    tool: Seconds = Field(0.1, description="that a call takes on a worker, mean")
    memory: Annotated[Count, Field(ge=0)] = Field(0, description="tokens that a choice or a reader fetches")

    @property
    def calls(self) -> tuple[Call, ...]:
        first, chosen = Call("choose", tool=True, memory=self.memory), self.levels - 1
        further = (first._replace(after=(level - 1,), goes_on=level - 1) for level in range(1, self.levels))
        read = Call("read", (chosen,), reads=(chosen,), tool=True, memory=self.memory)
        readers = tuple(range(self.levels, self.levels + self.breadth))
        answer = Call("answer", readers, goes_on=chosen, reads=readers)
        return (first, *further, *[read] * self.breadth, answer)

    def in_words(self) -> str:
        what = f"{self.levels:,} levels and {self.breadth:,} readers"
        return f"retrieval over {what} ({self.shape_in_words()}), {self.tools_in_words()} before each but the answer"


for _kind in (Research, Debate, Retrieval):
    Prefixes.registry.register(_kind)
