"""Model architectures: their shapes, parameters and FLOPs, and one layer as operators."""

from .architecture import Architecture
from .load import load_model

__all__ = ["Architecture", "load_model"]
