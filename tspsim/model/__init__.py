"""Model architectures: dimensions, parameters and FLOPs, and the operators of a layer."""

from .architecture import Architecture
from .attention import ATTENTION_KINDS
from .load import load_model
from .parts import Block, Experts, LatentAttention

__all__ = ["ATTENTION_KINDS", "Architecture", "Block", "Experts", "LatentAttention", "load_model"]
