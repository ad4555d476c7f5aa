"""Decode exchange ``ag_rs``, vLLM's default: log-sum-exps are gathered, outputs rescaled and summed."""

from __future__ import annotations

from ..builder import ProgramBuilder
from .exchange import DECODE_EXCHANGES, DecodeExchange, Partial


def attend(builder: ProgramBuilder, partial: Partial, after: list[int]) -> list[int]:
    """All-gather log-sum-exps and reduce-scatter outputs (all-reduce if all ranks need them)."""
    axis, heads = partial.share.axis, partial.heads
    ready = partial.gather(builder, after)
    attended = builder.compute("attention over a part", *partial.attend(), after=ready)
    all_scores = partial.ranks * partial.numbers(heads)
    scores = builder.collective("all_gather", axis, all_scores, "gather log-sum-exps", after=[attended])
    outputs = partial.rows_of(heads, partial.element)
    rescaled = builder.compute(
        "rescale", partial.combine_kernel(2 * outputs + all_scores, "rescale outputs"), after=[scores]
    )
    kind = "all_reduce" if partial.share.keeps_all else "reduce_scatter"
    return [builder.collective(kind, axis, outputs, "sum outputs", after=[rescaled])]


def received_bytes(partial: Partial) -> float:
    """(p − 1)·n·m fp32 numbers, and (p − 1)/p of n·m·d elements (twice that for an all-reduce)."""
    outputs = partial.rows_of(partial.heads, partial.element) * (2 if partial.share.keeps_all else 1)
    return partial.away * (partial.ranks * partial.numbers(partial.heads) + outputs + partial.gathered)


def buffer_bytes(partial: Partial) -> float:
    outputs = partial.rows_of(partial.heads, partial.element)
    return partial.gathered + 2 * outputs + partial.ranks * partial.numbers(partial.heads)


EXCHANGE = DECODE_EXCHANGES.register(
    DecodeExchange(
        name="gather_scatter",
        summary="log-sum-exps gathered, outputs summed by a reduce-scatter",
        attend=attend,
        received_bytes=received_bytes,
        buffer_bytes=buffer_bytes,
        source="vLLM, decode context parallelism",
    )
)
