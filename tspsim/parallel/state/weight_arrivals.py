"""Weights from the host, or from neighbours, written into a program (:mod:`tspsim.parallel.state.weight_offload`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..builder import ProgramBuilder
from ..plan import WEIGHT_PEERS
from . import weight_peers
from .weight_offload import BUFFERS

#: Stream of copies to a rank. If offloaded activations return too, all share the stream of copies to the host.
STREAM = "weights from host"


class WeightArrivals:
    """Copies of a stage's layers, each into the buffer of the layer before the last."""

    def __init__(self) -> None:
        self._uses: deque[int] = deque(maxlen=BUFFERS)
        self._copy = -1

    def bring(self, builder: ProgramBuilder, size_bytes: float, *, beside_activations: bool) -> int:
        """Copy the weights of the layer about to be written; returns the index of the copy in the layer."""
        builder.part = "weights"
        free = [self._uses[0] - builder.length] if len(self._uses) == BUFFERS else []
        stream = "" if beside_activations else STREAM
        if weight_peers.peers(builder.plan):
            name = "weights from neighbours"
            self._copy = builder.collective("all_gather", WEIGHT_PEERS, size_bytes, name, after=free, stream=STREAM)
        else:
            self._copy = builder.copy("in", size_bytes, "weights from host", after=free, stream=stream)
        return self._copy

    def hold(self, builder: ProgramBuilder) -> int:
        """Make the layer just written wait for its weights; returns its last kernel's index in it."""
        builder.hold_until(self._copy)
        return builder.last_kernel

    def used(self, kernel: int) -> None:
        """Record the last kernel (an index of the program) that needed the weights."""
        self._uses.append(kernel)


def send_back(builder: ProgramBuilder, sizes: Sequence[float], updated: int) -> None:
    """Copy updated weights to the host, layer by layer."""
    builder.part = "weights"
    for size in sizes:
        builder.copy("out", size, "weights to host", after=[updated])
