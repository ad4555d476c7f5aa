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
from .replicas import Notice, ReplicaBackend, ReplicaPool
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
class PendingTransfer:
    """The cache of a request on its way from one pool to the other."""

    request: Request
    #: The request as each pool sees it: its prompt with one output, and the rest after a known prompt.
    read: Request
    written: Request | None
    #: Numbers of the replicas.
    source: int = -1
    destination: int = -1
    #: Parts of its cache that are moving, or will be.
    parts: int = 0
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
        self._pending: dict[int, PendingTransfer] = {}
        on_chunk = self._chunk_begins if self.handover.push else None
        self.prefill.open(env, self._on_prompt_read, every_step=every_step, on_chunk=on_chunk)
        self.decode.open(env, self._on_answer_written, every_step=every_step)

    @property
    def transfers(self) -> Sequence[CacheTransfer]:
        """These transfers, and loads of the pools from their tiers."""
        return [*self.moved, *self.prefill.transfers, *self.decode.transfers]

    @property
    def named_replicas(self) -> Sequence[tuple[str, ReplicaBackend]]:
        """The replicas of both pools."""
        return [*self.prefill.named_replicas, *self.decode.named_replicas]

    def take(self, request: Request) -> None:
        """A request arrives: its prompt is read first."""
        number, tokens, outputs, now_s = request.number, request.prompt_tokens, request.output_tokens, self._env.now
        conversation, fixed = request.conversation, request.ignore_eos
        read = Request(number, now_s, tokens, 1, request.blocks, request.block_tokens, conversation, fixed)
        # The first output is known where the answer continues, but its keys and values are not.
        written = Request(number, now_s, tokens + 1, outputs - 1, ignore_eos=fixed) if outputs > 1 else None
        transfer = self._pending[number] = PendingTransfer(request, read, written)
        if self.handover.push and written is not None:
            transfer.destination = self.decode.choose(written, computed=tokens)
        transfer.source = self.prefill.send(read)

    # --- transfers --------------------------------------------------------------------------------

    def _chunk_begins(self, read: Request, first: int, last: int, end_s: float) -> None:
        """A step computes tokens ``first`` up to ``last`` of a prompt until ``end_s``; their cache leaves layer by
        layer."""
        transfer = self._pending[read.number]
        if transfer.written is None:
            return
        # A cached beginning of the prompt leaves with the first chunk.
        path, ends = self._path(transfer), last == read.prompt_tokens
        way, size_bytes = path.of(0 if not transfer.size_bytes else first, last, ends=ends)
        transfer.parts += 1
        transfer.size_bytes += size_bytes
        layers, step_s = path.layers, end_s - self._env.now
        rest_s = step_s * (layers - 1) / layers

        def send_others() -> None:
            self._note_start(transfer)
            if layers == 1:
                send_last()
                return
            moved = self._wires.send(way, (layers - 1) / layers, least_s=rest_s)
            moved.callbacks.append(lambda _event: after(self._env, end_s - self._env.now, send_last))

        def send_last() -> None:
            moved = self._wires.send(way, 1 / layers)
            moved.callbacks.append(lambda _event: self._part_arrived(transfer))

        after(self._env, step_s / layers, send_others)

    def _on_prompt_read(self, read: Request) -> None:
        """The prompt's end, and the first output."""
        transfer = self._pending[read.number]
        request, now_s = transfer.request, self._env.now
        transfer.read_s = now_s
        request.first_scheduled_s, request.cached_tokens = read.first_scheduled_s, read.cached_tokens
        request.preemptions += read.preemptions
        if transfer.written is None or self.handover.first_token_at_once:
            request.first_token_s = now_s
        if transfer.written is None:
            self._answered(transfer)
        elif self.handover.push:
            self._continue_when_complete(transfer)
        else:
            transfer.destination = self.decode.choose(transfer.written, computed=transfer.request.prompt_tokens)
            transfer.parts = 1
            after(self._env, self.handover.handshake_s, lambda: self._fetch(transfer))

    def _fetch(self, transfer: PendingTransfer) -> None:
        """The whole cache leaves."""
        way, transfer.size_bytes = self._path(transfer).of(0, transfer.request.prompt_tokens)
        self._note_start(transfer)
        self._wires.send(way).callbacks.append(lambda _event: self._part_arrived(transfer))

    def _note_start(self, transfer: PendingTransfer) -> None:
        if transfer.start_s != transfer.start_s:
            transfer.start_s = self._env.now

    def _part_arrived(self, transfer: PendingTransfer) -> None:
        transfer.parts -= 1
        self._continue_when_complete(transfer)

    def _continue_when_complete(self, transfer: PendingTransfer) -> None:
        """The answer continues once its prompt has been read and its cache has arrived."""
        if transfer.parts or transfer.read_s != transfer.read_s:
            return
        now_s, request, written = self._env.now, transfer.request, transfer.written
        assert written is not None
        source, destination = self.prefill.name_of(transfer.source), self.decode.name_of(transfer.destination)
        exposed_s = now_s - transfer.read_s
        self.moved.append(
            CacheTransfer(request.number, transfer.start_s, now_s, source, destination, transfer.size_bytes, exposed_s)
        )
        written.arrival_s = now_s
        self.decode.give(transfer.destination, written, computed=request.prompt_tokens)

    # --- the end --------------------------------------------------------------------------------------------

    def _on_answer_written(self, written: Request) -> None:
        transfer = self._pending[written.number]
        if not self.handover.first_token_at_once:
            transfer.request.first_token_s = written.first_token_s
        transfer.request.preemptions += written.preemptions
        self._answered(transfer)

    def _answered(self, transfer: PendingTransfer) -> None:
        del self._pending[transfer.request.number]
        transfer.request.end_s = self._env.now
        self._on_end(transfer.request)

    # --- paths -----------------------------------------------------------------------------------------------

    def _path(self, transfer: PendingTransfer) -> CachePath:
        sources, destinations = self.kv_layouts[0][transfer.source], self.kv_layouts[1][transfer.destination]
        # Requests are spread evenly over attention replicas: the choice does not change the load of any link.
        dp_ranks = transfer.request.number % len(sources), transfer.request.number % len(destinations)
        key = transfer.source, transfer.destination, *dp_ranks
        if key not in self._paths:
            self._paths[key] = CachePath(self._wires, sources[dp_ranks[0]], destinations[dp_ranks[1]])
        return self._paths[key]
