"""Products and sums over ``tp`` in slices of one kernel (Flux, Chang et al. 2024, arXiv 2406.06858), and their
transport.

There are as many slices as ranks, n: a tile's rows go to the rank that owns them, or arrive from it, while the kernel
runs. With C of a product and W of its exchange, both whole:

    product, then sums      T = C/n + (n − 1)·max(C, W)/n + W/n
    rows, then product      T = W/n + (n − 1)·max(C, W)/n + C/n; max(C, W + C/n) if a rank's own rows come first

that is max(C, W) and a slice of the shorter; C + W at n = 1. The *transport* is the library's kernels, which take a
share of the compute units (the device's factor of kernels beside transfers), or copy engines, which take none and have
their own rate (``copy_engine`` of the node). Copy engines cannot add: partial rows go to their owner, a kernel there
adds them, and without sequence regions the sums are copied back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ...operators import MemoryBound
from ..builder import WHOLE, ProgramBuilder, Slice
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..plan import Plan
from ..reasons import OWN_KERNELS
from ..registries import Option
from ..search_rule import SearchRule, not_serving

#: Value of a plan's ``overlap`` for products and sums in slices of one kernel.
FUSED = "fused"
#: Algorithm of copies (:mod:`tspsim.network.collectives.copy_engines`).
COPIES = "copy_engines"
TRANSPORT = Option(
    "fused_transport",
    Literal["kernel", "copy"],
    None,
    "with overlap: fused, what moves rows: the library's kernels (default), or copy engines that the node's file has",
    SearchRule(why_not=OWN_KERNELS, of=not_serving),
)


@dataclass(frozen=True)
class Cut:
    """How a layer's products and sums are cut: into calls on fewer tokens, or slices of one call."""

    tokens: int
    pieces: int
    fused: bool

    @classmethod
    def of(cls, job: Job) -> Cut:
        plan = job.plan
        if plan.tp == 1 or not plan.overlap:
            return cls(job.tokens, 1, False)
        if plan.overlap == FUSED:
            return cls(job.tokens, plan.tp, True)
        return cls(job.tokens // plan.overlap_chunks, plan.overlap_chunks, False)

    @property
    def slices(self) -> list[Slice]:
        return [self.slice(piece) for piece in range(self.pieces)]

    def slice(self, piece: int) -> Slice:
        return Slice(piece, self.pieces) if self.fused else WHOLE


def copied(plan: Plan) -> bool:
    """Whether copy engines move a plan's rows."""
    return plan.options.get(TRANSPORT.name) == "copy"


def copied_rows(
    builder: ProgramBuilder, size_bytes: float, name: str, after: Sequence[int], slice_of: Slice = WHOLE
) -> int:
    """Copy every rank's rows to all ranks."""
    return builder.collective(
        "all_gather", "tp", size_bytes, name, after=after, stream="gather rows", algorithm=COPIES, slice_of=slice_of
    )


def copied_sum(
    builder: ProgramBuilder, job: Job, size_bytes: float, name: str, after: int, slice_of: Slice = WHOLE
) -> int:
    """Copy partial rows to their owners, which add them; without sequence regions the sums are copied to all."""
    ranks = job.plan.tp
    moved = builder.collective("all_to_all", "tp", size_bytes, name, after=[after], algorithm=COPIES, slice_of=slice_of)
    own = size_bytes / ranks
    kernel = MemoryBound("add", (ranks + 1) * own, max(1, round(own)), name="add partial rows")
    added = builder.compute(f"add for {name}", kernel, after=[moved], stream="sums", slice_of=slice_of)
    if job.plan.sequence_regions:
        return added
    return copied_rows(builder, size_bytes, f"{name}: back", [added], slice_of)


def buffers(job: Job) -> Iterator[Buffer]:
    """Partial rows that copy engines bring, until they are added."""
    if copied(job.plan):
        yield Buffer("partial_rows", job.tokens * job.model.hidden * job.activation_bytes, Lifetime.LAYER)


def check(job: Job, travels: bool) -> Refusal:
    """Why the plan does not fit: nothing to fuse, or no transport for it."""
    plan = job.plan
    if plan.overlap == FUSED and plan.tp == 1 and (not travels or plan.sp > 1):
        return "overlap", "fused is of tp's products and sums, or of experts that tokens are sent to, without sp"
    if plan.overlap == FUSED and TRANSPORT.name in plan.options and travels:
        problem = f"{plan.options[TRANSPORT.name]} is not built where experts are fused as well; leave it out"
        return TRANSPORT.name, problem
    if TRANSPORT.name in plan.options and plan.overlap != FUSED:
        return TRANSPORT.name, f"{plan.options[TRANSPORT.name]} is of `overlap: fused`; state that too"
    return None
