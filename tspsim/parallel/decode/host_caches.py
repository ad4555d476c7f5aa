"""Caches of some sequences in host memory, or in a memory pool, copied to the device ahead of attention.

FlexGen (Sheng et al. 2023); FengHuang's pool (Li et al. 2025, arXiv:2511.10753), which pages caches one tensor ahead.
``host_caches: φ`` keeps the share φ of the decoding sequences there. In every layer their keys and values arrive on a
stream of their own in one of two buffers, as soon as the attention of the layer before the last has left it. Attention
of all sequences is one call and waits for them; new entries are copied back. With K bytes of a layer's remote caches
per rank, link bandwidth b and C seconds of a layer's kernels, n layers take

    K/b + (n - 1)·max(C, K/b) + C.

Device memory is 60 to 150 times as fast as a host's link, so a layer hides little of it: the gain is room, not speed. A
pool with links as fast as memory costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ...model.layer import ServingLayer
from ...operators import Rows
from ..builder import ProgramBuilder
from ..feature import FEATURES, Attend, Feature
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..placement import Chunk
from ..registries import ContextShare, Option
from ..search_rule import SearchRule, decodes
from .elsewhere import cache_bytes, parted, remote_share

#: The key of a plan, and the stream of the copies.
KEY, STREAM = "host_caches", "caches from host"
#: Layers whose remote caches have room on a rank: one attended, one arriving.
BUFFERS = 2


def remote_rows(job: Job) -> Rows:
    """Rows of a pass whose caches are remote."""
    return parted(job.rows, remote_share(job.plan, KEY))[1]


def attention_after_caches(attend: Attend) -> Attend:
    """Attention that waits for the arriving caches."""

    def write(
        builder: ProgramBuilder, job: Job, layer: ServingLayer, share: ContextShare, after: list[int]
    ) -> list[int]:
        here = fetch_caches(builder, job, layer, share.attended)
        ready = attend(builder, job, layer, share, [*after, *here])
        attended(builder, job, layer, share.attended, ready[0])
        return ready

    return write


def fetch_caches(builder: ProgramBuilder, job: Job, layer: ServingLayer, shards: int) -> list[int]:
    """Copy a layer's remote caches; returns the dependencies of its attention."""
    rows = remote_rows(job)
    size = cache_bytes(layer, shards, rows) if rows else 0.0
    if not size:
        return []
    came = builder.copy("in", size, "caches from host", stream=STREAM)
    builder.buffers(STREAM, BUFFERS, 1).fill(0, came)
    return [came]


def attended(builder: ProgramBuilder, job: Job, layer: ServingLayer, shards: int, kernel: int) -> None:
    """Free the buffer after ``kernel``, and copy new entries back."""
    rows = remote_rows(job)
    if not rows or not cache_bytes(layer, shards, rows):
        return
    builder.buffers(STREAM, BUFFERS, 1).used(0, kernel)
    before = tuple((0, context, count) for _, context, count in rows)
    added = cache_bytes(layer, shards, rows) - cache_bytes(layer, shards, before)
    if added > 0.0:
        builder.copy("out", added, "new entries to host", after=[kernel])


def arriving_bytes(job: Job) -> float:
    """Bytes of a step's remote caches that arrive at a rank, of the stage with most."""
    if not remote_share(job.plan, KEY):
        return 0.0
    shards = job.scheme.context(job.plan).attended
    passes = [remote_rows(job.at(index)) for index in range(len(job.passes))]

    def stage_bytes(stage: int) -> float:
        kinds = job.blocks(job.chunks(stage))
        return sum(
            count * cache_bytes(layer, shards, rows)
            for block, count in kinds.items()
            for rows in passes
            if isinstance(layer := job.layer(shards, block), ServingLayer)
        )

    return max(stage_bytes(stage) for stage in range(job.plan.pp))


def buffers(job: Job, chunks: Sequence[Chunk]) -> Iterator[Buffer]:
    """Room for two layers' remote caches."""
    layers = [job.layer(job.plan.tp, block) for block in dict.fromkeys(job.model.blocks)]
    widest = max(
        cache_bytes(layer, job.plan.tp, remote_rows(job)) for layer in layers if isinstance(layer, ServingLayer)
    )
    yield Buffer("cache_buffers", BUFFERS * widest, Lifetime.STEP)


def refused(job: Job) -> Refusal:
    """Why the plan or model does not fit."""
    plan, model = job.plan, job.model
    if not job.work.host_bytes_per_s:
        return KEY, "needs a node whose link to its host's memory is known"
    if model.linear or model.compressed or model.indexing:
        return KEY, f"is built for caches that a step reads whole; {model.name} keeps others"
    if job.drafts or job.work.load.streams.branches:
        return KEY, "is not built for drafts and branches; leave one out"
    beside = next((key for key in ("dcp", "kvp", "expert_pool", "host_attention") if plan.options.get(key, 0)), None)
    beside = beside or ("sp" if plan.sp > 1 else None) or ("offload_weights" if plan.offload_weights else None)
    if beside is not None:
        return beside, f"beside {KEY} is not built; leave one out"
    if plan.hiding.halves:
        return "expert_overlap", f"{plan.expert_overlap} beside {KEY} is not built; leave one out"
    return None


def notes(job: Job) -> Iterator[str]:
    """Bytes of caches that arrive each step, and their least time."""
    size = arriving_bytes(job) if job.step.serves else 0.0
    if size:
        yield (
            f"{size / 1e9:,.3g} GB of caches per GPU come from the host's memory every step, in "
            f"{1e3 * size / job.work.host_bytes_per_s:,.3g} ms at best (`{KEY}`)"
        )


FEATURES.register(
    Feature(
        KEY,
        "caches of some sequences in the hosts' memory, copied ahead of attention",
        options=(
            Option(
                KEY,
                Annotated[float, Field(gt=0, lt=1)],
                None,
                "share of the decoding sequences whose caches lie in host memory or a memory pool, and arrive ahead of "
                "attention",
                SearchRule(
                    why_not="slower than attention on the hosts, which is tried, of all but few sequences",
                    of=lambda model, work: (
                        decodes(model, work) and bool(work.load.batch) and work.host_bytes_per_s > 0.0
                    ),
                ),
            ),
        ),
        scheme="tensor",
        serves=True,
        check=refused,
        notes=notes,
        buffers=buffers,
        context=lambda plan, context: replace(context, hosts=remote_share(plan, KEY)),
        attends=attention_after_caches,
    )
)
