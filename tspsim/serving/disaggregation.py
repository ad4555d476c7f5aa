"""Prefill and decode on different GPUs: one pool reads prompts, another writes answers, and caches go between them.

A request's prompt is read in the first pool, which makes its first token; its cache goes to the second, which makes the
others. Caches share the links between the pools max-min fairly (:class:`tspsim.network.wires.Wires`).

- *pull*: when the prompt has been read, and after a handshake, the cache is fetched as a whole: bytes/bandwidth later
  the answer goes on.
- *push*: layer by layer while the prompt is read. Of a prompt that takes t through L layers the first layer's part sets
  off after t/L, and the last one's at the end, so that alone the answer waits for

      max(bytes/L/bandwidth, bytes/bandwidth − t·(L − 1)/L)

Decode replicas take a cache in when it has come: memory that a transfer would write to is not held before. What the
reading replica holds is free once the prompt has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy

from ..network.wires import Wires
from .carry import Carrier, Holders
from .clock import after
from .replicas import Notice, ReplicaPool, Serves
from .requests import Request
from .transfers import CacheTransfer


@dataclass(frozen=True)
class Handover:
    """How caches go from one pool to the other."""

    #: Layer by layer while the prompt is read; otherwise as a whole afterwards.
    push: bool = False
    #: Before they are fetched.
    handshake_s: float = 0.0
    #: Prefill streams it; otherwise it comes with the second.
    first_token_at_once: bool = False


@dataclass(slots=True)
class Journey:
    """A request between the pools."""

    request: Request
    #: What the replicas see of it: its prompt with one output, and the rest behind a known prompt.
    read: Request
    written: Request | None
    #: Numbers of the replicas.
    giver: int = -1
    taker: int = -1
    #: Parts of its cache that are under way, or will be.
    pieces: int = 0
    size_bytes: float = 0.0
    #: When the first set off; not a number before.
    start_s: float = float("nan")
    #: When its prompt had been read; not a number before.
    read_s: float = float("nan")


@dataclass
class Disaggregated:
    """Two pools as one desk."""

    #: Those who read, and those who write.
    prefill: ReplicaPool
    decode: ReplicaPool
    #: Of both, by replica, which ranks hold which part of a cache; a replica of several attention replicas has one
    #: entry for each of them.
    holders: tuple[Sequence[Sequence[Holders]], Sequence[Sequence[Holders]]]
    #: Makes the links, on the clock that the pools live on.
    wires: Callable[[simpy.Environment], Wires]
    #: How caches go.
    handover: Handover = Handover()
    #: All caches that have come from the first to the second, in order.
    moved: list[CacheTransfer] = field(default_factory=list)

    def open(self, env: simpy.Environment, on_end: Notice, *, every_step: bool = False) -> None:
        """Put both pools on a clock."""
        self._env, self._on_end = env, on_end
        self._wires = self.wires(env)
        self._carriers: dict[tuple[int, int, int, int], Carrier] = {}
        self._journeys: dict[int, Journey] = {}
        on_chunk = self._chunk_begins if self.handover.push else None
        self.prefill.open(env, self._has_been_read, every_step=every_step, on_chunk=on_chunk)
        self.decode.open(env, self._has_been_written, every_step=every_step)

    @property
    def transfers(self) -> Sequence[CacheTransfer]:
        """Those, and what pools loaded from tiers of theirs."""
        return [*self.moved, *self.prefill.transfers, *self.decode.transfers]

    @property
    def named_replicas(self) -> Sequence[tuple[str, Serves]]:
        """All of both pools."""
        return [*self.prefill.named_replicas, *self.decode.named_replicas]

    def take(self, request: Request) -> None:
        """A request has come: its prompt is read first."""
        number, tokens, outputs, now_s = request.number, request.prompt_tokens, request.output_tokens, self._env.now
        told, fixed = request.conversation, request.ignore_eos
        read = Request(number, now_s, tokens, 1, request.blocks, request.block_tokens, told, fixed)
        # The first output is known where the answer goes on, but its keys and values are not.
        written = Request(number, now_s, tokens + 1, outputs - 1, ignore_eos=fixed) if outputs > 1 else None
        journey = self._journeys[number] = Journey(request, read, written)
        if self.handover.push and written is not None:
            journey.taker = self.decode.choose(written, computed=tokens)
        journey.giver = self.prefill.send(read)

    # --- caches on their way --------------------------------------------------------------------------------

    def _chunk_begins(self, read: Request, first: int, last: int, end_s: float) -> None:
        """A step computes tokens ``first`` up to ``last`` of a prompt until ``end_s``: what it makes goes at once."""
        journey = self._journeys[read.number]
        if journey.written is None:
            return
        # Where the prompt was found in a cache, that part goes with the first piece.
        carrier, ends = self._carrier(journey), last == read.prompt_tokens
        way, size_bytes = carrier.of(0 if not journey.size_bytes else first, last, ends=ends)
        journey.pieces += 1
        journey.size_bytes += size_bytes
        layers, step_s = carrier.layers, end_s - self._env.now
        rest_s = step_s * (layers - 1) / layers

        def others_set_off() -> None:
            self._sets_off(journey)
            if layers == 1:
                the_last_sets_off()
                return
            moved = self._wires.send(way, (layers - 1) / layers, least_s=rest_s)
            moved.callbacks.append(lambda _event: after(self._env, end_s - self._env.now, the_last_sets_off))

        def the_last_sets_off() -> None:
            moved = self._wires.send(way, 1 / layers)
            moved.callbacks.append(lambda _event: self._piece_has_come(journey))

        after(self._env, step_s / layers, others_set_off)

    def _has_been_read(self, read: Request) -> None:
        """The prompt's end, and the first output."""
        journey = self._journeys[read.number]
        request, now_s = journey.request, self._env.now
        journey.read_s = now_s
        request.first_scheduled_s, request.cached_tokens = read.first_scheduled_s, read.cached_tokens
        request.preemptions += read.preemptions
        if journey.written is None or self.handover.first_token_at_once:
            request.first_token_s = now_s
        if journey.written is None:
            self._answered(journey)
        elif self.handover.push:
            self._goes_on_if_all_has_come(journey)
        else:
            journey.taker = self.decode.choose(journey.written, computed=journey.request.prompt_tokens)
            journey.pieces = 1
            after(self._env, self.handover.handshake_s, lambda: self._fetch(journey))

    def _fetch(self, journey: Journey) -> None:
        """The whole cache sets off."""
        way, journey.size_bytes = self._carrier(journey).of(0, journey.request.prompt_tokens)
        self._sets_off(journey)
        self._wires.send(way).callbacks.append(lambda _event: self._piece_has_come(journey))

    def _sets_off(self, journey: Journey) -> None:
        if journey.start_s != journey.start_s:
            journey.start_s = self._env.now

    def _piece_has_come(self, journey: Journey) -> None:
        journey.pieces -= 1
        self._goes_on_if_all_has_come(journey)

    def _goes_on_if_all_has_come(self, journey: Journey) -> None:
        """With its prompt read and its cache here, the answer goes on."""
        if journey.pieces or journey.read_s != journey.read_s:
            return
        now_s, request, written = self._env.now, journey.request, journey.written
        assert written is not None
        source, destination = self.prefill.name_of(journey.giver), self.decode.name_of(journey.taker)
        exposed_s = now_s - journey.read_s
        self.moved.append(
            CacheTransfer(request.number, journey.start_s, now_s, source, destination, journey.size_bytes, exposed_s)
        )
        written.arrival_s = now_s
        self.decode.give(journey.taker, written, computed=request.prompt_tokens)

    # --- the end --------------------------------------------------------------------------------------------

    def _has_been_written(self, written: Request) -> None:
        journey = self._journeys[written.number]
        if not self.handover.first_token_at_once:
            journey.request.first_token_s = written.first_token_s
        journey.request.preemptions += written.preemptions
        self._answered(journey)

    def _answered(self, journey: Journey) -> None:
        del self._journeys[journey.request.number]
        journey.request.end_s = self._env.now
        self._on_end(journey.request)

    # --- ways -----------------------------------------------------------------------------------------------

    def _carrier(self, journey: Journey) -> Carrier:
        givers, takers = self.holders[0][journey.giver], self.holders[1][journey.taker]
        # Requests are dealt to attention replicas evenly: which one a request goes to matters to nobody's links.
        lanes = journey.request.number % len(givers), journey.request.number % len(takers)
        key = journey.giver, journey.taker, *lanes
        if key not in self._carriers:
            self._carriers[key] = Carrier(self._wires, givers[lanes[0]], takers[lanes[1]])
        return self._carriers[key]
