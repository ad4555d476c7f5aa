"""Where a number is from."""

from __future__ import annotations

from typing import NamedTuple


class Provenance(NamedTuple):
    """A number or model that an answer rests on: its name, value, source, and how it was derived."""

    what: str
    value: str | float
    source: str
    basis: str
