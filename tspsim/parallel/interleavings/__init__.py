"""Orders of two interleaved tasks, one file each."""

from . import alternating, dualpipe, megatron_core

__all__ = ["alternating", "dualpipe", "megatron_core"]
