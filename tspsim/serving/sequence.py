"""A request inside an engine."""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import Trail
from .requests import Request


class Sequence:
    """A request inside an engine: it waits, its prompt is computed, it decodes, it has ended.

    Attributes
    ----------
    request
        What was asked.
    place
        In the order of admissions; a sequence that was preempted gets a new one.
    given, behind
        Tokens of the prompt up to which keys and values came from elsewhere, and from which: those before are the
        cache's own, if it has not forgotten them.
    target
        Tokens that must be in the cache before the next output: the prompt, and the outputs before a preemption.
    computed
        Of them, what is in the cache.
    made
        Outputs so far.
    held
        Blocks of the cache.
    trail
        What they hold, where that is known and the cache remembers; else None.
    decoding
        It decodes: ``computed``, ``made`` and ``held`` are not kept up meanwhile, but follow from the next two.
    offset, end_at
        Its context, and the counter's value at its end, in coordinates of :class:`~tspsim.serving.decoders.Decoders`.
    draws
        Tokens that its next steps put out, where that is left to chance.
    ended
        Its last output is there.
    promised
        Blocks that are kept free for it.
    states
        Blocks that its states take, while it runs.
    arrived_s
        When it came to the engine.
    """

    __slots__ = (
        "arrived_s",
        "behind",
        "computed",
        "decoding",
        "draws",
        "end_at",
        "ended",
        "given",
        "held",
        "made",
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
        self.place = self.computed = self.made = self.held = self.offset = self.end_at = 0
        self.promised = self.states = 0
        self.draws: Iterator[int] | None = None
        self.decoding = self.ended = False
