"""How long prompts and outputs are: one registered class a file."""

from __future__ import annotations

from . import fixed, listed, lognormal, mixture, uniform
from .base import Lengths, drawn_lengths, shorthand

LENGTHS = Lengths.registry

__all__ = [
    "LENGTHS",
    "Lengths",
    "drawn_lengths",
    "fixed",
    "listed",
    "lognormal",
    "mixture",
    "shorthand",
    "uniform",
]
