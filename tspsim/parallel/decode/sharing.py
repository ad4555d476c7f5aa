"""Shared contexts as schemes declare them: bytes received, buffers, and plans that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...model.attention import ATTENTION_KINDS, decoded
from ...model.layer import ServingLayer
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..unpacked import UNPACKED, unpacked_bytes
from .exchange import exchange_of, partials
from .index_exchange import refused_choice
from .layer import cached_bytes, share_of


def shared_layers(job: Job) -> list[ServingLayer]:
    """The model's kinds of layer, in a step in which all ranks have every token."""
    if not job.step.serves or job.token_shards > 1:
        return []
    layers = [job.layer(job.scheme.shards(job), block) for block in dict.fromkeys(job.model.blocks)]
    return [layer for layer in layers if isinstance(layer, ServingLayer)]


def exchanged_bytes(job: Job) -> float:
    """Bytes that a rank receives for a layer's shared contexts (merged decodes, prompts' cached contexts), of the kind
    of layer with least."""
    share = job.scheme.context(job.plan)
    dealt = []
    for layer in shared_layers(job):
        moved = cached_bytes(layer, share_of(job, layer), job.rows) * (share.ranks - 1) / share.ranks
        merging = [part for part in partials(job, decoded(job.rows)) if part.layer.composition == layer.composition]
        for part in merging:
            moved += exchange_of(job).received_bytes(part) + part.away * part.candidates
        dealt.append(moved)
    return min(dealt, default=0.0)


def exchange_buffers(job: Job) -> Iterator[Buffer]:
    """Queries, partial outputs and others' cache while one layer is attended."""
    if not shared_layers(job):
        return
    for part in partials(job, decoded(job.rows)):
        size = exchange_of(job).buffer_bytes(part) + part.candidates
        yield Buffer("partial_attention", size, Lifetime.LAYER, part.layer.composition)
    for layer in shared_layers(job):
        share = share_of(job, layer)
        gathered = cached_bytes(layer, share, job.rows)
        if gathered:
            yield Buffer("gathered_context", gathered, Lifetime.LAYER, layer.composition)
        unpacked = unpacked_bytes(job, replace(layer, shards=share.own))
        if unpacked:
            yield Buffer(UNPACKED, unpacked, Lifetime.LAYER, layer.composition)


def refused_exchange(job: Job) -> Refusal:
    """Why a serving step cannot share contexts as its plan states; None if it can."""
    share = job.scheme.context(job.plan)
    if not job.step.serves or share.ranks == 1:
        return refused_choice(job) if job.step.serves else None
    for block, use in dict(zip(job.model.blocks, job.model.cache_uses(), strict=True)).items():
        kind, prompts = job.model.attention_of(block), job.token_shards > 1
        if kind.divides_prompts if prompts else kind.divides_context or not use.grows:
            continue
        kinds = [one for one in ATTENTION_KINDS.values() if (one.divides_prompts if prompts else one.divides_context)]
        held = "a prompt's tokens" if prompts else "a context"
        problem = f"{share.ranks} ranks hold parts of {held}, but attention of kind '{kind.name}' needs it whole"
        can = ", ".join(one.name for one in kinds)
        return share.axis, f"{problem}; kinds that can: {can}. Use tp, pp or dp for {job.model.name}"
    return refused_choice(job) or (None if job.token_shards > 1 else exchange_of(job).check(job, share))
