"""What a kernel does: the words that both lanes of a comparison speak."""

from __future__ import annotations

#: Products of matrices, and attention.
PRODUCTS = ("gemm", "grouped_gemm", "attention", "linear_attention", "convolution")
#: What moves data between ranks. ``exchange`` is one whose kernel does not say which.
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
UNKNOWN = "unknown"
#: What a log says of a whole step, request or run.
STEP = "step"
MEASURE = "measure"

KINDS = (*PRODUCTS, *COLLECTIVES, *SMALL, UNKNOWN, STEP, MEASURE)

#: Kinds whose kernels a model of a step may not leave over: each carries arithmetic or bytes between ranks.
HEAVY = frozenset((*PRODUCTS, *COLLECTIVES))
