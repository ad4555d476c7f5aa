"""What a deployment can put out at most, in closed form from a few of its steps: what a search of plans is ordered by.

Letters: a prompt has p tokens and its answer n; B sequences decode together on an attention replica, of S tokens each;
t(B) are seconds of a step that decodes them, a tokens that it puts out of each, and t_p those of the steps that read a
prompt. While B sequences decode, B·p/n tokens of prompts are read for every token that each puts out:

    TPOT ≈ t(B)/a + (B/n)·t_p        TTFT ≈ t_p + t(B)        requests/s ≈ B/(n·TPOT)

Attention replicas that step together wait for each other's prompts: with k steps a prompt and l of them, a step reads
one somewhere with probability q = 1 − (1 − B·k/n)^l, and q·t_p/k takes the place of (B/n)·t_p. Of C clients of an
attention replica B = C/(1 + TTFT/(n·TPOT)) decode at a time. Where prompts are read elsewhere the second term of TPOT
is nothing, and requests/s are those of the slower pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...base.errors import TspsimError
from ...base.memo import once
from ...serving.deployment import Deployment
from ...serving.work import PromptChunk, StepWork

#: Sequences of an attention replica that a search looks at, at most.
MOST = 4096


@dataclass(frozen=True)
class Demand:
    """The requests: means of lengths, and the bounds on waits by name."""

    prompt: int
    output: int
    bounds: Mapping[str, float]

    @property
    def context(self) -> int:
        """Tokens of a sequence in the cache, mean over its answer."""
        return self.prompt + self.output // 2


@dataclass(frozen=True)
class ExpectedLoad:
    """One load in closed form: clients in all, and what they see."""

    clients: int
    requests_per_s: float
    ttft_s: float
    tpot_s: float

    def keeps(self, bounds: Mapping[str, float], slack: float = 1.0) -> bool:
        """Whether the means keep the bounds, or nearly."""
        return self.ttft_s <= slack * bounds.get("ttft", math.inf) and self.tpot_s <= slack * bounds.get(
            "tpot", math.inf
        )


@dataclass
class ClosedFormEngine:
    """A deployment's attention replicas in closed form."""

    deployment: Deployment
    demand: Demand
    replicas: int
    _steps: dict[int, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Of attention replicas."""
        return self.replicas * self.deployment.replicas * self.deployment.lanes

    @once
    def _most_tokens(self) -> int:
        """Of a step."""
        engine = self.deployment.engine
        return engine.policy.step_tokens(dict(engine.options)) or self.demand.prompt

    @once
    def read_s(self) -> float:
        """Of a prompt that is read alone: all its steps."""
        costs, most = self.deployment.costs, self._most_tokens
        starts = range(0, self.demand.prompt, most)
        pieces = [PromptChunk(min(most, self.demand.prompt - start), start) for start in starts]
        return sum(costs.seconds([StepWork((piece,))]) for piece in pieces)

    @once
    def shared_read_s(self) -> float:
        """The same of prompts that fill steps together."""
        together = max(1, self._most_tokens // self.demand.prompt)
        if together == 1:
            return self.read_s
        return self.deployment.costs.seconds([StepWork((PromptChunk(self.demand.prompt, 0),) * together)]) / together

    def reads_s(self, sequences: int) -> float:
        """Seconds of steps that read prompts, for every token that each of so many sequences puts out."""
        steps = max(1.0 / max(1, self._most_tokens // self.demand.prompt), self.demand.prompt / self._most_tokens)
        alone = min(1.0, sequences * steps / self.demand.output)
        return (1.0 - (1.0 - alone) ** self.deployment.lanes) * self.shared_read_s / steps

    def step_s(self, sequences: int) -> float:
        """Of a step that decodes so many sequences a replica."""
        if sequences not in self._steps:
            work = StepWork((), (self.demand.context,) * sequences)
            self._steps[sequences] = float(self.deployment.costs.seconds([work]))
        return self._steps[sequences]

    @property
    def accepted(self) -> float:
        """Tokens that a step puts out of a sequence."""
        drafts = self.deployment.drafts
        return drafts.accepted if drafts else 1.0

    @once
    def most(self) -> int:
        """Sequences that an attention replica has room for, up to the engine's own limit."""
        sessions = self.deployment.costs.capacity.sessions(self.demand.prompt + self.demand.output)
        engine = self.deployment.engine
        seats = getattr(engine.options, engine.policy.sequence_option, MOST)
        return int(min(sessions, seats, MOST))


def loads(most: int) -> list[int]:
    """Powers of two up to a number, and the number."""
    sizes = [1 << power for power in range(max(1, most).bit_length())]
    return [size for size in sizes if size <= most] or [1]


def together(engine: ClosedFormEngine) -> list[ExpectedLoad]:
    """One pool that reads and writes: every load, smallest first."""
    found, n = [], engine.demand.output
    for size in loads(engine.most):
        first_s = engine.read_s + engine.step_s(size)
        token_s = engine.step_s(size) / engine.accepted + engine.reads_s(size)
        clients = size * (1.0 + first_s / (n * token_s))
        found.append(ExpectedLoad(round(clients * engine.count), engine.count * size / (n * token_s), first_s, token_s))
    return found


def apart(reader: ClosedFormEngine, writer: ClosedFormEngine) -> list[ExpectedLoad]:
    """Two pools: every load, smallest first, as far as prompts are read fast enough."""
    found, n = [], writer.demand.output
    reads = reader.count / reader.shared_read_s
    for size in loads(writer.most):
        token_s = writer.step_s(size) / writer.accepted
        writes = writer.count * size / (n * token_s)
        first_s = reader.read_s + token_s
        served = min(reads, writes)
        found.append(ExpectedLoad(max(1, round(served * (first_s + n * token_s))), served, first_s, token_s))
        if writes >= reads:
            break
    return found


def best_of(expected: Sequence[ExpectedLoad], bounds: Mapping[str, float], slack: float = 1.0) -> ExpectedLoad | None:
    """The load with most requests/s that keeps the bounds, or nearly; None where none does."""
    kept = [each for each in expected if each.keeps(bounds, slack)]
    return max(kept, key=lambda each: each.requests_per_s, default=None)


Found = TypeVar("Found")


def tried(find: Callable[[], Sequence[Found]]) -> Sequence[Found]:
    """Nothing where a plan is not legal, or has no room."""
    try:
        return find()
    except (TspsimError, ValueError):
        return ()
