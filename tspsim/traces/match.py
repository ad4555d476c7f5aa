"""Pairs of kernels and operators, by order and kind and never by time.

Within one lane, operators and kernels keep their order. An operator takes a run of kernels: at least one of its own
kind, and small helpers that prepare or finish it (a product's split sums, attention's rotations). Kernels may be left
over and operators may stay empty, at a cost; that of products and transfers is high. Dynamic programming finds the best
assignment, a whole row at a time. Stated shapes are binding: a product takes no kernel of another width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..operators import Computes
from .experts import orders_of_experts
from .halves import orders_in_turn
from .kinds import COLLECTIVES, HEAVY, KINDS, MOVES
from .product_sizes import fits, gradient_of, stated_sizes
from .simulated import Operation
from .worth import EMPTY, HEAVIER, HELPS, LEFT, NEVER, OWN, SEVERAL, STANDS_FOR, TAKES, Floats, Worth, table

#: Kinds of small operators that frameworks run in pieces, each beside the product that it belongs to.
_IN_PIECES = frozenset({"rope"})
_MOVES = [KINDS.index(kind) for kind in MOVES]
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
    heavy = np.isin(kinds, list(HEAVY)) if len(kinds) else np.zeros(0, bool)
    near = len(kinds) * len(operations) > _FEW_PAIRS
    best: tuple[int, float, NDArray[np.int64], list[int], bool] | None = None

    def given_by(order: list[int], outputs_first: bool, near: bool) -> tuple[NDArray[np.int64], float]:
        own = [operations[place] for place in order]
        given, value = _aligned(kinds, shapes, own, helpers, narrow, back, outputs_first, may_split, near)
        return np.where(given >= 0, np.array([*order, -1])[given], -1), value

    for outputs_first in (True, False):
        for order in _orders(operations, kinds):
            given, value = given_by(order, outputs_first, near)
            over = int((heavy & (given < 0)).sum())
            if best is None or over < best[0] or (over == best[0] and value > best[1] + _SAME):
                best = over, value, given, order, outputs_first
            if not over and len(kinds) * len(operations) > _ALL_PAIRS:
                return given  # each further order takes seconds
        if best is None or not best[0] or not any(shapes):
            break
    assert best is not None
    if near and len(kinds) * len(operations) <= _ALL_PAIRS and _lacks(operations, best[2], best[0]):
        return given_by(best[3], best[4], False)[0]
    return best[2]


def _lacks(operations: Sequence[Operation], given: NDArray[np.int64], over: int) -> bool:
    """Whether an assignment leaves heavy kernels over, or a heavy operator without any."""
    return bool(over) or not {i for i, item in enumerate(operations) if item.kind in HEAVY} <= set(given.tolist())


def _orders(operations: Sequence[Operation], kinds: Sequence[str]) -> list[list[int]]:
    """Orders in which frameworks run the operators. The first is the simulated one. In layers with routed and shared
    experts, the shared ones may also run after the routed ones, or the first of them before and the second after. Two
    halves of a batch may take turns elsewhere."""
    whole = list(range(len(operations)))
    orders = [whole]
    for order in orders_of_experts(operations):
        if order not in orders:
            orders.append(order)
    # vLLM drafts behind the pass that verifies, SGLang before it.
    drafts = next((index for index, operation in enumerate(operations) if _DRAFTS.search(operation.part)), 0)
    if drafts:
        orders.append([*whole[drafts:], *whole[:drafts]])
    return orders + orders_in_turn(operations, kinds)


def _aligned(
    kinds: Sequence[str],
    shapes: Sequence[str],
    operations: Sequence[Operation],
    helpers: Sequence[bool] | None,
    narrow: Sequence[bool] | None,
    back: Sequence[bool] | None,
    outputs_first: bool,
    may_split: bool,
    near: bool,
) -> tuple[NDArray[np.int64], float]:
    """The operation of every kernel in the operations' order, and the worth of the assignment."""
    size = len(kinds)
    takers = np.full(size, -1, np.int64)
    if not size or not len(operations):
        return takers, 0.0
    codes = np.array([KINDS.index(kind) for kind in kinds])
    waiting = np.array(helpers, bool) if helpers is not None else np.zeros(size, bool)
    eight = np.array(narrow, bool) if narrow is not None else np.zeros(size, bool)
    gradients = np.array(back, bool) if back is not None else np.zeros(size, bool)
    left = np.where(np.isin(codes, [KINDS.index(word) for word in HEAVY]) & ~waiting, HEAVIER * OWN, LEFT)
    skipped = np.concatenate([[0.0], np.cumsum(left)])
    widths = [stated_sizes(text) for text in shapes]
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

    empty = [HEAVIER * OWN if operation.kind in HEAVY else EMPTY for operation in operations]
    every = max(1, int(len(operations) ** 0.5))
    blocks = range(0, len(operations), every)
    windows = _windows(codes, operations, blocks, near)
    whole = slice(0, size)
    row = -skipped
    checkpoints: list[Floats] = []
    for begin, window, before in zip(blocks, windows, (whole, *windows), strict=False):
        row = _moved(row, before, window, skipped)
        checkpoints.append(row)
        for index in range(begin, min(begin + every, len(operations))):
            row = _row(row, worth(operations[index]).within(window), empty[index], _ends(skipped, window))[0]
    place = size
    for begin, window, checkpoint in reversed(list(zip(blocks, windows, checkpoints, strict=True))):
        own, left_over = range(begin, min(begin + every, len(operations))), _ends(skipped, window)
        rows = [checkpoint]
        for index in own:
            rows.append(_row(rows[-1], worth(operations[index]).within(window), empty[index], left_over)[0])
        place = min(max(place - window.start, 0), window.stop - window.start)
        mine = takers[window]
        for index in reversed(own):
            of = worth(operations[index]).within(window)
            place = _back(rows[index - begin], of, empty[index], left_over, place, mine, index)
        place += window.start
    _tell_gradients_apart(takers, widths, operations, outputs_first=outputs_first)
    _share_out(takers, kinds, operations)
    _join_pieces(takers, kinds, operations)
    _pass_on(takers, kinds, operations)
    return takers, float(row[-1])


