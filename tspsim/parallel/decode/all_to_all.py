"""All-to-all of partial outputs with their log-sum-exps: each rank merges some heads.

The backend ``a2a`` of vLLM's decode context parallelism, and the exchange of Helix (Bhatia et al. 2025,
arXiv:2507.07120, §2.1).
"""

from __future__ import annotations

from ..builder import ProgramBuilder
from ..job import Job
from ..pipeline import Refusal
from ..registries import ContextShare
from .exchange import DECODE_EXCHANGES, DecodeExchange, Partial


def exchanged(partial: Partial) -> float:
    """Bytes of a rank's partial outputs and their log-sum-exp."""
    return partial.rows_of(partial.heads, partial.element) + partial.numbers(partial.heads)


def attend(builder: ProgramBuilder, partial: Partial, after: list[int]) -> list[int]:
    axis, heads = partial.share.axis, partial.heads // partial.ranks
    ready = partial.gather(builder, after)
    attended = builder.compute("attention over a part", *partial.attend(), after=ready)
    size = exchanged(partial)
    parts = builder.collective("all_to_all", axis, size, "partial outputs to heads", after=[attended])
    size += partial.rows_of(heads, partial.element)
    merged = builder.compute("merge", partial.combine_kernel(size, "merge partial outputs"), after=[parts])
    if not partial.share.keeps_all:
        return [merged]
    whole = partial.rows_of(partial.heads, partial.element)
    return [builder.collective("all_gather", axis, whole, "gather outputs", after=[merged])]


def received_bytes(partial: Partial) -> float:
    """(p − 1)/p of n·m·d elements and n·m fp32 numbers; plus the gathered outputs if all ranks need them."""
    again = partial.rows_of(partial.heads, partial.element) if partial.share.keeps_all else 0.0
    return partial.away * (exchanged(partial) + again + partial.gathered)


def check(job: Job, share: ContextShare) -> Refusal:
    heads = job.model.heads // share.attended
    if heads % share.ranks:
        return "decode_exchange", f"all_to_all deals {heads} heads to {share.ranks} ranks, which is not even; use tree"
    return None


EXCHANGE = DECODE_EXCHANGES.register(
    DecodeExchange(
        name="all_to_all",
        summary="one all-to-all of partial outputs: every rank merges some heads",
        attend=attend,
        received_bytes=received_bytes,
        buffer_bytes=lambda partial: partial.gathered + 2 * exchanged(partial),
        check=check,
        source="vLLM (`a2a`); Helix, Bhatia et al. 2025, arXiv:2507.07120",
    )
)
