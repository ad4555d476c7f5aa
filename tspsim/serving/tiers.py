"""Cache tiers: a replica's host, or a store of all replicas, keeps blocks of prompts that the GPUs evict.

A request's prompt is looked up block by block after the replica's own cached prefix. A tier's blocks are loaded if that
takes less time than computing them,

    load = latency + Σ bytes per GPU / bandwidth per GPU    against    the step that would compute those tokens

and layer by layer beside the rest of the prompt (t seconds, L layers), so that without contention the request waits for

    max(load/L, load − t·(L − 1)/L)

Loads of one replica share its links. Copies to a tier use the other direction of a link and delay nothing. Blocks are
evicted least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import simpy

from ..network.wires import MessageBundle, SharedLinks
from ..steps import PromptChunk
from .replica import ChunkNotice, Replica
from .replicas import Members, Notice, ReplicaPool
from .requests import Request
from .transfers import CacheTransfer
from .work import StepCost, StepWork


@dataclass(frozen=True)
class TierSpec:
    """A tier as a replica sees it."""

    #: Its name in transfers.
    name: str
    #: Its size: of one replica's host, or of the whole store.
    size_bytes: float
    #: Bytes of a token in it.
    token_bytes: float
    #: Seconds to load a token: bytes per GPU over bandwidth per GPU.
    token_s: float
    latency_s: float = 0.0
    on_eviction: bool = False
    #: Whether all replicas share it.
    shared: bool = False


class Store:
    """Blocks by content, with the bytes of each; least recently used ones are evicted."""

    def __init__(self, capacity_bytes: float) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0.0
        self._blocks: OrderedDict[Hashable, float] = OrderedDict()

    def __contains__(self, block: Hashable) -> bool:
        return block in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def touch(self, block: Hashable) -> None:
        """Marks a block as used now."""
        self._blocks.move_to_end(block)

    def put(self, block: Hashable, size_bytes: float) -> None:
        """Stores a block, and evicts others as needed."""
        if block in self._blocks:
            self.touch(block)
            return
        self._blocks[block] = size_bytes
        self.used_bytes += size_bytes
        while self.used_bytes > self.capacity_bytes:
            _, freed = self._blocks.popitem(last=False)
            self.used_bytes -= freed


@dataclass(frozen=True)
class Hit:
    """The beginning of a prompt that need not be computed: ``computed`` tokens are there already, ``held`` with those
    that tiers have; seconds to load these from each. The first ``behind`` of the computed tokens are in the replica's
    own cache, which may evict them before the others arrive."""

    computed: int
    held: int
    seconds: dict[str, float] = field(default_factory=dict)
    latency_s: float = 0.0
    behind: int = 0

    @property
    def load_s(self) -> float:
        """Seconds without contention, one tier after the other."""
        return self.latency_s + sum(self.seconds.values())


class TieredPool(ReplicaPool):
    """A pool whose replicas have cache tiers.

    Parameters
    ----------
    tiers
        The tiers, in order of lookup.
    layers
        L: layers of the model.
    overlap
        Whether loads overlap with the rest of a prompt.
    """

    def __init__(
        self,
        members: Sequence[Members],
        router: str = "round_robin",
        name: str = "replica",
        *,
        tiers: Sequence[TierSpec],
        layers: int,
        overlap: bool = True,
    ) -> None:
        super().__init__(members, router, name)
        self.tiers, self.layers, self.overlap = tuple(tiers), layers, overlap
        self.loads: list[CacheTransfer] = []

    def open(
        self, env: simpy.Environment, on_end: Notice, *, every_step: bool = False, on_chunk: ChunkNotice | None = None
    ) -> None:
        self._env, self._lines = env, SharedLinks(env)

        def answered(request: Request) -> None:
            self._computed(request, request.prompt_tokens + request.output_tokens - 1)
            on_end(request)

        super().open(env, answered, every_step=every_step, on_chunk=on_chunk)
        count = len(self.replicas)
        self._costs: list[StepCost] = [member.cost for member in self.members for _ in range(member.replicas)]
        self.stores = [
            [Store(tier.size_bytes)] * count if tier.shared else [Store(tier.size_bytes) for _ in range(count)]
            for tier in self.tiers
        ]
        for number, replica in enumerate(self.replicas):
            if isinstance(replica, Replica):
                replica.on_forget(self._keeper(number))

    @property
    def transfers(self) -> Sequence[CacheTransfer]:
        """Loads from tiers, in order of arrival."""
        return self.loads

    def give(self, number: int, request: Request, *, computed: int = 0, behind: int = 0) -> None:
        """Gives a request to a replica once its tiers' part of the prompt has arrived."""
        hit = self.find(number, request, computed)
        load_s = hit.load_s
        if hit.held <= hit.computed or load_s >= self._read_s(number, hit.held - hit.computed, hit.computed):
            super().give(number, request, computed=computed, behind=behind)
            return
        rest_s = self._read_s(number, request.prompt_tokens - hit.held, hit.held) if self.overlap else 0.0
        exposed_s = max(load_s / self.layers, load_s - rest_s * (self.layers - 1) / self.layers)
        self._load(number, request, hit, exposed_s / load_s)

    # --- lookup ------------------------------------------------------------------------------------

    def find(self, number: int, request: Request, computed: int = 0) -> Hit:
        """The part of a prompt in tiers after the replica's own; the last token is always computed."""
        replica, size = self.replicas[number], request.block_tokens
        if any(tier.shared and tier.on_eviction for tier in self.tiers):
            for other in self.replicas:
                if isinstance(other, Replica):
                    other.catch_up()
        remembered = replica.remembered(request) if isinstance(replica, Replica) else 0
        own_tokens = max(computed, remembered)
        if not size:
            return Hit(own_tokens, own_tokens)
        seconds: dict[str, float] = {}
        latency_s, reached_tokens = 0.0, own_tokens
        for index in range(own_tokens // size, min(len(request.blocks), (request.prompt_tokens - 1) // size)):
            block = request.blocks[index]
            has = next((t for t, stores in zip(self.tiers, self.stores, strict=True) if block in stores[number]), None)
            if has is None:
                break
            tokens = (index + 1) * size - reached_tokens
            reached_tokens += tokens
            if has.name not in seconds:
                latency_s += has.latency_s
            seconds[has.name] = seconds.get(has.name, 0.0) + tokens * has.token_s
        return Hit(own_tokens, reached_tokens, seconds, latency_s, remembered if remembered > computed else 0)

    def on_first_token(self, request: Request) -> None:
        """Its prompt has been computed."""
        self._computed(request, request.prompt_tokens)

    def _computed(self, request: Request, tokens: int) -> None:
        """Its first tokens have been computed: their blocks go to write-through tiers; blocks in other tiers are marked
        as used."""
        number = self.homes[request.number]
        for tier, stores in zip(self.tiers, self.stores, strict=True):
            store = stores[number]
            for block in request.blocks_of(tokens):
                if not tier.on_eviction:
                    store.put(block, request.block_tokens * tier.token_bytes)
                elif block in store:
                    store.touch(block)

    def _keeper(self, number: int) -> Callable[[Hashable, int], None]:
        """Stores a replica's evictions in the tiers that are written on eviction."""

        def keep(block: Hashable, tokens: int) -> None:
            for tier, stores in zip(self.tiers, self.stores, strict=True):
                if tier.on_eviction:
                    parts = block if isinstance(block, tuple) else (block,)
                    for part in parts:
                        stores[number].put(part, tokens / len(parts) * tier.token_bytes)

        return keep

    def _read_s(self, number: int, tokens: int, behind: int) -> float:
        """Seconds of a step that computes ``tokens`` of a prompt after others."""
        return float(self._costs[number].seconds([StepWork((PromptChunk(tokens, behind),))]))

    # --- loads ----------------------------------------------------------------------------------------------

    def _load(self, number: int, request: Request, hit: Hit, share: float) -> None:
        """The request continues when ``share`` of the load has arrived; the rest comes beside its own prompt."""
        busy = {(-1 - index, number): hit.seconds.get(tier.name, 0.0) for index, tier in enumerate(self.tiers)}
        busy = {link: seconds for link, seconds in busy.items() if seconds > 0.0}
        # Tiers in sequence: a load keeps its links busy for its whole duration.
        whole_s = sum(busy.values())
        way = MessageBundle(dict.fromkeys(busy, whole_s), dict.fromkeys(busy, whole_s), 0.0)
        start_s = self._env.now

        def come(_event: simpy.Event) -> None:
            now_s = self._env.now
            bytes_ = sum(
                hit.seconds[tier.name] / tier.token_s * tier.token_bytes
                for tier in self.tiers
                if tier.name in hit.seconds
            )
            names = "+".join(hit.seconds)
            exposed_s = now_s - start_s
            self.loads.append(
                CacheTransfer(request.number, start_s, now_s, names, self.name_of(number), bytes_, exposed_s)
            )
            if share < 1.0:
                self._lines.send(way, 1.0 - share)
            super(TieredPool, self).give(number, request, computed=hit.held, behind=hit.behind)

        first = replace(way, latency_s=hit.latency_s)
        moved = self._lines.send(first, share)
        assert moved.callbacks is not None
        moved.callbacks.append(come)
