"""Collective algorithms: one file each, a registry, and the cheapest of them."""

from .registry import ALGORITHMS, Traffic, collective, point_to_point

__all__ = ["ALGORITHMS", "Traffic", "collective", "point_to_point"]
