"""The requests of a scenario's traffic, drawn as columns: a million take megabytes.

Every aspect draws its own random numbers from the same seed: other lengths leave arrivals unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ..base.errors import InputError, TspsimError
from .arrivals import Arrivals
from .kind import Floats, Ints
from .lengths import Lengths, drawn_lengths
from .prefixes import Needs, Prefixes, Shared
from .protocols import Protocol


class Stream(IntEnum):
    """The stream of random numbers of an aspect."""

    ARRIVALS = 0
    PROMPTS = 1
    OUTPUTS = 2
    PREFIXES = 3
    THINKING = 4
    SHAPES = 5


@dataclass(frozen=True)
class DrawnRequests:
    """Requests in the order of their numbers.

    Attributes
    ----------
    arrival_s
        Earliest send time of each; None of a closed loop. Of conversations the first turn's time counts.
    prompt_tokens, output_tokens
        Tokens of each; prompts are whole, with all that was said before.
    most
        Requests (or conversations) under way at once, at most; None: no limit.
    turns
        Requests of a conversation; their numbers follow each other.
    begins
        First request of each conversation, then the number of requests. None: all conversations have
        ``turns``.
    think_s
        Seconds of each from the end of the turn before.
    warm_up, cool_down
        Requests at the beginning and at the end that do not count.
    pauses
        Whether warm-up requests end before the others are sent.
    spacing_s
        Seconds between the first requests of two clients of a closed loop.
    ignore_eos
        Whether requests say ``ignore_eos``: every answer takes its longest length.
    follows
        For each request of each conversation: requests that must end before it is sent. None: the request
        before it.
    tools
        Whether ``think_s`` are tool calls, which wait for one of ``tool_workers`` (None: no limit).
    """

    arrival_s: Floats | None
    prompt_tokens: Ints
    output_tokens: Ints
    shared: Shared
    think_s: Floats
    most: int | None = None
    turns: int = 1
    warm_up: int = 0
    cool_down: int = 0
    pauses: bool = False
    spacing_s: float = 0.0
    tools: bool = False
    follows: Sequence[Needs] | None = None
    tool_workers: int | None = None
    ignore_eos: bool = False
    begins: Ints | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def counted(self) -> slice:
        """Slice of the requests that count."""
        return slice(self.warm_up, len(self) - self.cool_down)

    @property
    def conversations(self) -> int:
        """Number of conversations."""
        return self.conversations_before(len(self))

    def conversations_before(self, number: int) -> int:
        """Number of conversations that begin before a request."""
        return -(-number // self.turns) if self.begins is None else int(self.begins.searchsorted(number))

    def conversation_of(self, number: int) -> int:
        """Index of a request's conversation."""
        return self.conversations_before(number + 1) - 1

    def first_of(self, conversation: int) -> int:
        """Number of a conversation's first request; past the last conversation, the number of requests."""
        return conversation * self.turns if self.begins is None else int(self.begins[conversation])


def draw(
    arrivals: Arrivals,
    prompt: Lengths | None,
    output: Lengths | None,
    prefix: Prefixes,
    protocol: Protocol,
    *,
    requests: int | None,
    seed: int,
    model: str | None = None,
) -> DrawnRequests:
    """Draw the requests of one point of a scenario's traffic.

    Parameters
    ----------
    prompt, output
        None: as in the trace of the arrivals.
    requests
        Requests that count, without warm-up; None: the protocol's number.
    seed
        Seed of all random numbers.
    model
        Model name; some benchmarks have a number of samples by model.

    Raises
    ------
    InputError
        The trace has too few requests.
    """
    trace = arrivals.trace()
    measured = requests or protocol.requests(arrivals, model)
    warm_up = protocol.warm_up(arrivals)

    def stream(which: Stream) -> np.random.Generator:
        return np.random.default_rng([seed, int(which)])

    if protocol.pauses:  # a conversation counts as a whole or not at all
        turns = prefix.drawn(stream(Stream.SHAPES), warm_up).sizes(warm_up)
        warm_up = int(turns.sum()) if turns is not None else -(-warm_up // prefix.turns_each) * prefix.turns_each
    cool_down = protocol.cool_down(arrivals)
    pauses = protocol.pauses
    if trace is not None and measured + warm_up > len(trace) and requests is None:
        measured = len(trace) - warm_up
    if pauses and not prefix.shares:
        warm_up = 0  # it ends before the first request that counts, and leaves no shared prefix
    count = measured if not warm_up else measured + warm_up
    if not pauses and warm_up + cool_down >= measured:
        what = f"{warm_up} + {cool_down} requests that do not count leave none of {measured}"
        raise InputError(what, key="traffic.protocol")
    if not pauses:
        count = measured
    prefix = prefix.drawn(stream(Stream.SHAPES), count)
    turns = prefix.sizes(count)
    if turns is not None:  # a task has all of its calls
        count = int(turns.sum())
    if trace is not None and count > len(trace):
        what = f"{count:,} requests, but the trace {trace.name} has {len(trace):,}; leave requests out for all of them"
        raise InputError(what, key="traffic.requests")

    def tokens(lengths: Lengths | None, column: str, which: Stream) -> Ints:
        if lengths is not None:
            return drawn_lengths(lengths, stream(which), count, column)
        assert trace is not None
        return np.asarray(getattr(trace, column)[:count])

    outputs = tokens(output, "output_tokens", Stream.OUTPUTS)
    prompts = prefix.prompts(tokens(prompt, "prompt_tokens", Stream.PROMPTS), outputs)
    conversations = -(-count // prefix.turns_each) if turns is None else len(turns)
    unlike = turns is not None and bool((turns != turns[0]).any())
    return DrawnRequests(
        drawn_times(arrivals, stream(Stream.ARRIVALS), conversations),
        prompts,
        outputs,
        prefix.share(stream(Stream.PREFIXES), prompts, outputs, trace),
        prefix.think_s(stream(Stream.THINKING), count),
        arrivals.most,
        prefix.turns_each if turns is None else int(turns[0]),
        warm_up,
        cool_down,
        pauses,
        arrivals.spacing_s,
        prefix.calls_tools,
        prefix.follows(conversations),
        prefix.tool_workers,
        protocol.ignores_eos(),
        np.concatenate([[0], np.cumsum(turns)]) if unlike and turns is not None else None,
    )


def sizes(prefix: Prefixes, requests: int, seed: int) -> Ints:
    """Requests of each conversation that ``requests`` requests form; the last conversation may be cut."""
    counts = prefix.drawn(np.random.default_rng([seed, int(Stream.SHAPES)]), requests).sizes(requests)
    return counts if counts is not None else np.full(-(-requests // prefix.turns_each), prefix.turns_each)


def drawn_times(arrivals: Arrivals, random: np.random.Generator, count: int) -> Floats | None:
    """Seconds of ``count`` arrivals, ascending. Raises TspsimError for any other result of a kind."""
    times = arrivals.times(random, count)
    if times is not None:
        times = np.asarray(times)
        if times.shape != (count,) or not (np.isfinite(times).all() and (np.diff(times, prepend=0.0) >= 0.0).all()):
            raise TspsimError(f"{arrivals.registry.what} '{arrivals.name}' has to give {count} times, ascending from 0")
    return times
