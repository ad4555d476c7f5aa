"""Kernels that a framework runs beside its products: casts of their operands, biases of experts; and norms apart."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeGuard

from ..operators import Computes, Gemm, GroupedGemm, MemoryBound, Operator, Role, element_bytes

#: Bytes of an element before a cast; of the fp32 scale per 128 elements (DeepSeek-V3, §3.3.2) of one element; and of an
#: element in eight bits and in 12 (E5M6) with it.
WIDE, SCALE = element_bytes("bf16"), 4.0 / 128.0
EIGHT_BITS, E5M6 = 1.0 + SCALE, 1.5 + SCALE
#: Ops of kernels that cast rows, and back.
CAST, CAST_BACK = "cast", "cast_back"
#: Rows and columns of scales that one block turns, in a kernel that turns those of one product.
TURNED = 128
#: Share of a gated activation's bytes that it writes.
WRITTEN = 1.0 / 3.0
#: Tensors of the residual stream that a fused residual add and norm moves, forward or backward.
NORM_TENSORS = 4.0
_ACTIVATIONS = frozenset({Role.ACTIVATION, Role.EXPERTS_ACTIVATION})
#: Products behind an activation, and those that read what an exchange sends too.
_BEHIND_ACTIVATIONS = frozenset({Role.DOWN, Role.EXPERTS_DOWN})
_SENT = Role.GATE_UP


@dataclass(frozen=True)
class CastKernels:
    """Kernels of their own that write the operands of products in eight bits.

    Hopper's tensor cores read eight-bit operands along k alone (CUTLASS and DeepGEMM multiply "NT"). Operands kept in
    eight bits for the weights' gradient are therefore transposed, with scales of their own (DeepSeek-V3, §3.5.2, asks
    for hardware that makes this needless), and so are the weights. Attention's output is kept in 12 bits instead
    (§3.3.3), cast there and back by further kernels. Linear layers that are one product here, as the two projections to
    latents, cast their input each (``inference/model.py``, ``linear``).

    Attributes
    ----------
    in_activations
        An activation's kernel writes what its product reads; no kernel casts it.
    turns_scales
        A kernel lays the scales of what a product reads out by columns (DeepGEMM's products want them so).
    shares_sent
        What is cast for an exchange with experts is not cast again for shared experts; they keep it in eight bits.
    gradients_beside
        The gradients that an exchange sends are cast on its multiprocessors, beside kernels.
    """

    in_activations: bool = False
    turns_scales: bool = False
    shares_sent: bool = False
    gradients_beside: bool = False

    def around(self, product: Gemm, recomputed: Container[Role] = ()) -> tuple[Operator, ...]:
        """The product, and the kernels that write its operands. Inputs of products with roles in ``recomputed`` are not
        kept: they are wide when they are written across."""
        own = product.batch * product.m * product.k
        alone = replace(product, cast_apart=True)
        if product.computes is Computes.WEIGHT_GRADIENT:
            return *self._across(product, own, recomputed), alone
        element, turned = element_bytes(product.dtype), self._scales(product)
        cast = product.quantised or (self.in_activations and product.role in _BEHIND_ACTIVATIONS)
        if product.computes is Computes.OUTPUT:
            waits = (_moved(CAST, "cast for backward", product, own, WIDE + E5M6),) * (product.role is Role.OUTPUT)
            casts = () if cast else (_moved(CAST, "cast", product, own, WIDE + element),)
            return *waits, *product.joins * (*casts, *turned), alone
        casts = () if product.quantised else (_moved(CAST, "cast", product, own, WIDE + element),)
        weights = product.batch * product.n * product.k
        turn = replace(
            _moved("copy", "weights across", product, weights, 2.0 * element), rows=product.batch * product.k
        )
        read = element if product.quantised else WIDE
        return turn, *casts, *turned, alone, _moved("copy", "gradients across", product, own, read + element)

    def _across(self, product: Gemm, own: int, recomputed: Container[Role]) -> Iterator[Operator]:
        """The kernels that write the input of a product across, for its weights' gradient."""
        element = element_bytes(product.dtype)
        wide = product.role in recomputed
        for _ in range(product.joins):
            if product.role is Role.OUTPUT:
                wide = True
                yield _moved(CAST_BACK, "cast back", product, own, E5M6 + WIDE)
            elif self.shares_sent and product.role is _SENT and wide:
                # A norm that is computed again is cast again, as its forward was.
                yield _moved(CAST, "cast", product, own, WIDE + element)
                yield _moved(CAST_BACK, "cast back", product, own, element + WIDE)
            yield _moved("copy", "inputs across", product, own, (WIDE if wide else element) + element)

    def _scales(self, product: Gemm) -> tuple[MemoryBound, ...]:
        """The kernel that turns the scales of what a product reads: a block for every tile; for experts all blocks."""
        if not self.turns_scales:
            return ()
        columns = ceil(product.k / 128)
        size = 2.0 * SCALE * product.batch * product.m * product.k
        tiles = 0 if isinstance(product, GroupedGemm) else ceil(product.m / TURNED) * ceil(columns / TURNED)
        return (replace(_moved("copy", "scales across", product, 1, size), units=tiles),)

    def in_activation(self, activation: MemoryBound) -> MemoryBound:
        """An activation that writes eight bits, with their scales."""
        if not self.in_activations:
            return activation
        return replace(activation, size_bytes=activation.size_bytes * (1.0 - WRITTEN * (1.0 - EIGHT_BITS / WIDE)))


def _moved(op: str, name: str, product: Gemm, elements: float, size: float) -> MemoryBound:
    rows = product.batch * product.m
    return MemoryBound(op, elements * size, rows, name=name, computes=product.computes)


def forward_activation(operator: Operator, beside: Sequence[Operator]) -> TypeGuard[MemoryBound]:
    """Whether it is the activation of a forward, and not one made again for the backward that stands beside it."""
    if not is_activation(operator) or operator.computes is not Computes.OUTPUT:
        return False
    return not any(is_activation(other) and other.computes is not Computes.OUTPUT for other in beside)


def is_activation(operator: Operator) -> TypeGuard[MemoryBound]:
    """Whether it is the activation of an MLP, or a gradient of one."""
    return isinstance(operator, MemoryBound) and operator.role in _ACTIVATIONS


#: A number for a forward's kernels, and one for a backward's.
Both = tuple[float, float]


def norm_kernels(operator: MemoryBound, tensors: tuple[Both, Both], blocks: tuple[int, int]) -> tuple[MemoryBound, ...]:
    """A norm's own kernel, and those around one of the residual stream, by the ``tensors`` that each moves; the norm
    has so many ``blocks`` on each multiprocessor."""
    back = operator.computes is not Computes.OUTPUT
    own, others = tensors[back]
    if operator.op != "add_rmsnorm":
        return (replace(operator, resident=blocks[back]),)
    tensor_bytes = operator.size_bytes / NORM_TENSORS
    norm = replace(operator, size_bytes=own * tensor_bytes, resident=blocks[back])
    around = replace(operator, op="copy", size_bytes=others * tensor_bytes, name=f"sums around {operator.name}")
    return (around, norm) if others else (norm,)


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
