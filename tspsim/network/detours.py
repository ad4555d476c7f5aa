"""Ways round dead links: over another GPU of the mesh, another spine, or a neighbour's NIC.

Inside a node two GPUs whose way is interrupted take the shortest that is left (on a full mesh they relay over a
third); where several would do, over links that other detours use least. Between nodes a message takes another spine; if
its own NIC is dead (or the destination's, or the rail between them), it hops to a GPU of its node whose NIC works, or
arrives at one and hops on. A GPU that is cut off inside its node uses its NIC, if the fabric leads back into the node.
What libraries do is no better: RCCL and NCCL relay through GPUs and fail over to other NICs; none splits a message over
several detours.
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
Way = tuple[int, ...]


class Paths(Protocol):
    """One network of the fabric, with so many paths between two of its ends."""

    @property
    def choices(self) -> int: ...


class RoutedLayout(Protocol):
    """What a detour reads of :class:`tspsim.network.layout.Layout`, which asks for it."""

    @property
    def inside(self) -> Wiring: ...
    @property
    def dead(self) -> tuple[int, ...]: ...
    @property
    def fabric(self) -> Any: ...
    @property
    def separate(self) -> bool: ...
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

    def leaving(self, start: Integers, arrive: Integers) -> Integers: ...

    def by_way_of(
        self, start: Integers, leave: Integers, arrive: Integers, end: Integers, across: NDArray[np.bool_], spread: int
    ) -> Integers: ...


def inside_detours(layout: RoutedLayout) -> dict[tuple[int, int], Way]:
    """For every two GPUs of a node whose usual way has a dead link the links of their detour; none if cut off."""
    by_node: dict[int, set[int]] = {}
    for link in layout.dead:
        if link < layout.host_start:
            by_node.setdefault(link // layout.node_links, set()).add(link % layout.node_links)
    wiring, ways = layout.inside, dict[tuple[int, int], Way]()
    first, second = (ends.reshape(-1) for ends in np.indices((layout.gpus, layout.gpus)))
    usual = np.stack(wiring.columns(first, second), axis=1)
    for node, dead in by_node.items():
        base, home, used = node * layout.node_links, node * layout.gpus, Counter[int]()
        for pair in np.flatnonzero(crosses(usual, list(dead))).tolist():
            ends = int(first[pair]), int(second[pair])
            way = _shortest(wiring, dead, *ends, used)
            used.update(way)
            if way:
                ways[home + ends[0], home + ends[1]] = tuple([base + hop for hop in way])
    return ways


def _shortest(wiring: Wiring, dead: set[int], begin: int, end: int, used: Counter[int]) -> Way:
    """Fewest hops between two GPUs, then least ``used``, then the lowest numbers; () if there is no way."""
    ways: dict[int, Way] = {begin: ()}
    while end not in ways:
        reached: dict[int, Way] = {}
        for near, way in ways.items():
            for far, hop in wiring.out[near]:
                if far not in ways and hop not in dead:
                    longer = (*way, hop)
                    if far not in reached or _load(longer, used) < _load(reached[far], used):
                        reached[far] = longer
        if not reached:
            return ()
        ways |= reached
    return ways[end]


def _load(way: Way, used: Counter[int]) -> tuple[int, Way]:
    return sum(used[hop] for hop in way), way


def around(layout: RoutedLayout, usual: Integers, start: Integers, end: Integers, spread: int) -> Integers:
    """The routes ``usual``, those with a dead link replaced.

    Raises
    ------
    UnreachableError
        Two GPUs are cut off from each other.
    """
    routes = usual
    left = np.flatnonzero(crosses(routes, layout.dead))
    for arrive_by, leave_by in _neighbours(layout):
        if not left.size:
            return routes
        first, last = start[left], end[left]
        across = first // layout.gpus != last // layout.gpus
        arrive = _shifted(layout, last, first - last if arrive_by is None else arrive_by)
        leave = layout.leaving(first, arrive) if layout.separate else _shifted(layout, first, leave_by)
        # Within a node a GPU that is cut off may only go out by its own NIC and come in by the other's.
        leave, arrive = np.where(across, leave, first), np.where(across, arrive, last)
        routed = _with_spines(layout, first, leave, arrive, last, spread)
        works = ~crosses(routed, layout.dead)
        if layout.separate:  # separate planes do not lead back into the node
            works &= across
        routes = _written(routes, left[works], routed[works])
        left = left[~works]
    if left.size:
        raise UnreachableError(f"dead links leave no way from GPU {start[left[0]]} to GPU {end[left[0]]}")
    return routes


def _neighbours(layout: RoutedLayout) -> Iterator[tuple[int | None, int]]:
    """What to try, nearest first: places along the node from the destination to the GPU where a message arrives (None:
    to the one on the sender's rail), and from the sender to the GPU where it leaves (which separate planes decide)."""
    if layout.fabric is None:
        return
    steps = range(1, layout.gpus)
    yield 0, 0
    if layout.separate:
        yield None, 0
        yield from ((arrive, 0) for arrive in steps)
        return
    yield from ((0, leave) for leave in steps)
    yield from ((arrive, 0) for arrive in steps)
    yield from ((arrive, leave) for arrive in steps for leave in steps)


def _shifted(layout: RoutedLayout, gpu: Integers, steps: int | Integers) -> Integers:
    """The GPU so many places on in its node."""
    local = gpu % layout.gpus
    return gpu - local + (local + steps) % layout.gpus


def _with_spines(
    layout: RoutedLayout, start: Integers, leave: Integers, arrive: Integers, end: Integers, spread: int
) -> Integers:
    """Routes by these NICs; over other spines and cores where only links between switches are dead."""
    across = np.ones(len(start), dtype=bool)
    routes = layout.by_way_of(start, leave, arrive, end, across, spread)
    for turn in range(1, layout.plane.choices):
        dead = np.isin(routes, layout.dead)
        only_above = dead.any(axis=1) & ~(dead & (routes < layout.switch_start)).any(axis=1)
        rows = np.flatnonzero(only_above)
        if not rows.size:
            break
        other = layout.by_way_of(start[rows], leave[rows], arrive[rows], end[rows], across[rows], spread + turn)
        routes = _written(routes, rows, other)
    return routes


def crosses(routes: Integers, links: Sequence[int]) -> NDArray[np.bool_]:
    """Which routes have one of these links."""
    return np.asarray(np.isin(routes, links).any(axis=1), dtype=bool)


def _written(routes: Integers, rows: Integers, written: Integers) -> Integers:
    """``routes`` with ``found`` in some rows, as wide as the longest."""
    width = max(routes.shape[1], written.shape[1])
    wide = np.full((len(routes), width), -1, dtype=np.int64)
    wide[:, : routes.shape[1]] = routes
    wide[rows] = -1
    wide[rows, : written.shape[1]] = written
    return wide
