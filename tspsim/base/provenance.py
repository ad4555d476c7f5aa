"""Where a number is from."""

from __future__ import annotations

from typing import NamedTuple


class Provenance(NamedTuple):
    """One number or model that an answer rests on: what, its value, where it is from, and how it was derived."""

    what: str
    value: str | float
    source: str
    basis: str
