"""How a framework trains in bf16 beside fp32 weights: registered kinds.

parameters      weights are narrow while layers multiply, the optimizer keeps the wide ones (Megatron; FSDP's
                MixedPrecisionPolicy): the residual stream is as narrow as products
autocast        torch.autocast over fp32 weights, compiled: every product casts its weights, and their gradients back.
                Embeddings and norms are in fp32 and sums are promoted, so that the residual stream is in fp32
autocast-eager  the same, a kernel each

Lists of operators: pytorch/pytorch, aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP (linear, matmul,
scaled_dot_product_attention) and AT_FORALL_FP32 (layer_norm, softmax, log_softmax, nll_loss). A cast of a weight is
cached until the context ends, one per forward (docs, torch.autocast, ``cache_enabled``), and kept for the backward.

Bytes per element of the residual stream at a norm, b a branch's output, n the normed input, x the stream:

                 forward                            backward
    compiled     x, b read, x, n written: 12        n's, x, x's gradients read, x's, b's written: 16
    eager        x + b: 10, norm: 8, cast: 6        cast of b's: 6, of n's: 6, norm: 12 and 8 for its weights, sum: 12

What eager kernels take beyond their bytes, and those between written scores, stand in :mod:`.eager_kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..base.registry import Registry
from ..operators import Computes, Gemm, MemoryBound, Operator, Role
from .eager_kernels import HEADS_AROUND_SCORES, WIDE_SCORES, WIDE_STREAM, copied_bytes


@dataclass(frozen=True)
class MixedPrecision:
    """What casts and wide sums move, and what stays in memory."""

    #: Its name in stacks, and a line for people.
    name: str
    summary: str
    #: Bytes per element of the residual stream at a norm, forward and backward; None: of fused kernels in the
    #: activations' type.
    stream: tuple[float, float] | None = None
    #: Bytes per weight that is multiplied with: of its cast before, of its gradient's behind.
    casts: tuple[float, float] = (0.0, 0.0)
    #: Bytes of an element of the kept residual stream; None: the activations'.
    stream_bytes: float | None = None
    #: Bytes per weight of narrow copies that stay for the backward.
    copy_bytes: float = 0.0
    #: Without flash attention, bytes per score of the kernels between its products, and per element of all heads of
    #: copies around them, forward and backward; None: of one softmax with mask, and dropout; no copies.
    score_bytes: tuple[float, float] | None = None
    head_bytes: tuple[float, float] = (0.0, 0.0)

    @property
    def casts_nothing(self) -> bool:
        """Whether a schedule's operators are the kernels that run."""
        return self.stream is None and not any(self.casts)

    def lower(self, operators: Sequence[Operator], element_bytes: float) -> Iterator[Operator]:
        """The operators of a training step with activations of ``element_bytes``, and the casts around them."""
        for operator in operators:
            if isinstance(operator, Gemm) and operator.role is not Role.ATTENTION:
                yield from self._product(operator)
            elif isinstance(operator, MemoryBound) and operator.op == "add_rmsnorm" and self.stream is not None:
                moved = self.stream[operator.computes is not Computes.OUTPUT]
                yield replace(operator, size_bytes=operator.size_bytes * moved / (NORM_TENSORS * element_bytes))
            else:
                yield operator

    def _product(self, product: Gemm) -> Iterator[Operator]:
        before, behind = self.casts
        if product.computes is Computes.OUTPUT and before:
            weights = product.batch * product.n * product.k
            yield MemoryBound("copy", before * weights, product.k, name="cast weights")
        yield product
        if product.computes is Computes.WEIGHT_GRADIENT and behind:
            weights = product.batch * product.m * product.n
            yield MemoryBound("copy", behind * weights, product.m, name="cast gradients", computes=product.computes)


#: Tensors that a fused sum and norm moves, forward or backward.
NORM_TENSORS = 4.0
#: Four bytes read and two written, or the reverse.
CAST = 6.0
#: Per score of one kernel with scale, mask and softmax, without dropout: read and written; in a backward gradient and
#: score read, a gradient written.
SCORES = (4.0, 6.0)

MIXED_PRECISIONS: Registry[MixedPrecision] = Registry("mixed precision", "tspsim.mixed_precisions", MixedPrecision)
PARAMETERS = MIXED_PRECISIONS.register(MixedPrecision("parameters", "narrow weights beside the optimizer's wide ones"))
AUTOCAST = MIXED_PRECISIONS.register(
    MixedPrecision(
        "autocast", "fp32 weights under torch.autocast, compiled", (12.0, 16.0), (CAST, CAST), 4.0, 2.0, SCORES
    )
)
MIXED_PRECISIONS.register(
    replace(
        AUTOCAST,
        name="autocast-eager",
        summary="the same, a kernel each",
        stream=(copied_bytes(WIDE_STREAM.forward), copied_bytes(WIDE_STREAM.backward)),
        score_bytes=(copied_bytes(WIDE_SCORES.forward), copied_bytes(WIDE_SCORES.backward)),
        head_bytes=(copied_bytes(HEADS_AROUND_SCORES.forward), copied_bytes(HEADS_AROUND_SCORES.backward)),
    )
)
