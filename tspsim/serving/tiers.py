"""Cache tiers: blocks of prompts that a replica's GPUs forget are kept by their host, or in a store of all replicas.

A request's prompt is looked for block by block behind what the replica's own cache remembers. What a tier has is loaded
if that takes less time than to compute it,

    load = latency + Σ bytes a GPU / bandwidth a GPU        against        the step that would compute those tokens

and layer by layer beside the rest of the prompt (t seconds, L layers), so that alone the request waits for

    max(load/L, load − t·(L − 1)/L)

Loads of one replica share its links. Copies to a tier use the other direction of a link and hold up nobody. Blocks are
let go in the order in which they were not used for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import simpy

from ..network.wires import Lines, MessageWay
from .replica import ChunkNotice, Replica
from .replicas import Members, Notice, ReplicaPool
from .requests import Request
from .transfers import CacheTransfer
from .work import PromptChunk, StepCost, StepWork


@dataclass(frozen=True)
class TierSpec:
    """A tier as a replica sees it."""

    #: What transfers call it.
    name: str
    #: That it holds: of one replica's host, or of the whole store.
    size_bytes: float
    #: That a token takes of it.
    token_bytes: float
    #: Seconds that a token's bytes take to a GPU: bytes a GPU over bandwidth a GPU.
    token_s: float
    latency_s: float = 0.0
    on_eviction: bool = False
    #: All replicas have the same.
    shared: bool = False


class Store:
    """Blocks by what they hold, with the bytes of each; those not used for longest go first."""

    def __init__(self, capacity_bytes: float) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0.0
        self._blocks: OrderedDict[Hashable, float] = OrderedDict()

    def __contains__(self, block: Hashable) -> bool:
        return block in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def touch(self, block: Hashable) -> None:
        """It is used now."""
        self._blocks.move_to_end(block)

    def put(self, block: Hashable, size_bytes: float) -> None:
        """Keep it, and let go what there is no room for."""
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
    """Tokens of a prompt that tiers have behind ``known`` ones, and seconds to load them from each. Of the known ones
    the first ``behind`` are the cache's own, which may forget them before the others have come."""

    known: int
    found: int
    seconds: dict[str, float] = field(default_factory=dict)
    latency_s: float = 0.0
    behind: int = 0

    @property
    def load_s(self) -> float:
        """Alone, one tier after the other."""
        return self.latency_s + sum(self.seconds.values())


class TieredPool(ReplicaPool):
    """A pool whose replicas have tiers behind their caches.

    Parameters
    ----------
    tiers
        Looked at in this order.
    layers
        L: of the model.
    overlap
        Loads go on while the rest of a prompt is read.
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
        self._env, self._lines = env, Lines(env)

        def answered(request: Request) -> None:
            self._computed(request, request.prompt_tokens + request.output_tokens - 1)
            on_end(request)

        super().open(env, answered, every_step=every_step, on_chunk=on_chunk)
        count = len(self.replicas)
        self._costs: list[StepCost] = [each.cost for each in self.members for _ in range(each.replicas)]
        self.stores = [
            [Store(tier.size_bytes)] * count if tier.shared else [Store(tier.size_bytes) for _ in range(count)]
            for tier in self.tiers
        ]
        for number, replica in enumerate(self.replicas):
            if isinstance(replica, Replica):
                replica.on_forget(self._keeper(number))

    @property
    def transfers(self) -> Sequence[CacheTransfer]:
        """Loads from tiers, in the order in which they had come."""
        return self.loads

    def give(self, number: int, request: Request, *, computed: int = 0, behind: int = 0) -> None:
        """To a replica, once what its tiers have of the prompt is there."""
        hit = self.find(number, request, computed)
        load_s = hit.load_s
        if hit.found <= hit.known or load_s >= self._read_s(number, hit.found - hit.known, hit.known):
            super().give(number, request, computed=computed, behind=behind)
            return
        rest_s = self._read_s(number, request.prompt_tokens - hit.found, hit.found) if self.overlap else 0.0
        exposed_s = max(load_s / self.layers, load_s - rest_s * (self.layers - 1) / self.layers)
        self._load(number, request, hit, exposed_s / load_s)

    # --- what tiers have ------------------------------------------------------------------------------------

    def find(self, number: int, request: Request, computed: int = 0) -> Hit:
        """What tiers have of a prompt behind what the replica knows; its last token is computed in any case."""
        replica, size = self.replicas[number], request.block_tokens
        if any(tier.shared and tier.on_eviction for tier in self.tiers):
            for each in self.replicas:
                if isinstance(each, Replica):
                    each.catch_up()
        remembered = replica.remembered(request) if isinstance(replica, Replica) else 0
        known = max(computed, remembered)
        if not size:
            return Hit(known, known)
        seconds: dict[str, float] = {}
        latency_s, found = 0.0, known
        for index in range(known // size, min(len(request.blocks), (request.prompt_tokens - 1) // size)):
            block = request.blocks[index]
            has = next((t for t, stores in zip(self.tiers, self.stores, strict=True) if block in stores[number]), None)
            if has is None:
                break
            tokens = (index + 1) * size - found
            found += tokens
            if has.name not in seconds:
                latency_s += has.latency_s
            seconds[has.name] = seconds.get(has.name, 0.0) + tokens * has.token_s
        return Hit(known, found, seconds, latency_s, remembered if remembered > computed else 0)

    def on_first_token(self, request: Request) -> None:
        """Its prompt has been computed."""
        self._computed(request, request.prompt_tokens)

    def _computed(self, request: Request, tokens: int) -> None:
        """Its first tokens have been computed: their blocks go to tiers that are written through; those there are used
        now."""
        number = self.homes[request.number]
        for tier, stores in zip(self.tiers, self.stores, strict=True):
            store = stores[number]
            for block in request.blocks_of(tokens):
                if not tier.on_eviction:
                    store.put(block, request.block_tokens * tier.token_bytes)
                elif block in store:
                    store.touch(block)

    def _keeper(self, number: int) -> Callable[[Hashable, int], None]:
        """Takes what a replica forgets into the tiers that are written then."""

        def keep(block: Hashable, tokens: int) -> None:
            for tier, stores in zip(self.tiers, self.stores, strict=True):
                if tier.on_eviction:
                    parts = block if isinstance(block, tuple) else (block,)
                    for each in parts:
                        stores[number].put(each, tokens / len(parts) * tier.token_bytes)

        return keep

    def _read_s(self, number: int, tokens: int, behind: int) -> float:
        """Seconds of a step that computes so many tokens of a prompt behind others."""
        return float(self._costs[number].seconds([StepWork((PromptChunk(tokens, behind),))]))

    # --- loads ----------------------------------------------------------------------------------------------

    def _load(self, number: int, request: Request, hit: Hit, share: float) -> None:
        """The request goes on when ``share`` of the load is there; the rest comes beside its own prompt."""
        busy = {(-1 - index, number): hit.seconds.get(tier.name, 0.0) for index, tier in enumerate(self.tiers)}
        busy = {link: seconds for link, seconds in busy.items() if seconds > 0.0}
        # One after the other: a load keeps its links busy for as long as it takes in all.
        whole_s = sum(busy.values())
        way = MessageWay(dict.fromkeys(busy, whole_s), dict.fromkeys(busy, whole_s), 0.0)
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
            super(TieredPool, self).give(number, request, computed=hit.found, behind=hit.behind)

        first = replace(way, latency_s=hit.latency_s)
        moved = self._lines.send(first, share)
        assert moved.callbacks is not None
        moved.callbacks.append(come)
