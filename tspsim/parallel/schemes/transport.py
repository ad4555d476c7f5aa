"""Weight transports of TSP: every rank needs all shards of a matrix and multiplies one piece after the other; each
piece's gradient returns to the piece's owners.

All transports move the same bytes: (D − 1)/D of the matrix to every rank. They differ in the links used, the size of a
piece, and buffers. A transport is one object that registers itself.
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

#: Pieces that a pool of buffers holds: the one in use, and the arriving one.
BUFFERS = 2


#: Most pieces in which the head is gathered: logits of few tokens are small.
HEAD_PIECES = 8


@dataclass(frozen=True)
class Transport(ABC):
    """A way for weights to move along the folded axis; by default, hops of the ranks' shards, each forwarded by its
    receiver.
    """

    #: Its name in plans, and a line for the catalogue.
    name: str
    summary: str
    #: With full recomputation, the MLP weights that a recomputed layer gathered stay for its backward, and the next
    #: layer's first pieces arrive beside them.
    keeps: bool = True
    #: A gradient moves as a running sum, to which every rank adds its part.
    adds: bool = True
    #: Attention's weights are all-gathered if possible, instead of broadcast owner by owner.
    gathers_heads: bool = False

    @abstractmethod
    def word(self, plan: Plan) -> str:
        """Its word in names of plans."""

    @abstractmethod
    def sentence(self, plan: Plan) -> str:
        """How the MLP's weights arrive, for people."""

    def check(self, job: Job) -> Refusal:
        """The key of the plan that does not fit the job, and why; None if all fit."""
        return None

    def pieces(self, job: Job) -> int:
        """Pieces in which the MLP's columns are multiplied."""
        return job.plan.tsp

    def head_pieces(self, job: Job) -> int:
        """Pieces in which the LM head is multiplied."""
        return job.plan.tsp

    def pools(self, job: Job) -> int:
        """Pools of :data:`BUFFERS` buffers in which pieces arrive."""
        return 1

    def place(self, job: Job, piece: int, pieces: int) -> tuple[str, int, int]:
        """The pool in which a piece arrives, the index of this filling, and the fillings per layer."""
        return "", piece, pieces

    def travels(self, piece: int) -> bool:
        """Whether a piece is moved; otherwise it is the rank's own."""
        return piece > 0

    def lead(self, job: Job, piece: int) -> int:
        """By how many pieces a piece departs ahead of its own use."""
        return 1

    def sends_on(self, job: Job, piece: int) -> int | None:
        """The piece that a rank forwards when it receives this one, which must have arrived; None: it sends its own."""
        return piece - self.lead(job, piece)

    @abstractmethod
    def bring(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        """Write the transfer of a piece; returns the instruction to wait for."""

    @abstractmethod
    def reduce_gradients(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        """Write the transfer of a piece's gradient towards its owners; returns the instruction to wait for."""


WEIGHT_TRANSPORTS: Registry[Transport] = Registry("weight transport", "tspsim.weight_transports", Transport)


class Ring(Transport):
    """The published transport: shards hop between neighbours D − 1 times, and gradients behind them D times."""

    def word(self, plan: Plan) -> str:
        return ""

    def sentence(self, plan: Plan) -> str:
        return "the MLP's weights round one ring"

    def bring(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return builder.ring_hop("tsp", size_bytes, f"{name} hop {piece}", after=after, stream="weights")

    def reduce_gradients(
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

    def reduce_gradients(
        self, builder: ProgramBuilder, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return rings.reduce_gradients(builder, job, "tsp", piece, size_bytes, name, after, "weight gradients")


class Gather(Transport):
    """Equal pieces of every rank's shard are all-gathered ahead of their use, by the library's algorithm; a
    reduce-scatter per piece returns their gradients."""

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

    def reduce_gradients(
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
    """The part of a layer that is multiplied with one piece of the MLP's weights."""
    return replace(layer, shards=transport_of(job).pieces(job))


class PieceArrivals:
    """Arrivals of a matrix's pieces at a rank, each as far ahead of its use as the transport and buffers allow.

    Parameters
    ----------
    size_bytes, pieces
        Bytes of a piece, and the number of pieces.
    name
        Name of the transfers.
    pool
        Name of the pool of buffers in a layer; None: outside of layers, where a buffer is free when the piece before
        last has been used.
    kept
        Whether all pieces of the layer stay until they are used.
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

    def start_transfers(self, number: int) -> None:
        """Write the transfers that begin before piece ``number`` is multiplied."""
        for piece in range(self.pieces):
            lead = self.transport.lead(self.job, piece)
            if piece - lead <= number and piece not in self._arrived:
                free = self._used.get(piece - lead - 1) if self.pool is None else None
                self.bring(piece, [] if free is None else [free])

    def bring(self, piece: int, after: Sequence[int]) -> None:
        """Write the transfer of a piece; nothing for the rank's own."""
        if not self.transport.travels(piece):
            return
        sent_on = self.of(self.transport.sends_on(self.job, piece))
        arrived = self.transport.bring(self.builder, self.job, piece, self.size_bytes, self.name, [*sent_on, *after])
        self._arrived[piece] = arrived
        buffers, filling = self._buffers(piece)
        if buffers is not None:
            buffers.fill(filling, arrived)

    def of(self, piece: int | None) -> list[int]:
        """The transfer of a piece, as a list of dependencies."""
        return [self._arrived[piece]] if piece in self._arrived else []

    def used(self, piece: int, by: int) -> None:
        """Free a piece's buffer after the instruction ``by``."""
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
