"""How long prompts and outputs are: the family of lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ...registry import Registry
from ..kind import Ints, Kind


class Lengths(Kind):
    """Tokens of a prompt, or of an output."""

    registry: ClassVar[Registry[Any]] = Registry("kind of length", "tspsim.lengths")

    def draw(self, random: np.random.Generator, count: int, column: str) -> Ints:
        """Tokens of ``count`` requests, whole and each at least one: an array (count,), whose chance is ``random``'s
        alone; ``column`` is ``prompt_tokens`` or ``output_tokens``."""
        raise NotImplementedError


Lengths.registry.of = type[Lengths]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """A bare count is a fixed length."""
    if isinstance(value, int | str) and not isinstance(value, bool):
        return {"kind": "fixed", "of": value}
    return None
