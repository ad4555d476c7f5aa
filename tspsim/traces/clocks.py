"""One clock for several ranks, and the waiting in their collectives.

The ranks of a collective leave it together. The median difference of their ends is therefore the difference of their
clocks. On one clock, the time from a rank's own start to the last rank's start is waiting, and the rest is transfer. A
trace of a single rank has only their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .table import Trace

#: Kinds of collectives that every rank of a group leaves together.
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Clocks:
    """The differences between the clocks of ranks.

    Attributes
    ----------
    ahead_s
        Rank → the lead of its clock over the first rank that common collectives connect it to.
    uses
        Number of collectives with compared ends.
    unmatched
        Groups and kinds that ranks do not have equally often.
    """

    ahead_s: Mapping[int, float] = field(default_factory=dict)
    uses: int = 0
    unmatched: tuple[str, ...] = ()


#: The rows of every use of a collective: shape (ranks, uses), ranks in order.
Uses = NDArray[np.int64]


def aligned(trace: Trace) -> Trace:
    """The trace on one clock, with ``wait_s`` of its collectives. A trace of one rank, or without common collectives,
    is returned unchanged.

    ``facts["clocks"]`` is the :class:`Clocks` of the trace.
    """
    if len(trace.ranks) < 2:
        return trace
    met, unmatched = _meetings(trace)
    if not met:
        return trace
    ends, starts = trace.end_s, trace.columns["start_s"]
    ranks = trace.columns["rank"]
    ahead = _ahead(met, ends, ranks)
    shift = np.array([ahead.get(rank, 0.0) for rank in range(int(ranks.max()) + 1)])[ranks]
    waits = np.array(trace.columns["wait_s"], dtype=np.float64)
    for rows in met:
        begins = starts[rows] - shift[rows]
        waits[rows] = np.clip(begins.max(axis=0) - begins, 0.0, trace.columns["duration_s"][rows])
    columns = {
        **trace.columns,
        "start_s": starts - shift,
        "launch_s": trace.columns["launch_s"] - shift,
        "wait_s": waits,
    }
    marks = tuple(
        replace(mark, start_s=mark.start_s - ahead.get(mark.rank, 0.0), end_s=mark.end_s - ahead.get(mark.rank, 0.0))
        for mark in trace.marks
    )
    # A rank's times count from its own first event, whose time on the rank's clock is in ``origin_us``.
    origins_us = trace.facts.get("origin_us", {})
    first_us = origins_us.get(min(ahead), 0.0)
    own = {rank: seconds + 1e-6 * (origins_us.get(rank, first_us) - first_us) for rank, seconds in ahead.items()}
    clocks = Clocks(own, sum(rows.shape[1] for rows in met), unmatched)
    return replace(trace, columns=columns, marks=marks, facts={**trace.facts, "clocks": clocks})


def _meetings(trace: Trace) -> tuple[list[Uses], tuple[str, ...]]:
    """Rows of the uses of every group and kind that its ranks have equally often, and the names of the others."""
    codes = [code for code, word in enumerate(trace.words["kind"]) if word in TOGETHER]
    named = np.array([bool(word) for word in trace.words["group"]] or [False])[trace.columns["group"]]
    kinds = np.isin(trace.columns["kind"], codes)
    rows = np.flatnonzero(kinds & named)
    if not len(rows):
        return _without_groups(trace, np.flatnonzero(kinds)), ()
    keys = trace.columns["group"][rows].astype(np.int64) * len(trace.words["kind"]) + trace.columns["kind"][rows]
    met, unmatched = [], []
    for key in np.unique(keys).tolist():
        own = rows[keys == key]
        by_rank = [own[trace.columns["rank"][own] == rank] for rank in np.unique(trace.columns["rank"][own])]
        group, kind = divmod(key, len(trace.words["kind"]))
        if len(by_rank) < 2:
            continue
        if len({len(rank_rows) for rank_rows in by_rank}) > 1:
            unmatched.append(f"{trace.words['kind'][kind]} of group {trace.words['group'][group]}")
            continue
        # A rank's rows are in order of their starts, as the rank issued them.
        met.append(np.stack(by_rank))
    return met, tuple(unmatched)


#: Largest deviation of the ends of one collective from the difference of two clocks, as a share of the collectives'
#: length, and in seconds.
_TOGETHER_SHARE, _TOGETHER_S = 0.25, 2e-5


def _without_groups(trace: Trace, rows: NDArray[np.int64]) -> list[Uses]:
    """Uses of collectives whose groups no profiler names (an engine's own all-reduces, replayed ones), where all ranks
    have them equally often and leave each together: then all ranks are one group."""
    met = []
    ends, ranks = trace.end_s, trace.columns["rank"]
    for kind in np.unique(trace.columns["kind"][rows]).tolist():
        own = rows[trace.columns["kind"][rows] == kind]
        by_rank = [own[ranks[own] == rank] for rank in trace.ranks]
        if len({len(rank_rows) for rank_rows in by_rank}) > 1 or len(by_rank[0]) < 2:
            continue
        uses = np.stack(by_rank)
        apart = ends[uses[1:]] - ends[uses[0]]
        off = np.abs(apart - np.median(apart, axis=1, keepdims=True))
        length = float(np.median(trace.columns["duration_s"][own]))
        if float(np.median(off, axis=1).max()) <= max(_TOGETHER_SHARE * length, _TOGETHER_S):
            met.append(uses)
    return met


def _ahead(met: list[Uses], ends: NDArray[Any], ranks: NDArray[Any]) -> dict[int, float]:
    """Differences of clocks, along groups with common ranks. Each set of connected ranks counts from its first rank."""
    differences: dict[int, list[tuple[int, float]]] = {}
    for rows in met:
        first = int(ranks[rows[0, 0]])
        for others in rows[1:]:
            other = int(ranks[others[0]])
            seconds = float(np.median(ends[others] - ends[rows[0]]))
            differences.setdefault(first, []).append((other, seconds))
            differences.setdefault(other, []).append((first, -seconds))
    ahead: dict[int, float] = {}
    for begin in sorted(differences):
        if begin in ahead:
            continue
        ahead[begin], reached = 0.0, [begin]
        for rank in reached:
            for other, seconds in differences[rank]:
                if other not in ahead:
                    ahead[other] = ahead[rank] + seconds
                    reached.append(other)
    return ahead


def in_words(trace: Trace) -> Iterator[str]:
    """The clocks and the waiting in collectives, as lines of text."""
    from ..base.units import duration, percent

    clocks = trace.facts.get("clocks")
    if clocks is None:
        return
    rank = max(clocks.ahead_s, key=lambda number: abs(clocks.ahead_s[number]))
    most = clocks.ahead_s[rank]
    difference = f"rank {rank} was {duration(abs(most))} {'ahead' if most > 0 else 'behind'}" if most else "they agreed"
    yield f"clocks: set by the ends of {clocks.uses:,} collectives; {difference}"
    waits, lasting = trace.columns["wait_s"], trace.columns["duration_s"]
    with_waits = np.isfinite(waits)
    for kind, word in enumerate(trace.words["kind"]):
        rows = with_waits & (trace.columns["kind"] == kind)
        if rows.any():
            share = float(waits[rows].sum() / max(float(lasting[rows].sum()), 1e-30))
            yield f"  {word:<16} {percent(share)} of its time is waiting for the last rank"
    for word in clocks.unmatched[:3]:
        yield f"missing: the waiting in {word}; its ranks do not have it equally often"
