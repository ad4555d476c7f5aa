"""Model architectures: their shapes, parameters and FLOPs, and one layer as operators."""

from .architecture import Architecture
from .load import load_model
from .parts import Block, Experts, LatentAttention

__all__ = ["Architecture", "Block", "Experts", "LatentAttention", "load_model"]
