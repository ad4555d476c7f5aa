"""A request inside an engine."""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import Trail
from .requests import Request


class Sequence:
    """A request inside an engine, from waiting over prefill and decoding to its end.

    Attributes
    ----------
    request
        The request.
    place
        Number in the order of admissions; a preempted sequence gets a new one.
    given, behind
        End and begin of the prompt's tokens that were transferred; tokens before the begin are the
        cache's own, unless evicted.
    target
        Tokens to compute before the next output: the prompt, and the outputs before a preemption.
    computed
        How many of them are in the cache.
    emitted
        Outputs so far.
    held
        Blocks of the cache.
    trail
        Their contents, with prefix caching; else None.
    decoding
        Whether it decodes: ``computed``, ``emitted`` and ``held`` are then not updated, but follow from the next two.
    offset, end_at
        Its context, and the counter's value at its end, in coordinates of :class:`~tspsim.serving.decoders.Decoders`.
    draws
        Drawn output tokens of its next steps, with sampled drafts.
    ended
        Whether its last output is done.
    promised
        Blocks reserved for it.
    states
        Blocks of its states while it runs.
    arrived_s
        Arrival at the engine.
    """

    __slots__ = (
        "arrived_s",
        "behind",
        "computed",
        "decoding",
        "draws",
        "emitted",
        "end_at",
        "ended",
        "given",
        "held",
        "offset",
        "place",
        "promised",
        "request",
        "states",
        "target",
        "trail",
    )

    def __init__(self, request: Request, given: int = 0, arrived_s: float = 0.0, behind: int = 0) -> None:
        self.request = request
        self.arrived_s = arrived_s
        self.given, self.behind = min(given, request.prompt_tokens - 1), behind
        self.target = request.prompt_tokens
        self.trail: Trail | None = None
        self.place = self.computed = self.emitted = self.held = self.offset = self.end_at = 0
        self.promised = self.states = 0
        self.draws: Iterator[int] | None = None
        self.decoding = self.ended = False
