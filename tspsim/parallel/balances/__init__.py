"""Policies that move experts or copy them, one file each."""

from . import activated, eplb, least_loaded, repeated

__all__ = ["activated", "eplb", "least_loaded", "repeated"]
