"""The kinds of kernels: one vocabulary for measured and simulated steps."""

from __future__ import annotations

#: Products of matrices, and attention.
PRODUCTS = ("gemm", "grouped_gemm", "attention", "linear_attention", "convolution")
#: Products that let a layer's tokens see each other.
ATTENTION = ("attention", "linear_attention")
#: Transfers between ranks. ``exchange`` is a transfer whose kernel serves several kinds.
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
    "dispatch",
    "combine",
    "exchange",
)
#: Kernels that mostly move bytes of a rank's own memory.
SMALL = (
    "norm",
    "activation",
    "rope",
    "cache",
    "router",
    "permute",
    "quantize",
    "elementwise",
    "reduction",
    "copy",
    "embedding",
    "sample",
    "loss",
    "optimizer",
    "memcpy",
    "memset",
)
#: Small kernels whose names say no more than what becomes of the elements.
MOVES = frozenset(("elementwise", "reduction", "copy", "memset"))
UNKNOWN = "unknown"
#: Kinds for the rows of a log: a whole step, and a measure of a request or a run.
STEP = "step"
MEASURE = "measure"

KINDS = (*PRODUCTS, *COLLECTIVES, *SMALL, UNKNOWN, STEP, MEASURE)

#: Kinds whose kernels need an operator: each computes products or moves bytes between ranks.
HEAVY = frozenset((*PRODUCTS, *COLLECTIVES))
