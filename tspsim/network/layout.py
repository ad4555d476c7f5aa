"""The quotient graph of a cluster, compiled: how often each equal part occurs, and which links of it a message takes.

Parts are the graphs of a node (:class:`~tspsim.network.wiring.Wiring`) and of a plane between nodes
(:class:`~tspsim.network.clos.Clos`; or a wiring whose endpoints are the nodes, or switches that NICs hang on). GPUs
are numbered node by node. Links are numbered in blocks: the links inside node 0, inside node 1, …; then GPU to NIC and
back, NIC to leaf and back; then the links between switches, plane by plane. Any id is the part's own number and how
many parts come before, so that traffic that stays in one node never pays for 2,048 of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.memo import once
from .clos import Clos
from .detours import around, crosses, inside_detours
from .routing import SPREAD, Flows, Routing
from .wiring import Wiring

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The shape of a cluster."""

    #: How many.
    nodes: int
    #: What joins the GPUs of each.
    inside: Wiring
    #: NICs a node, and the rails they are spread over.
    nics: int = 1
    rails: int = 1
    #: ``rails``, ``rail_optimised``, ``fat_tree``, the wiring of the nodes' routers, or None for a single node.
    fabric: str | Wiring | None = None
    #: Ports of a switch of the fabric.
    radix: int = 2
    #: Links that carry nothing, ascending: routes go round them (:mod:`tspsim.network.detours`).
    dead: tuple[int, ...] = ()
    #: Links of a wired fabric that are sound and not used where there is another way.
    avoided: tuple[int, ...] = ()
    #: Which of equal paths a flow takes.
    routing: Routing = SPREAD
    #: Bandwidth into a leaf over bandwidth out of it: how many cables lead up.
    oversubscription: float = 1.0
    #: Of a NIC, to its leaf.
    ports: int = 1
    #: Bytes/s of a NIC, and seconds of a link between switches.
    nic_bytes_per_s: float = 1.0
    switch_s: float = 0.0

    # How many, and where the blocks begin.

    @once
    def gpus(self) -> int:
        """GPUs of a node."""
        return self.inside.endpoints

    @once
    def mesh(self) -> bool:
        """Whether every two GPUs of a node have a link of their own."""
        return self.inside.complete

    @once
    def node_links(self) -> int:
        """Directed links inside one node."""
        return len(self.inside.links)

    @once
    def host_start(self) -> int:
        """First link between a GPU and its NIC: ``2·gpu`` up, ``2·gpu + 1`` down."""
        return self.nodes * self.node_links

    @once
    def nic_start(self) -> int:
        """First link between a NIC and its leaf: ``2·nic`` up, ``2·nic + 1`` down; by port, where ports are apart."""
        return self.host_start + 2 * self.nodes * self.gpus * (self.fabric is not None)

    @once
    def switch_start(self) -> int:
        """First link between switches."""
        return self.nic_start + 2 * self.nodes * self.nics * self.nic_lanes * (self.fabric is not None)

    @once
    def nic_lanes(self) -> int:
        """Links of a NIC to its leaf, each way: its ports where flows stay on one, else one of their summed rate."""
        if self.ports == 1 or isinstance(self.fabric, Wiring):
            return 1
        return self.ports if self.routing.object.by_cable else 1

    @once
    def links(self) -> int:
        """Directed links in all."""
        return self.switch_start + (self.planes * self.plane_links if self.planes else 0)

    @once
    def planes(self) -> int:
        """Networks between the nodes that share no switch."""
        return 0 if self.fabric is None else self.rails if self.fabric == "rails" else 1

    @once
    def rail_leaves(self) -> int:
        """Leaves that serve one rail (where a leaf serves one)."""
        return -(-(self.nodes * self.nics // self.rails) // self.clos.ports)

    @once
    def plane(self) -> Clos | Wiring:
        """One of them."""
        if isinstance(self.fabric, Wiring):
            shunned = (*self.dead, *self.avoided)
            dead = tuple(sorted([link - self.switch_start for link in shunned if link >= self.switch_start]))
            return replace(self.fabric, dead=dead) if dead else self.fabric
        return self.clos

    @once
    def plane_links(self) -> int:
        """Directed links of one."""
        return self.clos.links if not isinstance(self.fabric, Wiring) else len(self.fabric.links)

    @once
    def clos(self) -> Clos:
        """One plane of switches."""
        per_rail = self.nodes * self.nics // self.rails
        if self.fabric == "rail_optimised":
            ports = self.radix // 2
            plane = Clos(self.rails * -(-per_rail // ports), ports, self.radix)
        else:
            plane = Clos.joining(self.nodes * self.nics if self.fabric == "fat_tree" else per_rail, self.radix)
        if self.routing.object.by_cable:
            plane = plane.by_cable(self.oversubscription)
        rates = (self.nic_bytes_per_s, self.oversubscription, self.switch_s)
        return replace(plane, port_bytes_per_s=rates[0], oversubscription=rates[1], latency_s=rates[2])

    # Who is where.

    def nic_of(self, gpu: Integers) -> Integers:
        """The NIC (over all nodes) that serves each GPU."""
        node = gpu // self.gpus
        return node * self.nics + gpu % self.gpus * self.nics // self.gpus

    def rail_of(self, gpu: Integers) -> Integers:
        """The rail of each GPU's NIC."""
        return self.nic_of(gpu) % self.rails

    @once
    def _leaf(self) -> Integers:
        """The switch that every NIC hangs on, of a graph of switches."""
        assert isinstance(self.fabric, Wiring)
        return np.array(self.fabric.attached, dtype=np.int64)

    @once
    def separate(self) -> bool:
        """Whether there are planes that only GPUs join."""
        if not isinstance(self.fabric, Wiring):
            return self.fabric == "rails"
        return bool(self.fabric.attached) and len(np.unique(self.fabric.islands[self._leaf])) > 1

    def plane_of(self, gpu: Integers) -> Integers:
        """With separate planes: that of each GPU's NIC."""
        if not isinstance(self.fabric, Wiring):
            return self.rail_of(gpu)
        return self.fabric.islands[self._leaf[self.nic_of(gpu)]]

    def attachment(self, nic: Integers) -> tuple[Integers, Integers, Integers]:
        """Plane, leaf within the plane, and endpoint number of each NIC."""
        if isinstance(self.fabric, Wiring):
            if self.fabric.attached:
                return np.zeros_like(nic), self._leaf[nic], self.fabric.turns[nic]
            return np.zeros_like(nic), nic // self.nics, nic
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
            Spreads messages between the same NICs over equal paths; 0 is what the routing policy chooses.

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
        leave = self.leaving(start, end) if self.separate else start
        usual = self.by_way_of(start, np.where(across, leave, end), end, end, across, _mixed(label))
        return around(self, usual, start, end, _mixed(label)) if self.dead else usual

    @property
    def draws(self) -> bool:
        """Whether a seed decides which way flows take."""
        return self.fabric is not None and self.routing.object.drawn and self.plane.choices * self.nic_lanes > 1

    @once
    def of_messages(self) -> Layout:
        """The same as messages see it that belong to no collective: no other flow decides about theirs."""
        routing = self.routing.of_messages
        return self if routing == self.routing else replace(self, routing=routing)

    @once
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
        return int((within - usual).max(initial=0)) // (2 if self.inside.star else 1)

    def leaving(self, start: Integers, arrive: Integers) -> Integers:
        """With separate planes: the GPU of the own node whose NIC is on the plane of ``arrive``."""
        changes = self.plane_of(start) != self.plane_of(arrive)
        return np.where(changes, start - start % self.gpus + arrive % self.gpus, start)

    def by_way_of(
        self, start: Integers, leave: Integers, arrive: Integers, end: Integers, across: NDArray[np.bool_], spread: int
    ) -> Integers:
        """Links from ``start`` to ``end``; where ``across``, over the NICs of ``leave`` and ``arrive``."""
        if not across.any():
            return np.stack(self._inside(start, leave), axis=1)
        if across.all():
            return self._over_nics(start, leave, arrive, end, spread)
        far, near = np.flatnonzero(across), np.flatnonzero(~across)
        parts = [
            (far, self._over_nics(start[far], leave[far], arrive[far], end[far], spread)),
            (near, np.stack(self._inside(start[near], leave[near]), axis=1)),
        ]
        routes = np.full((len(start), max(part.shape[1] for _, part in parts)), -1, dtype=np.int64)
        for rows, part in parts:
            routes[rows, : part.shape[1]] = part
        return routes

    def _over_nics(self, start: Integers, leave: Integers, arrive: Integers, end: Integers, spread: int) -> Integers:
        """Links from ``start`` to ``end`` on other nodes, over the NICs of ``leave`` and ``arrive``."""
        columns = self._inside(start, leave)
        leaving, arriving = self.nic_of(leave), self.nic_of(arrive)
        plane, from_leaf, _ = self.attachment(leaving)
        _, to_leaf, endpoint = self.attachment(arriving)
        chosen = endpoint
        if isinstance(self.plane, Clos) or self.plane.attached:
            leaves = plane * (self.plane.leaves if isinstance(self.plane, Clos) else 0)
            flows = Flows(leaving, arriving, from_leaf + leaves, to_leaf + leaves, endpoint)
            chosen = self.routing.object.choose(self.plane, flows, self.routing.seed)
        inner = self.plane.paths(from_leaf, to_leaf, chosen + spread)
        ports = chosen // self.plane.choices
        up, down = ports % self.nic_lanes, ports // self.nic_lanes % self.nic_lanes
        inner = np.where(inner < 0, -1, inner + (self.switch_start + plane * self.plane_links)[:, None])
        outer = [
            self.host_start + 2 * leave,
            self.nic_start + 2 * (leaving * self.nic_lanes + up),
            *inner.T,
            self.nic_start + 2 * (arriving * self.nic_lanes + down) + 1,
            self.host_start + 2 * arrive + 1,
        ]
        columns += outer
        if bool((arrive != end).any()):
            columns += self._inside(arrive, end)
        return np.stack(columns, axis=1)

    def _inside(self, start: Integers, end: Integers) -> list[Integers]:
        """Columns of the way between two GPUs of one node (which may be the same GPU: no hop)."""
        node, first = np.divmod(start, self.gpus)
        second, base = end % self.gpus, node * self.node_links
        usual = [np.where(column < 0, -1, base + column) for column in self.inside.columns(first, second)]
        if not self._detours:
            return usual
        ways = [self._detours.get(ends, ()) for ends in zip(start.tolist(), end.tolist(), strict=True)]
        routes = np.full((len(ways), max(len(usual), *map(len, ways))), -1, dtype=np.int64)
        for row, (way, *links) in enumerate(zip(ways, *usual, strict=True)):
            taken = way or links
            routes[row, : len(taken)] = taken
        return list(routes.T)

    @once
    def _detours(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The links taken between two GPUs of a node whose usual way is interrupted."""
        return inside_detours(self) if self.dead else {}

    # What they join: vertices are GPUs, then node switches, NICs, and each plane's leaves, spines and cores.

    @once
    def switch_vertex(self) -> int:
        """First node switch."""
        return self.nodes * self.gpus

    @once
    def nic_vertex(self) -> int:
        return self.switch_vertex + self.nodes * len(self.inside.switches)

    @once
    def fabric_vertex(self) -> int:
        """First leaf of the first plane."""
        return self.nic_vertex + self.nodes * self.nics * (self.fabric is not None)

    def ends(self) -> tuple[Integers, Integers]:
        """Source and target vertex of every link."""
        node = np.repeat(np.arange(self.nodes), self.node_links)
        switches = self.switch_vertex - self.gpus + node * len(self.inside.switches)
        sources, targets = (
            np.where((local := np.tile(end, self.nodes)) < self.gpus, node * self.gpus, switches) + local
            for end in self.inside.ends
        )
        if self.fabric is None:
            return sources, targets
        gpus, nics = np.arange(self.nodes * self.gpus), np.arange(self.nodes * self.nics)
        plane, leaf, _ = self.attachment(nics)
        pairs = [
            (gpus, self.nic_vertex + self.nic_of(gpus)),
            (
                np.repeat(self.nic_vertex + nics, self.nic_lanes),
                np.repeat(self.fabric_vertex + plane * self.plane.vertices + leaf, self.nic_lanes),
            ),
        ]
        low, high = self.plane.ends
        shift = self.fabric_vertex + np.repeat(np.arange(self.planes), self.plane_links) * self.plane.vertices
        forward = [np.stack(pair, axis=1).reshape(-1) for pair in pairs]
        backward = [np.stack(pair[::-1], axis=1).reshape(-1) for pair in pairs]
        return (
            np.concatenate([sources, *forward, np.tile(low, self.planes) + shift]),
            np.concatenate([targets, *backward, np.tile(high, self.planes) + shift]),
        )

    def vertex_facts(self) -> Iterator[dict[str, Any]]:
        """What every vertex is, in the same order: its ``kind``, and the ``node`` that it is in."""
        inside = [("gpu", self.gpus), ("switch", len(self.inside.switches))]
        for kind, count in [*inside, *([("nic", self.nics)] if self.fabric is not None else [])]:
            yield from ({"kind": kind, "node": node} for node in range(self.nodes) for _ in range(count))
        if isinstance(self.fabric, Wiring):
            others = self.fabric.vertex_kinds or ("router",) * self.fabric.vertices
            yield from ({"kind": kind} for kind in others)
        elif self.fabric is not None:
            clos = self.clos
            stages = [("leaf", clos.leaves), ("spine", clos.spines), ("core", clos.cores)] * self.planes
            yield from ({"kind": kind} for kind, count in stages for _ in range(count))

    def vertices(self) -> list[int | str]:
        """Names of all vertices: GPUs are their numbers."""
        names: list[int | str] = [*range(self.nodes * self.gpus)]
        names += [f"node{node}/{switch}" for node in range(self.nodes) for switch in self.inside.switches]
        if self.fabric is None:
            return names
        names += [f"node{node}/nic{nic}" for node in range(self.nodes) for nic in range(self.nics)]
        if isinstance(self.fabric, Wiring):
            routers = self.fabric.leaves or [f"node{node}/router" for node in range(self.nodes)]
            return [*names, *routers, *self.fabric.switches]
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
