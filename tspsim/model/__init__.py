"""Model architectures: their shapes, parameters and FLOPs, and one layer as operators."""

from .architecture import Architecture
from .attention import ATTENTION_KINDS
from .load import load_model
from .parts import Block, Experts, LatentAttention

__all__ = ["ATTENTION_KINDS", "Architecture", "Block", "Experts", "LatentAttention", "load_model"]
