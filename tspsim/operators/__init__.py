"""The shapes a device can be asked to compute: plain data, no clock, no device.

An operator knows its floating-point operations and the bytes it cannot avoid moving to and from HBM; what it
costs on a device is the business of :mod:`tspsim.hardware`, which has a pricer for each class. A multiply-add counts as
two operations; causal attention counts only the score pairs it needs (half of a square score matrix).

The set is open: a class that subclasses :class:`Operator` and has a pricer runs in any step. What an operator is in its
layer is its :class:`Role`; ``name`` is for people, and nothing depends on it.
"""

from .base import MEMORY_BOUND_OPS, ChoiceKernels, Computes, MemoryBound, Operator, Role, Sharding
from .batch import BatchQuantity
from .dtypes import DTYPES, DataType, element_bytes, kindred_of, multiplied_as, weight_bytes, widened_to
from .latent import AbsorbProduct, LatentDecode, LatentPrefill
from .linear import DeltaScan, ShortConvolution
from .part import Part
from .products import Attention, DecodeAttention, FusedMoE, Gemm, GroupedGemm
from .sparse import BestOf, Indexer, SparseAttention

__all__ = [
    "DTYPES",
    "MEMORY_BOUND_OPS",
    "AbsorbProduct",
    "Attention",
    "BatchQuantity",
    "BestOf",
    "ChoiceKernels",
    "Computes",
    "DataType",
    "DecodeAttention",
    "DeltaScan",
    "FusedMoE",
    "Gemm",
    "GroupedGemm",
    "Indexer",
    "LatentDecode",
    "LatentPrefill",
    "MemoryBound",
    "Operator",
    "Part",
    "Role",
    "Sharding",
    "ShortConvolution",
    "SparseAttention",
    "element_bytes",
    "kindred_of",
    "multiplied_as",
    "weight_bytes",
    "widened_to",
]
