"""How weights travel under TSP: every rank needs all shards of a matrix, multiplies with one piece after the other, and
its part of a piece's gradient goes to the piece's owners.

The bytes are the same whichever way: (D − 1)/D of the matrix comes to every rank. What differs is the links that carry
them, the size of a piece, and the buffers it takes. A transport is one object here, and an entry in
:data:`TRANSPORTS`; :mod:`tspsim.parallel.folded` asks it and compares no names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from ..model.layer import LayerShard
from ..program import RING_SHIFT
from .plan import Job
from .script import Buffers, Script


class Transport(Protocol):
    """A way for weights to travel along the folded axis.

    Attributes
    ----------
    name
        What a plan calls it.
    words
        What it does, for reports and tables.
    keeps
        Under full recomputation the weights that a repeated layer gathered stay for its backward.
    adds
        A gradient travels with the sum so far, to which every rank adds its part.
    """

    @property
    def name(self) -> str: ...

    @property
    def words(self) -> str: ...

    @property
    def keeps(self) -> bool: ...

    @property
    def adds(self) -> bool: ...

    def check(self, job: Job) -> tuple[str, str] | None:
        """The key of the plan that does not go with the job, and why; None where all do."""
        ...

    def pieces(self, job: Job) -> int:
        """Pieces that the MLP's columns are multiplied in."""
        ...

    def buffers(self, job: Job) -> int:
        """Pieces of others that are here at once."""
        ...

    def travels(self, piece: int) -> bool:
        """Whether a piece is brought; otherwise it is the rank's own."""
        ...

    def lead(self, job: Job, piece: int) -> int:
        """How many pieces ahead of its own use a piece sets out."""
        ...

    def sends_on(self, job: Job, piece: int) -> int | None:
        """The piece that a rank passes on when it gets this one: it must have come; None where it sends its own."""
        ...

    def bring(
        self, script: Script, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        """Write what brings a piece; returns the instruction to wait for."""
        ...

    def take_home(
        self, script: Script, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        """Write what brings a piece's gradient on its way, or home; returns the instruction to wait for."""
        ...


@dataclass(frozen=True)
class Ring:
    """The published way: shards hop from neighbour to neighbour, D − 1 times, and gradients behind them, D times."""

    name: str = "ring"
    words: str = "shards hop from neighbour to neighbour, over one link of a GPU on a mesh"
    keeps: bool = False
    adds: bool = True

    def check(self, job: Job) -> tuple[str, str] | None:
        return None

    def pieces(self, job: Job) -> int:
        return job.plan.tsp

    def buffers(self, job: Job) -> int:
        return 2

    def travels(self, piece: int) -> bool:
        return piece > 0

    def lead(self, job: Job, piece: int) -> int:
        return 1

    def sends_on(self, job: Job, piece: int) -> int | None:
        return piece - 1

    def bring(
        self, script: Script, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return script.ring_hop("tsp", size_bytes, f"{name} hop {piece}", after=after, stream="weights")

    def take_home(
        self, script: Script, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return script.ring_hop("tsp", size_bytes, f"{name} hop {piece + 1}", after=after, stream="weight gradients")


@dataclass(frozen=True)
class MultiRing:
    """The ring's hops over all links of a mesh: a shard goes in pieces along edge-disjoint Hamiltonian cycles (TASP,
    Wang et al. 2025, for K and V), so that what is here after a hop is a part of several ranks' shards.

    Over several nodes in two levels: shards go round inside every node, while those of the node before come over the
    rails, one a NIC. Gradients go round inside the node, and from the rank where a shard came in to its owner.
    """

    name: str = "multi_ring"
    words: str = "shards hop in pieces along rings that share no link"
    keeps: bool = True
    adds: bool = True

    def check(self, job: Job) -> tuple[str, str] | None:
        ranks, here = job.plan.tsp, job.plan.node_ranks("tsp")
        if here and ranks % here == 0:
            return None
        return "weight_transport", f"multi_ring needs as many of the {ranks} ranks of tsp in every node"

    def pieces(self, job: Job) -> int:
        return job.plan.tsp

    def buffers(self, job: Job) -> int:
        return 2 if job.plan.node_ranks("tsp") == job.plan.tsp else 4

    def travels(self, piece: int) -> bool:
        return piece > 0

    def lead(self, job: Job, piece: int) -> int:
        here = job.plan.node_ranks("tsp")
        return here if piece % here == 0 else 1

    def sends_on(self, job: Job, piece: int) -> int | None:
        return piece - self.lead(job, piece)

    def bring(
        self, script: Script, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        here = job.plan.node_ranks("tsp")
        if piece % here:
            return shift(script, "tsp", size_bytes, f"{name} hop {piece}", after, "weights")
        return script.pass_on(
            "tsp", here, size_bytes, f"{name} from node {piece // here} before", after=after, stream="weights by rail"
        )

    def take_home(
        self, script: Script, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        here = job.plan.node_ranks("tsp")
        done = list(after)
        if here > 1:
            done = [shift(script, "tsp", size_bytes, f"{name} hop {piece + 1}", done, "weight gradients")]
        back = piece // here
        if back and piece % here == here - 1:
            where = f"{name} to node {back} before"
            rail = "weight gradients by rail"
            done = [script.pass_on("tsp", -back * here, size_bytes, where, after=done, stream=rail)]
        return done[0]


@dataclass(frozen=True)
class Gather:
    """Equal pieces of every rank's shard are all-gathered ahead of their use, by whatever algorithm the library would
    take; their gradients come home by a reduce-scatter a piece."""

    name: str = "gather"
    words: str = "a piece of every rank's shard is all-gathered ahead of its use"
    keeps: bool = True
    adds: bool = False

    def check(self, job: Job) -> tuple[str, str] | None:
        model, ranks, pieces = job.model, job.plan.tsp, job.plan.mlp_pieces
        for columns in (model.ffn, model.experts.shared_width if model.experts else 0):
            if columns % (ranks * pieces):
                return "mlp_pieces", f"{pieces} pieces of {ranks} shards do not divide the {columns} FFN columns"
        return None

    def pieces(self, job: Job) -> int:
        return job.plan.mlp_pieces

    def buffers(self, job: Job) -> int:
        return 2

    def travels(self, piece: int) -> bool:
        return True

    def lead(self, job: Job, piece: int) -> int:
        return 1

    def sends_on(self, job: Job, piece: int) -> int | None:
        return None

    def bring(
        self, script: Script, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return script.collective(
            "all_gather", "tsp", size_bytes, f"{name} piece {piece + 1}", after=after, stream="weights"
        )

    def take_home(
        self, script: Script, job: Job, piece: int, size_bytes: float, name: str, after: Sequence[int]
    ) -> int:
        return script.collective(
            "reduce_scatter", "tsp", size_bytes, f"{name} piece {piece + 1}", after=after, stream="weight gradients"
        )


def shift(script: Script, axis: str, size_bytes: float, name: str, after: Sequence[int], stream: str) -> int:
    """One hop inside the nodes along all rings of a mesh."""
    return script.collective(RING_SHIFT, axis, size_bytes, name, after=after, stream=stream, algorithm="multi_ring")


TRANSPORTS: Mapping[str, Transport] = MappingProxyType(
    {transport.name: transport for transport in (Ring(), MultiRing(), Gather())}
)


def transport_of(job: Job) -> Transport:
    """The transport of a job's plan."""
    return TRANSPORTS[job.plan.weight_transport]


def piece_of(job: Job, layer: LayerShard) -> LayerShard:
    """What of a layer is multiplied with one piece of the MLP's weights."""
    return replace(layer, shards=transport_of(job).pieces(job))


class Arrivals:
    """The pieces of a matrix that come to a rank, each as far ahead of its use as the transport and buffers allow."""

    def __init__(
        self, script: Script, job: Job, size_bytes: float, pieces: int, name: str, buffers: Buffers | None = None
    ) -> None:
        self.script, self.job, self.transport = script, job, transport_of(job)
        self.size_bytes, self.pieces, self.name, self.buffers = size_bytes, pieces, name, buffers
        self._arrived: dict[int, int] = {}

    def set_out(self, number: int, used: Sequence[int] = ()) -> None:
        """Write the journeys that begin before piece ``number`` is multiplied; ``used`` are the uses of earlier pieces,
        where no buffers are kept."""
        for piece in range(self.pieces):
            lead = self.transport.lead(self.job, piece)
            if piece - lead <= number and piece not in self._arrived:
                free = piece - lead - 1
                self.bring(piece, used[free : free + 1] if free >= 0 else [])

    def bring(self, piece: int, after: Sequence[int]) -> None:
        """Write the journey of a piece; nothing for the rank's own."""
        if not self.transport.travels(piece):
            return
        sent_on = self.of(self.transport.sends_on(self.job, piece))
        arrived = self.transport.bring(self.script, self.job, piece, self.size_bytes, self.name, [*sent_on, *after])
        self._arrived[piece] = arrived
        if self.buffers is not None:
            self.buffers.fill(piece, arrived)

    def of(self, piece: int | None) -> list[int]:
        """What brings a piece, as a list to wait for."""
        return [self._arrived[piece]] if piece in self._arrived else []
