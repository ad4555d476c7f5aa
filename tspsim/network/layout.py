"""Which links a cluster has, in which order, and which of them a message takes: integers only.

GPUs are numbered node by node. Links are numbered in blocks: the links inside node 0, inside node 1, …; then
GPU to NIC and back, NIC to leaf and back; then the links between switches, plane by plane. Any id can be
computed without listing the others, so traffic that stays in one node never pays for 2,048 of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .clos import Clos
from .detours import around, crosses, inside_detours

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The shape of a cluster.

    Parameters
    ----------
    nodes, gpus
        Number of nodes, and GPUs in each.
    mesh
        True: a link from every GPU to every other of its node. False: a link to a switch and one back.
    nics, rails
        NICs a node, and the rails they are spread over.
    fabric
        ``rails``, ``rail_optimised``, ``fat_tree``, or None for a single node.
    radix
        Ports of a switch of the fabric.
    dead
        Links that carry nothing, ascending: routes go round them (:mod:`tspsim.network.detours`).
    """

    nodes: int
    gpus: int
    mesh: bool
    nics: int = 1
    rails: int = 1
    fabric: str | None = None
    radix: int = 2
    dead: tuple[int, ...] = ()

    # How many, and where the blocks begin.

    @cached_property
    def node_links(self) -> int:
        """Directed links inside one node."""
        return self.gpus * (self.gpus - 1) if self.mesh else 2 * self.gpus

    @cached_property
    def host_start(self) -> int:
        """First link between a GPU and its NIC: ``2·gpu`` up, ``2·gpu + 1`` down."""
        return self.nodes * self.node_links

    @cached_property
    def nic_start(self) -> int:
        """First link between a NIC and its leaf: ``2·nic`` up, ``2·nic + 1`` down."""
        return self.host_start + 2 * self.nodes * self.gpus * (self.fabric is not None)

    @cached_property
    def switch_start(self) -> int:
        """First link between switches."""
        return self.nic_start + 2 * self.nodes * self.nics * (self.fabric is not None)

    @cached_property
    def links(self) -> int:
        """Directed links in all."""
        return self.switch_start + (self.planes * self.clos.links if self.planes else 0)

    @cached_property
    def planes(self) -> int:
        """Clos networks that share no switch."""
        return 0 if self.fabric is None else self.rails if self.fabric == "rails" else 1

    @cached_property
    def rail_leaves(self) -> int:
        """Leaves that serve one rail (where a leaf serves one)."""
        return -(-(self.nodes * self.nics // self.rails) // self.clos.ports)

    @cached_property
    def clos(self) -> Clos:
        """One plane of the fabric."""
        per_rail = self.nodes * self.nics // self.rails
        if self.fabric == "rail_optimised":
            ports = self.radix // 2
            return Clos(self.rails * -(-per_rail // ports), ports, self.radix)
        return Clos.joining(self.nodes * self.nics if self.fabric == "fat_tree" else per_rail, self.radix)

    # Who is where.

    def nic_of(self, gpu: Integers) -> Integers:
        """The NIC (over all nodes) that serves each GPU."""
        node = gpu // self.gpus
        return node * self.nics + gpu % self.gpus * self.nics // self.gpus

    def rail_of(self, gpu: Integers) -> Integers:
        """The rail of each GPU's NIC."""
        return self.nic_of(gpu) % self.rails

    def attachment(self, nic: Integers) -> tuple[Integers, Integers, Integers]:
        """Plane, leaf within the plane, and endpoint number of each NIC."""
        if self.fabric == "fat_tree":
            return np.zeros_like(nic), nic // self.clos.ports, nic
        node, local = np.divmod(nic, self.nics)
        position, rail = np.divmod(local, self.rails)
        endpoint = node * (self.nics // self.rails) + position
        if self.fabric == "rail_optimised":
            return np.zeros_like(nic), rail * self.rail_leaves + endpoint // self.clos.ports, endpoint
        return rail, endpoint // self.clos.ports, endpoint

    # Which way.

    def routes(self, source: ArrayLike, destination: ArrayLike, label: int = 0) -> Integers:
        """Links of many routes at once.

        Parameters
        ----------
        source, destination
            GPUs, of equal length.
        label
            Spreads messages between the same NICs over equal paths; 0 is D-mod-k.

        Returns
        -------
        array of shape (routes, hops)
            Link ids in order; -1 where a route has no such hop. A route to itself has none.

        Raises
        ------
        UnreachableError
            Dead links leave no way.

        Notes
        -----
        Where planes are separate, a message to another rail first hops to the GPU of its own node that sits
        on the destination's rail, and leaves by that GPU's NIC (PXN, NCCL 2.12).
        """
        start, end = np.asarray(source, dtype=np.int64), np.asarray(destination, dtype=np.int64)
        across = start // self.gpus != end // self.gpus
        leave = self.leaving(start, end) if self.fabric == "rails" else start
        usual = self.by_way_of(start, np.where(across, leave, end), end, end, across, _mixed(label))
        return around(self, usual, start, end, _mixed(label)) if self.dead else usual

    @cached_property
    def sound(self) -> Layout:
        """The same with no link dead."""
        return replace(self, dead=()) if self.dead else self

    def interrupted(self, source: ArrayLike, destination: ArrayLike) -> NDArray[np.bool_]:
        """Which of these messages need a detour, or have no way."""
        return crosses(self.sound.routes(source, destination), self.dead)

    def relays(self, source: ArrayLike, destination: ArrayLike) -> int:
        """Hops inside nodes that dead links add to one of these messages, at most."""
        if not self.dead:
            return 0
        ways = self.routes(source, destination), self.sound.routes(source, destination)
        within, usual = ((((way >= 0) & (way < self.host_start)).sum(axis=1)) for way in ways)
        return int((within - usual).max(initial=0)) // (1 if self.mesh else 2)

    def leaving(self, start: Integers, arrive: Integers) -> Integers:
        """With separate planes: the GPU of the own node whose NIC is on the rail of ``arrive``."""
        changes = self.rail_of(start) != self.rail_of(arrive)
        return np.where(changes, start - start % self.gpus + arrive % self.gpus, start)

    def by_way_of(
        self,
        start: Integers,
        leave: Integers,
        arrive: Integers,
        end: Integers,
        across: NDArray[np.bool_],
        spread: int,
    ) -> Integers:
        """Links from ``start`` to ``end``; where ``across``, over the NICs of ``leave`` and ``arrive``."""
        columns = self._inside(start, leave)
        if not across.any():
            return np.stack(columns, axis=1)
        leaving, arriving = self.nic_of(leave), self.nic_of(arrive)
        plane, from_leaf, _ = self.attachment(leaving)
        _, to_leaf, endpoint = self.attachment(arriving)
        inner = self.clos.paths(from_leaf, to_leaf, endpoint + spread)
        inner = np.where(inner < 0, -1, inner + (self.switch_start + plane * self.clos.links)[:, None])
        outer = [
            self.host_start + 2 * leave,
            self.nic_start + 2 * leaving,
            *inner.T,
            self.nic_start + 2 * arriving + 1,
            self.host_start + 2 * arrive + 1,
        ]
        columns += [np.where(across, column, -1) for column in outer]
        if bool((arrive != end).any()):
            columns += self._inside(arrive, end)
        return np.stack(columns, axis=1)

    def _inside(self, start: Integers, end: Integers) -> list[Integers]:
        """Columns of the way between two GPUs of one node (which may be the same GPU: no hop)."""
        node, first = np.divmod(start, self.gpus)
        second = end % self.gpus
        base, moves = node * self.node_links, start != end
        if not self.mesh:
            return [np.where(moves, base + first, -1), np.where(moves, base + self.gpus + second, -1)]
        direct = np.where(moves, base + first * (self.gpus - 1) + second - (second > first), -1)
        if not self._detours:
            return [direct]
        ways = [self._detours.get(link, (link,)) for link in direct.tolist()]
        table = np.full((max(map(len, ways), default=1), len(ways)), -1, dtype=np.int64)
        for row, way in enumerate(ways):
            table[: len(way), row] = way
        return list(table)

    @cached_property
    def _detours(self) -> dict[int, tuple[int, ...]]:
        """The links taken in the place of each dead one inside a node of a mesh."""
        return inside_detours(self) if self.mesh else {}

    # What they join: vertices are GPUs, then node switches, NICs, and each plane's leaves, spines and cores.

    @cached_property
    def switch_vertex(self) -> int:
        """First node switch."""
        return self.nodes * self.gpus

    @cached_property
    def nic_vertex(self) -> int:
        return self.switch_vertex + (0 if self.mesh else self.nodes)

    @cached_property
    def fabric_vertex(self) -> int:
        """First leaf of the first plane."""
        return self.nic_vertex + self.nodes * self.nics * (self.fabric is not None)

    @cached_property
    def plane_vertices(self) -> int:
        return self.clos.leaves + self.clos.spines + self.clos.cores

    def ends(self) -> tuple[Integers, Integers]:
        """Source and target vertex of every link."""
        node = np.repeat(np.arange(self.nodes), self.node_links)
        if self.mesh:
            first, rank = np.divmod(np.arange(self.node_links), self.gpus - 1)
            inner = first, rank + (rank >= first)
            sources, targets = (np.tile(part, self.nodes) + node * self.gpus for part in inner)
        else:
            gpu = np.arange(self.nodes * self.gpus).reshape(self.nodes, self.gpus)
            switch = np.broadcast_to(self.switch_vertex + np.arange(self.nodes)[:, None], gpu.shape)
            sources = np.concatenate([gpu, switch], axis=1).reshape(-1)
            targets = np.concatenate([switch, gpu], axis=1).reshape(-1)
        if self.fabric is None:
            return sources, targets
        gpus, nics = np.arange(self.nodes * self.gpus), np.arange(self.nodes * self.nics)
        plane, leaf, _ = self.attachment(nics)
        pairs = [
            (gpus, self.nic_vertex + self.nic_of(gpus)),
            (self.nic_vertex + nics, self.fabric_vertex + plane * self.plane_vertices + leaf),
        ]
        low, high = self.clos.ends()
        shift = self.fabric_vertex + np.repeat(np.arange(self.planes), self.clos.links) * self.plane_vertices
        forward = [np.stack(pair, axis=1).reshape(-1) for pair in pairs]
        backward = [np.stack(pair[::-1], axis=1).reshape(-1) for pair in pairs]
        return (
            np.concatenate([sources, *forward, np.tile(low, self.planes) + shift]),
            np.concatenate([targets, *backward, np.tile(high, self.planes) + shift]),
        )

    def vertices(self) -> list[int | str]:
        """Names of all vertices: GPUs are their numbers."""
        names: list[int | str] = [*range(self.nodes * self.gpus)]
        if not self.mesh:
            names += [f"node{node}/switch" for node in range(self.nodes)]
        if self.fabric is None:
            return names
        names += [f"node{node}/nic{nic}" for node in range(self.nodes) for nic in range(self.nics)]
        clos = self.clos
        for plane in range(self.planes):
            prefix = f"rail{plane}/" if self.fabric == "rails" else ""
            for leaf in range(clos.leaves):
                rail, position = divmod(leaf, self.rail_leaves)
                by_rail = self.fabric == "rail_optimised"
                names.append(f"rail{rail}/leaf{position}" if by_rail else f"{prefix}leaf{leaf}")
            for spine in range(clos.spines):
                pod, position = divmod(spine, clos.pod_spines)
                inside = f"pod{pod}/" if clos.pods > 1 else ""
                names.append(f"{prefix}{inside}spine{position}")
            names += [f"{prefix}core{core}" for core in range(clos.cores)]
        return names


def _mixed(label: int) -> int:
    """A label's bits well spread; 0 stays 0 (Knuth's multiplicative hashing, TAOCP 3, §6.4)."""
    return (label * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 33
