"""Token dispatches that use the placement of experts, one file each."""

from . import predicted, staying

__all__ = ["predicted", "staying"]
