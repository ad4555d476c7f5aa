"""Activation offload: copies to host memory after a layer's forward, back before its backward.

Offloaded layers are spread evenly over a chunk, and two have room in transit (Transformer Engine's
``get_cpu_offload_context`` frees a layer's tensors at the end of a window of layers, and reloads them double-buffered):
such a layer begins after the copy of the offloaded layer before it, and its activations return while the layers after
it run backward. Copies of both directions alternate on one stream, so that what returns has left.
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
    """Copy the activations of the layer being written to the host, and make it wait for the ``earlier`` copy (an index
    of the program); returns the index of the copy in the layer."""
    if earlier is not None:
        builder.hold_until(earlier - builder.length)
    return _copy(builder, job, compute_shards, kind, "out", "activations to host", ready)


def bring_back(builder: ProgramBuilder, job: Job, compute_shards: int, kind: KeptActivations, gate: int | None) -> int:
    """Copy activations back before the backward about to be written, once ``gate`` (an index of the program) has ended;
    returns the index of the copy in the layer."""
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
    size = kept_activations(job.with_recomputation(kind.recomputation), compute_shards, kind.block)
    return builder.copy(direction, size, name, after=after)
