"""Agents as trees of calls: a task is a set of model calls, each sent when the calls that it needs have ended.

A call's prompt begins with the text that it continues (prompt and answer of an earlier call), or else with the task's
own text that all calls begin with. Then come the answers that it reads, text fetched from memory, and new text. So
calls that continue the same text share it as a prefix, and a call that joins others waits for the last of them:

    sent(k) = max over needed of ended + tool(k),    task = last end − first sending.

Tools run between a call and the calls before it. The number of calls below a call, the depth and the fetched tokens are
stated, or drawn for every task.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from ...base.memo import once
from ...base.units import Count, Seconds
from ..kind import Floats, Ints
from ..traces import RequestTrace
from .base import Needs, Prefixes, Shared
from .drawn import MOST_CALLS, Drawable, Draws, Number, Tokens, in_words
from .share import BLOCK_TOKENS
from .tools import WithTools


class Call(NamedTuple):
    """One call of a task: numbers of the calls that it needs, of the one whose text it continues, and of those whose
    answers it reads; whether a tool runs before it; tokens fetched from memory; new tokens where they are stated."""

    name: str
    after: tuple[int, ...] = ()
    goes_on: int | None = None
    reads: tuple[int, ...] = ()
    tool: bool = False
    memory: int = 0
    new: int | None = None


#: The calls of a task, each after all that it needs.
Shape = tuple[Call, ...]


class Trees(WithTools):
    """Tasks of calls that wait for each other. ``prompt`` is the new text of each call, ``output`` its answer."""

    task: Annotated[Count, Field(ge=0)] = Field(0, description="tokens that all calls of a task begin with")
    #: Shapes of tasks, where they are drawn.
    _drawn: tuple[Shape, ...] = PrivateAttr(())

    @abstractmethod
    def shape(self, draws: Draws) -> Shape:
        """The calls of a task."""

    @property
    def numbers(self) -> tuple[Number, ...]:
        """Numbers that may be drawn."""
        return ()

    @property
    def varies(self) -> bool:
        """Whether tasks differ."""
        return not all(isinstance(number, int) for number in self.numbers)

    @model_validator(mode="after")
    def _few_enough(self) -> Trees:
        if not self.varies and self.most_calls > MOST_CALLS:
            raise ValueError(f"a task of {self.most_calls:,} calls; at most {MOST_CALLS:,}")
        return self

    @property
    def most_calls(self) -> int:
        """Calls of a stated task, computed without listing them where they may be many."""
        return len(self.shape(Draws()))

    @once
    def _calls(self) -> Shape:
        """The calls of every task; where tasks are drawn, an example."""
        return self.shape(Draws(np.random.default_rng(0)))

    @property
    def turns_each(self) -> int:  # type: ignore[override]
        return len(self._calls)

    def drawn(self, random: np.random.Generator, count: int) -> Self:
        if not self.varies:
            return self
        shapes: list[Shape] = []
        calls = 0
        while calls < count:
            shapes.append(self.shape(Draws(random)))
            calls += len(shapes[-1])
        copy = self.model_copy()
        copy._drawn = tuple(shapes)
        return copy

    def _shapes(self, tasks: int) -> Sequence[Shape]:
        return self._drawn[:tasks] if self.varies else [self._calls] * tasks

    def sizes(self, count: int) -> Ints:
        if not self.varies:
            return np.full(-(-count // self.turns_each), self.turns_each, dtype=np.int64)
        every = np.array([len(shape) for shape in self._drawn], dtype=np.int64)
        return every[: 1 + int(np.cumsum(every).searchsorted(count))] if count else every[:0]

    def follows(self, conversations: int) -> Sequence[Needs]:
        needs = {id(shape): tuple(call.after for call in shape) for shape in self._shapes(conversations)}
        return [needs[id(shape)] for shape in self._shapes(conversations)]

    def prompts(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        if not self.varies:
            count = self.turns_each
            tasks = -(-len(prompt_tokens) // count)
            both = (np.resize(column, tasks * count).reshape(tasks, count) for column in (prompt_tokens, output_tokens))
            return self._whole(self._calls, *both).ravel()[: len(prompt_tokens)]
        whole, first = np.zeros_like(prompt_tokens), 0
        for shape in self._drawn:
            rows = slice(first, first + len(shape))
            whole[rows] = self._whole(shape, prompt_tokens[None, rows], output_tokens[None, rows])[0]
            first += len(shape)
        return whole

    def _whole(self, shape: Shape, new: Ints, answers: Ints) -> Ints:
        """Prompts of tasks of one shape, an array (tasks, calls)."""
        whole = np.zeros_like(new)
        for number, call in enumerate(shape):
            begins = self.task if call.goes_on is None else whole[:, call.goes_on] + answers[:, call.goes_on]
            read = answers[:, list(call.reads)].sum(axis=1)
            whole[:, number] = begins + read + call.memory + (new[:, number] if call.new is None else call.new)
        return whole

    def share(
        self, random: np.random.Generator, prompt_tokens: Ints, output_tokens: Ints, trace: RequestTrace | None
    ) -> Shared:
        return Texts(self._shapes(len(self.sizes(len(prompt_tokens)))), prompt_tokens + output_tokens, self.task)

    def think_s(self, random: np.random.Generator, count: int) -> Floats:
        drawn = super().think_s(random, count)
        with_tool = [call.tool for shape in self._shapes(len(self.sizes(count))) for call in shape]
        return np.where(with_tool[:count], drawn, 0.0)

    def shape_in_words(self) -> str:
        """Number of calls of a task, and the longest chain of calls."""
        if self.varies:
            return "drawn for every task"
        depth: list[int] = []
        for call in self._calls:
            depth.append(1 + max((depth[needed] for needed in call.after), default=0))
        return f"{self.turns_each:,} calls, {max(depth):,} one after the other"


class Texts(Shared):
    """Blocks of every call: those of the text that it continues, or of its task, then its own."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, shapes: Sequence[Shape], said: Ints, task: int) -> None:
        self._shapes, self._said, self._task = shapes, said, task
        self._begins = np.concatenate([[0], np.cumsum([len(shape) for shape in shapes])])

    def blocks(self, number: int) -> tuple[int, ...]:
        task = self._task_of(number)
        begin = int(self._begins[task])
        call = number - begin
        before = self._shapes[task][call].goes_on
        name = begin + task  # every task, and every call of it, has a number of its own
        if before is None:
            begins = tuple(range(name << 32, (name << 32) + self._task // self.block_tokens))
        else:
            begins = self.blocks(begin + before)
        first = name + call + 1 << 32
        whole = int(self._said[number]) // self.block_tokens
        return begins + tuple(range(first + len(begins), first + whole))

    def _task_of(self, number: int) -> int:
        return int(self._begins.searchsorted(number, "right")) - 1

    def conversation(self, number: int) -> int | None:
        return self._task_of(number)


class Research(Trees):
    """Deep research: a plan, ``breadth`` searches below it, and again below each search for ``depth`` levels, each with
    a tool. Then each level is summarized from the level below, and a report ends the task. Breadth is drawn for every
    call, depth for every task, memory for every search."""

    name = "research"
    breadth: Annotated[Number, Drawable(1, 100)] = Field(description="searches below a call")
    depth: Annotated[Number, Drawable(1, 10)] = Field(1, description="levels of searches")
    tool: Seconds = Field(1.0, description="mean time of a call on a worker")
    memory: Tokens = Field(0, description="tokens that a search fetches")

    @property
    def numbers(self) -> tuple[Number, ...]:
        return self.breadth, self.depth, self.memory

    @property
    def most_calls(self) -> int:
        assert isinstance(self.breadth, int) and isinstance(self.depth, int)
        return int(2 * sum(self.breadth**level for level in range(self.depth + 1)))

    def shape(self, draws: Draws) -> Shape:
        calls = [Call("plan")]
        levels, below = [[0]], {}
        for _ in range(draws.of(self.depth, "depth", 1, 10)):
            levels.append([])
            for above in levels[-2]:
                breadth = draws.of(self.breadth, "breadth", 1, 100)
                draws.further(2 * breadth)
                below[above] = range(len(calls), len(calls) + breadth)
                for search in below[above]:
                    fetched = draws.of(self.memory, "memory")
                    calls.append(Call("search", (above,), reads=(above,), tool=True, memory=fetched))
                    levels[-1].append(search)
        ready = {call: call for call in levels[-1]}
        for level in levels[-2::-1]:
            for above in level:
                parts = tuple(ready[child] for child in below[above])
                ready[above] = len(calls)
                calls.append(Call("sum up" if above else "report", parts, goes_on=above, reads=parts))
        return tuple(calls)

    def in_words(self) -> str:
        what = f"{in_words(self.breadth)} searches below each of {in_words(self.depth)} levels"
        return f"research of {what} ({self.shape_in_words()}), {self.tools_in_words()} before a search"


class Debate(Trees):
    """Several models argue: in every round each continues its own text and reads the others' last answers. A judge
    reads the last round (Du et al. 2023, arXiv:2305.14325)."""

    name = "debate"
    debaters: Annotated[Number, Drawable(2, 100)] = Field(description="models that argue")
    rounds: Annotated[Number, Drawable(1, 100)] = Field(2, description="answers of each model")
    tool: Seconds = Field(0.0, description="mean time of a call on a worker")

    @property
    def numbers(self) -> tuple[Number, ...]:
        return self.debaters, self.rounds

    def shape(self, draws: Draws) -> Shape:
        calls: list[Call] = []
        debaters, rounds = draws.of(self.debaters, "debaters", 2, 100), draws.of(self.rounds, "rounds", 1, 100)
        draws.further(debaters * rounds + 1)
        for turn in range(rounds):
            last = range(len(calls) - debaters, len(calls)) if turn else range(0)
            for place in range(debaters):
                others = tuple(answer for answer in last if answer - last.start != place)
                calls.append(Call(f"debater {place}", tuple(last), last.start + place if turn else None, others))
        last_round = tuple(range(len(calls) - debaters, len(calls)))
        return (*calls, Call("judge", last_round, reads=last_round))

    def in_words(self) -> str:
        what = f"{in_words(self.debaters)} over {in_words(self.rounds)} rounds and a judge"
        return f"debates of {what} ({self.shape_in_words()})"


class Retrieval(Trees):
    """Hierarchical retrieval: one call per level chooses where to look, ``breadth`` parallel calls read what lies
    there, and one answers."""

    name = "retrieval"
    levels: Annotated[Number, Drawable(1, 100)] = Field(2, description="choices, one after the other")
    breadth: Annotated[Number, Drawable(1, 1000)] = Field(4, description="parallel readers at the last level")
    tool: Seconds = Field(0.1, description="mean time of a call on a worker")
    memory: Tokens = Field(0, description="tokens that a choice or a reader fetches")

    @property
    def numbers(self) -> tuple[Number, ...]:
        return self.levels, self.breadth, self.memory

    def shape(self, draws: Draws) -> Shape:
        levels, breadth = draws.of(self.levels, "levels", 1, 100), draws.of(self.breadth, "breadth", 1, 1000)
        draws.further(levels + breadth + 1)
        calls = []
        for level in range(levels):
            needs = (level - 1,) if level else ()
            goes_on = level - 1 if level else None
            calls.append(Call("choose", needs, goes_on, tool=True, memory=draws.of(self.memory, "memory")))
        read = Call("read", (levels - 1,), reads=(levels - 1,), tool=True)
        calls += [read._replace(memory=draws.of(self.memory, "memory")) for _ in range(breadth)]
        readers = tuple(range(levels, levels + breadth))
        return (*calls, Call("answer", readers, goes_on=levels - 1, reads=readers))

    def in_words(self) -> str:
        what = f"{in_words(self.levels)} levels and {in_words(self.breadth)} readers"
        return f"retrieval over {what} ({self.shape_in_words()}), {self.tools_in_words()} before each but the answer"


for _kind in (Research, Debate, Retrieval):
    Prefixes.registry.register(_kind)
