"""Kernels that a framework runs beside its products: casts of their operands, biases of experts."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from ..operators import Computes, Gemm, GroupedGemm, MemoryBound, Operator, Role, element_bytes

#: Bytes of an element before a cast, and of one in 12 bits (E5M6) with a scale per 128 elements.
WIDE, E5M6 = element_bytes("bf16"), 1.5 + 4.0 / 128.0


def with_casts(product: Gemm, recomputed: Container[Role] = ()) -> tuple[Operator, ...]:
    """A product in eight bits, and the kernels that write its operands.

    Hopper's tensor cores read eight-bit operands along k alone (CUTLASS and DeepGEMM multiply "NT"). Operands kept in
    eight bits for the weights' gradient are therefore transposed, with scales of their own (DeepSeek-V3, §3.5.2, asks
    for hardware that makes this needless), and so are the weights. Attention's output is kept in 12 bits instead
    (§3.3.3), cast there and back by further kernels. Inputs of products with roles in ``recomputed`` are not kept: they
    are wide when they are written across. Linear layers that are one product here, as the two projections to latents,
    cast their input each (``inference/model.py``, ``linear``).
    """
    element, rows = element_bytes(product.dtype), product.batch * product.m
    waits, times = product.role is Role.OUTPUT, product.joins

    def moved(name: str, elements: float, size: float, rows: int) -> MemoryBound:
        return MemoryBound("copy", elements * size, rows, name=name, computes=product.computes)

    own = product.batch * product.m * product.k
    alone = replace(product, cast_apart=True)
    if product.computes is Computes.WEIGHT_GRADIENT:
        if waits:
            back = moved("cast back", own, E5M6 + WIDE, rows)
            return back, moved("inputs across", own, WIDE + element, rows), alone
        kept = WIDE if product.role in recomputed else element
        return *times * (moved("inputs across", own, kept + element, rows),), alone
    casts = () if product.quantised else (moved("cast", own, WIDE + element, rows),)
    if product.computes is Computes.OUTPUT:
        return *((moved("cast for backward", own, WIDE + E5M6, rows),) if waits else ()), *times * casts, alone
    weights = product.batch * product.n * product.k
    turned = moved("weights across", weights, 2.0 * element, product.batch * product.k)
    read = element if product.quantised else WIDE
    return turned, *casts, alone, moved("gradients across", own, read + element, rows)


def bias_kernels(product: GroupedGemm, sizes: tuple[float, float, float, float]) -> Iterator[Operator]:
    """Kernels that add the biases of a product of experts and clamp what it gives, or in a backward, beside its
    weights' gradient, sum theirs and choose what was not clamped."""
    forward, backward = sizes[2:] if product.role is Role.EXPERTS_DOWN else sizes[:2]
    rows, size = product.m, forward
    if product.computes is Computes.WEIGHT_GRADIENT:
        rows, size = product.k, backward
    elif product.computes is Computes.INPUT_GRADIENT:
        return
    if size:
        yield MemoryBound("add", size * product.batch * rows * product.n, rows, name="biases of experts")
