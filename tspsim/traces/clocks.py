"""One clock for several ranks, and what of a collective is waiting.

Ranks of a collective leave it together: what their clocks differ by is the median difference of its ends. On one clock
the time from a rank's own start to that of the last one is waiting, the rest is transfer. A single rank's trace has
both in one, and nobody can tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .table import Trace

#: Kinds that every rank of a group leaves together.
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Clocks:
    """How clocks of ranks were set.

    Attributes
    ----------
    ahead_s
        Rank → how far its clock was ahead of that of the first rank it can be reached from.
    uses
        Collectives whose ends were compared.
    unmatched
        Groups and kinds that some rank has more often than another.
    """

    ahead_s: Mapping[int, float] = field(default_factory=dict)
    uses: int = 0
    unmatched: tuple[str, ...] = ()


#: The rows of every use of a collective: shape (ranks, uses), ranks in order.
Uses = NDArray[np.int64]


def aligned(trace: Trace) -> Trace:
    """The trace on one clock, with ``wait_s`` of its collectives; the same where it has one rank, or none that meet.

    ``facts["clocks"]`` is the :class:`Clocks` that were found.
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
    # Times of a rank count from its own first event; what the clocks themselves said is its origin.
    origins_us = trace.facts.get("origin_us", {})
    first_us = origins_us.get(min(ahead), 0.0)
    own = {rank: seconds + 1e-6 * (origins_us.get(rank, first_us) - first_us) for rank, seconds in ahead.items()}
    clocks = Clocks(own, sum(rows.shape[1] for rows in met), unmatched)
    return replace(trace, columns=columns, marks=marks, facts={**trace.facts, "clocks": clocks})


def _meetings(trace: Trace) -> tuple[list[Uses], tuple[str, ...]]:
    """Of every group and kind that several ranks have equally often the rows of its uses; and which are not so."""
    codes = [code for code, word in enumerate(trace.words["kind"]) if word in TOGETHER]
    named = np.array([bool(word) for word in trace.words["group"]] or [False])[trace.columns["group"]]
    rows = np.flatnonzero(np.isin(trace.columns["kind"], codes) & named)
    if not len(rows):
        return [], ()
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
        # Rows of a rank are in order of their starts, as it issued them.
        met.append(np.stack(by_rank))
    return met, tuple(unmatched)


def _ahead(met: list[Uses], ends: NDArray[Any], ranks: NDArray[Any]) -> dict[int, float]:
    """Clocks along the groups that ranks share, from the first rank of each set that meets."""
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
    """How clocks were set and how much of collectives is waiting, in lines."""
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
        yield f"missing: {word} is not as often in every rank, so its waiting is not told"
