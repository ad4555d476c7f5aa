"""Detours around dead links: over another GPU of the mesh, another spine, or a neighbour's NIC.

Inside a node two GPUs without a live direct route take the shortest live one (on a full mesh, over a third GPU); of
equal ones, that over links which other detours use least. Between nodes a message takes another spine. If its NIC is
dead, or the destination's, or the rail between them, it hops to a GPU of its node with a live NIC, or arrives at one
and hops on. A GPU that is cut off inside its node uses its NIC if the fabric leads back into the node. RCCL and NCCL do
the same: they relay through GPUs and fail over to other NICs, and do not split a message over several detours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base.errors import UnreachableError
from .wiring import Wiring

Integers = NDArray[np.int64]
Route = tuple[int, ...]


class Paths(Protocol):
    """A network of the fabric; ``choices`` is the number of equal paths between two of its ends."""

    @property
    def choices(self) -> int: ...


class RoutedLayout(Protocol):
    """Attributes of :class:`tspsim.network.layout.Layout` that detours read."""

    @property
    def inside(self) -> Wiring: ...
    @property
    def dead(self) -> tuple[int, ...]: ...
    @property
    def fabric(self) -> Any: ...
    @property
    def separate_planes(self) -> bool: ...
    @property
    def gpus(self) -> int: ...
    @property
    def plane(self) -> Paths: ...
    @property
    def node_links(self) -> int: ...
    @property
    def host_start(self) -> int: ...
    @property
    def switch_start(self) -> int: ...

    def exit_gpu(self, start: Integers, arrive: Integers) -> Integers: ...

    def routes_via(
        self, start: Integers, leave: Integers, arrive: Integers, end: Integers, across: NDArray[np.bool_], spread: int
    ) -> Integers: ...


def inside_detours(layout: RoutedLayout) -> dict[tuple[int, int], Route]:
    """(source GPU, target GPU) → links of the detour, for pairs in a node whose direct route has a dead link. Pairs
    without any live route are left out."""
    by_node: dict[int, set[int]] = {}
    for link in layout.dead:
        if link < layout.host_start:
            by_node.setdefault(link // layout.node_links, set()).add(link % layout.node_links)
    wiring, detours = layout.inside, dict[tuple[int, int], Route]()
    first, second = (ends.reshape(-1) for ends in np.indices((layout.gpus, layout.gpus)))
    usual = np.stack(wiring.columns(first, second), axis=1)
    for node, dead in by_node.items():
        base, home, used = node * layout.node_links, node * layout.gpus, Counter[int]()
        for pair in np.flatnonzero(crosses(usual, list(dead))).tolist():
            ends = int(first[pair]), int(second[pair])
            way = _shortest(wiring, dead, *ends, used)
            used.update(way)
            if way:
                detours[home + ends[0], home + ends[1]] = tuple([base + hop for hop in way])
    return detours


def _shortest(wiring: Wiring, dead: set[int], begin: int, end: int, used: Counter[int]) -> Route:
    """Route between two GPUs by fewest hops, then least ``used``, then lowest link numbers; () if there is none."""
    shortest: dict[int, Route] = {begin: ()}
    while end not in shortest:
        reached: dict[int, Route] = {}
        for near, way in shortest.items():
            for far, hop in wiring.out_links[near]:
                if far not in shortest and hop not in dead:
                    longer = (*way, hop)
                    if far not in reached or _load(longer, used) < _load(reached[far], used):
                        reached[far] = longer
        if not reached:
            return ()
        shortest |= reached
    return shortest[end]


def _load(way: Route, used: Counter[int]) -> tuple[int, Route]:
    return sum(used[hop] for hop in way), way


def around(layout: RoutedLayout, usual: Integers, start: Integers, end: Integers, spread: int) -> Integers:
    """Routes ``usual`` with detours in place of those that have a dead link.

    Raises
    ------
    UnreachableError
        Dead links leave no route between two GPUs.
    """
    routes = usual
    left = np.flatnonzero(crosses(routes, layout.dead))
    for arrive_by, leave_by in _neighbours(layout):
        if not left.size:
            return routes
        first, last = start[left], end[left]
        across = first // layout.gpus != last // layout.gpus
        arrive = _shifted(layout, last, first - last if arrive_by is None else arrive_by)
        leave = layout.exit_gpu(first, arrive) if layout.separate_planes else _shifted(layout, first, leave_by)
        # Between two GPUs of a node, only their own NICs are tried.
        leave, arrive = np.where(across, leave, first), np.where(across, arrive, last)
        routed = _with_spines(layout, first, leave, arrive, last, spread)
        works = ~crosses(routed, layout.dead)
        if layout.separate_planes:  # separate planes do not lead back into the node
            works &= across
        routes = _written(routes, left[works], routed[works])
        left = left[~works]
    if left.size:
        raise UnreachableError(f"dead links leave no route from GPU {start[left[0]]} to GPU {end[left[0]]}")
    return routes


def _neighbours(layout: RoutedLayout) -> Iterator[tuple[int | None, int]]:
    """Offsets to try, nearest first: (from the destination to the GPU of the arriving NIC, from the sender to the GPU
    of the leaving NIC). None: the GPU on the sender's rail. With separate planes the plane decides the leaving NIC."""
    if layout.fabric is None:
        return
    steps = range(1, layout.gpus)
    yield 0, 0
    if layout.separate_planes:
        yield None, 0
        yield from ((arrive, 0) for arrive in steps)
        return
    yield from ((0, leave) for leave in steps)
    yield from ((arrive, 0) for arrive in steps)
    yield from ((arrive, leave) for arrive in steps for leave in steps)


def _shifted(layout: RoutedLayout, gpu: Integers, steps: int | Integers) -> Integers:
    """The GPU ``steps`` positions further in its node, cyclically."""
    local = gpu % layout.gpus
    return gpu - local + (local + steps) % layout.gpus


def _with_spines(
    layout: RoutedLayout, start: Integers, leave: Integers, arrive: Integers, end: Integers, spread: int
) -> Integers:
    """Routes over the NICs of ``leave`` and ``arrive``, with other spines and cores where only links between switches
    are dead."""
    across = np.ones(len(start), dtype=bool)
    routes = layout.routes_via(start, leave, arrive, end, across, spread)
    for turn in range(1, layout.plane.choices):
        dead = np.isin(routes, layout.dead)
        only_above = dead.any(axis=1) & ~(dead & (routes < layout.switch_start)).any(axis=1)
        rows = np.flatnonzero(only_above)
        if not rows.size:
            break
        other = layout.routes_via(start[rows], leave[rows], arrive[rows], end[rows], across[rows], spread + turn)
        routes = _written(routes, rows, other)
    return routes


def crosses(routes: Integers, links: Sequence[int]) -> NDArray[np.bool_]:
    """Which routes use one of these links."""
    return np.asarray(np.isin(routes, links).any(axis=1), dtype=bool)


def _written(routes: Integers, rows: Integers, written: Integers) -> Integers:
    """``routes`` with the rows ``rows`` replaced by ``written``, padded with -1 to the longest."""
    width = max(routes.shape[1], written.shape[1])
    wide = np.full((len(routes), width), -1, dtype=np.int64)
    wide[:, : routes.shape[1]] = routes
    wide[rows] = -1
    wide[rows, : written.shape[1]] = written
    return wide
