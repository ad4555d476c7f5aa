"""How weights travel under TSP: every rank needs all shards of a matrix, multiplies with one piece after the other, and
its part of a piece's gradient goes to the piece's owners.

The bytes are the same whichever way: (D − 1)/D of the matrix comes to every rank. What differs is the links that carry
them, the size of a piece, and the buffers it takes. A transport is one object that
registers itself; :mod:`tspsim.parallel.schemes.folded` asks it and compares no names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ...base.quick import replace
from ...base.registry import Registry
from ...model.layer import LayerShard
from .. import rings
from ..builder import ProgramBuilder
from ..job import Job
from ..pipeline import Refusal
from ..plan import Plan
from ..written_layers import Buffers

#: Pieces of others that a pool holds at once: the one in use, and the one that arrives.
BUFFERS = 2


#: Pieces in which the head is gathered at most: its logits of a few tokens are small.
HEAD_PIECES = 8


@dataclass(frozen=True)
class Transport(ABC):
    """A way for weights to travel along the folded axis; what it does not say otherwise are hops of the ranks' shards,
    each sent on by who got it.
    """

    #: What a plan calls it, and a line for the catalogue.
    name: str
    summary: str
    #: Under full recomputation the MLP's weights that a repeated layer gathered stay for its backward, and the next
    #: layer's first ones arrive beside this layer's.
    keeps: bool = True
    #: A gradient travels with the sum so far, to which every rank adds its part.
    adds: bool = True
    #: The attention's weights are all-gathered where they can be, instead of broadcast owner by owner.
    gathers_heads: bool = False

    @abstractmethod
    def word(self, plan: Plan) -> str:
        """What a plan's name says of it."""

    @abstractmethod
    def sentence(self, plan: Plan) -> str:
        """How the MLP's weights come, for people."""

    def check(self, job: Job) -> Refusal:
        """The key of the plan that does not go with the job, and why; None where all do."""
        return None

    def pieces(self, job: Job) -> int:
        """Pieces that the MLP's columns are multiplied in."""
        return job.plan.tsp

    def head_pieces(self, job: Job) -> int:
        """Pieces that the language-model head is multiplied in."""
        return job.plan.tsp

    def pools(self, job: Job) -> int:
        """Pools of :data:`BUFFERS` buffers that pieces arrive in."""
        return 1

    def place(self, job: Job, piece: int, pieces: int) -> tuple[str, int, int]:
        """The pool that a piece arrives in, which filling of it that is, and how many there are a layer."""
        return "", piece, pieces

    def travels(self, piece: int) -> bool:
        """Whether a piece is brought; otherwise it is the rank's own."""
        return piece > 0

    def lead(self, job: Job, piece: int) -> int:
        """How many pieces ahead of its own use a piece sets out."""
        return 1

    def sends_on(self, job: Job, piece: int) -> int | None:
        """The piece that a rank passes on when it gets this one: it must have come; None where it sends its own."""
        return piece - self.lead(job, piece)

    @abstractmethod
    def bring(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        """Write what brings a piece; returns the instruction to wait for."""

    @abstractmethod
    def take_home(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        """Write what brings a piece's gradient on its way, or home; returns the instruction to wait for."""


WEIGHT_TRANSPORTS: Registry[Transport] = Registry("weight transport", "tspsim.weight_transports", Transport)


class Ring(Transport):
    """The published way: shards hop from neighbour to neighbour, D − 1 times, and gradients behind them, D times."""

    def word(self, plan: Plan) -> str:
        return ""

    def sentence(self, plan: Plan) -> str:
        return "the MLP's weights round one ring"

    def bring(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return builder.ring_hop("tsp", size_bytes, f"{name} hop {piece}", after=after, stream="weights")

    def take_home(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return builder.ring_hop("tsp", size_bytes, f"{name} hop {piece + 1}", after=after, stream="weight gradients")


class MultiRing(Transport):
    """The ring's hops over all links of a mesh, and over several nodes in two levels (:mod:`tspsim.parallel.rings`)."""

    def word(self, plan: Plan) -> str:
        return "r"

    def sentence(self, plan: Plan) -> str:
        return "the MLP's weights round several rings at once"

    def check(self, job: Job) -> Refusal:
        refused = rings.refused(job.plan, "tsp")
        return ("weight_transport", refused) if refused else None

    def pools(self, job: Job) -> int:
        return 1 if job.plan.node_ranks("tsp") == job.plan.tsp else 2

    def place(self, job: Job, piece: int, pieces: int) -> tuple[str, int, int]:
        if not rings.by_rail(job, "tsp", piece):
            return "", piece, pieces
        here = job.plan.node_ranks("tsp")
        return " by rail", piece // here, pieces // here

    def lead(self, job: Job, piece: int) -> int:
        return rings.lead(job, "tsp", piece)

    def bring(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return rings.bring(builder, job, "tsp", piece, size_bytes, name, after, "weights")

    def take_home(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return rings.take_home(builder, job, "tsp", piece, size_bytes, name, after, "weight gradients")


class Gather(Transport):
    """Equal pieces of every rank's shard are all-gathered ahead of their use, by whatever algorithm the library would
    take; their gradients come home by a reduce-scatter a piece."""

    def word(self, plan: Plan) -> str:
        return f"p{plan.mlp_pieces}"

    def sentence(self, plan: Plan) -> str:
        return f"the MLP's weights gathered in {plan.mlp_pieces} piece{'s' * (plan.mlp_pieces > 1)}"

    def check(self, job: Job) -> Refusal:
        model, ranks, pieces = job.model, job.plan.tsp, job.plan.mlp_pieces
        for columns in (model.ffn, model.experts.shared_width if model.experts else 0):
            if columns % (ranks * pieces):
                return "mlp_pieces", f"{pieces} pieces of {ranks} shards do not divide the {columns} FFN columns"
        return None

    def pieces(self, job: Job) -> int:
        return job.plan.mlp_pieces

    def head_pieces(self, job: Job) -> int:
        return min(job.plan.tsp, HEAD_PIECES)

    def travels(self, piece: int) -> bool:
        return True

    def sends_on(self, job: Job, piece: int) -> int | None:
        return None

    def bring(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        name = f"{name} piece {piece + 1}"
        return builder.collective("all_gather", "tsp", size_bytes, name, after=after, stream="weights")

    def take_home(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        name = f"{name} piece {piece + 1}"
        return builder.collective("reduce_scatter", "tsp", size_bytes, name, after=after, stream="weight gradients")


for _transport in (
    Ring("ring", "the MLP's shards hop from neighbour to neighbour, as published", keeps=False),
    MultiRing("multi_ring", "the hops in parts, over all links of a mesh"),
    Gather(
        "gather", "pieces of every rank's shard are all-gathered ahead of their use", adds=False, gathers_heads=True
    ),
):
    WEIGHT_TRANSPORTS.register(_transport)


def transport_of(job: Job) -> Transport:
    """The transport of a job's plan."""
    return WEIGHT_TRANSPORTS.get(job.plan.weight_transport)


def piece_of(job: Job, layer: LayerShard) -> LayerShard:
    """What of a layer is multiplied with one piece of the MLP's weights."""
    return replace(layer, shards=transport_of(job).pieces(job))


class PieceArrivals:
    """The pieces of a matrix that come to a rank, each as far ahead of its use as the transport and buffers allow.

    Parameters
    ----------
    size_bytes, pieces
        Of one piece, and how many there are.
    name
        What is moved.
    pool
        Name of the buffers of a layer that pieces arrive in; None: outside of layers, where a buffer is free once the
        piece before last has been used.
    kept
        All pieces of the layer stay until they are used.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        job: Job,
        size_bytes: float,
        pieces: int,
        name: str,
        pool: str | None = None,
        *,
        kept: bool = False,
    ) -> None:
        self.builder, self.job, self.transport = builder, job, transport_of(job)
        self.size_bytes, self.pieces, self.name = size_bytes, pieces, name
        self.pool, self.kept = pool, kept
        self._arrived: dict[int, int] = {}
        self._used: dict[int, int] = {}

    def set_out(self, number: int) -> None:
        """Write the journeys that begin before piece ``number`` is multiplied."""
        for piece in range(self.pieces):
            lead = self.transport.lead(self.job, piece)
            if piece - lead <= number and piece not in self._arrived:
                free = self._used.get(piece - lead - 1) if self.pool is None else None
                self.bring(piece, [] if free is None else [free])

    def bring(self, piece: int, after: Sequence[int]) -> None:
        """Write the journey of a piece; nothing for the rank's own."""
        if not self.transport.travels(piece):
            return
        sent_on = self.of(self.transport.sends_on(self.job, piece))
        arrived = self.transport.bring(self.builder, self.job, piece, self.size_bytes, self.name, [*sent_on, *after])
        self._arrived[piece] = arrived
        buffers, filling = self._buffers(piece)
        if buffers is not None:
            buffers.fill(filling, arrived)

    def of(self, piece: int | None) -> list[int]:
        """What brings a piece, as a list to wait for."""
        return [self._arrived[piece]] if piece in self._arrived else []

    def used(self, piece: int, by: int) -> None:
        """A piece is not needed once the instruction ``by`` is over."""
        self._used[piece] = by
        buffers, filling = self._buffers(piece)
        if buffers is not None:
            buffers.used(filling, by)

    def _buffers(self, piece: int) -> tuple[Buffers | None, int]:
        if self.pool is None:
            return None, 0
        suffix, filling, fillings = self.transport.place(self.job, piece, self.pieces)
        count = BUFFERS + (fillings if self.kept else 0)
        return self.builder.buffers(self.pool + suffix, count, fillings), filling
