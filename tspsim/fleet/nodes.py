"""The nodes of a cluster in use: empty, shared by small jobs, or down."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import takewhile

from ..base.errors import TspsimError
from ..network import Cluster


class Nodes:
    """The state of every node.

    Attributes
    ----------
    leaves
        Nodes of every leaf switch, ascending.
    empty
        Empty nodes that are up, by leaf, ascending.
    parts
        Node shared by small jobs → its free GPUs.
    down, taken
        Nodes that are out; nodes of jobs or spares, out or not.
    """

    def __init__(self, leaves: Sequence[Sequence[int]], gpus: int) -> None:
        self.gpus = gpus
        self.leaves = [list(leaf) for leaf in leaves]
        self.count = sum(map(len, leaves))
        self.empty = [list(leaf) for leaf in leaves]
        self.parts: dict[int, int] = {}
        self.leaf_of = {node: number for number, leaf in enumerate(leaves) for node in leaf}
        self._members = [frozenset(leaf) for leaf in leaves]
        self.empty_count = self.count
        self.down: set[int] = set()
        self.taken: set[int] = set()

    @classmethod
    def of(cls, cluster: Cluster) -> Nodes:
        """The nodes of a cluster, by the leaf of each node's first NIC."""
        return cls(leaves_of(cluster), cluster.gpus_per_node)

    def take(self, chosen: Sequence[int]) -> None:
        """Gives empty nodes to a job. Raises TspsimError where one is not empty."""
        for leaf, members in self._by_leaf(chosen):
            empty = self.empty[leaf]
            if empty[: len(members)] == members:  # as most placements choose
                del empty[: len(members)]
                continue
            for node in members:
                if node not in empty:
                    raise TspsimError(f"node {node} was given to a job and is not empty: the placement is wrong")
                empty.remove(node)
        self.empty_count -= len(chosen)
        self.taken.update(chosen)

    def give(self, chosen: Sequence[int]) -> None:
        """Frees nodes; those that are down stay out."""
        self.taken.difference_update(chosen)
        with_down = {self.leaf_of[node] for node in self.down}
        for leaf, members in self._by_leaf(chosen):
            empty = self.empty[leaf]
            if leaf in with_down:
                members = [node for node in members if node not in self.down]
            self.empty_count += len(members)
            if len(members) == 1:
                insort(empty, members[0])
            else:
                empty += members
                empty.sort()  # of two ascending parts: one pass

    def _by_leaf(self, chosen: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Neighbours of one leaf together: a large job has thousands of nodes and far fewer leaves."""
        start = 0
        while start < len(chosen):
            leaf = self.leaf_of.get(chosen[start])
            if leaf is None:
                raise TspsimError(f"node {chosen[start]} was given to a job and is not empty: the placement is wrong")
            whole = self.leaves[leaf]
            members = list(chosen[start : start + len(whole)])
            if members != whole:  # as most leaves of a large job are
                members = list(takewhile(self._members[leaf].__contains__, members))
            yield leaf, members
            start += len(members)

    def take_part(self, node: int, gpus: int) -> None:
        """Gives GPUs of a node to a small job."""
        if node not in self.parts:
            self.take((node,))
            self.parts[node] = self.gpus
        if self.parts[node] < gpus:
            raise TspsimError(f"node {node} has {self.parts[node]} GPUs left, not {gpus}: the placement is wrong")
        self.parts[node] -= gpus

    def give_part(self, node: int, gpus: int) -> None:
        """Frees GPUs of a small job; without another the node is empty."""
        self.parts[node] += gpus
        if self.parts[node] == self.gpus:
            del self.parts[node]
            self.give((node,))

    def tightest(self, gpus: int) -> int | None:
        """The shared node with fewest free GPUs that suffice; of equals the lower number."""
        fitting = [(free, node) for node, free in self.parts.items() if free >= gpus and node not in self.down]
        return min(fitting)[1] if fitting else None

    def fail(self, node: int) -> None:
        """A node goes down; its job frees it later."""
        if node in self.down:
            return
        self.down.add(node)
        leaf = self.empty[self.leaf_of[node]]
        if node in leaf:
            leaf.remove(node)
            self.empty_count -= 1

    def mend(self, node: int) -> None:
        """A node comes back; it is empty unless it is taken."""
        self.down.discard(node)
        if node not in self.taken:
            self.give((node,))


def leaves_of(cluster: Cluster) -> list[list[int]]:
    """Nodes by the leaf switch of their first NIC; one leaf without a fabric."""
    layout = cluster.layout
    if cluster.fabric is None:
        return [list(range(cluster.nodes))]
    import numpy as np

    first = np.arange(cluster.nodes, dtype=np.int64) * layout.nics
    _, leaf, _ = layout.attachment(first)
    by_leaf: dict[int, list[int]] = {}
    for node, number in enumerate(leaf.tolist()):
        by_leaf.setdefault(number, []).append(node)
    return list(by_leaf.values())
