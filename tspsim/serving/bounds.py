"""Whether a run keeps the bounds on its waits: decided here once, for every table, verdict and search.

The share of requests that keep them is that of the steady part (:mod:`.steady`), where there is one. It is held against
the share that is wanted as it is, never as it is rounded; where requests come faster than they are served, waits grow
for as long as somebody measures and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from ..base.units import duration, share_beside
from ..traffic.kind import Floats
from .steady import Steady
from .streams import ValueStream
from .waits import Waits, kept_share


@dataclass(frozen=True)
class Kept:
    """What of requests keeps the bounds; the entry ``bounds`` of ``serving``."""

    #: Of requests that keep all bounds (where each is a percentile of its own, the one that fewest keep).
    share: float
    #: Where it lies nine times of ten; the share itself of a run without a steady part.
    low: float
    high: float
    wanted: float
    #: Requests come faster than they are served.
    queue_grows: bool
    kept: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def close(self) -> bool:
        """The interval of the share holds what is wanted: a longer run may decide otherwise."""
        return not self.queue_grows and self.low < self.wanted <= self.high

    def in_words(self) -> str:
        """As the end of a sentence on somebody who does or does not keep them."""
        return kept_in_words(self.to_json())


def kept_of(
    waits: Waits, steady: Steady | None, bounds: Mapping[str, float], wanted: float, apart: bool, queue_grows: bool
) -> Kept:
    """Of a run with at least one bound.

    Parameters
    ----------
    wanted
        Share of requests that have to keep them.
    apart
        Each bound is one on a percentile of its own.
    """
    if steady is not None:
        found = steady.apart_share if apart else steady.good_share
        assert found is not None
        share = found.value
        low, high = max(0.0, share - found.half), min(1.0, share + found.half)
    else:
        low = high = share = kept_share(waits, bounds, apart)
    return Kept(share, low, high, wanted, queue_grows, share >= wanted and not queue_grows)


def kept_in_words(entry: Mapping[str, Any]) -> str:
    """An entry ``bounds`` as the end of a sentence.

    >>> kept_in_words({"share": 0.9893, "wanted": 0.99, "queue_grows": False, "low": 0.98, "high": 0.997})
    '98.9 % of requests keep the bounds, 99 % are asked; too close to call'
    """
    share, wanted = float(entry["share"]), float(entry["wanted"])
    told = f"{share_beside(share, wanted)} of requests keep the bounds, {share_beside(wanted, share)} are asked"
    if entry["queue_grows"]:
        return f"{told}, and the queue grows as long as requests come"
    return told + ("; too close to call" if entry["low"] < wanted <= entry["high"] else "")


def misses_in_words(waits: Waits, bounds: Mapping[str, float], wanted: float) -> str:
    """Which bound is missed, by what: the wait that the wanted share of requests keeps, over its bound.

    Where each bound alone is kept by enough, it is all of them together that too few keep.
    """
    missed, asked = [], share_beside(wanted, 0.0)
    for name, bound in bounds.items():
        if kept_share(waits, {name: bound}, apart=False) < wanted:
            (at,) = ValueStream(partial(_wait, waits, name)).percentiles([100.0 * wanted])
            missed.append(f"{name.upper()} is {duration(at)} at {asked}, over {duration(bound)}")
    if missed:
        return ", ".join(missed)
    share = kept_share(waits, bounds, apart=False)
    return f"{share_beside(share, wanted)} keep all bounds together, of {share_beside(wanted, share)} that are asked"


def _wait(waits: Waits, name: str) -> Iterator[Floats]:
    """A wait of every request; of one with one output no TPOT counts as none."""
    return (np.nan_to_num(getattr(piece, f"{name}_s")) for piece in waits.pieces())
