"""What frameworks without a compiler run where one fused kernel could: registered kinds, counted kernel by kernel.

A kernel reads and writes so many bytes for each element of a tensor of two bytes. What forward passes run stands in
modelling code, what backward passes run in PyTorch's formulas (tools/autograd/derivatives.yaml); a dispatcher that
counts both says the same (docs/eager-kernels.md). Tensors of a number a row, or broadcast over tokens, count nothing.

Kernels that visit their elements by index, because an operand is broadcast or strided or because they widen, do not
load whole vectors: they take as long as copies of :data:`INDEXED` further bytes an element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..base.registry import Registry
from ..operators import Computes, MemoryBound, Role

#: Bytes per element by which kernels that index take longer than a copy of what they move: the median of nine kernels
#: of an eager forward on each of H100 (4.0; 1.6 to 8.4) and MI300X (2.5; 1.8 to 7.7), tensors of 9.2 million elements
#: (AMD-AGI/TraceLens, tests/traces, Qwen1.5-0.5B).
INDEXED = 3.0


class Moved(NamedTuple):
    """One kernel: bytes read and written per element, and elements visited by index."""

    read: float
    written: float
    indexed: float = 0.0


#: Kernels one after the other.
Chain = tuple[Moved, ...]


class Both(NamedTuple):
    """Kernels of a forward, and of its backward."""

    forward: Chain
    backward: Chain


def copied_bytes(chain: Chain) -> float:
    """Bytes of a copy that takes as long as the kernels of a chain."""
    return sum(kernel.read + kernel.written + INDEXED * kernel.indexed for kernel in chain)


#: A sum of two tensors, of gradients too.
ADD = Moved(4.0, 2.0)
#: A cast to fp32, and one back, which reads whole vectors.
WIDEN, NARROW = Moved(2.0, 4.0, 1.0), Moved(4.0, 2.0)

#: x.float(), its square, their mean, x over its root, a cast, weights. Backward: gradients of the input and of weights
#: through the latter; a cast; gradients of x and of the root; of mean and square; their sum; a cast.
RMS_NORM = Both(
    (WIDEN, Moved(4.0, 4.0), Moved(4.0, 0.0), Moved(4.0, 4.0, 1.0), NARROW, Moved(2.0, 2.0, 1.0)),
    (
        Moved(2.0, 2.0, 1.0), Moved(4.0, 2.0), Moved(2.0, 0.0), WIDEN,
        Moved(8.0, 4.0), Moved(4.0, 0.0), Moved(4.0, 4.0, 1.0),
        Moved(0.0, 4.0, 1.0), Moved(4.0, 4.0), Moved(4.0, 4.0), Moved(8.0, 4.0),
        Moved(8.0, 4.0), NARROW,
    ),
)  # fmt: skip
#: Both gradients in one pass, and a second over gradient and input for the weights'.
LAYER_NORM = Both((Moved(2.0, 2.0),), (Moved(4.0, 2.0), Moved(4.0, 0.0)))
#: x.float(), a product of complex numbers, a cast; backward alike.
_TURNED = (WIDEN, Moved(4.0, 4.0, 0.5), NARROW)
COMPLEX_ROTATION = Both(_TURNED, _TURNED)
#: x·cos + rotate_half(x)·sin: products, a negated half, a concatenation, a sum. In the backward slices are copied into
#: zeros.
_HALF = Moved(1.0, 1.0, 0.5)
_SLICE = (Moved(0.0, 2.0), _HALF)
_PRODUCT, _SUM = Moved(2.0, 2.0, 1.0), Moved(4.0, 2.0, 1.0)
HALVES_ROTATION = Both(
    (_PRODUCT, _HALF, Moved(2.0, 2.0, 1.0), _PRODUCT, _SUM),
    (_PRODUCT, _PRODUCT, *_SLICE, _SUM, _HALF, *_SLICE, _SUM),
)
#: x.float(), a product with matrices of 2 × 2, which writes twice the elements, their sum, a cast.
_MATRICES = (WIDEN, Moved(4.0, 8.0, 2.0), Moved(8.0, 4.0), NARROW)
MATRIX_ROTATION = Both(_MATRICES, _MATRICES)
#: silu(gate) · up: two kernels, and three gradients, of elements of what they write.
SWIGLU = Both((Moved(2.0, 2.0), ADD), (ADD, ADD, ADD))
#: A function of one tensor is one kernel, as fused.
POINTWISE = Both((Moved(2.0, 2.0),), (ADD,))
#: Scores of a router: a cast, softmax, a search.
CHOICE = (WIDEN, Moved(4.0, 4.0), Moved(4.0, 0.0))

#: Of fused kernels, bytes per element in two bytes: forward, backward.
FUSED_BYTES = {
    "add_rmsnorm": (8.0, 8.0), "rmsnorm": (4.0, 6.0), "rope": (4.0, 4.0), "qk_norm_rope": (4.0, 4.0),
    "swiglu": (6.0, 10.0), "pointwise": (4.0, 6.0), "add": (6.0, 6.0), "softmax": (12.0, 12.0),
}  # fmt: skip


@dataclass(frozen=True)
class EagerKernels:
    """How a framework computes norms, rotations and activations, a kernel each."""

    #: Its name in stacks, and a line for people.
    name: str
    summary: str
    norm: Both = RMS_NORM
    rotation: Both = HALVES_ROTATION
    #: An activation with a gate.
    gated: Both = SWIGLU
    #: Keys and values are copied for every query head that reads them.
    repeats_heads: bool = False

    def run(self, operator: MemoryBound, *, gated: bool = True, groups: float = 1.0) -> MemoryBound:
        """The kernels that run for a fused one, as one operator of several calls; at least what it moves. ``gated``: of
        a model whose activations have a gate; ``groups``: query heads per key head."""
        op = "pointwise" if operator.op == "swiglu" and not gated else operator.op
        back = operator.computes is not Computes.OUTPUT
        fused = FUSED_BYTES.get(op)
        chain = () if fused is None else tuple(self._chain(op, operator.role, back, groups))
        if fused is None or not chain:
            return operator
        ratio = max(1.0, copied_bytes(chain) / fused[back])
        return replace(operator, size_bytes=ratio * operator.size_bytes, calls=len(chain))

    def _chain(self, op: str, role: Role, back: bool, groups: float) -> Iterator[Moved]:
        if op == "add_rmsnorm":
            # One sum with the residual stream, forward and back; and, of gradients, two behind queries, keys and
            # values, one behind gate and up.
            yield from (*self.norm[back], ADD)
            if back:
                yield _times(ADD, 1.5)
        elif op in ("rmsnorm", "qk_norm_rope"):
            yield from self.norm[back]
        if op in ("rope", "qk_norm_rope"):
            yield from self.rotation[back]
            if self.repeats_heads and groups > 1.0:
                yield _times(_repeated(groups, back), 2.0 / (groups + 1.0))
        elif op == "swiglu":
            yield from self.gated[back]
        elif op == "softmax" and role is Role.EXPERT_CHOICE:
            yield from CHOICE


def _repeated(groups: float, back: bool) -> Moved:
    """A copy of keys or values for every query head, per element of theirs; the gradients of the copies are summed."""
    return Moved(2.0 * groups, 2.0) if back else Moved(2.0, 2.0 * groups, groups)


def _times(kernel: Moved, factor: float) -> Moved:
    return Moved(*(factor * value for value in kernel))


EAGER_KERNELS: Registry[EagerKernels] = Registry("eager kernels", "tspsim.eager_kernels", EagerKernels)
EAGER_KERNELS.register(
    EagerKernels(
        "torchtitan", "norms of rows in fp32, rotations of complex numbers, keys and values repeated",
        rotation=COMPLEX_ROTATION, repeats_heads=True,
    )
)  # fmt: skip
EAGER_KERNELS.register(EagerKernels("transformers", "norms of rows in fp32, rotations of halves"))
EAGER_KERNELS.register(
    EagerKernels(
        "foundation-model-stack", "norms of rows in fp32, rotations by matrices of 2 × 2, keys and values repeated",
        rotation=MATRIX_ROTATION, repeats_heads=True,
    )
)  # fmt: skip

#: Of the residual stream under torch.autocast, which is in fp32 (:mod:`.mixed_precision`): a sum with a narrow branch,
#: layer_norm, a cast; backward casts of both branches' gradients, layer_norm's two kernels, a sum.
WIDE_STREAM = Both(
    (Moved(6.0, 4.0, 1.0), Moved(4.0, 4.0), NARROW),
    (NARROW, WIDEN, Moved(8.0, 4.0), Moved(8.0, 0.0), Moved(8.0, 4.0)),
)
#: Scores under torch.autocast without dropout: a scale, ``masked_fill`` (a copy, then the mask in place), a cast,
#: softmax in fp32, a cast; backward a cast, softmax, a cast, ``masked_fill``, a scale. Around them, per element of all
#: heads: batched products want queries, keys, values and outputs without gaps, and so do their gradients, of which
#: those of queries, keys and values are joined.
_MASKED = (Moved(2.0, 2.0), Moved(2.0, 2.0, 1.0))
WIDE_SCORES = Both(
    (Moved(2.0, 2.0), *_MASKED, WIDEN, Moved(4.0, 4.0), NARROW),
    (WIDEN, Moved(8.0, 4.0), NARROW, *_MASKED, Moved(2.0, 2.0)),
)
_COPY = Moved(2.0, 2.0, 1.0)
HEADS_AROUND_SCORES = Both((_COPY,) * 4, (_COPY,) * 6)
