"""Embedding and LM head under TSP: each rank owns 1/D of the vocabulary's rows and of the tokens."""

from __future__ import annotations

from ...base.quick import replace
from ...model.layer import LayerShard, gradients
from ...operators import Operator
from ..builder import ProgramBuilder
from ..job import Job
from .transport import PieceArrivals, transport_of


def embed(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    look_up(builder, job, layer, job.group_tokens)


def look_up(builder: ProgramBuilder, job: Job, layer: LayerShard, tokens: int) -> None:
    """All-gather the ids of all ranks' ``tokens`` (four bytes each) to the rows' owners; rows return by all-to-all."""
    numbers = builder.collective("all_gather", "tsp", 4 * tokens, "token numbers", stream="context")
    looked_up = builder.compute("embedding lookup", layer.embedding(job.tokens), after=[numbers])
    size = job.tokens * job.model.hidden * job.activation_bytes
    rows = builder.collective("all_to_all", "tsp", size, "embedding rows", after=[looked_up], stream="context")
    builder.compute("place rows", layer.embedding(job.tokens), after=[rows])


def embed_backward(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Gradients of rows go to their owners by all-to-all, and are added there."""
    size = job.tokens * job.model.hidden * job.activation_bytes
    home = builder.collective("all_to_all", "tsp", size, "embedding gradients", stream="context")
    builder.compute("embedding backward", layer.embedding(job.tokens), after=[home])


def head(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """The head's vocabulary shards move like the MLP's."""
    builder.compute("final norm", layer.norm(job.tokens))
    piece = head_piece(job, layer)
    circulate_head(builder, job, piece, "language-model head", piece.head(job.tokens))


def head_backward(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Each shard's logits again, with loss and gradients; the weights' gradients follow one step behind."""
    piece = head_piece(job, layer)
    product = piece.head(job.tokens)
    circulate_head(builder, job, piece, "head backward", product, piece.loss(job.tokens), *gradients(product))
    builder.compute("final norm backward", layer.norm_backward(job.tokens))


def head_piece(job: Job, layer: LayerShard) -> LayerShard:
    """The part of the head that is multiplied at once."""
    return replace(layer, shards=transport_of(job).head_pieces(job))


def circulate_head(builder: ProgramBuilder, job: Job, layer: LayerShard, name: str, *operators: Operator) -> None:
    """The head in the transport's pieces, so that only one piece's logits exist at a time."""
    shards, trained = transport_of(job).head_pieces(job), len(operators) > 1 and job.work.adapters is None
    elements = job.model.hidden * layer.vocab
    overlap, transport = job.plan.overlap is not False, transport_of(job)
    arrivals = PieceArrivals(builder, job, elements * job.weight_bytes, shards, "head weights")
    waits: list[int] = []
    for piece in range(shards):
        if overlap:
            arrivals.start_transfers(piece)
        else:
            arrivals.bring(piece, waits)
        waits = [builder.compute(f"{name} {piece + 1}/{shards}", *operators, after=arrivals.of(piece))]
        arrivals.used(piece, waits[0])
        if trained:
            size = elements * job.work.optimizer.gradients
            builder.exchanged_gradients = [
                transport.reduce_gradients(builder, job, piece, size, "head gradients", waits)
            ]
