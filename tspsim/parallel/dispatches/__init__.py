"""Ways for tokens to reach experts that know where those are, one file each."""

from . import predicted, staying

__all__ = ["predicted", "staying"]
