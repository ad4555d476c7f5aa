"""How exchanges with experts run, from the order of kernels: beside what, and in which type of elements."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .alignment import family_of
from .kinds import ATTENTION
from .names import waits
from .table import Trace, busy_s

#: Share of steps from one anchor of a layer to another than the next one's that halves in turn take.
_IN_TURN = 0.1
_FORWARD, _BACKWARD = ("forward",), ("backward", "weight gradient")
#: Share of the exchanges of one direction beside the other's products from which both belong to micro-batches that run
#: beside each other. Without this a pass waits for its own exchanges.
_BESIDE = 0.3
_CASTS = re.compile(r"quant|cast|fp8", re.IGNORECASE)
_CASTS_BACK = re.compile(r"de_?quant|cast_back", re.IGNORECASE)


def takes_turns(trace: Trace) -> bool:
    """Whether two halves of a batch take turns. Then attention runs beside exchanges or between a combine that is sent
    and received apart, or attention, what is sent to experts and these do not follow each other in one order."""
    trace = trace.of(trace.columns["rank"] == trace.ranks[0])
    kinds, names = trace.word("kind"), trace.word("name")
    if _beside(trace, _travels(trace), np.isin(kinds, ATTENTION)) > _IN_TURN or _between_combines(kinds.tolist()):
        return True
    rows = np.isin(kinds, [*ATTENTION, "dispatch", "grouped_gemm"])
    main = Counter(family_of(name) for name in names[np.isin(kinds, ATTENTION)].tolist()).most_common(1)
    order: list[str] = []
    for kind, name in zip(kinds[rows].tolist(), names[rows].tolist(), strict=True):
        if kind in ATTENTION:
            if family_of(name) == main[0][0]:
                order.append("attention")
        elif order[-1:] != [kind]:
            order.append(kind)
    usual = {("attention", "dispatch"), ("dispatch", "grouped_gemm"), ("grouped_gemm", "attention")}
    follows = list(pairwise(order))
    return sum(pair not in usual for pair in follows) > _IN_TURN * len(follows)


def _travels(trace: Trace) -> NDArray[np.bool_]:
    """Rows that exchange tokens with experts, and do not only wait."""
    waiting = np.array([waits(word) for word in trace.words["name"]] or [False])[trace.columns["name"]]
    travels: NDArray[np.bool_] = np.isin(trace.word("kind"), ["dispatch", "combine", "all_to_all"]) & ~waiting
    return travels


def _between_combines(kinds: list[str]) -> bool:
    """Whether attention stands between two combines without routed experts between them: between a half's sending and
    its receiving the other half attends."""
    order = [kind for kind in kinds if kind in (*ATTENTION, "grouped_gemm", "combine")]
    places = [place for place, kind in enumerate(order) if kind == "combine"]
    between = [set(order[first + 1 : last]) for first, last in pairwise(places)]
    turns = sum(bool(own & set(ATTENTION)) and "grouped_gemm" not in own for own in between)
    return turns > _IN_TURN * len(between) > 0


def interleaved(trace: Trace) -> float:
    """Share of the time of exchanges in which products of the other direction run: forward exchanges beside backward
    products or the other way, whichever is less. 0 where it is too little to belong to two micro-batches, or where the
    trace states no phases."""
    trace = trace.of(trace.columns["rank"] == trace.ranks[0])
    kinds, phases, travels = trace.word("kind"), trace.word("phase"), _travels(trace)
    works = np.isin(kinds, ["gemm", "grouped_gemm", *ATTENTION])
    shares = [
        _beside(trace, travels & np.isin(phases, own), works & np.isin(phases, other))
        for own, other in ((_FORWARD, _BACKWARD), (_BACKWARD, _FORWARD))
    ]
    return min(shares) if min(shares) >= _BESIDE else 0.0


def _beside(trace: Trace, own: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Share of the time of some rows in which others run."""
    starts, ends = trace.columns["start_s"], trace.end_s
    alone, beside, both = (busy_s(starts[rows], ends[rows]) for rows in (own, other, own | other))
    return (alone + beside - both) / alone if alone else 0.0


def sends_narrow(trace: Trace) -> bool:
    """Whether tokens travel to experts in eight bits: nothing casts the rows that arrive before a forward pass
    multiplies them."""
    kinds = trace.word("kind")
    rows = np.isin(trace.word("phase"), ["forward", ""]) & (trace.columns["rank"] == trace.ranks[0])
    starts, ends = trace.columns["start_s"], trace.end_s
    sent = np.flatnonzero(rows & (kinds == "dispatch"))
    products = starts[rows & (kinds == "grouped_gemm")]
    # Turned scales and copies are no casts, whatever kind they count to.
    turned = np.isin(kinds, ["quantize", "permute"]) & rows
    casts = starts[turned & np.array([_casts(name) for name in trace.word("name").tolist()], bool)]
    arrived = ends[sent]
    following = np.searchsorted(products, arrived)
    whole = following < len(products)
    # Of pieces of an exchange, and what only announces one, the last before its product counts.
    last = np.append(following[:-1] != following[1:], True)[: len(following)] & whole
    if not last.any():
        return False
    between = np.searchsorted(casts, products[following[last]]) - np.searchsorted(casts, arrived[last])
    return 2 * int((between > 0).sum()) < len(between)


def _casts(name: str) -> bool:
    return _CASTS.search(name) is not None and _CASTS_BACK.search(name) is None and "ranspose" not in name


def gathers_for_experts(trace: Trace) -> bool:
    """Whether all tokens travel to all ranks with experts: in every layer a gather stands between attention and routed
    experts, and a scatter of sums behind these."""
    kinds = trace.word("kind")[trace.columns["rank"] == trace.ranks[0]]
    telling = (*ATTENTION, "all_gather", "grouped_gemm", "reduce_scatter")
    order: list[str] = []
    for kind in kinds[np.isin(kinds, telling)].tolist():
        own = "attention" if kind in ATTENTION else kind
        if order[-1:] != [own]:
            order.append(own)
    turns = ("attention", "all_gather", "grouped_gemm", "reduce_scatter")
    whole = sum(tuple(order[place : place + 4]) == turns for place in range(len(order) - 3))
    return 0 < order.count("grouped_gemm") <= 2 * whole


def keeps_narrow(trace: Trace) -> bool:
    """Whether a backward pass reads activations that were kept in eight bits: it casts some back."""
    rows = np.isin(trace.word("phase"), _BACKWARD) & (trace.word("kind") == "quantize")
    codes: list[Any] = np.unique(trace.columns["name"][rows]).tolist()
    return any(_CASTS_BACK.search(trace.words["name"][code]) is not None for code in codes)
