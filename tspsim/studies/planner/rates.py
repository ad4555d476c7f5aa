"""Upper bounds on a deployment's output, in closed form from a few of its steps; a search of plans is ordered by them.

Letters: a prompt has p tokens and its answer n; B sequences of S tokens decode together on an attention replica;
t(B) are the seconds of a step that decodes them, a its output tokens per sequence, and t_p the seconds of steps that
read a prompt. While B sequences decode, B·p/n prompt tokens are read per output token of each:

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
from ...serving.work import StepWork
from ...steps import PromptChunk

#: Most sequences of an attention replica that a search considers.
MOST = 4096


@dataclass(frozen=True)
class Demand:
    """The requests: mean lengths, and the bounds on waits by name."""

    prompt: int
    output: int
    bounds: Mapping[str, float]

    @property
    def context(self) -> int:
        """Tokens of a sequence in the cache, mean over its answer."""
        return self.prompt + self.output // 2


@dataclass(frozen=True)
class ExpectedLoad:
    """One load in closed form: number of clients, and their latencies."""

    clients: int
    requests_per_s: float
    ttft_s: float
    tpot_s: float

    def keeps(self, bounds: Mapping[str, float], slack: float = 1.0) -> bool:
        """Whether the means keep the bounds, with some slack."""
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
        """Number of attention replicas."""
        return self.replicas * self.deployment.replicas * self.deployment.dp_size

    @once
    def _most_tokens(self) -> int:
        """Token budget of a step."""
        engine = self.deployment.engine
        return engine.policy.step_tokens(dict(engine.options)) or self.demand.prompt

    @once
    def read_s(self) -> float:
        """Seconds of reading one prompt alone: all its steps."""
        costs, most = self.deployment.costs, self._most_tokens
        starts = range(0, self.demand.prompt, most)
        pieces = [PromptChunk(min(most, self.demand.prompt - start), start) for start in starts]
        return sum(costs.seconds([StepWork((piece,))]) for piece in pieces)

    @once
    def shared_read_s(self) -> float:
        """Seconds per prompt where prompts fill steps together."""
        together = max(1, self._most_tokens // self.demand.prompt)
        if together == 1:
            return self.read_s
        return self.deployment.costs.seconds([StepWork((PromptChunk(self.demand.prompt, 0),) * together)]) / together

    def reads_s(self, sequences: int) -> float:
        """Seconds of steps that read prompts, per output token of each of ``sequences`` sequences."""
        steps = max(1.0 / max(1, self._most_tokens // self.demand.prompt), self.demand.prompt / self._most_tokens)
        alone = min(1.0, sequences * steps / self.demand.output)
        return (1.0 - (1.0 - alone) ** self.deployment.dp_size) * self.shared_read_s / steps

    def step_s(self, sequences: int) -> float:
        """Seconds of a step that decodes ``sequences`` sequences per replica."""
        if sequences not in self._steps:
            work = StepWork((), (self.demand.context,) * sequences)
            self._steps[sequences] = float(self.deployment.costs.seconds([work]))
        return self._steps[sequences]

    @property
    def accepted(self) -> float:
        """Output tokens of a step per sequence."""
        drafts = self.deployment.drafts
        return drafts.accepted if drafts else 1.0

    @once
    def most(self) -> int:
        """Most sequences that fit an attention replica's cache, up to the engine's own limit."""
        sessions = self.deployment.costs.capacity.sessions(self.demand.prompt + self.demand.output)
        engine = self.deployment.engine
        max_num_seqs = getattr(engine.options, engine.policy.sequence_option, MOST)
        return int(min(sessions, max_num_seqs, MOST))


def loads(most: int) -> list[int]:
    """Powers of two up to a number, at least one."""
    sizes = [1 << power for power in range(max(1, most).bit_length())]
    return [size for size in sizes if size <= most] or [1]


def together(engine: ClosedFormEngine) -> list[ExpectedLoad]:
    """One pool that reads and writes: every load, smallest first."""
    expected, n = [], engine.demand.output
    for size in loads(engine.most):
        first_s = engine.read_s + engine.step_s(size)
        token_s = engine.step_s(size) / engine.accepted + engine.reads_s(size)
        clients = size * (1.0 + first_s / (n * token_s))
        expected.append(
            ExpectedLoad(round(clients * engine.count), engine.count * size / (n * token_s), first_s, token_s)
        )
    return expected


def apart(reader: ClosedFormEngine, writer: ClosedFormEngine) -> list[ExpectedLoad]:
    """Two pools: every load, smallest first, as long as prompts are read fast enough."""
    expected, n = [], writer.demand.output
    reads = reader.count / reader.shared_read_s
    for size in loads(writer.most):
        token_s = writer.step_s(size) / writer.accepted
        writes = writer.count * size / (n * token_s)
        first_s = reader.read_s + token_s
        served = min(reads, writes)
        expected.append(ExpectedLoad(max(1, round(served * (first_s + n * token_s))), served, first_s, token_s))
        if writes >= reads:
            break
    return expected


def best_of(expected: Sequence[ExpectedLoad], bounds: Mapping[str, float], slack: float = 1.0) -> ExpectedLoad | None:
    """The load with most requests/s that keeps the bounds, with some slack; None where none does."""
    kept = [load for load in expected if load.keeps(bounds, slack)]
    return max(kept, key=lambda load: load.requests_per_s, default=None)


Value = TypeVar("Value")


def tried(find: Callable[[], Sequence[Value]]) -> Sequence[Value]:
    """The result of ``find``; empty where a plan is not legal, or does not fit."""
    try:
        return find()
    except (TspsimError, ValueError):
        return ()
