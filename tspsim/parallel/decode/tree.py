"""Partial attention merged by all-reduces (Shyam et al. 2024, Tree Attention, arXiv:2408.04093, §5)."""

from __future__ import annotations

from dataclasses import replace

from ..builder import ProgramBuilder
from .exchange import DECODE_EXCHANGES, FP32, DecodeExchange, Partial


def reduced(partial: Partial) -> float:
    """Bytes that are all-reduced: the maximum, numerators and denominators, in fp32."""
    return 2 * partial.numbers(partial.heads) + partial.rows_of(partial.heads, FP32)


def attend_and_rescale(builder: ProgramBuilder, partial: Partial, after: list[int]) -> list[int]:
    """Each rank's numerators and denominators, scaled to the largest log-sum-exp of all ranks."""
    share, heads = partial.share, partial.heads
    ready = partial.gather(builder, after)
    attended = builder.compute("attention over a part", *partial.attend(), after=ready)
    largest = builder.collective("all_reduce", share.axis, partial.numbers(heads), "largest score", after=[attended])
    size = partial.rows_of(heads, partial.element + FP32) + 2 * partial.numbers(heads)
    return [builder.compute("rescale", partial.combine_kernel(size, "rescale numerators"), after=[largest])]


def divide(builder: ProgramBuilder, partial: Partial, after: list[int]) -> list[int]:
    """Divide numerators by denominators, of this rank's own heads."""
    own = partial.own_heads
    size = partial.rows_of(own, partial.element + FP32) + partial.numbers(own)
    return [builder.compute("divide", partial.combine_kernel(size, "divide by denominators"), after=after)]


def attend(builder: ProgramBuilder, partial: Partial, after: list[int]) -> list[int]:
    """Three all-reduces in order: maximum, numerators, denominators."""
    axis, heads = partial.share.axis, partial.heads
    ready = attend_and_rescale(builder, partial, after)
    ready = [builder.collective("all_reduce", axis, partial.rows_of(heads, FP32), "numerators", after=ready)]
    ready = [builder.collective("all_reduce", axis, partial.numbers(heads), "denominators", after=ready)]
    return divide(builder, partial, ready)


def attend_fused(builder: ProgramBuilder, partial: Partial, after: list[int]) -> list[int]:
    """Two all-reduces: the maximum, then numerators and denominators in one vector."""
    heads = partial.heads
    size = partial.rows_of(heads, FP32) + partial.numbers(heads)
    ready = attend_and_rescale(builder, partial, after)
    ready = [builder.collective("all_reduce", partial.share.axis, size, "numerators and denominators", after=ready)]
    return divide(builder, partial, ready)


def received_bytes(partial: Partial) -> float:
    """2(p − 1)/p of the reduced bytes, n·m·(d + 2) fp32 numbers, and (p − 1)/p of the gathered bytes."""
    return partial.away * (2 * reduced(partial) + partial.gathered)


def buffer_bytes(partial: Partial) -> float:
    return partial.gathered + partial.rows_of(partial.heads, partial.element) + reduced(partial)


TREE = DECODE_EXCHANGES.register(
    DecodeExchange(
        name="tree",
        summary="three all-reduces: the largest score, numerators, denominators",
        attend=attend,
        received_bytes=received_bytes,
        buffer_bytes=buffer_bytes,
        source="Shyam et al. 2024, arXiv:2408.04093",
    )
)
FUSED = DECODE_EXCHANGES.register(
    replace(
        TREE,
        name="tree_fused",
        summary="two all-reduces: the largest score, then numerators with their denominators",
        attend=attend_fused,
    )
)
