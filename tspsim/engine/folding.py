"""Folding: classes of equal ranks, of which one is run, and equivalent positions of GPUs in a cluster.

Two ranks are equal if no observation distinguishes them: equal programs and costs, groups of equal composition, and
transfers that use equal shares of equal links, shared with equal others. These classes are the coarsest equitable
partition of the graph of ranks, channels and links, computed by colour refinement (Weisfeiler and Leman 1968; McKay and
Piperno 2014, §2). A max-min fair allocation is unique, so it is constant on the classes (as Grohe et al. 2014 argue for
linear programs). So one run rank for each class, with multiplicities on links, gives every rank's times. A slow link or
an unequal share of work splits classes without being declared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..network.cluster import Cluster
from ..network.wiring import Wiring


def refined(
    colours: Sequence[Hashable], degree: NDArray[np.int64], kind: NDArray[np.int64], other: NDArray[np.int64]
) -> list[int]:
    """Classes of vertices by colour refinement, numbered in order of first appearance.

    Parameters
    ----------
    colours
        Initial colour of every vertex.
    degree
        Number of edges of every vertex.
    kind, other
        Number of the label, and neighbour, of every edge, grouped by vertex.
    """
    classes = np.array(number(colours), dtype=np.int64)
    begin = np.cumsum(degree) - degree
    # Vertices of one degree have rows of one length, which NumPy sorts and compares as a block.
    alike = [(vertices, begin[vertices, None] + np.arange(size)) for size, vertices in _by_value(degree)]
    count = int(classes.max(initial=-1)) + 1
    place_of = np.concatenate([vertices for vertices, _ in alike]) if alike else classes
    while True:
        seen = kind * count + classes[other]
        rows: list[bytes] = []
        for vertices, place in alike:
            rows += row_bytes(np.concatenate([classes[vertices, None], np.sort(seen[place], axis=1)], axis=1))
        views = np.empty(len(classes), dtype=object)
        views[place_of] = rows
        classes = np.array(number(views.tolist()), dtype=np.int64)
        refined = int(classes.max(initial=-1)) + 1
        if refined == count:
            return [int(kind) for kind in classes]
        count = refined


def row_bytes(rows: NDArray[np.int64]) -> list[bytes]:
    """Bytes of every row, equal for equal rows."""
    whole = np.ascontiguousarray(rows)
    voids: Any = whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize))).reshape(-1).tolist()
    return cast("list[bytes]", voids)


def _by_value(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(value, indices) of every distinct value."""
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


def number(keys: Sequence[Hashable]) -> list[int]:
    """Number of every key, in order of first appearance; equal keys have equal numbers."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


# --- equivalent positions in a cluster ------------------------------------------------------------------------

Integers = NDArray[np.int64]


def position_rows(cluster: Cluster, groups: Integers) -> Integers | None:
    """One row for each group of GPUs; equal rows mean equal links *among* the members, member by member.

    A row has the members' positions relative to the first one's node, the slow links of their nodes, and the leaf
    switches of their NICs. It does not include other users of those links (:func:`exclusive`).

    Parameters
    ----------
    groups
        GPUs, shape (groups, members).

    Returns
    -------
    array of shape (groups, columns), or None
        None: groups cannot be compared, because a link between switches is slow, flows are hashed to ports of NICs, or
        flows are spread over a user's graph of switches.
    """
    layout = cluster.layout
    if layout.nic_lanes > 1 or (isinstance(layout.fabric, Wiring) and layout.fabric.choices > 1):
        return None
    home = groups[:, :1] // layout.gpus * layout.gpus
    columns = [groups - home]
    if cluster.factors:
        marks = np.zeros(cluster.nodes, dtype=np.int64)
        slow: dict[int, list[tuple[int, float]]] = {}
        for link, factor in cluster.factors:
            if link < layout.host_start:
                node, local = divmod(link, layout.node_links)
            elif link < layout.nic_start:
                node, local = divmod(link - layout.host_start, 2 * layout.gpus)
                local += layout.node_links
            elif link < layout.switch_start:
                node, local = divmod(link - layout.nic_start, 2 * layout.nics * layout.nic_lanes)
                local += layout.node_links + 2 * layout.gpus
            else:
                return None
            slow.setdefault(node, []).append((local, factor))
        seen: dict[tuple[tuple[int, float], ...], int] = {}
        for node, links in slow.items():
            marks[node] = seen.setdefault(tuple(links), len(seen) + 1)
        columns.append(marks[groups // layout.gpus])
    if layout.fabric is not None and bool((groups // layout.gpus != groups[:, :1] // layout.gpus).any()):
        _, leaf, _ = layout.attachment(layout.nic_of(groups))
        # Leaves of a Clos network are equal up to their distance; in any other graph each leaf is distinct.
        columns.append(leaf if isinstance(layout.fabric, Wiring) else leaf - leaf[:, :1])
    return np.concatenate(columns, axis=1)


def exclusive(cluster: Cluster, gpus: ArrayLike, links: ArrayLike) -> bool:
    """Whether only these GPUs can move data over these links.

    That is so for links inside a node between members, between a member and its switch or NIC, and of a NIC that only
    serves members; not for links between switches.
    """
    layout = cluster.layout
    wanted = np.asarray(links, dtype=np.int64)
    if not wanted.size:
        return True
    if int(wanted.max()) >= layout.switch_start:
        return False
    member = np.zeros(cluster.gpus, dtype=bool)
    member[np.asarray(gpus)] = True
    inside = wanted[wanted < layout.host_start]
    node, local = np.divmod(inside, layout.node_links)
    if layout.mesh or layout.inside.star:
        ends = np.stack(layout.inside.ends)[:, local]
        users = (node * layout.gpus + ends)[ends < layout.gpus]
    else:  # messages of all GPUs of the node may use the link
        users = np.unique(node)[:, None] * layout.gpus + np.arange(layout.gpus)
    if not member[users].all():
        return False
    host = wanted[(wanted >= layout.host_start) & (wanted < layout.nic_start)]
    if not member[(host - layout.host_start) // 2].all():
        return False
    nics = (wanted[wanted >= layout.nic_start] - layout.nic_start) // (2 * layout.nic_lanes)
    if not nics.size:
        return True
    everyone = np.arange(cluster.gpus)
    strangers = np.unique(layout.nic_of(everyone[~member]))
    return not np.isin(nics, strangers).any()
