"""Policies that move experts or copy them, one file each."""

from . import eplb, least_loaded

__all__ = ["eplb", "least_loaded"]
