"""The quotient graph of a cluster, compiled: numbers of links and vertices, and routes.

Repeated parts are the graph of a node (:class:`~tspsim.network.wiring.Wiring`) and of a plane between nodes
(:class:`~tspsim.network.clos.Clos`; or a wiring whose endpoints are nodes, or switches with NICs). GPUs are numbered
node by node. Links are numbered in blocks: the links inside node 0, inside node 1, …; then GPU to NIC and back, NIC to
leaf and back; then the links between switches, plane by plane. An id is computed from the link's number in its part
and the number of parts before it, so that the work for traffic inside one node does not grow with the cluster.
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
    """Numbering and routes of a cluster."""

    #: Number of nodes.
    nodes: int
    #: Compiled links between the GPUs of each node.
    inside: Wiring
    #: NICs a node, and the rails over which they are spread.
    nics: int = 1
    rails: int = 1
    #: ``rails``, ``rail_optimised``, ``fat_tree``, the wiring of the nodes' routers, or None for a single node.
    fabric: str | Wiring | None = None
    #: Ports of a switch of the fabric.
    radix: int = 2
    #: Dead links, ascending: routes avoid them (:mod:`tspsim.network.detours`).
    dead: tuple[int, ...] = ()
    #: Live links of a wired fabric that are used only if there is no other route.
    avoided: tuple[int, ...] = ()
    #: Policy that selects among equal paths.
    routing: Routing = SPREAD
    #: Bandwidth into a leaf over bandwidth out of it; it gives the number of uplinks.
    oversubscription: float = 1.0
    #: Ports of a NIC.
    ports: int = 1
    #: Bytes/s of a NIC, and seconds of a link between switches.
    nic_bytes_per_s: float = 1.0
    switch_s: float = 0.0

    # --- numbers of links -----------------------------------------------------------------------------------

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
        """First link between a NIC and its leaf: ``2·nic`` up, ``2·nic + 1`` down; counted by port with
        :attr:`nic_lanes` > 1."""
        return self.host_start + 2 * self.nodes * self.gpus * (self.fabric is not None)

    @once
    def switch_start(self) -> int:
        """First link between switches."""
        return self.nic_start + 2 * self.nodes * self.nics * self.nic_lanes * (self.fabric is not None)

    @once
    def nic_lanes(self) -> int:
        """Links of a NIC to its leaf in one direction: its ports if a flow stays on one, else one link of their summed
        rate."""
        if self.ports == 1 or isinstance(self.fabric, Wiring):
            return 1
        return self.ports if self.routing.object.by_cable else 1

    @once
    def links(self) -> int:
        """Number of directed links."""
        return self.switch_start + (self.planes * self.plane_links if self.planes else 0)

    @once
    def planes(self) -> int:
        """Number of networks between the nodes that share no switch."""
        return 0 if self.fabric is None else self.rails if self.fabric == "rails" else 1

    @once
    def rail_leaves(self) -> int:
        """Leaves of one rail, in a rail-optimised fabric."""
        return -(-(self.nodes * self.nics // self.rails) // self.clos.ports)

    @once
    def plane(self) -> Clos | Wiring:
        """Network of one plane."""
        if isinstance(self.fabric, Wiring):
            shunned = (*self.dead, *self.avoided)
            dead = tuple(sorted([link - self.switch_start for link in shunned if link >= self.switch_start]))
            return replace(self.fabric, dead=dead) if dead else self.fabric
        return self.clos

    @once
    def plane_links(self) -> int:
        """Directed links between the switches of one plane."""
        return self.clos.links if not isinstance(self.fabric, Wiring) else len(self.fabric.links)

    @once
    def clos(self) -> Clos:
        """Clos network of one plane."""
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

    # --- NICs, rails and planes of GPUs ---------------------------------------------------------------------

    def nic_of(self, gpu: Integers) -> Integers:
        """NIC of each GPU, numbered over all nodes."""
        node = gpu // self.gpus
        return node * self.nics + gpu % self.gpus * self.nics // self.gpus

    def rail_of(self, gpu: Integers) -> Integers:
        """Rail of each GPU's NIC."""
        return self.nic_of(gpu) % self.rails

    @once
    def _leaf(self) -> Integers:
        """Switch of every NIC, in a graph of switches."""
        assert isinstance(self.fabric, Wiring)
        return np.array(self.fabric.attached, dtype=np.int64)

    @once
    def separate_planes(self) -> bool:
        """Whether several planes are connected only through GPUs."""
        if not isinstance(self.fabric, Wiring):
            return self.fabric == "rails"
        return bool(self.fabric.attached) and len(np.unique(self.fabric.islands[self._leaf])) > 1

    def plane_of(self, gpu: Integers) -> Integers:
        """Plane of each GPU's NIC, for separate planes."""
        if not isinstance(self.fabric, Wiring):
            return self.rail_of(gpu)
        return self.fabric.islands[self._leaf[self.nic_of(gpu)]]

    def attachment(self, nic: Integers) -> tuple[Integers, Integers, Integers]:
        """Plane, leaf within the plane, and endpoint number of each NIC."""
        if isinstance(self.fabric, Wiring):
            if self.fabric.attached:
                return np.zeros_like(nic), self._leaf[nic], self.fabric.spread_numbers[nic]
            return np.zeros_like(nic), nic // self.nics, nic
        if self.fabric == "fat_tree":
            return np.zeros_like(nic), nic // self.clos.ports, nic
        node, local = np.divmod(nic, self.nics)
        position, rail = np.divmod(local, self.rails)
        endpoint = node * (self.nics // self.rails) + position
        if self.fabric == "rail_optimised":
            return np.zeros_like(nic), rail * self.rail_leaves + endpoint // self.clos.ports, endpoint
        return rail, endpoint // self.clos.ports, endpoint

    # --- routes ---------------------------------------------------------------------------------------------

    def routes(self, source: ArrayLike, destination: ArrayLike, label: int = 0) -> Integers:
        """Links of many routes.

        Parameters
        ----------
        source, destination
            GPU numbers, arrays of equal length.
        label
            Distinguishes messages between the same NICs, which take different equal paths; 0 is the path that the
            routing policy selects.

        Returns
        -------
        array of shape (routes, hops)
            Link ids in order; -1 after a route's last hop. A route from a GPU to itself has no hops.

        Raises
        ------
        UnreachableError
            Dead links leave no route.

        Notes
        -----
        Where planes are separate, a message to another rail first hops to the GPU of its node on the destination's
        rail, and leaves by that GPU's NIC (PXN, NCCL 2.12).
        """
        start, end = np.asarray(source, dtype=np.int64), np.asarray(destination, dtype=np.int64)
        across = start // self.gpus != end // self.gpus
        leave = self.exit_gpu(start, end) if self.separate_planes else start
        usual = self.routes_via(start, np.where(across, leave, end), end, end, across, _mixed(label))
        return around(self, usual, start, end, _mixed(label)) if self.dead else usual

    @property
    def draws(self) -> bool:
        """Whether a seed decides the paths of flows."""
        return self.fabric is not None and self.routing.object.drawn and self.plane.choices * self.nic_lanes > 1

    @once
    def for_messages(self) -> Layout:
        """Layout for messages outside collectives, whose paths do not depend on other flows."""
        routing = self.routing.for_messages
        return self if routing == self.routing else replace(self, routing=routing)

    @once
    def sound(self) -> Layout:
        """Layout without dead links."""
        return replace(self, dead=()) if self.dead else self

    def interrupted(self, source: ArrayLike, destination: ArrayLike) -> NDArray[np.bool_]:
        """Which of these messages need a detour, or have no route."""
        return crosses(self.sound.routes(source, destination), self.dead)

    def relays(self, source: ArrayLike, destination: ArrayLike) -> int:
        """Most hops inside nodes that dead links add to one of these messages."""
        if not self.dead:
            return 0
        tables = self.routes(source, destination), self.sound.routes(source, destination)
        within, usual = ((((table >= 0) & (table < self.host_start)).sum(axis=1)) for table in tables)
        return int((within - usual).max(initial=0)) // (2 if self.inside.star else 1)

    def exit_gpu(self, start: Integers, arrive: Integers) -> Integers:
        """GPU of the sender's node whose NIC is on the plane of ``arrive``, for separate planes."""
        changes = self.plane_of(start) != self.plane_of(arrive)
        return np.where(changes, start - start % self.gpus + arrive % self.gpus, start)

    def routes_via(
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
        """Links between two GPUs of a node, one column a hop; no hops between a GPU and itself."""
        node, first = np.divmod(start, self.gpus)
        second, base = end % self.gpus, node * self.node_links
        usual = [np.where(column < 0, -1, base + column) for column in self.inside.columns(first, second)]
        if not self._detours:
            return usual
        detours = [self._detours.get(ends, ()) for ends in zip(start.tolist(), end.tolist(), strict=True)]
        routes = np.full((len(detours), max(len(usual), *map(len, detours))), -1, dtype=np.int64)
        for row, (detour, *links) in enumerate(zip(detours, *usual, strict=True)):
            taken = detour or links
            routes[row, : len(taken)] = taken
        return list(routes.T)

    @once
    def _detours(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """(source GPU, target GPU) → links of the detour, for pairs in a node whose direct route has a dead link."""
        return inside_detours(self) if self.dead else {}

    # --- numbers of vertices: GPUs, then node switches, NICs, and each plane's leaves, spines and cores ------

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
        """Attributes of every vertex, by number: its ``kind``, and its ``node`` inside nodes."""
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
        """Names of all vertices; a GPU's name is its number."""
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
    """Hash of a label; 0 stays 0 (Knuth's multiplicative hashing, TAOCP 3, §6.4)."""
    return (label * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 33
