"""Cache transfers between ranks: from a replica that reads a prompt to one that writes its answer.

A replica of either pool divides caches in its own way: layers over stages, heads over tensor-parallel ranks as far as
there are any (one latent, and keys of an indexer, are whole on every rank), tokens over ranks that share contexts. A
decode rank takes exactly its part from the prefill ranks; where several have the same part, the receivers alternate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..base.memo import once
from ..model.attention import CacheUse
from ..network.wires import GpuPlace, Link, Message, MessageBundle, Wires
from ..parallel import Job, build_mesh
from ..parallel.decode import ContextShare
from ..parallel.state import served

#: A part of something: an interval within [0, 1].
Interval = tuple[float, float]


@dataclass(frozen=True)
class KVLayout:
    """The KV layout of one attention replica: its ranks, and their parts of a request's cache."""

    #: By stage, in the order of the plan's mesh.
    places: tuple[tuple[GpuPlace, ...], ...]
    #: Layers of each stage by cache use.
    uses: tuple[Mapping[CacheUse, int], ...]
    share: ContextShare
    #: Whether ranks that share contexts are adjacent; otherwise ranks that divide heads are.
    neighbours: bool = False

    @once
    def all_uses(self) -> Counter[CacheUse]:
        """Layers of the model by cache use."""
        total: Counter[CacheUse] = Counter()
        for stage_uses in self.uses:
            total.update(stage_uses)
        return total

    def layers(self, stage: int) -> Interval:
        """The stage's interval of all layers."""
        counts = [sum(stage_uses.values()) for stage_uses in self.uses]
        return sum(counts[:stage]) / sum(counts), sum(counts[: stage + 1]) / sum(counts)

    def heads(self, position: int, heads: int) -> Interval:
        """The interval of ``heads`` heads on the rank at a position of its stage: every rank has whole heads."""
        share = self.share
        place = position // share.ranks if self.neighbours else position
        parts = min(share.attended, heads)
        part = place % share.attended * parts // share.attended
        return part / parts, (part + 1) / parts

    def tokens(self, position: int) -> Interval:
        """The interval of tokens on the rank at a position."""
        place = position if self.neighbours else position // self.share.attended
        part = place % self.share.ranks
        return part / self.share.ranks, (part + 1) / self.share.ranks


def kv_layout_of(job: Job, gpus: int, gpus_per_node: int, cluster: int, first: int, dp_rank: int = 0) -> KVLayout:
    """The KV layout of one attention replica of a serving plan whose mesh begins at rank ``first`` of a cluster."""
    mesh = build_mesh(job.plan, gpus, gpus_per_node)
    ranks, positions = mesh.ranks.reshape(-1), mesh.positions
    mine = ranks[positions["dp"][ranks] == dp_rank]
    places, uses = [], []
    for stage in range(job.plan.pp):
        members = sorted(mine[positions["pp"][mine] == stage].tolist())
        places.append(tuple(GpuPlace(cluster, first + rank) for rank in members))
        uses.append(served.cache_uses(job, job.chunks(stage)))
    share = job.scheme.context(job.plan)
    return KVLayout(tuple(places), tuple(uses), share, share.axis in job.plan.groups)


def overlap(one: Interval, other: Interval) -> float:
    """Length of the intersection of two intervals."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def messages(giver: KVLayout, taker: KVLayout, heads: int, size_bytes: float = 1.0) -> Iterator[Message]:
    """Messages that move ``size_bytes`` of cache divided by ``heads`` heads."""
    for stage, takers in enumerate(taker.places):
        for turn, destination in enumerate(takers):
            wanted = taker.heads(turn, heads), taker.tokens(turn)
            for other, givers in enumerate(giver.places):
                layers = overlap(taker.layers(stage), giver.layers(other))
                for pieces, having in grouped(giver, givers, heads).items():
                    amount = layers * prod(overlap(want, piece) for want, piece in zip(wanted, pieces, strict=True))
                    if amount > 1e-12:
                        yield Message(having[turn % len(having)], destination, amount * size_bytes)


def grouped(giver: KVLayout, places: Sequence[GpuPlace], heads: int) -> dict[tuple[Interval, Interval], list[GpuPlace]]:
    """The ranks of a stage by their heads and tokens."""
    by_part: dict[tuple[Interval, Interval], list[GpuPlace]] = {}
    for position, place in enumerate(places):
        by_part.setdefault((giver.heads(position, heads), giver.tokens(position)), []).append(place)
    return by_part


class CachePath:
    """The transfer path of caches between two attention replicas.

    The bytes are of a few kinds, each divided in one way: bytes of heads (by number of heads), bytes
    that every rank holds whole, and states.
    """

    def __init__(self, wires: Wires, giver: KVLayout, taker: KVLayout) -> None:
        self.wires = wires
        self._uses = tuple(giver.all_uses.items())
        self._one: dict[int, MessageBundle] = {}
        self._layouts = giver, taker
        #: Bytes that arrive per byte divided by a number of heads: copies count.
        self._arriving: dict[int, float] = {}
        self.layers = sum(giver.all_uses.values())

    def of(self, first: int, last: int, *, ends: bool = True) -> tuple[MessageBundle, float]:
        """The path of tokens ``first`` up to ``last`` of a sequence, with its states if these end its prompt; and the
        bytes that arrive."""
        sizes: dict[int, float] = {}
        for use, layers in self._uses:
            before = divided(use, first)
            for heads, size in divided(use, last).items():
                sizes[heads] = sizes.get(heads, 0.0) + layers * max(0.0, size - before[heads])
            if ends and use.sequence_bytes:
                sizes[use.state_heads] = sizes.get(use.state_heads, 0.0) + layers * use.sequence_bytes
        return self._bundle({heads: size for heads, size in sizes.items() if size > 0.0})

    def _bundle(self, sizes: Mapping[int, float]) -> tuple[MessageBundle, float]:
        busy_s: dict[Link, float] = {}
        latency_s, arriving = 0.0, 0.0
        carried: dict[Link, float] = {}
        for heads, size in sizes.items():
            one = self._of_one(heads)
            arriving += size * self._arriving[heads]
            latency_s = max(latency_s, one.latency_s)
            for link, busy in one.busy_s.items():
                busy_s[link] = busy_s.get(link, 0.0) + busy * size
            for link, carried_bytes in one.carried.items():
                carried[link] = carried.get(link, 0.0) + carried_bytes * size
        return MessageBundle(busy_s, carried, latency_s), arriving

    def _of_one(self, heads: int) -> MessageBundle:
        if heads not in self._one:
            sent = list(messages(*self._layouts, heads))
            self._one[heads] = self.wires.bundle(sent)
            self._arriving[heads] = sum(message.size_bytes for message in sent)
        return self._one[heads]


def divided(use: CacheUse, tokens: int) -> dict[int, float]:
    """Bytes of ``tokens`` tokens in a layer's cache by the heads that divide them: 1: every rank has them whole."""
    kept = min(tokens, use.window) if use.window else tokens
    whole = tokens * use.shared_token_bytes + min(tokens, use.latest) * use.latest_token_bytes
    by_heads = {use.heads: kept * use.token_bytes}
    by_heads[1] = by_heads.get(1, 0.0) + whole
    return by_heads
