"""Collective algorithms: one file each, a registry, and the cheapest of them."""

from .choices import ALGORITHMS
from .experts import ExpertExchange
from .registry import collective, exchange_experts, point_to_point
from .traffic import Traffic

__all__ = ["ALGORITHMS", "ExpertExchange", "Traffic", "collective", "exchange_experts", "point_to_point"]
