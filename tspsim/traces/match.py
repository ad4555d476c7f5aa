"""Which kernel belongs to which operator: by order and kind, never by time.

Within one lane the operators and the kernels keep their order. An operator takes a run of kernels: at least one of its
own kind, beside it small ones that prepare or finish it (a product's split sums, attention's rotations). Kernels may be
left over and operators may find none; each costs something, products and transfers much. The best such assignment is
found by dynamic programming, whole rows at a time. Stated shapes are hard: a product takes no kernel of another width.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.memo import remembered
from ..operators import Computes
from .kinds import COLLECTIVES, HEAVY, KINDS
from .simulated import Operation

Floats = NDArray[np.float64]

#: What an operator of a kind takes beside kernels of its own kind: (as its own, as helpers).
_TAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm": ((), ("quantize", "copy", "reduction", "elementwise", "memset", "memcpy", "activation")),
    "grouped_gemm": (
        ("gemm",),
        (
            "permute",
            "quantize",
            "router",
            "activation",
            "copy",
            "reduction",
            "elementwise",
            "memset",
            "memcpy",
            "sample",
        ),
    ),
    "attention": ((), ("rope", "cache", "copy", "norm", "quantize", "elementwise", "reduction", "memset", "memcpy")),
    "linear_attention": (
        ("attention", "convolution"),
        ("norm", "copy", "elementwise", "reduction", "activation", "cache"),
    ),
    "norm": (("reduction",), ("elementwise", "copy", "quantize", "memcpy")),
    # Eager frameworks have no kernel of either: products, sums and copies one by one.
    "activation": (("elementwise",), ("copy", "quantize")),
    "rope": (("elementwise",), ("norm", "copy", "cache", "memcpy")),
    "cache": ((), ("copy", "quantize", "memcpy", "elementwise")),
    "router": (("permute",), ("reduction", "elementwise", "copy", "memset", "sample", "activation", "quantize")),
    "permute": (("router",), ("copy", "elementwise", "quantize", "reduction", "memset", "memcpy", "embedding")),
    "quantize": (("copy",), ("memset",)),
    "elementwise": ((), ("copy", "reduction", "memcpy")),
    "copy": (("memcpy", "quantize"), ()),
    "embedding": ((), ("copy", "memcpy", "elementwise", "reduction", "memset", "sample")),
    "sample": (("reduction",), ("elementwise", "copy", "memcpy", "memset", "router", "embedding")),
    "loss": (("reduction",), ("elementwise", "copy", "memset")),
    "optimizer": (("elementwise",), ("copy", "reduction", "memset", "memcpy")),
    "all_reduce": (("exchange",), ()),
    "all_gather": (("exchange", "broadcast"), ("copy",)),
    "reduce_scatter": (("exchange",), ("copy",)),
    "broadcast": (("exchange",), ()),
    "send_recv": (("exchange",), ()),
    "all_to_all": (("send_recv", "dispatch", "combine", "exchange"), ()),
    "dispatch": (("all_to_all", "send_recv", "exchange"), ("combine",)),
    "combine": (("all_to_all", "send_recv", "exchange"), ("dispatch",)),
}
#: Kinds whose operators often run as several kernels of their own.
_SEVERAL = frozenset({"attention", "linear_attention", "grouped_gemm", "optimizer"})

#: Worth of the first kernel of an operator's kind, of one that may stand for it, of a helper; what it costs to leave a
#: kernel over or an operator empty. Only their order matters: a heavy kernel is never given up for small ones. Whole
#: numbers, so that equal assignments are equal, whatever was added before them.
_OWN, _STANDS_FOR, _HELPS = 60.0, 30.0, 2.0
_HEAVIER = 4.0
_LEFT, _EMPTY, _FURTHER = 6.0, 10.0, 8.0
#: … of a product that joins several weights: where kernels are more than operators, it is the one that was not joined.
_FURTHER_OF_JOINED = 14.0
_NEVER = -(2.0**26)
#: Assignments of so equal worth are one as good as the other.
_SAME = 0.5
#: How many operators apart the two gradients of one product stand at most.
_TWINS = 4


@dataclass(frozen=True)
class Worth:
    """What the kernels of a lane are worth to an operator of a kind: as its first, as a further one, as a helper."""

    first: Floats
    further: Floats
    helper: Floats


@remembered(256)
def _table(kind: str, several: bool, joins: bool) -> tuple[Floats, Floats, Floats]:
    """The same by kind of kernel, in the order of KINDS; ``several``: it often runs as several kernels of its kind;
    ``joins``: one product of several weights, which others run as a product each."""
    first, further, helper = (np.full(len(KINDS), _NEVER) for _ in range(3))
    own, helpers = _TAKES.get(kind, ((), ()))
    weight = _HEAVIER if kind in HEAVY else 1.0
    for word in (kind, *own):
        worth = weight * (_OWN if word == kind else _STANDS_FOR)
        place = KINDS.index(word)
        first[place] = worth
        again = _FURTHER_OF_JOINED if joins else _FURTHER
        further[place] = 0.9 * worth if several else again * (_HEAVIER if word in HEAVY else 1.0)
    for word in helpers:
        helper[KINDS.index(word)] = _HELPS
    return first, further, helper


def align(
    kinds: Sequence[str],
    shapes: Sequence[str],
    operations: Sequence[Operation],
    helpers: Sequence[bool] | None = None,
    narrow: Sequence[bool] | None = None,
    *,
    may_split: bool = True,
) -> NDArray[np.int64]:
    """The operation of every kernel, −1 of those left over.

    Frameworks keep weights as (outputs, inputs) or the other way; where shapes are stated, the way that leaves fewer
    heavy kernels over is taken.

    Parameters
    ----------
    kinds, shapes
        Of the kernels in their order; shapes as the profiler writes them, empty where it does not.
    operations
        In their order.
    helpers
        Kernels that never stand for an operator alone, such as those that only wait.
    narrow
        Kernels whose names state operands of eight bits or fewer: no operator in 16 takes them.
    may_split
        Whether nobody knows yet which products of several weights are a kernel each.
    """
    heavy = np.isin(kinds, list(HEAVY)) if len(kinds) else np.zeros(0, bool)
    best: tuple[int, float, NDArray[np.int64]] | None = None
    for outputs_first in (True, False):
        for order in _orders(operations):
            own = [operations[place] for place in order]
            given, value = _aligned(kinds, shapes, own, helpers, narrow, outputs_first, may_split)
            over = int((heavy & (given < 0)).sum())
            if best is None or over < best[0] or (over == best[0] and value > best[1] + _SAME):
                best = over, value, np.where(given >= 0, np.array([*order, -1])[given], -1)
        if best is None or not best[0] or not any(shapes):
            break
    assert best is not None
    return best[2]


def _orders(operations: Sequence[Operation]) -> list[list[int]]:
    """Orders in which frameworks run these operators: as simulated; of layers with routed and shared experts also the
    shared ones behind the routed ones, or the first of them before and the second behind."""
    visits: dict[tuple[int, str, Computes], tuple[list[int], list[int]]] = {}
    for index, operation in enumerate(operations):
        if operation.layer >= 0 and (operation.kind == "grouped_gemm" or operation.of_dense_mlp):
            key = (operation.layer, operation.phase, operation.computes)
            visits.setdefault(key, ([], []))[operation.kind == "grouped_gemm"].append(index)
    mixed = [(shared, routed) for shared, routed in visits.values() if shared and routed]
    whole = list(range(len(operations)))
    orders = [whole]
    for before in (0, 1) if mixed else ():
        order = list(whole)
        for shared, routed in mixed:
            moved = [*shared[:before], *routed, *shared[before:]]
            for place, index in zip(sorted(moved), moved, strict=True):
                order[place] = index
        if order not in orders:
            orders.append(order)
    return orders


def _aligned(
    kinds: Sequence[str],
    shapes: Sequence[str],
    operations: Sequence[Operation],
    helpers: Sequence[bool] | None,
    narrow: Sequence[bool] | None,
    outputs_first: bool,
    may_split: bool,
) -> tuple[NDArray[np.int64], float]:
    """The operation of every kernel by the operations' order, and what the assignment is worth."""
    size = len(kinds)
    takers = np.full(size, -1, np.int64)
    if not size or not len(operations):
        return takers, 0.0
    codes = np.array([KINDS.index(kind) for kind in kinds])
    waiting = np.array(helpers, bool) if helpers is not None else np.zeros(size, bool)
    eight = np.array(narrow, bool) if narrow is not None else np.zeros(size, bool)
    left = np.where(np.isin(codes, [KINDS.index(word) for word in HEAVY]) & ~waiting, _HEAVIER * _OWN, _LEFT)
    skipped = np.concatenate([[0.0], np.cumsum(left)])
    widths = [stated_sizes(text) for text in shapes]
    worths: dict[Any, Worth] = {}
    grouped = "grouped_gemm" in kinds

    def worth(operation: Operation) -> Worth:
        shape = (operation.sizes, operation.computes) if any(widths) else None
        # Without a grouped kernel every expert's product is an operator of its own here.
        several = operation.kind in _SEVERAL and (operation.kind != "grouped_gemm" or grouped)
        splits = may_split and bool(operation.joins)
        key = (operation.kind, several, splits, operation.is_wide, operation.computes, shape)
        own_worth = worths.get(key)
        if own_worth is None:
            first, further, helper = (column[codes] for column in _table(operation.kind, several, splits))
            if operation.is_transfer or operation.kind in COLLECTIVES:
                helper = np.where(waiting, _HELPS, helper)
            first, further = np.where(waiting, _NEVER, first), np.where(waiting, _NEVER, further)
            if grouped and operation.kind == "grouped_gemm" and operation.computes is not Computes.WEIGHT_GRADIENT:
                # Who has a grouped kernel runs no plain ones beside it; only dW often is a product an expert.
                plain = codes == KINDS.index("gemm")
                first, further = np.where(plain, _NEVER, first), np.where(plain, _NEVER, further)
            if operation.is_wide:
                first, further = np.where(eight, _NEVER, first), np.where(eight, _NEVER, further)
            if operation.sizes is not None and any(widths):
                allowed = np.array(
                    [fits(width, operation.sizes, operation.computes, outputs_first=outputs_first) for width in widths]
                )
                first, further = np.where(allowed, first, _NEVER), np.where(allowed, further, _NEVER)
            own_worth = worths[key] = Worth(first, further, helper)
        return own_worth

    empty = [_HEAVIER * _OWN if operation.kind in HEAVY else _EMPTY for operation in operations]
    every = max(1, int(len(operations) ** 0.5))
    row = -skipped
    checkpoints = [row]
    for index, operation in enumerate(operations):
        row = _row(row, worth(operation), empty[index], skipped)[0]
        if (index + 1) % every == 0:
            checkpoints.append(row)
    place = size
    block = len(operations)
    while block:
        begin = (block - 1) // every * every
        rows = [checkpoints[begin // every]]
        for index in range(begin, block):
            rows.append(_row(rows[-1], worth(operations[index]), empty[index], skipped)[0])
        for index in range(block - 1, begin - 1, -1):
            place = _back(rows[index - begin], worth(operations[index]), empty[index], skipped, place, takers, index)
        block = begin
    _tell_gradients_apart(takers, widths, operations, outputs_first=outputs_first)
    return takers, float(row[-1])


def _tell_gradients_apart(
    takers: NDArray[np.int64],
    widths: Sequence[tuple[int, int, int] | None],
    operations: Sequence[Operation],
    *,
    outputs_first: bool,
) -> None:
    """Kernels of a product's two gradients, which frameworks compute in either order, each to the operator it makes."""
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


def _product(operation: Operation) -> str:
    """What both gradients of a product are named after."""
    return operation.name.rpartition(",")[0]


def _row(before: Floats, worth: Worth, empty: float, skipped: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Best value of every number of kernels taken or left over behind one more operator; and what it was made of."""
    helped = np.concatenate([[0.0], np.cumsum(worth.helper)])
    # Helpers in front: a run that begins behind any earlier kernel and holds helpers alone so far.
    ahead = np.maximum.accumulate(before - helped) + helped
    opened = ahead[:-1] + worth.first
    on = np.maximum(worth.further, worth.helper)
    gone = np.concatenate([[0.0], np.cumsum(on)])
    run = np.maximum.accumulate(opened - gone[1:]) + gone[1:]
    ends = np.maximum(before - empty, np.concatenate([[_NEVER * 2], run]))
    return np.maximum.accumulate(ends + skipped) - skipped, ends, run, opened, helped


def _back(
    before: Floats, worth: Worth, empty: float, skipped: Floats, place: int, takers: NDArray[np.int64], index: int
) -> int:
    """Give an operator its kernels, from the number of kernels behind it; returns the number before it."""
    _, ends, run, opened, helped = _row(before, worth, empty, skipped)
    place = int(np.argmax((ends + skipped)[: place + 1]))
    if place == 0 or before[place] - empty >= run[place - 1]:
        return place
    last = place
    gone = np.cumsum(np.maximum(worth.further, worth.helper))
    first = int(np.argmax((opened - gone)[:last]))
    start = int(np.argmax((before - helped)[: first + 1]))
    takers[start:last] = index
    return start


@remembered(8192)
def stated_sizes(text: str) -> tuple[int, int, int] | None:
    """m, n and k of a product from the shapes of its inputs: two matrices, or a bias and two (``aten::addmm``)."""
    if not text:
        return None
    try:
        dims = json.loads(text)
    except ValueError:
        return None
    matrices = [
        shape
        for shape in dims
        if isinstance(shape, list) and len(shape) >= 2 and all(isinstance(v, int) for v in shape)
    ]
    for left, right in pairwise(matrices):
        if len(right) == 2 and len(left) == 2:
            (m, k), (p, n) = left, right
            if k == p:
                return m, n, k
            if k == n:  # weights as they are stored, transposed inside
                return m, p, k
    return None


def fits(
    stated: tuple[int, int, int] | None,
    sizes: tuple[int, int, int],
    computes: Computes = Computes.OUTPUT,
    *,
    outputs_first: bool = True,
) -> bool:
    """Whether a kernel of stated sizes may be an operator's: equal, or a slice of its columns.

    The two gradients of a product may stand in either order: each fits both of their operators, and
    :func:`gradient_of` tells them apart.

    >>> fits((32, 4096, 1024), (32, 6144, 1024)), fits((32, 4096, 512), (32, 6144, 1024)), fits(None, (1, 2, 3))
    (True, False, True)
    """
    if stated is None:
        return True
    if computes is not Computes.OUTPUT:
        return gradient_of(stated, sizes, computes, outputs_first=outputs_first) is not None
    (rows, columns, inner), (want_rows, want_columns, want_inner) = stated, sizes
    # Q, K and V, or gate and up, of one operator may be products of their own.
    return within_padding(inner, want_inner) and within_padding(rows, want_rows) and _part(columns, want_columns)


def gradient_of(
    stated: tuple[int, int, int], sizes: tuple[int, int, int], computes: Computes, *, outputs_first: bool = True
) -> Computes | None:
    """Which gradient of a product Y = X·W a kernel makes, whole or of a slice of W's columns; None: of another product.

    Parameters
    ----------
    stated
        m, n, k of the kernel.
    sizes, computes
        m, n, k of an operator that makes one of the two gradients: dX (tokens, inputs, outputs) or dW (inputs, outputs,
        tokens).
    outputs_first
        Whether dW comes as (outputs, inputs), as PyTorch keeps weights.

    >>> gradient_of((512, 64, 128), (32, 64, 512), Computes.INPUT_GRADIENT) is None  # other tokens
    True
    >>> str(gradient_of((128, 64, 32), (32, 64, 512), Computes.INPUT_GRADIENT))  # dW of a slice, outputs first
    'weight gradient'
    """
    own = computes is Computes.INPUT_GRADIENT
    tokens, inputs, outputs = sizes if own else (sizes[2], sizes[0], sizes[1])
    rows, columns, inner = stated
    first, second = (columns, rows) if outputs_first else (rows, columns)
    makes = {
        Computes.INPUT_GRADIENT: within_padding(rows, tokens)
        and within_padding(columns, inputs)
        and _part(inner, outputs),
        Computes.WEIGHT_GRADIENT: within_padding(inner, tokens)
        and within_padding(first, inputs)
        and _part(second, outputs),
    }
    return computes if makes[computes] else next((which for which, true in makes.items() if true), None)


def within_padding(value: int, wanted: int) -> bool:
    """Whether a kernel's size may be an operator's: libraries pad a few rows or columns."""
    return wanted <= value <= wanted * 1.1 + 64


def _part(value: int, wanted: int) -> bool:
    return value <= wanted or within_padding(value, wanted)
