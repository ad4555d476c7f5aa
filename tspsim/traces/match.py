"""Pairs of kernels and operators, by order and kind and never by time.

Within one lane, operators and kernels keep their order. An operator takes a run of kernels: at least one of its own
kind, and small helpers that prepare or finish it (a product's split sums, attention's rotations). Kernels may be left
over and operators may stay empty, at a cost; that of products and transfers is high. Dynamic programming finds the best
assignment, a whole row at a time. Stated shapes are binding: a product takes no kernel of another width.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..operators import Computes
from .assignment import Taker, assigned
from .experts import orders_of_experts
from .halves import orders_in_turn
from .kinds import ATTENTION, COLLECTIVES, HEAVY, KINDS, MOVES
from .product_sizes import fits, gradient_of, stated_sizes
from .simulated import Operation
from .steps import Repetition, repetitions
from .worth import EMPTY, HEAVIER, HELPS, LEFT, NEVER, OWN, SEVERAL, STANDS_FOR, TAKES, Worth, table

#: Kinds of small operators that frameworks run in pieces, each beside the product that it belongs to.
_IN_PIECES = frozenset({"rope"})
_MOVES = [KINDS.index(kind) for kind in MOVES]
_HEAVY = [KINDS.index(kind) for kind in HEAVY]
#: Largest difference in worth between assignments that count as equal.
_SAME = 0.5
#: Parts of a program that draft tokens.
_DRAFTS = re.compile(r"^draft\b|\bfurther token\b")
#: Largest distance, in operators, between the two gradients of one product.
_TWINS = 4


def align(
    kinds: Sequence[str],
    shapes: Sequence[str],
    operations: Sequence[Operation],
    helpers: Sequence[bool] | None = None,
    narrow: Sequence[bool] | None = None,
    back: Sequence[bool] | None = None,
    *,
    may_split: bool = True,
) -> NDArray[np.int64]:
    """The operation of every kernel, −1 for left-over ones.

    Frameworks keep weights as (outputs, inputs) or the other way. Where shapes are stated, the way with fewer left-over
    heavy kernels is taken.

    Parameters
    ----------
    kinds, shapes
        Kinds and shapes of the kernels, in order; a shape is as the profiler writes it, or empty.
    operations
        Operations in their order.
    helpers
        Whether a kernel never stands for an operator alone, such as one that only waits.
    narrow
        Whether a kernel's name states operands of eight bits or fewer; an operator in 16 bits takes none of those.
    back
        Whether a kernel's name states a backward pass; an operator of a forward pass takes none of those.
    may_split
        Whether a product of several weights may still be several kernels.
    """
    kernels = _Kernels.of(kinds, shapes, helpers, narrow, back)
    pairs = len(kinds) * len(operations)
    reach = _NEAR if pairs > _FEW_PAIRS else 0
    best: tuple[int, float, NDArray[np.int64], list[int], bool] | None = None

    def given_by(order: list[int], outputs_first: bool, reach: int) -> tuple[NDArray[np.int64], float]:
        own = [operations[place] for place in order]
        given, value = _aligned(kernels, own, outputs_first, may_split, reach)
        return np.where(given >= 0, np.array([*order, -1])[given], -1), value

    for outputs_first in (True, False):
        for order in _orders(operations, kinds):
            given, value = given_by(order, outputs_first, reach)
            over = int((kernels.heavy & (given < 0)).sum())
            if best is None or over < best[0] or (over == best[0] and value > best[1] + _SAME):
                best = over, value, given, order, outputs_first
            if not over and pairs > _ALL_PAIRS:
                return given  # each further order takes seconds
        if best is None or not best[0] or not any(shapes):
            break
    assert best is not None
    over, _, given, order, outputs_first = best
    if reach and _lacks(operations, given, over, kinds):
        # What is left over may be of an operator further on.
        given, _ = given_by(order, outputs_first, _FURTHER if pairs > _ALL_PAIRS else 0)
    return given


class _Kernels(NamedTuple):
    """The kernels of a lane: kinds as words and as numbers, stated widths, and which only wait, have operands of eight
    bits, or are of a backward pass."""

    kinds: Sequence[str]
    codes: NDArray[np.int64]
    widths: list[tuple[int, int, int] | None]
    waiting: NDArray[np.bool_]
    eight: NDArray[np.bool_]
    gradients: NDArray[np.bool_]
    heavy: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        kinds: Sequence[str],
        shapes: Sequence[str],
        helpers: Sequence[bool] | None,
        narrow: Sequence[bool] | None,
        back: Sequence[bool] | None,
    ) -> _Kernels:
        codes = np.array([KINDS.index(kind) for kind in kinds], np.int64)
        waiting, eight, gradients = (
            np.array(flags, bool) if flags is not None else np.zeros(len(kinds), bool)
            for flags in (helpers, narrow, back)
        )
        widths = [stated_sizes(text) for text in shapes]
        return cls(kinds, codes, widths, waiting, eight, gradients, np.isin(codes, _HEAVY))

    @property
    def alike(self) -> NDArray[np.int64]:
        """Numbers of what makes kernels worth what they are to an operator."""
        shown = {width: number for number, width in enumerate(dict.fromkeys(self.widths))}
        numbers = np.array([shown[width] for width in self.widths], np.int64) * len(KINDS) + self.codes
        for flags in (self.waiting, self.eight, self.gradients):
            numbers = 2 * numbers + flags
        return numbers


def _lacks(operations: Sequence[Operation], given: NDArray[np.int64], over: int, kinds: Sequence[str]) -> bool:
    """Whether an assignment leaves heavy kernels over, or more heavy operators without any than a kind has too few
    kernels."""
    taken, short = set(given.tolist()), Counter(item.kind for item in operations)
    short.subtract(Counter(kinds))
    empty = Counter(item.kind for index, item in enumerate(operations) if item.kind in HEAVY and index not in taken)
    return bool(over) or any(count > short[kind] for kind, count in empty.items())


def _orders(operations: Sequence[Operation], kinds: Sequence[str]) -> list[list[int]]:
    """Orders in which frameworks run the operators. The first is the simulated one. In layers with routed and shared
    experts, the shared ones may also run after the routed ones, or the first of them before and the second after. Two
    halves of a batch may take turns elsewhere."""
    whole = list(range(len(operations)))
    # Halves in turn have their shared experts before or behind the routed ones too.
    if turns := orders_in_turn(operations, kinds):
        return [whole, *turns]
    orders = [whole]
    for order in orders_of_experts(operations):
        if order not in orders:
            orders.append(order)
    # vLLM drafts behind the pass that verifies, SGLang before it.
    drafts = next((index for index, operation in enumerate(operations) if _DRAFTS.search(operation.part)), 0)
    if drafts:
        orders.append([*whole[drafts:], *whole[:drafts]])
    return orders


def _aligned(
    kernels: _Kernels, operations: Sequence[Operation], outputs_first: bool, may_split: bool, reach: int
) -> tuple[NDArray[np.int64], float]:
    """The operation of every kernel in the operations' order, and the worth of the assignment. With a ``reach``
    operators look at so many kernels on either side of their own place."""
    kinds, codes, widths, waiting, eight, gradients, heavy = kernels
    size = len(kinds)
    if not size or not len(operations):
        return np.full(size, -1, np.int64), 0.0
    left = np.where(heavy & ~waiting, HEAVIER * OWN, LEFT)
    stated = any(widths)
    worths: dict[Any, Worth] = {}
    grouped = "grouped_gemm" in kinds

    def worth(operation: Operation) -> Worth:
        shape = (operation.sizes, operation.computes) if stated else None
        # Without a grouped kernel every expert's product is an operator of its own.
        several = operation.kind in SEVERAL and (operation.kind != "grouped_gemm" or grouped)
        splits = may_split and bool(operation.joins)
        chain = operation.kernels > 1
        forward = operation.gives_output
        adds = operation.adds
        key = (operation.kind, several, splits, chain, operation.is_wide, operation.computes, forward, adds, shape)
        own_worth = worths.get(key)
        if own_worth is None:
            first, further, helper = (column[codes] for column in table(operation.kind, several, splits, chain))
            if operation.is_transfer or operation.kind in COLLECTIVES:
                helper = np.where(waiting, HELPS, helper)
            first, further = np.where(waiting, NEVER, first), np.where(waiting, NEVER, further)
            if grouped and operation.kind == "grouped_gemm" and operation.computes is not Computes.WEIGHT_GRADIENT:
                # A framework with a grouped kernel runs no plain products beside it, except one dW per expert.
                plain = codes == KINDS.index("gemm")
                first, further = np.where(plain, NEVER, first), np.where(plain, NEVER, further)
            if adds:
                norms = codes == KINDS.index("norm")
                first = np.where(norms, NEVER, np.where(np.isin(codes, _MOVES), STANDS_FOR, first))
                further = np.where(norms, NEVER, further)
            if forward:
                first, further = np.where(gradients, NEVER, first), np.where(gradients, NEVER, further)
            if operation.is_wide:
                first, further = np.where(eight, NEVER, first), np.where(eight, NEVER, further)
            if operation.sizes is not None and stated:
                allowed = np.array(
                    [fits(width, operation.sizes, operation.computes, outputs_first=outputs_first) for width in widths]
                )
                first, further = np.where(allowed, first, NEVER), np.where(allowed, further, NEVER)
            own_worth = worths[key] = Worth(first, further, helper)
        return own_worth

    worths_of = [worth(operation) for operation in operations]
    numbers = {id(own): number for number, own in enumerate(worths.values())}
    takes = [
        Taker(2 * numbers[id(own)] + (item.kind in HEAVY), own, HEAVIER * OWN if item.kind in HEAVY else EMPTY)
        for own, item in zip(worths_of, operations, strict=True)
    ]
    alike = kernels.alike
    own_numbers = np.array([taker.number for taker in takes], np.int64)
    layers = _layers(own_numbers, [item.kind for item in operations]) if reach else None
    begins = _blocks(len(operations), layers)
    windows = [slice(0, size)] * len(begins)
    if reach and heavy.any():
        ends = [*begins, len(operations)]
        windows = _windows(_places(ends, operations, layers, kernels, alike), size, max(reach, size // 200))
    takers, value = assigned(takes, alike, left, begins, windows)
    _tell_gradients_apart(takers, widths, operations, outputs_first=outputs_first)
    _share_out(takers, kinds, operations)
    _join_pieces(takers, kinds, operations)
    _pass_on(takers, kinds, operations)
    return takers, value


#: Pairs of a kernel and an operator up to which each may belong to each; beyond, operators look at kernels near their
#: own place only. A step of 6,000 kernels still looks at all.
_ALL_PAIRS = 4e7
#: Pairs from which orders are compared by nearby kernels, and all are looked at only where something is left over.
_FEW_PAIRS = 1e6
#: Kernels on either side of an operator's own place that it looks at first, and where that leaves something over; a
#: two-hundredth of all, if that is more.
_NEAR, _FURTHER = 128, 512


def _layers(numbers: NDArray[np.int64], kinds: Sequence[str]) -> Repetition | None:
    """The layers of operators or kernels: the run of equal stretches, from the first attention in it on."""
    runs = repetitions(numbers)
    if not runs:
        return None
    own = min((run for run in runs if 10 * run.length >= 8 * runs[0].length), key=lambda run: run.period)
    first = next((place for place in range(own.start, own.start + own.period) if kinds[place] in ATTENTION), own.start)
    return Repetition(first, own.period, own.count - (first > own.start))


def _of_several(layers: Repetition, count: int) -> Repetition:
    """The same in stretches of several layers, about ``count`` of them."""
    many = max(1, round(layers.count / count))
    return Repetition(layers.start, many * layers.period, layers.count // many)


def _blocks(size: int, layers: Repetition | None) -> list[int]:
    """The first operator of every block: about as many blocks as each has operators, and whole layers where these are
    told, which are alike."""
    every = max(1, int(size**0.5))
    if layers is None:
        return list(range(0, size, every))
    every = layers.period * max(1, round(every / layers.period))
    first = layers.start % every
    return [*([0] if first else []), *range(first, size, every)]


def _places(
    ends: Sequence[int],
    operations: Sequence[Operation],
    layers: Repetition | None,
    kernels: _Kernels,
    alike: NDArray[np.int64],
) -> list[int]:
    """The kernel nearest to where an operator ends, if all is as simulated: of the same layer where both sides have as
    many, else at the same place among the heavy ones."""
    shown = np.flatnonzero(kernels.heavy)
    there = _layers(alike[shown], [kernels.kinds[row] for row in shown.tolist()]) if layers is not None else None
    last = len(shown) - 1
    if layers is not None and there is not None:
        # Two halves of a batch may look like two layers on one side alone.
        layers, there = _of_several(layers, there.count), _of_several(there, layers.count)
    if layers is not None and there is not None and abs(there.count - layers.count) <= 1:
        count = min(there.count, layers.count)
        own = [0, *(layers.start + layers.period * layer for layer in range(count + 1)), len(operations)]
        met = [0, *(there.start + there.period * layer for layer in range(count + 1)), len(shown)]
    else:
        own = np.cumsum([0, *(operation.kind in HEAVY for operation in operations)]).tolist()
        ends, met, own = [own[end] for end in ends], [0, len(shown)], [0, own[-1]]
    return [int(shown[min(int(place), last)]) for place in np.interp(ends, own, met).tolist()]


def _windows(places: Sequence[int], size: int, reach: int) -> list[slice]:
    """The kernels that each block of operators may take: those near the places of its first and last operator."""
    windows = [slice(max(0, low - reach), min(size, high + reach)) for low, high in pairwise(places)]
    windows[-1] = slice(windows[-1].start, size)
    return windows


def _tell_gradients_apart(
    takers: NDArray[np.int64],
    widths: Sequence[tuple[int, int, int] | None],
    operations: Sequence[Operation],
    *,
    outputs_first: bool,
) -> None:
    """Correct the kernels of a product's two gradients: frameworks compute them in either order, and the shapes state
    which one a kernel is."""
    for row, (place, stated) in enumerate(zip(takers.tolist(), widths, strict=True)):
        taker = operations[place] if place >= 0 else None
        if taker is None or stated is None or taker.sizes is None or taker.computes is Computes.OUTPUT:
            continue
        makes = gradient_of(stated, taker.sizes, taker.computes, outputs_first=outputs_first)
        if makes is None or makes is taker.computes:
            continue
        near = range(max(place - _TWINS, 0), min(place + _TWINS + 1, len(operations)))
        twins = [
            other
            for other in near
            if operations[other].computes is makes
            and operations[other].layer == taker.layer
            and _product(operations[other]) == _product(taker)
        ]
        if twins:
            takers[row] = min(twins, key=lambda other: abs(other - place))


def _share_out(takers: NDArray[np.int64], kinds: Sequence[str], operations: Sequence[Operation]) -> None:
    """Give operators of one name that follow each other (the experts of two halves of a batch) as many heavy kernels
    each: which of a run of several kernels is whose, their kinds do not say."""
    heavy = np.isin(kinds, list(HEAVY))
    first = 0
    for last in range(1, len(operations) + 1):
        before = operations[first]
        if last < len(operations) and (operations[last].name, operations[last].kind) == (before.name, before.kind):
            continue
        ops, first = range(first, last), last
        if len(ops) < 2 or before.kind not in SEVERAL:
            continue
        rows = np.flatnonzero((takers >= ops.start) & (takers < ops.stop))
        own = rows[heavy[rows]]
        share, rest = divmod(len(own), len(ops))
        counts = np.bincount(takers[own] - ops.start, minlength=len(ops))
        if rest or not share or (counts == share).all():
            continue
        tail = [kinds[row] for row in rows[rows > own[-1]].tolist()]
        for number, operation in enumerate(ops):
            begin = own[number * share]
            between = rows[(rows < begin) & (rows > own[number * share - 1])] if number else rows[rows < begin]
            mine = between[len(tail) :] if number and [kinds[row] for row in between[: len(tail)]] == tail else between
            takers[rows[rows >= (mine[0] if len(mine) else begin)]] = operation


def _join_pieces(takers: NDArray[np.int64], kinds: Sequence[str], operations: Sequence[Operation]) -> None:
    """Give a small operator the kernels of its kind that a framework runs further on, with copies behind them: keys are
    rotated where their product is, and queries where theirs is, in one operator here. A small operator that has
    kernels of its own kind keeps the copies that it took."""
    own = list(takers.tolist())
    filled = {taker for kind, taker in zip(kinds, own, strict=True) if taker >= 0 and operations[taker].kind == kind}
    last = -1
    for row, (kind, place) in enumerate(zip(kinds, own, strict=True)):
        last = max(last, place)
        if place >= 0 or kind not in _IN_PIECES:
            continue
        near = [index for index in range(max(last - _TWINS, 0), last + 1) if operations[index].kind == kind]
        if not near:
            continue
        takers[row] = near[-1]
        for behind in range(row + 1, len(own)):
            if kinds[behind] not in TAKES[kind][1]:
                break
            taker = own[behind]
            if taker in filled and operations[taker].kind not in HEAVY:
                break
            takers[behind] = near[-1]


def _pass_on(takers: NDArray[np.int64], kinds: Sequence[str], operations: Sequence[Operation]) -> None:
    """Give a small operator behind a product of several weights what runs between the pieces of that product: gate is
    activated before up is multiplied."""
    for row, (kind, place) in enumerate(zip(kinds, takers.tolist(), strict=True)):
        if place < 0 or kind in MOVES or kind == operations[place].kind or not operations[place].joins:
            continue
        following = place + 1
        if following < len(operations) and operations[following].kind == kind and (takers == following).any():
            takers[row] = following


def _product(operation: Operation) -> str:
    """The common name of a product's two gradients."""
    return operation.name.rpartition(",")[0]
