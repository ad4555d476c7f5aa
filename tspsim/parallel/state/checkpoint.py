"""Checkpoints of training: what ranks write, and what of a step waits for it.

Weights and optimizer state do not change between two updates. A step that checkpoints the update before it copies them
from every GPU to its host, layer by layer, on a stream of its own with copy engines (DataStates-LLM, Maurya et al.
2024, arXiv 2406.10707); the next update waits for the last copy. ``eager`` copies start with the step, ``overlapped``
ones after the first forward, so that gathers of weights have the links alone. Files are written from the host in the
background; a host holds one checkpoint, so the next one's copies wait for its file.

Ranks that hold the same parameters write equal shares of them. With Ψ parameters per rank, d such ranks, w and s bytes
of a weight and its state, B_h bytes/s to the host, B_f bytes/s of the file system for all N ranks, t from the start of
copies to the update and T between two checkpoints without checkpointing, a step stalls for

    overlapped, eager    max(0, copy − t, copy + file − T)   with   copy = Ψ(w + s)/(d·B_h),  file = N·Ψ(w + s)/(d·B_f)
    staged               copy + max(0, file − T)
    synchronous          copy + file

plus the contention of copies and messages to other nodes on a GPU's link to host and NIC.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.registry import Registry


@dataclass(frozen=True)
class Checkpoint:
    """A way to write checkpoints."""

    #: Its name in a plan's ``checkpoint``, and a line for the catalogue.
    name: str
    summary: str
    #: The step begins when the state is in the hosts' memory, or in its file.
    holds_copy: bool
    holds_file: bool
    #: Copies wait for the first forward, in which replicas that shard state gather the updated weights.
    after_forward: bool = False


CHECKPOINTS: Registry[Checkpoint] = Registry("checkpoint", "tspsim.checkpoints", Checkpoint)
OVERLAPPED = CHECKPOINTS.register(
    Checkpoint("overlapped", "copies from the first forward on; the update waits for them", False, False, True)
)
EAGER = CHECKPOINTS.register(
    Checkpoint("eager", "copies from the step's begin on, beside gathers of weights; the update waits", False, False)
)
STAGED = CHECKPOINTS.register(
    Checkpoint("staged", "the step begins when the state is in the hosts' memory; files follow", True, False)
)
SYNCHRONOUS = CHECKPOINTS.register(
    Checkpoint("synchronous", "the step begins when the state is in its file", True, True)
)
