"""The MLP of TSP's layers: its packed shards arrive piece by piece by the plan's transport, and are multiplied as they
arrive; in the backward their gradients return."""

from __future__ import annotations

from ...model.layer import LayerShard, gradients
from ...operators import MemoryBound
from ..builder import ProgramBuilder
from ..job import Job
from ..recompute import recomputed_kernels
from . import folded_weights
from .transport import PieceArrivals, piece_of, transport_of


def keeps_mlp(job: Job) -> bool:
    """Whether the MLP's weights stay from a layer's recomputation to its backward."""
    return job.training and job.plan.recomputation == "full" and transport_of(job).keeps


def mlp_overlapped(builder: ProgramBuilder, job: Job, layer: LayerShard, last: int) -> int:
    """The present piece is multiplied while the next one arrives in the other buffer."""
    transport, piece = transport_of(job), piece_of(job, layer)
    pieces = transport.pieces(job)
    kept = builder.recomputing and keeps_mlp(job)
    size = folded_weights.mlp(job, piece).shard_bytes
    needed = [last, *gather_mlp_whole(builder, job, layer, [])]
    arrivals = PieceArrivals(builder, job, size, pieces, "MLP weights", "MLP weights", kept=kept)
    applied = last
    for number in range(pieces):
        arrivals.start_transfers(number)
        applied = apply_mlp(builder, job, piece, number, [*([] if number else needed), *arrivals.of(number)])
        if not kept:
            arrivals.used(number, applied)
    return applied


def mlp_in_turn(builder: ProgramBuilder, job: Job, layer: LayerShard, last: int) -> int:
    transport, piece = transport_of(job), piece_of(job, layer)
    pieces = transport.pieces(job)
    waits = [last, *gather_mlp_whole(builder, job, layer, [last])]
    arrivals = PieceArrivals(builder, job, folded_weights.mlp(job, piece).shard_bytes, pieces, "MLP weights")
    for number in range(pieces):
        arrivals.bring(number, waits)
        waits = [apply_mlp(builder, job, piece, number, arrivals.of(number) or waits)]
    return waits[-1]


def mlp_backward(builder: ProgramBuilder, job: Job, layer: LayerShard) -> int:
    """Piece by piece: its columns' gradients, and its weights' gradient on the way to its owners.

    Returns the last kernel.
    """
    transport, piece, tokens = transport_of(job), piece_of(job, layer), job.tokens
    pieces, load = transport.pieces(job), folded_weights.mlp(job, piece)
    gradient_bytes = load.trained_in_shard * job.work.optimizer.gradients
    overlap = job.plan.overlap is not False
    kept = keeps_mlp(job)
    whole = [] if job.plan.recomputation == "full" else gather_mlp_whole(builder, job, layer, [])
    # A recomputed layer that keeps its weights has them in the buffers that its forward filled.
    pool = "MLP weights" if kept else "MLP weights, backward"
    arrivals = PieceArrivals(builder, job, load.shard_bytes, pieces, "MLP weights, backward,", pool, kept=kept)
    applied = -1
    waits: list[int] = []
    for number in range(pieces):
        if not kept and overlap:
            arrivals.start_transfers(number)
        elif not kept:
            arrivals.bring(number, waits)
        operators = (
            *gradients(piece.down(tokens)),
            *recomputed_kernels(job, piece.activation(tokens)),
            piece.activation_backward(tokens),
            *gradients(piece.gate_up(tokens)),
        )
        if gradient_bytes and transport.adds:
            operators = (*operators, MemoryBound("add", 3.0 * gradient_bytes, name="add to travelling gradient"))
        needed = [*([] if number else whole), *arrivals.of(number)]
        applied = builder.compute(f"MLP {number + 1}/{pieces} backward", *operators, after=needed)
        arrivals.used(number, applied)
        waits = [applied]
        if gradient_bytes:
            home = transport.reduce_gradients(builder, job, number, gradient_bytes, "MLP gradients", [applied])
            if not overlap:
                waits = [builder.compute("gradients here", after=[home])]
            if number == pieces - 1:
                builder.exchanged_gradients.append(home)
    return applied


def gather_mlp_whole(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """Gather the halves of adapters that the MLP's columns do not divide."""
    size = folded_weights.mlp(job, layer).whole_bytes
    name = "adapters of the MLP"
    return [builder.collective("all_gather", "tsp", size, name, after=after, stream="weights")] if size else []


def apply_mlp(builder: ProgramBuilder, job: Job, piece: LayerShard, number: int, after: list[int]) -> int:
    operators = (piece.gate_up(job.tokens), piece.activation(job.tokens), piece.down(job.tokens))
    # Layers with experts are normed before the router.
    norm = () if number or piece.composition.experts else (piece.norm(job.tokens),)
    return builder.compute(f"MLP {number + 1}/{transport_of(job).pieces(job)}", *norm, *operators, after=after)
