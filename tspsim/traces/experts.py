"""Orders in which frameworks run the experts of a layer: shared ones before, around or behind the routed ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from ..operators import Computes
from .kinds import HEAVY
from .simulated import Operation

#: Kinds of small operators that prepare or finish routed products.
_AROUND = frozenset({"permute", "quantize", "copy"})


class _Blocks(NamedTuple):
    """A layer's operations with experts: the routed ones, and the shared ones up to their activation and behind it."""

    routed: list[int]
    first: list[int]
    second: list[int]


#: Shared experts before the routed ones, behind them, and around them.
_ARRANGEMENTS = (("first", "second", "routed"), ("routed", "first", "second"), ("first", "routed", "second"))


def orders_of_experts(operations: Sequence[Operation]) -> Iterator[list[int]]:
    """Further orders: shared experts before the routed ones, behind them, and around them."""
    layers = [list(own) for _, own in groupby(range(len(operations)), lambda index: _visit(operations[index]))]
    blocks = [own for layer in layers if (own := _blocks(operations, layer)) is not None]
    if not blocks:
        yield from _by_products(operations)
        return
    for arrange in _ARRANGEMENTS:
        order = list(range(len(operations)))
        for own in blocks:
            moved = [index for name in arrange for index in getattr(own, name)]
            for place, index in zip(sorted(moved), moved, strict=True):
                order[place] = index
        yield order


def _visit(operation: Operation) -> tuple[int, bool]:
    return operation.layer, operation.phase == "forward"


def _blocks(operations: Sequence[Operation], layer: Sequence[int]) -> _Blocks | None:
    """The experts of one visit to a layer; None where routed and shared ones are not in one piece each."""
    routed = [index for index in layer if operations[index].kind == "grouped_gemm"]
    shared = [index for index in layer if operations[index].of_dense_mlp]
    if not routed or len(shared) < 2:
        return None
    if shared[0] < routed[0]:
        # Shared experts stand first here; what prepares rows for the others begins behind them.
        begin, border, end = (
            _from(operations, shared[0], layer[0]),
            shared[-1] + 1,
            _up_to(operations, routed[-1], layer),
        )
        one, other = range(begin, border), range(border, end)
    else:
        begin, border = _from(operations, routed[0], layer[0]), _up_to(operations, routed[-1], layer)
        one, other = range(begin, border), range(border, shared[-1] + 1)
    blocks = (list(other), list(one)) if shared[0] < routed[0] else (list(one), list(other))
    if not set(routed) <= set(blocks[0]) or not set(shared) <= set(blocks[1]):
        return None
    heavy = [index for index in (*one, *other) if operations[index].kind in HEAVY]
    if set(heavy) - {*routed, *shared}:
        return None
    acts = [index for index in blocks[1] if operations[index].kind == "activation"]
    cut = (acts[-1] if acts else shared[0]) + 1
    return _Blocks(blocks[0], [i for i in blocks[1] if i < cut], [i for i in blocks[1] if i >= cut])


def _from(operations: Sequence[Operation], index: int, first: int) -> int:
    """The first of the small operators that prepare a product."""
    while index > first and operations[index - 1].kind in _AROUND:
        index -= 1
    return index


def _up_to(operations: Sequence[Operation], index: int, layer: Sequence[int]) -> int:
    """The place behind the last sum of rows that follows a routed product."""
    end = index + 1
    for place in range(index + 1, layer[-1] + 1):
        if operations[place].kind not in _AROUND:
            break
        if operations[place].kind == "permute":
            end = place + 1
    return end


def _by_products(operations: Sequence[Operation]) -> Iterator[list[int]]:
    """Products alone in other orders, where two halves of a batch or gradients stand between a layer's experts."""
    visits: dict[tuple[int, str, Computes], tuple[list[int], list[int]]] = {}
    for index, operation in enumerate(operations):
        if operation.layer >= 0 and (operation.kind == "grouped_gemm" or operation.of_dense_mlp):
            key = (operation.layer, operation.phase, operation.computes)
            visits.setdefault(key, ([], []))[operation.kind == "grouped_gemm"].append(index)
    mixed = [(shared, routed) for shared, routed in visits.values() if shared and routed]
    for before in (0, 1) if mixed else ():
        order = list(range(len(operations)))
        for shared, routed in mixed:
            moved = [*shared[:before], *routed, *shared[before:]]
            for place, index in zip(sorted(moved), moved, strict=True):
                order[place] = index
        yield order
