"""Which sets of GPUs stand alike in a cluster: what folding asks the network."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .cluster import Cluster
from .wiring import Wiring

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