#: Pairs of a kernel and an operator up to which each may belong to each; beyond, operators look at kernels near their
#: own place only. A step of 6,000 kernels still looks at all.
_ALL_PAIRS = 4e7
#: Pairs from which orders are compared by nearby kernels, and all are looked at only where something is left over.
_FEW_PAIRS = 1e6
#: Kernels on either side of an operator's own place that it looks at then; a two-hundredth of all, if that is more.
_NEAR = 512


def _windows(codes: NDArray[np.int64], operations: Sequence[Operation], blocks: range, near: bool) -> list[slice]:
    """The kernels that each block of operators may take: all, or in a very long step those near the heavy kernel whose
    place among all heavy ones is that of the block's first and last operator."""
    size = len(codes)
    heavy = np.flatnonzero(np.isin(codes, [KINDS.index(word) for word in HEAVY]))
    if not (near or size * len(operations) > _ALL_PAIRS) or not len(heavy):
        return [slice(0, size)] * len(blocks)
    before = np.cumsum([0, *(operation.kind in HEAVY for operation in operations)]) / max(
        1, sum(operation.kind in HEAVY for operation in operations)
    )
    ends = [*blocks, len(operations)]
    places = [int(heavy[min(int(before[end] * len(heavy)), len(heavy) - 1)]) for end in ends]
    reach = max(_NEAR, size // 200)
    windows = [slice(max(0, low - reach), min(size, high + reach)) for low, high in pairwise(places)]
    windows[-1] = slice(windows[-1].start, size)
    return windows


def _ends(skipped: Floats, window: slice) -> Floats:
    """Costs of leaving over the kernels before every place of a window, its end included."""
    return skipped[window.start : window.stop + 1]


def _moved(row: Floats, before: slice, window: slice, skipped: Floats) -> Floats:
    """The best values of a window's places, from those of the window before it: kernels behind that are left over."""
    if before == window:
        return row
    kept = row[window.start - before.start :]
    more = skipped[before.stop] - skipped[before.stop + 1 : window.stop + 1]
    return np.concatenate([kept, kept[-1] + more]) if len(more) else kept[: window.stop - window.start + 1]


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


def _row(before: Floats, worth: Worth, empty: float, skipped: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Best value for every number of kernels (taken or left over) after one more operator, and its terms."""
    helped, gone = worth.helped, worth.gone
    # Helpers in front: a run begins after any earlier kernel and has only helpers so far.
    ahead = np.maximum.accumulate(before - helped) + helped
    opened = ahead[:-1] + worth.first
    run = np.maximum.accumulate(opened - gone[1:]) + gone[1:]
    ends = np.maximum(before - empty, np.concatenate([[NEVER * 2], run]))
    return np.maximum.accumulate(ends + skipped) - skipped, ends, run, opened, helped


def _back(
    before: Floats, worth: Worth, empty: float, skipped: Floats, place: int, takers: NDArray[np.int64], index: int
) -> int:
    """Assign kernels to an operator, from the number of kernels up to its last one; returns the number before its
    first."""
    _, ends, run, opened, helped = _row(before, worth, empty, skipped)
    place = int(np.argmax((ends + skipped)[: place + 1]))
    if place == 0 or before[place] - empty >= run[place - 1]:
        return place
    last = place
    first = int(np.argmax((opened - worth.gone[1:])[:last]))
    start = int(np.argmax((before - helped)[: first + 1]))
    takers[start:last] = index
    return start
