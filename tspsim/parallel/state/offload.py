"""Kept activations that wait in the host's memory: copied there behind a layer's forward, back ahead of its backward.

Which layers go is spread evenly over a chunk, and two have room on their way (Transformer Engine's
``get_cpu_offload_context`` frees a layer's tensors at the end of a window of layers, and brings them back double
buffered): such a layer begins when the copy of the one before it is done, and what its backward needs comes while that
of the layers behind it works. Copies of both directions take turns on one stream, so that what comes back has left.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..builder import ProgramBuilder
from ..job import Job
from .memory import KeptActivations, kept_activations


def send(
    builder: ProgramBuilder,
    job: Job,
    compute_shards: int,
    kind: KeptActivations,
    ready: Sequence[int],
    earlier: int | None,
) -> int:
    """Behind the layer that is being written, which waits for the ``earlier`` copy, an index of the program; returns
    the index of the copy in the layer."""
    if earlier is not None:
        builder.hold_until(earlier - builder.length)
    return _copy(builder, job, compute_shards, kind, "out", "activations to host", ready)


def bring_back(builder: ProgramBuilder, job: Job, compute_shards: int, kind: KeptActivations, gate: int | None) -> int:
    """Ahead of the backward that is about to be written, once ``gate``, an index of the program, is over; returns the
    index of the copy in the layer."""
    after = [] if gate is None else [gate - builder.length]
    return _copy(builder, job, compute_shards, kind, "in", "activations from host", after)


def _copy(
    builder: ProgramBuilder,
    job: Job,
    compute_shards: int,
    kind: KeptActivations,
    direction: str,
    name: str,
    after: Sequence[int],
) -> int:
    size = kept_activations(job.making(kind.again), compute_shards, kind.block)
    return builder.copy(direction, size, name, after=after)
