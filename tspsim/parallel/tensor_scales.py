"""Where products whose operands have one scale a tensor get it from while training: registered kinds.

A cast multiplies by the scale of its tensor, which depends on the largest number in it:

    delayed          the scale is that of steps before, and each rank's own
    delayed-reduced  the same, of all ranks that share a layer's tensors or hold its weights: behind a chunk's forward
                     and backward one all-reduce takes the largest numbers of ``tp`` and replicas, and the next kernels
                     wait for it
    current          a kernel reads the tensor before its cast does. A norm finds the largest number of its output
                     itself, but writes it wide

Sources: NVIDIA/TransformerEngine@0004dbd, pytorch/fp8.py (:mod:`tspsim.parallel.scale_agreement`), pull requests 1471
(current scaling) and 2013 (norms). Its activations find largest numbers too (2004); Megatron-Core's are its own
(core/fusions/fused_bias_swiglu.py) and do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..base.registry import Registry
from ..operators import DTYPES, Computes, Gemm, MemoryBound, Operator, Role, element_bytes


@dataclass(frozen=True)
class TensorScales:
    """What a scale costs beside the cast itself."""

    #: Its name in stacks, and a line for people.
    name: str
    summary: str
    #: Whether kernels read a tensor before it is cast, and norms write theirs wide.
    reads_first: bool = False
    #: Whether ranks agree on largest numbers behind every forward and backward of a chunk.
    agreed: bool = False

    def lower(self, operators: Sequence[Operator]) -> Iterator[Operator]:
        """The operators of a training step, and the kernels that read what they cast."""
        for operator in operators:
            if not (self.reads_first and isinstance(operator, Gemm) and _casts(operator)):
                yield operator
            elif operator.quantised:
                yield operator if operator.role.routed else replace(operator, quantised=False)
            else:
                rows = operator.batch * operator.m
                size = element_bytes("bf16") * rows * operator.k
                yield MemoryBound("copy", size, rows, name="largest number", role=Role.SCALE)
                yield operator


def _casts(product: Gemm) -> bool:
    """Whether one scale of a tensor decides how this product's operand is cast, if it is: gradients of weights read
    what the other two products cast, and casts apart are kernels of their own."""
    scaled = DTYPES.get(product.dtype).one_scale
    return scaled and product.computes is not Computes.WEIGHT_GRADIENT and not product.cast_apart


TENSOR_SCALES: Registry[TensorScales] = Registry("tensor scales", "tspsim.tensor_scales", TensorScales)
DELAYED = TENSOR_SCALES.register(TensorScales("delayed", "of steps before, each rank's own"))
TENSOR_SCALES.register(TensorScales("delayed-reduced", "of steps before, of all ranks of a layer", agreed=True))
TENSOR_SCALES.register(TensorScales("current", "a kernel reads the tensor first", reads_first=True))
