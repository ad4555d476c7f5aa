"""Checkpoints of training: who writes what, and what of a step waits for it.

Weights and optimizer state do not change between two updates. A step that writes a checkpoint of the update before it
copies them from every GPU to its host, layer by layer, on a stream and with copy engines of their own (DataStates-LLM,
Maurya et al. 2024, arXiv 2406.10707); the next update waits for the last copy. ``eager`` copies begin with the step;
``overlapped`` ones when the first forward is over, so that gathers of weights have the links to themselves. Files
follow from the host in the background: a host holds one checkpoint, so that the next one's copies wait until it is
written.

Each of the ranks that hold the same parameters writes an equal share of them. With Ψ parameters a rank holds, d such
ranks, w and s bytes of a weight and its state, B_h bytes/s to the host, B_f of the file system for all N ranks, t from
where copies begin to the update and T between two checkpoints without that, a step is held up by

    overlapped, eager    max(0, copy − t, copy + file − T)   with   copy = Ψ(w + s)/(d·B_h),  file = N·Ψ(w + s)/(d·B_f)
    staged               copy + max(0, file − T)
    synchronous          copy + file

and by what copies and messages to other nodes take of each other on a GPU's link to host and NIC.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.registry import Registry


@dataclass(frozen=True)
class Checkpoint:
    """A way to write checkpoints."""

    #: What a plan's ``checkpoint`` calls it, and a line for the catalogue.
    name: str
    summary: str
    #: The step begins when the state is in the hosts' memory, or in its file.
    holds_copy: bool
    holds_file: bool
    #: Copies wait for the first forward, with which replicas that divide state gather the weights of the update.
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
