"""Whether a run keeps the bounds on its latencies: one decision for every table, verdict and search.

The share of requests that keep them is the steady part's (:mod:`.steady`), where there is one. It is compared unrounded
with the wanted share. Where requests come faster than they are served, waits grow with the run's length and nothing is
kept.
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
    """How many requests keep the bounds; the entry ``bounds`` of ``serving``."""

    #: Share of requests that keep all bounds (if each is a percentile of its own, the least of the shares).
    share: float
    #: The 90 % interval of the share; the share itself for a run without a steady part.
    low: float
    high: float
    wanted: float
    #: Whether requests come faster than they are served.
    queue_grows: bool
    kept: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def close(self) -> bool:
        """Whether the interval contains the wanted share: a longer run may decide otherwise."""
        return not self.queue_grows and self.low < self.wanted <= self.high

    def in_words(self) -> str:
        """The end of a sentence about a run that keeps or misses them."""
        return kept_in_words(self.to_json())


def kept_of(
    waits: Waits, steady: Steady | None, bounds: Mapping[str, float], wanted: float, apart: bool, queue_grows: bool
) -> Kept:
    """The verdict of a run with at least one bound.

    Parameters
    ----------
    wanted
        Share of requests that must keep them.
    apart
        Whether each bound is a percentile bound of its own.
    """
    if steady is not None:
        estimate = steady.apart_share if apart else steady.good_share
        assert estimate is not None
        share = estimate.value
        low, high = max(0.0, share - estimate.half), min(1.0, share + estimate.half)
    else:
        low = high = share = kept_share(waits, bounds, apart)
    return Kept(share, low, high, wanted, queue_grows, share >= wanted and not queue_grows)


def kept_in_words(entry: Mapping[str, Any]) -> str:
    """An entry ``bounds`` as the end of a sentence.

    >>> kept_in_words({"share": 0.9893, "wanted": 0.99, "queue_grows": False, "low": 0.98, "high": 0.997})
    '98.9 % of requests keep the bounds, 99 % are asked; too close to call'
    """
    share, wanted = float(entry["share"]), float(entry["wanted"])
    sentence = f"{share_beside(share, wanted)} of requests keep the bounds, {share_beside(wanted, share)} are asked"
    if entry["queue_grows"]:
        return f"{sentence}, and the queue grows as long as requests come"
    return sentence + ("; too close to call" if entry["low"] < wanted <= entry["high"] else "")


def misses_in_words(waits: Waits, bounds: Mapping[str, float], wanted: float) -> str:
    """The missed bounds: the latency that the wanted share of requests keeps, over its bound.

    Where enough requests keep each bound alone, too few keep all together.
    """
    missed, wanted_share = [], share_beside(wanted, 0.0)
    for name, bound in bounds.items():
        if kept_share(waits, {name: bound}, apart=False) < wanted:
            (at,) = ValueStream(partial(_wait, waits, name)).percentiles([100.0 * wanted])
            missed.append(f"{name.upper()} is {duration(at)} at {wanted_share}, over {duration(bound)}")
    if missed:
        return ", ".join(missed)
    share = kept_share(waits, bounds, apart=False)
    return f"{share_beside(share, wanted)} keep all bounds together, of {share_beside(wanted, share)} that are asked"


def _wait(waits: Waits, name: str) -> Iterator[Floats]:
    """A latency of every request; with one output the TPOT counts as zero."""
    return (np.nan_to_num(getattr(piece, f"{name}_s")) for piece in waits.pieces())
