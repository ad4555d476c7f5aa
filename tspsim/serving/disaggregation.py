"""Disaggregated prefill and decode: one pool reads prompts, another writes answers, and caches move between them.

A request's prompt is read in the first pool, which makes its first token; its cache moves to the second, which makes
the others. Caches share the links between the pools max-min fairly (:class:`tspsim.network.wires.Wires`).

- *pull*: after the prompt and a handshake the whole cache is fetched; bytes/bandwidth later the answer continues.
- *push*: layer by layer while the prompt is read. For a prompt of t seconds through L layers, the first layer's part
leaves after t/L and the last one's at the end, so that without contention the answer waits for

      max(bytes/L/bandwidth, bytes/bandwidth − t·(L − 1)/L)

Decode replicas allocate a cache when it has arrived: memory of a running transfer is not held before. The prefill
replica frees its blocks once the prompt has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy

from ..network.wires import Wires
from .cache_paths import CachePath, KVLayout
from .clock import after
from .replicas import Notice, ReplicaPool, Serves
from .requests import Request
from .transfers import CacheTransfer


@dataclass(frozen=True)
class Handover:
    """How caches move from one pool to the other."""

    #: Layer by layer while the prompt is read; otherwise as a whole afterwards.
    push: bool = False
    #: Seconds before a fetch.
    handshake_s: float = 0.0
    #: Whether prefill streams the first token; otherwise it comes with the second.
    first_token_at_once: bool = False


@dataclass(slots=True)
class Journey:
    """A request between the pools."""

    request: Request
    #: The request as each pool sees it: its prompt with one output, and the rest after a known prompt.
    read: Request
    written: Request | None
    #: Numbers of the replicas.
    giver: int = -1
    taker: int = -1
    #: Parts of its cache that are moving, or will be.
    pieces: int = 0
    size_bytes: float = 0.0
    #: When the first part left; nan before.
    start_s: float = float("nan")
    #: When its prompt had been read; nan before.
    read_s: float = float("nan")


@dataclass
class Disaggregated:
    """Two pools as one dispatcher."""

    #: The pool that reads, and the pool that writes.
    prefill: ReplicaPool
    decode: ReplicaPool
    #: For each pool and replica, the KV layout of each of its attention replicas.
    kv_layouts: tuple[Sequence[Sequence[KVLayout]], Sequence[Sequence[KVLayout]]]
    #: Builds the links, on the clock of the pools.
    wires: Callable[[simpy.Environment], Wires]
    #: How caches move.
    handover: Handover = Handover()
    #: All finished transfers from the first to the second, in order.
    moved: list[CacheTransfer] = field(default_factory=list)

    def open(self, env: simpy.Environment, on_end: Notice, *, every_step: bool = False) -> None:
        """Put both pools on a clock."""
        self._env, self._on_end = env, on_end
        self._wires = self.wires(env)
        self._paths: dict[tuple[int, int, int, int], CachePath] = {}
        self._journeys: dict[int, Journey] = {}
        on_chunk = self._chunk_begins if self.handover.push else None
        self.prefill.open(env, self._has_been_read, every_step=every_step, on_chunk=on_chunk)
        self.decode.open(env, self._has_been_written, every_step=every_step)

    @property
    def transfers(self) -> Sequence[CacheTransfer]:
        """These transfers, and loads of the pools from their tiers."""
        return [*self.moved, *self.prefill.transfers, *self.decode.transfers]

    @property
    def named_replicas(self) -> Sequence[tuple[str, Serves]]:
        """The replicas of both pools."""
        return [*self.prefill.named_replicas, *self.decode.named_replicas]

    def take(self, request: Request) -> None:
        """A request arrives: its prompt is read first."""
        number, tokens, outputs, now_s = request.number, request.prompt_tokens, request.output_tokens, self._env.now
        conversation, fixed = request.conversation, request.ignore_eos
        read = Request(number, now_s, tokens, 1, request.blocks, request.block_tokens, conversation, fixed)
        # The first output is known where the answer continues, but its keys and values are not.
        written = Request(number, now_s, tokens + 1, outputs - 1, ignore_eos=fixed) if outputs > 1 else None
        journey = self._journeys[number] = Journey(request, read, written)
        if self.handover.push and written is not None:
            journey.taker = self.decode.choose(written, computed=tokens)
        journey.giver = self.prefill.send(read)

    # --- transfers --------------------------------------------------------------------------------

    def _chunk_begins(self, read: Request, first: int, last: int, end_s: float) -> None:
        """A step computes tokens ``first`` up to ``last`` of a prompt until ``end_s``; their cache leaves layer by
        layer."""
        journey = self._journeys[read.number]
        if journey.written is None:
            return
        # A cached beginning of the prompt leaves with the first chunk.
        path, ends = self._path(journey), last == read.prompt_tokens
        way, size_bytes = path.of(0 if not journey.size_bytes else first, last, ends=ends)
        journey.pieces += 1
        journey.size_bytes += size_bytes
        layers, step_s = path.layers, end_s - self._env.now
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
        """The whole cache leaves."""
        way, journey.size_bytes = self._path(journey).of(0, journey.request.prompt_tokens)
        self._sets_off(journey)
        self._wires.send(way).callbacks.append(lambda _event: self._piece_has_come(journey))

    def _sets_off(self, journey: Journey) -> None:
        if journey.start_s != journey.start_s:
            journey.start_s = self._env.now

    def _piece_has_come(self, journey: Journey) -> None:
        journey.pieces -= 1
        self._goes_on_if_all_has_come(journey)

    def _goes_on_if_all_has_come(self, journey: Journey) -> None:
        """The answer continues once its prompt has been read and its cache has arrived."""
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

    # --- paths -----------------------------------------------------------------------------------------------

    def _path(self, journey: Journey) -> CachePath:
        givers, takers = self.kv_layouts[0][journey.giver], self.kv_layouts[1][journey.taker]
        # Requests are spread evenly over attention replicas: the choice does not change the load of any link.
        dp_ranks = journey.request.number % len(givers), journey.request.number % len(takers)
        key = journey.giver, journey.taker, *dp_ranks
        if key not in self._paths:
            self._paths[key] = CachePath(self._wires, givers[dp_ranks[0]], takers[dp_ranks[1]])
        return self._paths[key]
