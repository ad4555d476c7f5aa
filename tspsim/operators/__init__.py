"""Operators: kernel calls as plain data, without a clock or a device.

An operator has its floating-point operations and the bytes that it must move between HBM and the device. A pricer for
each class in :mod:`tspsim.hardware` gives its time on a device. A multiply-add counts as two operations; causal
attention counts only the query-key pairs that it needs (half of a square score matrix).

The set is open: any subclass of :class:`Operator` with a pricer runs in any step. An operator's :class:`Role` says
where it belongs in its layer; ``name`` is for display only.
"""

from .base import MEMORY_BOUND_OPS, CachedContext, ChoiceKernels, Computes, MemoryBound, Operator, Role, Sharding
from .batch import BatchQuantity, RowField, Rows
from .dtypes import DTYPES, DataType, element_bytes, multiplied_as, similar_types, weight_bytes, widened_to
from .latent import AbsorbProduct, LatentDecode, LatentPrefill
from .linear import DeltaScan, ShortConvolution
from .part import Part
from .products import Attention, DecodeAttention, FusedMoE, Gemm, GroupedGemm
from .row_sums import GrowingSums, RowSums
from .sparse import Indexer, SparseAttention, TopK

__all__ = [
    "DTYPES",
    "MEMORY_BOUND_OPS",
    "AbsorbProduct",
    "Attention",
    "BatchQuantity",
    "CachedContext",
    "ChoiceKernels",
    "Computes",
    "DataType",
    "DecodeAttention",
    "DeltaScan",
    "FusedMoE",
    "Gemm",
    "GroupedGemm",
    "GrowingSums",
    "Indexer",
    "LatentDecode",
    "LatentPrefill",
    "MemoryBound",
    "Operator",
    "Part",
    "Role",
    "RowField",
    "RowSums",
    "Rows",
    "Sharding",
    "ShortConvolution",
    "SparseAttention",
    "TopK",
    "element_bytes",
    "multiplied_as",
    "similar_types",
    "weight_bytes",
    "widened_to",
]
