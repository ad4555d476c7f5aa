"""Which ranks need to be run: classes derived from programs, costs and surroundings.

Two ranks may stand for each other when no sequence of observations tells them apart: same program at the same
costs, groups of the same composition, transfers that take the same shares of links of the same kind that are
shared with the same others. That is the coarsest equitable partition of the graph of ranks, channels and links,
found by colour refinement (Weisfeiler and Leman 1968; McKay and Piperno 2014, §2). A max-min fair allocation is
unique, so it is constant on such classes (the argument of Grohe et al. 2014 for linear programs): running one
rank a class, with multiplicities on links, gives every rank's times. A slow link or an unequal share of work
splits the classes by itself; nothing is declared.

Which sets of GPUs stand alike in a cluster: what folding asks the network.
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
    """The same of edges in columns.

    Parameters
    ----------
    degree
        Edges of every vertex.
    kind, other
        Number of the label, and neighbour, of every edge: those of the first vertex, then those of the next.
    """
    classes = np.array(number(colours), dtype=np.int64)
    begin = np.cumsum(degree) - degree
    # Vertices of one degree see rows of one length, which numpy sorts and compares as a block.
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
    """Every row as bytes: equal for equal rows."""
    whole = np.ascontiguousarray(rows)
    voids: Any = whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize))).reshape(-1).tolist()
    return cast("list[bytes]", voids)


def _by_value(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every value, and where it stands."""
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


def number(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys to equal numbers, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


# --- which sets of GPUs stand alike in a cluster --------------------------------------------------------------

Integers = NDArray[np.int64]


def surroundings(cluster: Cluster, groups: Integers) -> Integers | None:
    """A row a group of GPUs; equal rows mean that the links *among* the members are alike, member by member.

    A row holds where the members stand relative to the first one's node, which slow links their nodes have, and how
    their NICs spread over leaf switches. What others do with those links is not in it (:func:`owned`).

    Parameters
    ----------
    groups
        GPUs, shape (groups, members).

    Returns
    -------
    array of shape (groups, columns), or None
        None where a link between switches is slow, each flow draws a port of its NIC, or flows are spread over a graph
        of switches that somebody gave: then no two groups can be told to be alike without looking.
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
        # Leaves of a Clos network are told by how far they are apart; in any other graph each is itself.
        columns.append(leaf if isinstance(layout.fabric, Wiring) else leaf - leaf[:, :1])
    return np.concatenate(columns, axis=1)


def owned(cluster: Cluster, gpus: ArrayLike, links: ArrayLike) -> bool:
    """Whether only these GPUs can ever move data over these links.

    Links inside a node between members, between a member and its switch or NIC, and of a NIC that serves members alone
    are owned; links between switches are not.
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
    else:  # whoever sends across the node may pass
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
