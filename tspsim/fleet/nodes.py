"""The nodes of a cluster in use: which are empty, which are shared by small jobs, which are down."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from ..base.errors import TspsimError
from ..network import Cluster


class Nodes:
    """Who has which node.

    Attributes
    ----------
    leaves
        Nodes of every leaf switch, ascending.
    empty
        Of every leaf the nodes that are up and nobody has, ascending.
    parts
        Node that small jobs share → its GPUs that are free.
    down, taken
        Nodes that are out; nodes that jobs have or that are kept as spares, out or not.
    """

    def __init__(self, leaves: Sequence[Sequence[int]], gpus: int) -> None:
        self.gpus = gpus
        self.leaves = [list(leaf) for leaf in leaves]
        self.count = sum(map(len, leaves))
        self.empty = [list(leaf) for leaf in leaves]
        self.parts: dict[int, int] = {}
        self.leaf_of = {node: number for number, leaf in enumerate(leaves) for node in leaf}
        self.empty_count = self.count
        self.down: set[int] = set()
        self.taken: set[int] = set()

    @classmethod
    def of(cls, cluster: Cluster) -> Nodes:
        """Those of a cluster, by the leaf of each node's first NIC."""
        return cls(leaves_of(cluster), cluster.gpus_per_node)

    def take(self, chosen: Sequence[int]) -> None:
        """Empty nodes become one job's; raises TspsimError where one is not empty."""
        for node in chosen:
            try:
                self.empty[self.leaf_of[node]].remove(node)
            except (KeyError, ValueError):
                raise TspsimError(f"node {node} was given to a job and is not empty: the placement is wrong") from None
        self.empty_count -= len(chosen)
        self.taken.update(chosen)

    def give(self, chosen: Sequence[int]) -> None:
        """Nodes are empty again, or stay out while they are down."""
        self.taken.difference_update(chosen)
        for node in chosen:
            if node not in self.down:
                insort(self.empty[self.leaf_of[node]], node)
                self.empty_count += 1

    def take_part(self, node: int, gpus: int) -> None:
        """GPUs of a node become one small job's."""
        if node not in self.parts:
            self.take((node,))
            self.parts[node] = self.gpus
        if self.parts[node] < gpus:
            raise TspsimError(f"node {node} has {self.parts[node]} GPUs left, not {gpus}: the placement is wrong")
        self.parts[node] -= gpus

    def give_part(self, node: int, gpus: int) -> None:
        """GPUs of a small job are free again; the node is empty with its last one."""
        self.parts[node] += gpus
        if self.parts[node] == self.gpus:
            del self.parts[node]
            self.give((node,))

    def tightest(self, gpus: int) -> int | None:
        """The shared node with fewest free GPUs that suffice, the lower number of equals."""
        fitting = [(free, node) for node, free in self.parts.items() if free >= gpus and node not in self.down]
        return min(fitting)[1] if fitting else None

    def fail(self, node: int) -> None:
        """A node goes down; who has it gives it back afterwards."""
        if node in self.down:
            return
        self.down.add(node)
        leaf = self.empty[self.leaf_of[node]]
        if node in leaf:
            leaf.remove(node)
            self.empty_count -= 1

    def mend(self, node: int) -> None:
        """A node comes back; it is empty where nobody has it."""
        self.down.discard(node)
        if node not in self.taken:
            self.give((node,))


def leaves_of(cluster: Cluster) -> list[list[int]]:
    """Nodes of every leaf switch of a cluster, by each node's first NIC; one leaf where there is no fabric."""
    layout = cluster.layout
    if cluster.fabric is None:
        return [list(range(cluster.nodes))]
    import numpy as np

    first = np.arange(cluster.nodes, dtype=np.int64) * layout.nics
    _, leaf, _ = layout.attachment(first)
    found: dict[int, list[int]] = {}
    for node, number in enumerate(leaf.tolist()):
        found.setdefault(number, []).append(node)
    return list(found.values())
