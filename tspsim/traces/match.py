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
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kinds import COLLECTIVES, HEAVY, KINDS, PRODUCTS
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
    "activation": ((), ("elementwise", "copy", "quantize")),
    "rope": ((), ("norm", "copy", "elementwise", "cache", "memcpy")),
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
#: kernel over or an operator empty. Only their order matters: a heavy kernel is never given up for small ones.
_OWN, _STANDS_FOR, _HELPS = 3.0, 1.5, 0.1
_HEAVIER = 4.0
_LEFT, _EMPTY, _FURTHER = 0.3, 0.5, 0.4
_NEVER = -1e6


@dataclass(frozen=True)
class Worth:
    """What the kernels of a lane are worth to an operator of a kind: as its first, as a further one, as a helper."""

    first: Floats
    further: Floats
    helper: Floats


@lru_cache(maxsize=256)
def _table(kind: str, calls: int) -> tuple[Floats, Floats, Floats]:
    """The same by kind of kernel, in the order of KINDS."""
    first, further, helper = (np.full(len(KINDS), _NEVER) for _ in range(3))
    own, helpers = _TAKES.get(kind, ((), ()))
    weight = _HEAVIER if kind in HEAVY else 1.0
    for word in (kind, *own):
        worth = weight * (_OWN if word == kind else _STANDS_FOR)
        place = KINDS.index(word)
        first[place] = worth
        further[place] = (
            0.9 * worth if kind in _SEVERAL or calls > 1 else _FURTHER * (_HEAVIER if word in HEAVY else 1.0)
        )
    for word in helpers:
        helper[KINDS.index(word)] = _HELPS
    return first, further, helper


def align(
    kinds: Sequence[str], shapes: Sequence[str], operations: Sequence[Operation], helpers: Sequence[bool] | None = None
) -> NDArray[np.int64]:
    """The operation of every kernel, −1 of those left over.

    Parameters
    ----------
    kinds, shapes
        Of the kernels in their order; shapes as the profiler writes them, empty where it does not.
    operations
        In their order.
    helpers
        Kernels that never stand for an operator alone, such as those that only wait.
    """
    size = len(kinds)
    found = np.full(size, -1, np.int64)
    if not size or not len(operations):
        return found
    codes = np.array([KINDS.index(kind) for kind in kinds])
    waiting = np.array(helpers, bool) if helpers is not None else np.zeros(size, bool)
    left = np.where(np.isin(codes, [KINDS.index(word) for word in HEAVY]) & ~waiting, _HEAVIER * _OWN, _LEFT)
    skipped = np.concatenate([[0.0], np.cumsum(left)])
    widths = [stated_sizes(text) for text in shapes]
    worths: dict[Any, Worth] = {}

    def worth(operation: Operation) -> Worth:
        key = (operation.kind, operation.calls > 1, operation.sizes if any(widths) else None)
        known = worths.get(key)
        if known is None:
            first, further, helper = (column[codes] for column in _table(operation.kind, operation.calls))
            if operation.is_transfer or operation.kind in COLLECTIVES:
                helper = np.where(waiting, _HELPS, helper)
            first, further = np.where(waiting, _NEVER, first), np.where(waiting, _NEVER, further)
            if operation.sizes is not None and any(widths):
                allowed = np.array([fits(width, operation.sizes) for width in widths])
                first, further = np.where(allowed, first, _NEVER), np.where(allowed, further, _NEVER)
            known = worths[key] = Worth(first, further, helper)
        return known

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
            place = _back(rows[index - begin], worth(operations[index]), empty[index], skipped, place, found, index)
        block = begin
    return found


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
    before: Floats, worth: Worth, empty: float, skipped: Floats, place: int, found: NDArray[np.int64], index: int
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
    found[start:last] = index
    return start


@lru_cache(maxsize=8192)
def stated_sizes(text: str) -> tuple[int, int, int] | None:
    """m, n and k of a product from the shapes of its inputs: two matrices, or a bias and two (``aten::addmm``)."""
    if not text:
        return None
    try:
        dims = json.loads(text)
    except ValueError:
        return None
    matrices = [
        each for each in dims if isinstance(each, list) and len(each) >= 2 and all(isinstance(v, int) for v in each)
    ]
    for left, right in pairwise(matrices):
        if len(right) == 2 and len(left) == 2:
            (m, k), (p, n) = left, right
            if k == p:
                return m, n, k
            if k == n:  # weights as they are stored, transposed inside
                return m, p, k
    return None


def fits(stated: tuple[int, int, int] | None, sizes: tuple[int, int, int]) -> bool:
    """Whether a kernel of stated sizes may be an operator's: equal, or a slice of its columns or rows.

    >>> fits((32, 4096, 1024), (32, 6144, 1024)), fits((32, 4096, 512), (32, 6144, 1024)), fits(None, (1, 2, 3))
    (True, False, True)
    """
    if stated is None:
        return True
    if sorted(stated) == sorted(sizes):  # gradients have the operands of their forward product in other places
        return True
    (rows, columns, inner), (want_rows, want_columns, want_inner) = stated, sizes
    # Q, K and V, or gate and up, of one operator may be products of their own; padding adds a few rows or columns.
    same_inner = inner == want_inner or _padded(inner, want_inner)
    same_rows = rows == want_rows or _padded(rows, want_rows)
    return same_inner and same_rows and (columns <= want_columns or _padded(columns, want_columns))


def _padded(value: int, wanted: int) -> bool:
    return wanted <= value <= wanted * 1.1 + 64


def isstated_sizes(kind: str) -> bool:
    """Whether kernels of a kind multiply matrices."""
    return kind in PRODUCTS
