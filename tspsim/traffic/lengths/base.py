"""How long prompts and outputs are: the family of lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ...base.errors import TspsimError
from ...base.registry import Registry
from ..kind import Ints, Kind


class Lengths(Kind):
    """Tokens of a prompt, or of an output."""

    registry: ClassVar[Registry[Any]] = Registry("kind of length", "tspsim.lengths")

    def draw(self, random: np.random.Generator, count: int, column: str) -> Ints:
        """Tokens of ``count`` requests: whole numbers from 1 on, an array (count,). Only ``random`` may add chance;
        ``column`` is ``prompt_tokens`` or ``output_tokens``."""
        raise NotImplementedError


Lengths.registry.of = type[Lengths]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """A bare count is a fixed length."""
    if isinstance(value, int | str) and not isinstance(value, bool):
        return {"kind": "fixed", "of": value}
    return None


def drawn_lengths(lengths: Lengths, random: np.random.Generator, count: int, column: str) -> Ints:
    """Tokens of ``count`` requests. Raises TspsimError for any other result of a kind."""
    tokens = np.asarray(lengths.draw(random, count, column))
    if tokens.shape != (count,) or tokens.dtype.kind not in "iu" or (count and tokens.min() < 1):
        raise TspsimError(f"{lengths.registry.what} '{lengths.name}' has to give {count} whole numbers from 1 on")
    return tokens
