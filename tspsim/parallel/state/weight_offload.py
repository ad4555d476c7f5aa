"""Weight offload: weights of some layers are in host memory, and are copied over its link ahead of use.

Offloaded layers are spread evenly over a chunk, as in vLLM's prefetching offloader and as ``offload_layers`` does with
activations. A rank has room for two of them: a copy replaces the layer before the last, whose kernels have ended, while
the last one and the layers between run (FlexGen, Sheng et al. 2023; ZeRO-Inference, Aminabadi et al. 2022). A layer
begins when its weights have arrived. With C of a layer's kernels, W of its bytes per rank and link bandwidth b, n
layers that are all offloaded take

    W/b + (n - 1)·max(C, W/b) + C,

and a group of g layers with one offloaded max(g·C, W/b). C grows with tokens and W does not: a copy hides behind the
compute of enough tokens, and never behind that of a decode step, which is itself W over the device's own memory
bandwidth.

A backward needs its layers again. Trained weights return to the host after the update; the optimizer's state stays.
Copies (``weight_arrivals``) share the link with the GPU's traffic to and from its NIC
(:mod:`tspsim.network.collectives.traffic`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ...model import Block
from ..feature import FEATURES, Feature
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import spread_over
from ..placement import Chunk
from . import weight_peers

#: Layers that a rank has room for: one in use, and one arriving.
BUFFERS = 2


def away(job: Job, chunks: Iterable[Chunk]) -> Counter[Block]:
    """Offloaded layers of some chunks, by kind."""
    gone_of: Counter[Block] = Counter()
    for chunk in chunks:
        blocks = job.model.blocks[chunk.first_layer : chunk.first_layer + chunk.layers]
        gone_of.update(block for block, gone in zip(blocks, places(job, chunk), strict=True) if gone)
    return gone_of


def places(job: Job, chunk: Chunk) -> tuple[bool, ...]:
    """Whether each of a chunk's layers is offloaded."""
    return spread_over(chunk.layers, job.plan.offload_weights)


def buffers(sizes: Iterable[float]) -> Iterator[Buffer]:
    """Room for arriving layers, of the offloaded layers' ``sizes``; none without offloaded layers."""
    widest = max(sizes, default=0.0)
    if widest:
        yield Buffer("weight_buffers", BUFFERS * widest, Lifetime.STEP)


def refused(job: Job) -> tuple[str, str] | None:
    """The key and the reason if a job's weights cannot be offloaded."""
    plan, most = job.plan, max(job.chunk_sizes)
    layers = plan.offload_weights
    key = "offload_weights"
    if layers > most:
        return key, f"{layers} are more than the {most} layers of a chunk; use at most {most}"
    if not job.work.host_bytes_per_s and not weight_peers.peers(plan):
        return key, "needs a node whose link to its host's memory is known"
    if job.scheme.folds:
        return key, f"is not built where weights travel between ranks; use {plan.token_axis} 1 with tp, sp or dp"
    if plan.expert_shards == 0:
        return key, "is not built where experts are gathered (expert_shards: 0); leave one out"
    if not plan.order.placement.one_way or plan.hiding.halves or plan.hiding.micro_batches:
        return key, "is not built where tasks take turns on a stage; use schedule: 1f1b and expert_overlap: none"
    if job.training and plan.zero == 3:
        return key, "is not built with zero: 3, whose ranks gather each other's weights; use zero: 0"
    if job.training and plan.zero and job.work.adapters is None:
        return key, f"is not built with zero: {plan.zero}, which gathers weights that are trained; use zero: 0"
    return None


FEATURES.register(
    Feature("offload_weights", "weights of some layers in the hosts' memory", keys=("offload_weights",), check=refused)
)
