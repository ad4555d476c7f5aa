"""All-to-all in two halves of the batch: one half's partial outputs move while the other is attended.

Helix's HOP-B (Bhatia et al. 2025, arXiv:2507.07120, §2.1.3) sends each request's outputs as soon as it is attended; two
halves pay the latency of two exchanges and two kernels instead of one per request.
"""

from __future__ import annotations

from dataclasses import replace

from ...steps.load import Batch
from ..builder import ProgramBuilder
from . import all_to_all
from .exchange import DECODE_EXCHANGES, DecodeExchange, Partial


def attend(builder: ProgramBuilder, partial: Partial, after: list[int]) -> list[int]:
    axis, heads = partial.share.axis, partial.heads // partial.ranks
    ready = partial.gather(builder, after)
    halves = [replace(partial, rows=tuple(half.rows)) for half in Batch(partial.rows, outputs=0).halves if half.rows]
    arrived, size = [], partial.rows_of(heads, partial.element)
    for number, half in enumerate(halves, start=1):
        name = f"{number}/{len(halves)}"
        attended = builder.compute(f"attention over a part {name}", *half.attend(), after=ready)
        moved = all_to_all.exchanged(half)
        arrived.append(builder.collective("all_to_all", axis, moved, f"outputs to heads {name}", after=[attended]))
        size += moved
    merged = builder.compute("merge", partial.combine_kernel(size, "merge partial outputs"), after=arrived)
    if not partial.share.keeps_all:
        return [merged]
    whole = partial.rows_of(partial.heads, partial.element)
    return [builder.collective("all_gather", axis, whole, "gather outputs", after=[merged])]


EXCHANGE = DECODE_EXCHANGES.register(
    DecodeExchange(
        name="hop_b",
        summary="the all-to-all in halves of the batch: one travels while the other is attended",
        attend=attend,
        received_bytes=all_to_all.received_bytes,
        buffer_bytes=all_to_all.EXCHANGE.buffer_bytes,
        check=all_to_all.check,
        source="HOP-B of Helix, Bhatia et al. 2025, arXiv:2507.07120, in two halves",
        why_not="all_to_all in halves: for comparison with Helix",
    )
)
