"""Steps whose batch runs as two halves in turn, so that one computes while the other's experts exchange.

Engines take turns at different places of a layer. A simulated step has one of these orders; a measured one is compared
with each. Kernels of an exchange that lets go of its multiprocessors while bytes travel are two: one sends, one
receives.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kinds import ATTENTION, COLLECTIVES, HEAVY
from .simulated import Operation

#: Parts of a layer, in its own order.
BEFORE, ATTENDS, BEHIND, ROUTES, DISPATCH, SHARED, EXPERTS, COMBINE = range(8)


#: Where two halves may take turns: DeepSeek's overview of its inference system cuts before and behind attention, behind
#: shared experts and behind routed ones while decoding (SGLang's ``operations_strategy.py`` at 02ed4a5e has both of its
#: orders); vLLM's dual batches at every exchange.
_CUTS = (BEFORE, ATTENDS, BEHIND, ROUTES, DISPATCH, SHARED, EXPERTS, COMBINE)
#: Orders that are compared kernel by kernel, of those whose products and attention follow each other as the measured
#: ones do.
_NEAREST = 2


@dataclass(frozen=True)
class TurnsOfHalves:
    """Where two halves take turns.

    Parameters
    ----------
    cuts
        Parts of a layer that a half begins anew after the other half's turn.
    lag
        Turns that the second half is behind.
    shared_last
        Whether shared experts run behind the routed ones, while these send their results back (SGLang's prompts).
    """

    cuts: tuple[int, ...]
    lag: int
    shared_last: bool = False

    def stages(self, parts: Mapping[int, list[Any]]) -> list[list[Any]]:
        """A layer's operations by turn; the first turn goes on from the layer before unless it is cut there."""
        stages: list[list[Any]] = [[]]
        for part in _SHARED_LAST if self.shared_last else range(COMBINE + 1):
            if part in self.cuts:
                stages.append([])
            stages[-1] += parts.get(part, [])
        return stages


#: Parts of a layer whose shared experts run last: the others' results travel meanwhile.
_SHARED_LAST = (BEFORE, ATTENDS, BEHIND, ROUTES, DISPATCH, EXPERTS, COMBINE, SHARED)
TURNS = tuple(
    TurnsOfHalves(cuts, lag, last)
    for last in (False, True)
    for count in range(1, 6)
    for cuts in combinations(_CUTS, count)
    for lag in range(min(count, 3) + 1)
)
#: Small kernels that tell products of a layer apart.
_LANDMARKS = frozenset({"rope", "router", "activation"})
#: Layers that show how the halves take turns.
_SHOW = 6

#: Kernels of DeepEP and of what follows it that send and receive apart.
_SENDS_AND_RECEIVES = re.compile(r"_ll\b|_ll_|low_latency", re.IGNORECASE)


def orders_in_turn(operations: Sequence[Operation], kinds: Sequence[str]) -> list[list[int]]:
    """Further orders of operations that run as two halves, of those nearest to the kinds of measured kernels; none for
    other steps."""
    halves = _halves(operations)
    if halves is None:
        return []
    first, last = min(min(half) for half in halves), max(max(half) for half in halves)
    own = set(halves[0]) | set(halves[1])
    # What is neither half's inside the stretch is of layers without experts, which begin the step.
    ahead = [index for index in range(last) if index not in own and (index < first or operations[index].layer >= 0)]
    behind = [index for index in range(first, len(operations)) if index not in own and index not in set(ahead)]
    layers = [_by_layer(operations, half) for half in halves]
    measured = _shares(_without_inner(kinds) if any(item.is_whole for item in operations) else kinds)
    shared = any(parts.get(SHARED) for half in layers for parts in half)
    begins = [[_telling(operations, parts) for parts in half[:_SHOW]] for half in layers]
    away = []
    offs: dict[tuple[str, ...], float] = {}
    before: tuple[tuple[int, ...], bool] | None = None
    stages: list[list[list[Any]]] = []
    for number, turns in enumerate(TURNS):
        if turns.shared_last and not shared:
            continue
        if (turns.cuts, turns.shared_last) != before:
            before = turns.cuts, turns.shared_last
            stages = [_in_turns(turns, half) for half in begins]
        merged = tuple(_merged(turns.lag, *stages))
        if merged not in offs:
            offs[merged] = _away(measured, _shares(merged))
        away.append((offs[merged], number))
    orders: list[list[int]] = []
    for _, number in sorted(away):
        own_turns = [_in_turns(TURNS[number], half) for half in layers]
        order = [*ahead, *_merged(TURNS[number].lag, *own_turns), *behind]
        if order not in orders:
            orders.append(order)
        if len(orders) == _NEAREST:
            break
    return orders


def _away(one: Mapping[Any, float], other: Mapping[Any, float]) -> float:
    """How much the shares of pairs differ."""
    return round(sum(abs(one.get(pair, 0.0) - other.get(pair, 0.0)) for pair in {*one, *other}), 6)


def _telling(operations: Sequence[Operation], parts: Mapping[int, list[int]]) -> dict[int, list[str]]:
    """The kinds of a layer's operations that show where halves take turns, by part."""
    return {
        part: [kind for index in own if (kind := operations[index].kind) in HEAVY or kind in _LANDMARKS]
        for part, own in parts.items()
    }


def _merged(lag: int, first: Sequence[list[Any]], second: Sequence[list[Any]]) -> list[Any]:
    """The operations of both halves, or what stands for them, in their turns."""
    merged: list[Any] = []
    for place in range(max(len(first), len(second)) + lag):
        if place < len(first):
            merged += first[place]
        if 0 <= place - lag < len(second):
            merged += second[place - lag]
    return merged


def _without_inner(kinds: Sequence[str]) -> list[str]:
    """Kinds of kernels without the small ones between two routed products, which are of the same operator."""
    kept: list[str] = []
    inner: list[str] = []
    for kind in kinds:
        if kind in HEAVY:
            kept += [] if kind == "grouped_gemm" and kept[-1:] == ["grouped_gemm"] else inner
            kept.append(kind)
            inner = []
        elif kept[-1:] == ["grouped_gemm"] or inner:
            inner.append(kind)
        else:
            kept.append(kind)
    return kept + inner


def _shares(kinds: Sequence[str]) -> dict[tuple[str, str, int], float]:
    """The share of every pair of anchors (attention, routed experts, exchanges, and small kernels that stand once in a
    layer) that follow each other with so many products between."""
    follows: Counter[tuple[str, str, int]] = Counter()
    before, products, adjoins = "", 0, False
    for kind in kinds:
        if kind == "gemm":
            products, adjoins = products + 1, False
        elif kind in HEAVY or kind in _LANDMARKS:
            # One operator may be several kernels, and other small ones may be between them.
            if kind == before and adjoins and kind not in COLLECTIVES:
                continue
            follows[before, kind, products] += 1
            before, products, adjoins = kind, 0, True
    return {pair: count / follows.total() for pair, count in follows.items()}


def _halves(operations: Sequence[Operation]) -> tuple[list[int], list[int]] | None:
    """The operations of both halves in layers with experts; None where not every operation of these has a twin."""
    if any(operation.phase != "forward" for operation in operations):
        return None
    exchanged = {item.layer for item in operations if item.layer >= 0 and item.kind in ("grouped_gemm", "dispatch")}
    twins: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for index, item in enumerate(operations):
        if item.layer in exchanged:
            twins[item.layer, item.kind, item.name].append(index)
    if not twins or any(len(own) % 2 for own in twins.values()):
        return None
    one = sorted(index for own in twins.values() for index in own[: len(own) // 2])
    other = sorted(index for own in twins.values() for index in own[len(own) // 2 :])
    # Halves take turns within a layer; micro-batches that follow each other do not.
    if min(other) > max(index for index in one if operations[index].layer == min(exchanged)) + len(one):
        return None
    return one, other


def _by_layer(operations: Sequence[Operation], half: Sequence[int]) -> list[dict[int, list[int]]]:
    """A half's operations by layer and part."""
    layers: dict[int, list[int]] = defaultdict(list)
    for index in half:
        layers[operations[index].layer].append(index)
    return [_parts(operations, layers[layer]) for layer in sorted(layers)]


def _in_turns(turns: TurnsOfHalves, layers: Sequence[Mapping[int, list[Any]]]) -> list[list[Any]]:
    """A half's operations by turn, layer after layer."""
    stages: list[list[Any]] = []
    for parts in layers:
        own = turns.stages(parts)
        if stages:
            stages[-1] = stages[-1] + own[0]
        else:
            stages.append(own[0])
        stages += own[1:]
    return stages


def _parts(operations: Sequence[Operation], layer: Sequence[int]) -> dict[int, list[int]]:
    """A layer's operations by part."""
    parts: dict[int, list[int]] = defaultdict(list)
    shared = [index for index in layer if operations[index].of_dense_mlp]
    part = BEFORE
    for place, index in enumerate(layer):
        item = operations[index]
        if item.kind in ATTENTION:
            part = ATTENDS
        elif part == ATTENDS:
            part = BEHIND
        if item.is_transfer:
            parts[COMBINE if item.kind == "combine" else DISPATCH].append(index)
            continue
        following = layer[place + 1] if item.prepares and place + 1 < len(layer) else index
        if part == BEHIND and item.kind == "norm":
            part = ROUTES
        if part >= ROUTES:
            if shared and shared[0] <= following <= shared[-1]:
                part = SHARED
            elif item.kind in ("grouped_gemm", "permute") or part == SHARED:
                part = EXPERTS
        parts[part].append(index)
    return parts


def receives(kinds: NDArray[np.str_], names: NDArray[np.str_], counts: dict[str, int]) -> NDArray[np.int64]:
    """For kernels that receive what an earlier one sent, the place of that one; −1 for all others.

    Parameters
    ----------
    counts
        Number of exchanges of each kind that the plan has; a trace with about twice as many kernels has both.
    """
    sender = np.full(len(kinds), -1, np.int64)
    for kind, wanted in counts.items():
        rows = [
            row for row in np.flatnonzero(kinds == kind).tolist() if _SENDS_AND_RECEIVES.search(names[row]) is not None
        ]
        if wanted and len(rows) > 1.5 * wanted:
            for send, receive in zip(rows[::2], rows[1::2], strict=False):
                sender[receive] = send
    return sender
